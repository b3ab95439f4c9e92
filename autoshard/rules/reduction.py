"""Reductions, arg-reductions, running folds and the best k."""

from __future__ import annotations

from autoshard.rules.base import Combine, Equation, OpRule, RuleBuilder, rule_for, unsplit

FOLDS = {
    "reduce_sum": Combine.SUM,
    "reduce_max": Combine.EXTREME,
    "reduce_min": Combine.EXTREME,
    "reduce_prod": Combine.EXTREME,
    "reduce_and": Combine.EXTREME,
    "reduce_or": Combine.EXTREME,
    "argmax": Combine.ARG,
    "argmin": Combine.ARG,
}

MERGED = frozenset({"reduce_sum", "reduce_max", "reduce_min", "argmax", "argmin"})
"""What a per-shard region can end in one collective over all axes; JAX has no all-reduce for products and booleans."""


@rule_for(*FOLDS)
def reduction(equation: Equation) -> OpRule:
    """The reduced dimensions combine as the table says; the others are parallel."""
    axes = set(equation.params["axes"])
    combine = FOLDS[equation.primitive]
    b = RuleBuilder(equation)
    (operand,) = equation.operands
    dims = tuple(b.factor(n, combine if i in axes else Combine.PARALLEL) for i, n in enumerate(operand.shape))
    kept = tuple(dim for i, dim in enumerate(dims) if i not in axes)
    return b.build([dims], [kept], flops=float(operand.elements), merges=equation.primitive in MERGED)


@rule_for("reduce_xor", "reduce")
def opaque_reduction(equation: Equation) -> OpRule:
    """Whole along the reduced dimensions: XLA has no all-reduce for exclusive or, nor for a function of the user's."""
    axes = set(equation.params["axes"] if "axes" in equation.params else equation.params["dimensions"])
    b = RuleBuilder(equation)
    count = len(equation.results)
    operand = equation.operands[0]
    dims = tuple(() if i in axes else b.factor(n) for i, n in enumerate(operand.shape))
    kept = tuple(dim for i, dim in enumerate(dims) if i not in axes)
    initial = [unsplit(t) for t in equation.operands[count:]] if equation.primitive == "reduce" else []
    return b.build([dims] * count + initial, [kept] * count, flops=float(operand.elements))


@rule_for("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(equation: Equation) -> OpRule:
    """Along the axis that is accumulated, every shard adds the total of those before it."""
    axis = equation.params["axis"]
    b = RuleBuilder(equation)
    (operand,) = equation.operands
    dims = tuple(b.factor(n, Combine.PREFIX if i == axis else Combine.PARALLEL) for i, n in enumerate(operand.shape))
    return b.build([dims], [dims], flops=float(operand.elements))


@rule_for("top_k")
def top_k(equation: Equation) -> OpRule:
    """The k best of every shard are gathered, and the best k of those chosen; XLA would gather everything."""
    k = equation.params["k"]
    b = RuleBuilder(equation)
    (operand,) = equation.operands
    axis = equation.params.get("axis", len(operand.shape) - 1)
    dims = tuple(b.factor(n, Combine.ARG, least=k) if i == axis else b.factor(n) for i, n in enumerate(operand.shape))
    kept = tuple(() if i == axis else entry for i, entry in enumerate(dims))
    return b.build([dims], [kept, kept], flops=float(operand.elements), local_factors=b.every)


@rule_for("approx_top_k")
def approx_top_k(equation: Equation) -> OpRule:
    """Whole along the searched dimension: the bins of the approximation must not depend on the split."""
    axis = equation.params["reduction_dimension"] % len(equation.operands[0].shape)
    b = RuleBuilder(equation)
    (operand,) = equation.operands
    dims = tuple(() if i == axis else b.factor(n) for i, n in enumerate(operand.shape))
    return b.build([dims], [dims, dims], flops=float(operand.elements), local_factors=b.every)
