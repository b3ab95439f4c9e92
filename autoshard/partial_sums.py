"""Sums over mesh axes that are left open: which values of a program may stay partial.

A contraction whose summed dimension is split leaves every device with a partial sum. Instead of ending each at once, it
pays to carry them through the linear operations that follow, if these add several of them up: the gradients of q, k
and v are then reduced in one collective instead of three, those of a matrix used twice in one instead of two.

A value may stay open if it is used once, by an operation that is linear in it, and if the chain of such operations
reaches one that joins two open values or sums over a dimension. A loop's carry to which every iteration adds may stay
open from the first iteration to the last: gradients that are accumulated are then reduced once, after the loop.
"""

from __future__ import annotations

from autoshard.graph import LITERAL, Graph, Op
from autoshard.rules.base import Combine

JOINS = frozenset({"add", "add_any", "sub"})
"""Linear in both operands at once: either both are open over the same axes, or none is."""

SHRINKS = frozenset({"reduce_sum"})
"""Linear, with a smaller result."""

KEEPS = frozenset({"neg", "transpose", "squeeze"})
"""Linear in their one operand."""


def open_values(graph: Graph) -> frozenset[int]:
    """The values that may be held as partial sums over mesh axes.

    Args:
        graph: The traced program.

    Returns:
        Their numbers. For each operation, either all of its operands that are not literals are among them, or none.
    """
    carries = [op for op in graph.ops if _accumulates(graph, op)]
    while True:
        summed = _summed(graph, {op.results[0] for op in carries})
        found = _open(graph, summed, {op.operands[1] for op in carries})
        kept = [op for op in carries if op.operands[1] in summed and op.results[0] in found]
        if len(kept) == len(carries):
            return frozenset(found)
        carries = kept


def _accumulates(graph: Graph, op: Op) -> bool:
    """Whether a carry is read once and written once in an iteration."""
    if op.primitive != "scan_carry" or op.operands[1] == LITERAL:
        return False
    inside, following = op.results[0], op.operands[1]
    uses = graph.uses(inside)
    return len(uses) == 1 and _single_use(graph, inside, graph.ops[uses[0].op]) and _single_use(graph, following, op)


def _open(graph: Graph, summed: set[int], carried: set[int]) -> set[int]:
    """The open values, if those that are carried on to the next iteration are."""
    found = set(carried)
    for op in reversed(graph.ops):
        operands = [v for v in op.operands if v != LITERAL]
        if not operands or not all(v in summed and _single_use(graph, v, op) for v in operands):
            continue
        ends_well = op.primitive in JOINS | SHRINKS and LITERAL not in op.operands
        if ends_well or (_is_linear(op) and op.results[0] in found):
            found.update(operands)
    return found


def _summed(graph: Graph, carried: set[int]) -> set[int]:
    """Values that a split can leave as partial sums, if their users allow it and these are partial sums."""
    summed = set(carried)
    for op in graph.ops:
        if len(op.results) != 1 or graph.is_constant(op):
            continue
        operands = [v for v in op.operands if v != LITERAL]
        passed_on = _is_linear(op) and bool(operands) and all(v in summed for v in operands)
        if passed_on or _sums(op):
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
    return op.primitive in KEEPS | SHRINKS or _renames(op)


def _renames(op: Op) -> bool:
    """Whether it is a reshape that adds or drops dimensions of size one, as gradients of biases have.

    Others are linear, too; but few sums meet only after one, and each costs every product before it its open choices.
    """
    if op.primitive != "reshape":
        return False
    before, after = ([n for n in facts.shape if n != 1] for facts in (op.equation.operands[0], op.equation.results[0]))
    return before == after


def _single_use(graph: Graph, value: int, user: Op) -> bool:
    """Whether an operation is the only user, in the same loop."""
    maker = graph.ops[graph.values[value].producer[0]]
    return len(graph.uses(value)) == 1 and value not in graph.outputs and maker.trips == user.trips
