"""Random numbers and keys: counters run along the result's dimensions, so every shard makes its own part."""

from __future__ import annotations

from autoshard.rules.base import Dims, Equation, OpRule, RuleBuilder, rule_for


@rule_for("random_bits", "random_split")
def drawn(equation: Equation) -> OpRule:
    """Dimensions of the keys come first, then those that are drawn; all are free."""
    (keys,) = equation.operands
    (result,) = equation.results
    b = RuleBuilder(equation)
    dims = b.factors_of(result.shape)
    return b.build([dims[: len(keys.shape)]], [dims], flops=float(result.elements) * 100)


@rule_for("random_seed", "random_wrap", "random_unwrap", "random_fold_in", "random_clone", "to_edtype", "from_edtype")
def keyed(equation: Equation) -> OpRule:
    """One parallel factor per dimension of the keys; the words of a key are never split."""
    b = RuleBuilder(equation)
    rank = min(len(t.shape) for t in (*equation.operands[:1], *equation.results))
    keys = b.factors_of(equation.results[0].shape[:rank])

    def entry(shape: tuple[int, ...]) -> Dims:
        return keys + ((),) * (len(shape) - rank) if len(shape) >= rank else ((),) * len(shape)

    return b.build(
        [entry(t.shape) for t in equation.operands], [entry(t.shape) for t in equation.results], fusible=True
    )


@rule_for("random_gamma")
def random_gamma(equation: Equation) -> OpRule:
    """Dimensions of the keys are parallel; all samples of one key are drawn from its splits, in one place."""
    keys, shape = equation.operands
    b = RuleBuilder(equation)
    dims = b.factors_of(keys.shape)
    rest: Dims = ((),) * (len(shape.shape) - len(dims))
    flops = float(shape.elements) * 1000
    return b.build([dims, dims + rest], [dims + rest], flops=flops, pinned=True, local_factors=b.every)
