"""Operations that rearrange elements: reshape, transpose, broadcast, slice, pad, concatenate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autoshard.rules.base import Dims, Equation, OpRule, RuleBuilder, Segment, rule_for, unsplit


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


@rule_for("tile")
def tile(equation: Equation) -> OpRule:
    """A repeated dimension is (copies, elements): whoever has all elements may hold any of the copies."""
    b = RuleBuilder(equation)
    shape = equation.operands[0].shape
    repeats = equation.params["reps"]
    copies = [b.factor(n) for n in repeats]
    split_copies = b.every
    dims = b.factors_of(shape)
    result = tuple(more + one for more, one in zip(copies, dims))
    return b.build([dims], [result], local_factors=split_copies)


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


Shapes = Sequence[tuple[int, ...]]
Segments = dict[int, list[Segment]]
"""Per dimension whose rows change places, which become which."""


def _reversed(p: Mapping[str, Any], before: Shapes, after: Shapes) -> Segments:
    """Shards of a reversed dimension go to the mirrored place."""
    shape = before[0]
    return {d: [Segment(0, 0, shape[d], source=shape[d] - 1, source_step=-1)] for d in p["dimensions"]}


def _sliced(p: Mapping[str, Any], before: Shapes, after: Shapes) -> Segments:
    steps = p["strides"] or (1,) * len(after[0])
    dims = enumerate(zip(before[0], after[0], p["start_indices"], steps))
    return {d: [Segment(0, 0, m, source=start, source_step=step)] for d, (n, m, start, step) in dims if n != m}


def _padded(p: Mapping[str, Any], before: Shapes, after: Shapes) -> Segments:
    """Row i of the operand is row ``low + i * step`` of the result, where there is one; padding may be negative."""
    found: Segments = {}
    for d, (n, m, (low, high, inside)) in enumerate(zip(before[0], after[0], p["padding_config"])):
        if (low, high, inside) == (0, 0, 0):
            continue
        step = inside + 1
        first = max(0, -(low // step))
        count = max(0, min(n, -((low - m) // step)) - first)
        found[d] = [Segment(0, 0, count, source=first, target=low + first * step, target_step=step)]
    return found


def _joined(p: Mapping[str, Any], before: Shapes, after: Shapes) -> Segments:
    d = p["dimension"]
    starts = itertools.accumulate([0, *(shape[d] for shape in before)])
    return {d: [Segment(k, 0, shape[d], target=start) for k, (shape, start) in enumerate(zip(before, starts))]}


def _parted(p: Mapping[str, Any], before: Shapes, after: Shapes) -> Segments:
    d = p["axis"]
    starts = itertools.accumulate([0, *p["sizes"]])
    return {d: [Segment(0, k, n, source=start) for k, (n, start) in enumerate(zip(p["sizes"], starts))]}


def _rolled(p: Mapping[str, Any], before: Shapes, after: Shapes) -> Segments:
    return {p["dimension"]: list(p["segments"])}


SEGMENTS: dict[str, Callable[[Mapping[str, Any], Shapes, Shapes], Segments]] = {
    "concatenate": _joined,
    "pad": _padded,
    "rev": _reversed,
    "roll": _rolled,
    "slice": _sliced,
    "split": _parted,
}
"""Operations that put rows into other places, from their parameters and the shapes before and after."""


@rule_for(*SEGMENTS)
def rearranged(equation: Equation) -> OpRule:
    """Parallel, but rows that change shards are sent there; operands of lower rank (scalars) are whole."""
    before, after = ([t.shape for t in ts] for ts in (equation.operands, equation.results))
    segments = SEGMENTS[equation.primitive](equation.params, before, after)
    b = RuleBuilder(equation)
    rank = len(after[0])
    arrays = [shape for shape in (*before, *after) if len(shape) == rank]
    dims = tuple(
        b.moved((shape[d] for shape in arrays), segments[d]) if d in segments else b.factor(n)
        for d, n in enumerate(after[0])
    )
    operands = [dims if len(t.shape) == rank else unsplit(t) for t in equation.operands]
    return b.build(operands, [dims] * len(equation.results))


@rule_for("sort")
def sort(equation: Equation) -> OpRule:
    """Whole along the sorted dimension; all operands are permuted together."""
    return _whole_along(equation, [equation.params["dimension"]])


def _whole_along(equation: Equation, dimensions: Iterable[int]) -> OpRule:
    """One parallel factor a dimension, none along those given; operands of lower rank (scalars) have none."""
    b = RuleBuilder(equation)
    whole = set(dimensions)
    rank = len(equation.results[0].shape)
    dims = tuple(() if i in whole else b.factor(n) for i, n in enumerate(equation.results[0].shape))

    def entry(shape: tuple[int, ...]) -> Dims:
        return dims if len(shape) == rank else ((),) * len(shape)

    return b.build([entry(t.shape) for t in equation.operands], [entry(t.shape) for t in equation.results])
