"""Operations that rearrange elements: reshape, transpose, broadcast, slice, pad, concatenate."""

from __future__ import annotations

import math
from collections.abc import Iterable

from autoshard.rules.base import Combine, Dims, Equation, OpRule, RuleBuilder, rule_for


@rule_for("transpose")
def transpose(equation: Equation) -> OpRule:
    """Dimensions change places."""
    b = RuleBuilder(equation)
    dims = b.factors_of(equation.operands[0].shape)
    return b.build([dims], [tuple(dims[i] for i in equation.params["permutation"])], fusible=True)


@rule_for("broadcast_in_dim")
def broadcast_in_dim(equation: Equation) -> OpRule:
    """New dimensions are free; an operand dimension of size one is stretched."""
    b = RuleBuilder(equation)
    operand, *dynamic_sizes = equation.operands
    (result,) = equation.results
    dims = b.factors_of(result.shape)
    places = equation.params["broadcast_dimensions"]
    kept = tuple(dims[j] if n == result.shape[j] else () for n, j in zip(operand.shape, places))
    scalars: list[Dims] = [((),) * len(t.shape) for t in dynamic_sizes]
    return b.build([kept, *scalars], [dims], fusible=True)


@rule_for("squeeze")
def squeeze(equation: Equation) -> OpRule:
    """Dimensions of size one come or go."""
    return _regroup(equation)


@rule_for("reshape")
def reshape(equation: Equation) -> OpRule:
    """Dimensions split and merge into common factors; what has none stays whole."""
    return _regroup(equation)


def _regroup(equation: Equation) -> OpRule:
    """Walk both shapes from the major end and cut each dimension into the factors it shares with the other shape.

    While the remaining extents divide one another the smaller one is a factor of both. Otherwise their greatest common
    divisor is split off as the major factor, and the rest of the group stays whole up to the next common boundary.
    """
    b = RuleBuilder(equation)
    source, *dynamic_sizes = equation.operands
    (target,) = equation.results
    if source.elements == 0 or target.elements == 0:
        return b.build([((),) * len(t.shape) for t in equation.operands], [((),) * len(target.shape)])
    left: list[tuple[int, ...]] = [()] * len(source.shape)
    right: list[tuple[int, ...]] = [()] * len(target.shape)
    i = j = 0
    rest_left = rest_right = 1
    aligned = True
    while True:
        while rest_left == 1 and i < len(source.shape):
            rest_left, i = source.shape[i], i + 1
        while rest_right == 1 and j < len(target.shape):
            rest_right, j = target.shape[j], j + 1
        if rest_left == 1 and rest_right == 1:
            break
        common = math.gcd(rest_left, rest_right)
        if aligned and common > 1:
            factor = b.factor(common)
            left[i - 1] += factor
            right[j - 1] += factor
        if common in (rest_left, rest_right) and aligned:
            rest_left, rest_right = rest_left // common, rest_right // common
            continue
        # Not nested: consume extents without factors until both shapes have walked over equally many elements.
        aligned = False
        rest_left, rest_right = rest_left // common, rest_right // common
        while rest_left != rest_right:
            if rest_left < rest_right:
                rest_left, i = rest_left * source.shape[i], i + 1
            else:
                rest_right, j = rest_right * target.shape[j], j + 1
        rest_left = rest_right = 1
        aligned = True
    scalars: list[Dims] = [((),) * len(t.shape) for t in dynamic_sizes]
    return b.build([tuple(left), *scalars], [tuple(right)], fusible=True)


@rule_for("rev")
def rev(equation: Equation) -> OpRule:
    """Shards of a reversed dimension go to the mirrored place."""
    reversed_dims = equation.params["dimensions"]
    b = RuleBuilder(equation)
    shape = equation.operands[0].shape
    dims = tuple(b.factor(n, Combine.MIRROR if i in reversed_dims else Combine.PARALLEL) for i, n in enumerate(shape))
    return b.build([dims], [dims])


@rule_for("tile")
def tile(equation: Equation) -> OpRule:
    """A repeated dimension is (copies, elements): whoever has all elements may hold any of the copies."""
    b = RuleBuilder(equation)
    shape = equation.operands[0].shape
    repeats = equation.params["reps"]
    copies = [b.factor(n) for n in repeats]
    dims = b.factors_of(shape)
    return b.build([dims], [tuple(more + one for more, one in zip(copies, dims))])


@rule_for("stack")
def stack(equation: Equation) -> OpRule:
    """Whole along the new dimension."""
    axis = equation.params["axis"]
    b = RuleBuilder(equation)
    dims = b.factors_of(equation.operands[0].shape)
    return b.build([dims] * len(equation.operands), [(*dims[:axis], (), *dims[axis:])])


@rule_for("unstack")
def unstack(equation: Equation) -> OpRule:
    """Whole along the dimension that is taken apart."""
    axis = equation.params["axis"]
    b = RuleBuilder(equation)
    dims = b.factors_of(equation.results[0].shape)
    return b.build([(*dims[:axis], (), *dims[axis:])], [dims] * len(equation.results))


@rule_for("slice")
def static_slice(equation: Equation) -> OpRule:
    """Whole along the dimensions that are cut."""
    (operand,), (result,) = equation.operands, equation.results
    return _whole_along(equation, _changed(operand.shape, result.shape))


@rule_for("pad")
def pad(equation: Equation) -> OpRule:
    """Whole along the dimensions that are padded."""
    config = equation.params["padding_config"]
    return _whole_along(equation, [i for i, entry in enumerate(config) if tuple(entry) != (0, 0, 0)])


@rule_for("concatenate")
def concatenate(equation: Equation) -> OpRule:
    """Whole along the dimension that is joined."""
    return _whole_along(equation, [equation.params["dimension"]])


@rule_for("split")
def split(equation: Equation) -> OpRule:
    """Whole along the dimension that is cut."""
    return _whole_along(equation, [equation.params["axis"]])


@rule_for("sort")
def sort(equation: Equation) -> OpRule:
    """Whole along the sorted dimension; all operands are permuted together."""
    return _whole_along(equation, [equation.params["dimension"]])


def _changed(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    return [i for i, (m, n) in enumerate(zip(before, after)) if m != n]


def _whole_along(equation: Equation, dimensions: Iterable[int]) -> OpRule:
    """One parallel factor a dimension, none along those given; operands of lower rank (scalars) have none."""
    b = RuleBuilder(equation)
    whole = set(dimensions)
    rank = len(equation.results[0].shape)
    dims = tuple(() if i in whole else b.factor(n) for i, n in enumerate(equation.results[0].shape))

    def entry(shape: tuple[int, ...]) -> Dims:
        return dims if len(shape) == rank else ((),) * len(shape)

    return b.build([entry(t.shape) for t in equation.operands], [entry(t.shape) for t in equation.results])
