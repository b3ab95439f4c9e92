"""Sums over mesh axes that are left open: which values of a program may stay partial.

A contraction whose summed dimension is split leaves every device with a partial sum. Instead of ending each at once, it
pays to carry them through the linear operations that follow, if these add several of them up: the gradients of q, k
and v are then reduced in one collective instead of three, those of a matrix used twice in one instead of two.

A value may stay open if it is used once, by an operation that is linear in it, and if the chain of such operations
reaches one that joins two open values or sums over a dimension.
"""

from __future__ import annotations

from autoshard.graph import LITERAL, Graph, Op
from autoshard.rules.base import Combine

JOINS = frozenset({"add", "add_any", "sub"})
"""Linear in both operands at once: either both are open over the same axes, or none is."""

SHRINKS = frozenset({"reduce_sum"})
"""Linear, with a smaller result."""

KEEPS = frozenset({"neg", "transpose"})
"""Linear in their one operand."""


def open_values(graph: Graph) -> frozenset[int]:
    """The values that may be held as partial sums over mesh axes.

    Args:
        graph: The traced program.

    Returns:
        Their numbers. For each operation, either all of its operands that are not literals are among them, or none.
    """
    summed = _summed(graph)
    found: set[int] = set()
    for position in reversed(range(len(graph.ops))):
        op = graph.ops[position]
        operands = [v for v in op.operands if v != LITERAL]
        if not operands or not all(v in summed and _single_use(graph, v, op) for v in operands):
            continue
        ends_well = op.primitive in JOINS | SHRINKS and LITERAL not in op.operands
        if ends_well or (_is_linear(op) and op.results[0] in found):
            found.update(operands)
    return frozenset(found)


def _summed(graph: Graph) -> set[int]:
    """Values that a split can leave as partial sums, if their users allow it."""
    summed: set[int] = set()
    for op in graph.ops:
        if len(op.results) != 1 or graph.is_constant(op):
            continue
        operands = [v for v in op.operands if v != LITERAL]
        carried = _is_linear(op) and bool(operands) and all(v in summed for v in operands)
        if carried or _sums(op):
            summed.add(op.results[0])
    return summed


def _sums(op: Op) -> bool:
    rule = op.rule
    return rule.fixed is None and not rule.aliases and any(f.combine is Combine.SUM for f in rule.factors)


def _is_linear(op: Op) -> bool:
    """Whether the sum of results is the result of the sums, without a rounding of its own."""
    if op.primitive in JOINS:
        return LITERAL not in op.operands
    if op.primitive == "mul":
        return LITERAL in op.operands
    return op.primitive in KEEPS | SHRINKS


def _single_use(graph: Graph, value: int, user: Op) -> bool:
    """Whether an operation is the only user, in the same loop."""
    maker = graph.ops[graph.values[value].producer[0]]
    return len(graph.uses(value)) == 1 and value not in graph.outputs and maker.trips == user.trips
