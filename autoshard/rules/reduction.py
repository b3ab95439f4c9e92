"""Reductions, arg-reductions and cumulative operations."""

from __future__ import annotations

from autoshard.rules.base import Combine, Equation, OpRule, RuleBuilder, rule_for

REDUCTIONS = {
    "reduce_sum": Combine.SUM,
    "reduce_max": Combine.EXTREME,
    "reduce_min": Combine.EXTREME,
    "reduce_prod": Combine.EXTREME,
    "reduce_and": Combine.EXTREME,
    "reduce_or": Combine.EXTREME,
    "reduce_xor": Combine.EXTREME,
    "argmax": Combine.ARG,
    "argmin": Combine.ARG,
}


@rule_for(*REDUCTIONS)
def reduction(equation: Equation) -> OpRule:
    """The reduced dimensions combine as the table says; the others are parallel."""
    axes = set(equation.params["axes"])
    combine = REDUCTIONS[equation.primitive]
    b = RuleBuilder(equation)
    (operand,) = equation.operands
    dims = tuple(b.factor(n, combine if i in axes else Combine.PARALLEL) for i, n in enumerate(operand.shape))
    kept = tuple(dim for i, dim in enumerate(dims) if i not in axes)
    return b.build([dims], [kept], flops=float(operand.elements))


@rule_for("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(equation: Equation) -> OpRule:
    """Whole along the axis that is accumulated."""
    axis = equation.params["axis"]
    b = RuleBuilder(equation)
    (operand,) = equation.operands
    dims = tuple(() if i == axis else b.factor(n) for i, n in enumerate(operand.shape))
    return b.build([dims], [dims], flops=float(operand.elements))
