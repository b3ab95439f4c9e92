"""Contractions: matrix products, ragged ones, convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.rules.base import Combine, Dims, Equation, OpRule, RuleBuilder, rule_for, whole
from autoshard.rules.windows import Window


@rule_for("dot_general")
def dot_general(equation: Equation) -> OpRule:
    """Batch and free dimensions are parallel, contracted ones sum; 2 x (product of all extents) flops."""
    b = RuleBuilder(equation)
    left, right, result = _product(b, equation.params["dimension_numbers"], equation)
    return b.build([left, right], [result], flops=_product_flops(equation), pinned=True)


def _product(
    b: RuleBuilder, numbers: tuple[tuple[Sequence[int], Sequence[int]], ...], equation: Equation
) -> tuple[Dims, Dims, Dims]:
    """Dimensions of both operands and of the result of a matrix product."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
    lhs, rhs = (t.shape for t in equation.operands[:2])
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
    return tuple(left[i] for i in range(len(lhs))), tuple(right[j] for j in range(len(rhs))), tuple(result)


def _product_flops(equation: Equation) -> float:
    (_, rhs_contract), (_, rhs_batch) = equation.params["dimension_numbers"]
    lhs, rhs = (t.shape for t in equation.operands[:2])
    return 2.0 * math.prod(lhs) * math.prod(n for j, n in enumerate(rhs) if j not in (*rhs_contract, *rhs_batch))


@rule_for("scaled_dot")
def scaled_dot(equation: Equation) -> OpRule:
    """A matrix product of block-scaled operands: the scales are split as what they scale, contracted ones by blocks."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs, rhs, lhs_scale, rhs_scale = (t.shape for t in equation.operands)
    b = RuleBuilder(equation)
    blocks = [math.gcd(lhs_scale[i], rhs_scale[j]) for i, j in zip(lhs_contract, rhs_contract)]
    contracted = [b.factor(n, Combine.SUM) for n in blocks]
    left = {i: b.factor(n) for i, n in enumerate(lhs) if i not in lhs_contract} | dict(zip(lhs_contract, contracted))
    right = {j: b.factor(n) for j, n in enumerate(rhs) if j not in (*rhs_contract, *rhs_batch)}
    result = [left[i] for i in lhs_batch]
    result += [left[i] for i in range(len(lhs)) if i not in (*lhs_batch, *lhs_contract)]
    result += list(right.values())
    right |= dict(zip(rhs_contract, contracted)) | {j: left[i] for i, j in zip(lhs_batch, rhs_batch)}
    sides = [tuple(left[i] for i in range(len(lhs))), tuple(right[j] for j in range(len(rhs)))]
    flops = _product_flops(equation)
    return b.build([*sides, *sides], [tuple(result)], flops=flops, pinned=True, local_factors=b.every)


@rule_for("ragged_dot_general")
def ragged_dot_general(equation: Equation) -> OpRule:
    """A matrix product with a matrix for each group of rows; the sizes of the groups are data.

    Rows are split by cutting the groups at the shards' borders, groups by letting each device multiply the rows of
    its own groups: partial sums where the result has rows, parallel where it has groups. All of it is local.
    """
    numbers = equation.params["ragged_dot_dimension_numbers"]
    lhs, rhs, sizes = equation.operands
    (lhs_contract, rhs_contract), (lhs_batch, _) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    if len(sizes.shape) != 1 or ragged in lhs_batch or lhs_batch:
        return whole(equation, ruled=True, reason="groups that differ between batches")
    b = RuleBuilder(equation)
    groups = sizes.shape[0]
    contracts = ragged in lhs_contract
    left: dict[int, tuple[int, ...]] = {}
    right: dict[int, tuple[int, ...]] = {}
    for i, j in zip(lhs_contract, rhs_contract):
        left[i] = right[j] = b.factor(lhs.shape[i], Combine.SUM)
    group = b.factor(groups, Combine.PARALLEL if contracts else Combine.SUM)
    right |= {j: group for j in numbers.rhs_group_dimensions}
    lhs_free = [i for i in range(len(lhs.shape)) if i not in left]
    rhs_free = [j for j in range(len(rhs.shape)) if j not in right]
    left |= {i: b.factor(lhs.shape[i]) for i in lhs_free}
    right |= {j: b.factor(rhs.shape[j]) for j in rhs_free}
    result = [group] if contracts else []
    result += [left[i] for i in lhs_free] + [right[j] for j in rhs_free]
    return b.build(
        [tuple(left[i] for i in range(len(lhs.shape))), tuple(right[j] for j in range(len(rhs.shape))), ((),)],
        [tuple(result)],
        flops=2.0 * lhs.elements * math.prod(rhs.shape[j] for j in rhs_free),
        pinned=True,
        local_factors=b.every,
    )


@rule_for("conv_general_dilated")
def conv_general_dilated(equation: Equation) -> OpRule:
    """Batch and output channels are parallel, input channels sum, groups split both; windows reach into neighbours.

    With feature groups the channels are (group, channel in group) on all three arrays, with batch groups the batch is.
    """
    p = equation.params
    lhs, rhs = (t.shape for t in equation.operands)
    out = equation.results[0].shape
    left, right, result = (list[tuple[int, ...]]([()] * len(lhs)) for _ in range(3))
    numbers = p["dimension_numbers"]
    (n, c, *spatial), (o, i, *_), (on, oc, *out_spatial) = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    features, batches = p["feature_group_count"], p["batch_group_count"]
    b = RuleBuilder(equation)
    by_feature, by_batch = b.factor(features), b.factor(batches)
    left[n] = by_batch + b.factor(lhs[n] // batches)
    result[on] = left[n][len(by_batch) :]
    inside = b.factor(rhs[i], Combine.SUM)
    left[c], right[i] = by_feature + inside, inside
    right[o] = result[oc] = by_feature + by_batch + b.factor(rhs[o] // (features * batches))
    for k, (d, od) in enumerate(zip(spatial, out_spatial)):
        window = Window(
            extent=rhs[numbers.rhs_spec[2 + k]],
            stride=p["window_strides"][k],
            padding=p["padding"][k],
            base_dilation=p["lhs_dilation"][k],
            window_dilation=p["rhs_dilation"][k],
        )
        left[d] = result[od] = window.factor(b, lhs[d], out[od])
    window_size = math.prod(rhs[d] for d in numbers.rhs_spec[2:])
    return b.build(
        [tuple(left), tuple(right)],
        [tuple(result)],
        flops=2.0 * math.prod(out) * rhs[i] * window_size,
        pinned=True,
        local_factors=b.every,
    )
