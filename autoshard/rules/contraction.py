"""Contractions: dot_general."""

from __future__ import annotations

import math

from autoshard.rules.base import Combine, Equation, OpRule, RuleBuilder, rule_for


@rule_for("dot_general")
def dot_general(equation: Equation) -> OpRule:
    """Batch and free dimensions are parallel, contracted ones sum; 2 x (product of all extents) flops."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs, rhs = (t.shape for t in equation.operands)
    b = RuleBuilder(equation)
    left: dict[int, tuple[int, ...]] = {}
    right: dict[int, tuple[int, ...]] = {}
    for i, j in zip(lhs_batch, rhs_batch):
        left[i] = right[j] = b.factor(lhs[i])
    for i, j in zip(lhs_contract, rhs_contract):
        left[i] = right[j] = b.factor(lhs[i], Combine.SUM)
    lhs_free = [i for i in range(len(lhs)) if i not in left]
    rhs_free = [j for j in range(len(rhs)) if j not in right]
    left |= {i: b.factor(lhs[i]) for i in lhs_free}
    right |= {j: b.factor(rhs[j]) for j in rhs_free}
    result = [left[i] for i in (*lhs_batch, *lhs_free)] + [right[j] for j in rhs_free]
    extents = math.prod(lhs) * math.prod(rhs[j] for j in rhs_free)
    return b.build(
        [tuple(left[i] for i in range(len(lhs))), tuple(right[j] for j in range(len(rhs)))],
        [tuple(result)],
        flops=2.0 * extents,
        pinned=True,
    )
