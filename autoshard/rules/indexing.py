"""Gathers, scatters and dynamic slices.

A dimension of which one element is looked up at a time is "indexed". Split over devices, each looks up what it holds
and gives zero for the rest, and the results add up; a scatter applies the updates that fall into its part. Both run as
per-shard regions, and so do look-ups along batch dimensions, which XLA gathers if they are not the first ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from autoshard.rules.base import Combine, Dims, Equation, OpRule, RuleBuilder, TensorFacts, rule_for


def adds_up(tensor: TensorFacts) -> bool:
    """Whether zeros can stand for what another device holds: numbers and booleans, not random keys."""
    return not tensor.dtype.startswith("key<")


@rule_for("gather")
def gather(equation: Equation) -> OpRule:
    """Batch and window dimensions are parallel, indexed ones sum."""
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    operand, indices = equation.operands
    (result,) = equation.results
    b = RuleBuilder(equation)
    batch = [b.factor(n) for n in indices.shape[:-1]]
    table = {d: batch[i] for d, i in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims)}
    window = [d for d in range(len(operand.shape)) if d not in (*numbers.collapsed_slice_dims, *table)]
    result_dims: list[tuple[int, ...]] = [()] * len(result.shape)
    for place, d in zip(numbers.offset_dims, window):
        if sizes[d] == operand.shape[d]:
            table[d] = result_dims[place] = b.factor(sizes[d])
    _spread(result_dims, numbers.offset_dims, batch)
    indexed = _indexed(b, numbers.start_index_map, sizes, operand, Combine.SUM)
    batched = _factors(table, numbers.operand_batching_dims)
    table |= indexed
    return b.build(
        [_dims(table, operand), (*batch, ())],
        [tuple(result_dims)],
        flops=float(result.elements),
        pinned=True,
        local_factors=_factors(indexed) | batched,
        touches=(_share(result, operand), 1.0, 1.0),
    )


def _spread(dims: list[tuple[int, ...]], windows: Sequence[int], batch: Sequence[tuple[int, ...]]) -> None:
    """Put the batch dimensions' factors, in order, where the windows' dimensions are not."""
    for place, factor in zip((i for i in range(len(dims)) if i not in windows), batch):
        dims[place] = factor


def _indexed(
    b: RuleBuilder, index_map: Iterable[int], sizes: Sequence[int], operand: TensorFacts, combine: Combine
) -> dict[int, tuple[int, ...]]:
    """A factor for each operand dimension that is looked up one element at a time."""
    if not adds_up(operand):
        return {}
    return {d: b.factor(operand.shape[d], combine) for d in index_map if sizes[d] == 1}


def _written(
    b: RuleBuilder, index_map: Iterable[int], sizes: Sequence[int], operand: TensorFacts
) -> dict[int, tuple[int, ...]]:
    """A factor for each operand dimension of which one window is written: each device writes what it has of it."""
    windows = [d for d in index_map if 1 < sizes[d] < operand.shape[d]]
    return {d: b.factor(operand.shape[d]) for d in windows if adds_up(operand)}


def _dims(factors: dict[int, tuple[int, ...]], tensor: TensorFacts) -> Dims:
    return tuple(factors.get(d, ()) for d in range(len(tensor.shape)))


def _factors(entries: dict[int, tuple[int, ...]], dimensions: Iterable[int] | None = None) -> frozenset[int]:
    """The factors of some dimensions, or of all."""
    return frozenset(f for d in (entries if dimensions is None else dimensions) for f in entries[d])


def _share(part: TensorFacts, tensor: TensorFacts) -> float:
    return min(1.0, part.elements / max(1, tensor.elements))


UPDATES: dict[str, Combine | None] = {
    "scatter": None,
    "scatter-add": Combine.SUM,
    "scatter-sub": Combine.SUM,
    "scatter-mul": None,
    "scatter-min": Combine.EXTREME,
    "scatter-max": Combine.EXTREME,
}
"""How updates on different devices combine; None where all updates must be applied in one place."""

XLA_COMBINES = frozenset({"scatter-add"})
"""Scatters whose split updates XLA combines as priced; it gathers the updates of the others."""


@rule_for(*UPDATES)
def scatter(equation: Equation) -> OpRule:
    """Window and indexed dimensions are parallel; so are updates that can be combined afterwards."""
    numbers = equation.params["dimension_numbers"]
    operand, indices, updates = equation.operands
    b = RuleBuilder(equation)
    combine = UPDATES[equation.primitive]
    batching = dict(zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims))
    batch: list[tuple[int, ...]] = []
    table: dict[int, tuple[int, ...]] = {}
    combined: frozenset[int] = frozenset()
    for i, n in enumerate(indices.shape[:-1]):
        if i in batching:
            batch.append(b.factor(n))
            table[batching[i]] = batch[-1]
        else:
            batch.append(b.factor(n, combine) if combine is not None else ())
            combined |= frozenset(batch[-1])
    skipped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [d for d in range(len(operand.shape)) if d not in skipped]
    update_dims: list[tuple[int, ...]] = [()] * len(updates.shape)
    sizes = [1] * len(operand.shape)
    for place, d in zip(numbers.update_window_dims, window):
        sizes[d] = updates.shape[place]
        if sizes[d] == operand.shape[d] and d not in numbers.scatter_dims_to_operand_dims:
            table[d] = update_dims[place] = b.factor(sizes[d])
    _spread(update_dims, numbers.update_window_dims, batch)
    batched = _factors(table, numbers.operand_batching_dims)
    indexed = _indexed(b, numbers.scatter_dims_to_operand_dims, sizes, operand, Combine.PARALLEL)
    if math.prod(indices.shape[:-1]) == 1:
        indexed |= _written(b, numbers.scatter_dims_to_operand_dims, sizes, operand)
    table |= indexed
    target = _dims(table, operand)
    return b.build(
        [target, (*batch, ()), tuple(update_dims)],
        [target],
        flops=float(updates.elements),
        pinned=True,
        local_factors=_factors(indexed) | batched | (frozenset() if equation.primitive in XLA_COMBINES else combined),
        touches=(_share(updates, operand), 1.0, 1.0, _share(updates, operand)),
    )


@rule_for("dynamic_slice")
def dynamic_slice(equation: Equation) -> OpRule:
    """A dimension that is cut sums: each device gives what it holds of the slice, and zero for the rest."""
    operand, *starts = equation.operands
    (result,) = equation.results
    b = RuleBuilder(equation)
    kept = tuple(b.factor(n) if n == m else () for n, m in zip(operand.shape, result.shape))
    cut = {
        d: b.factor(n, Combine.SUM)
        for d, (n, m) in enumerate(zip(operand.shape, result.shape))
        if n != m and adds_up(operand)
    }
    dims = tuple(cut.get(d, entry) for d, entry in enumerate(kept))
    return b.build(
        [dims, *(() for _ in starts)],
        [kept],
        pinned=True,
        local_factors=_factors(cut),
        touches=(_share(result, operand), *(0.0 for _ in starts), 1.0),
    )


@rule_for("dynamic_update_slice")
def dynamic_update_slice(equation: Equation) -> OpRule:
    """Where the update is smaller than the operand, each device writes what falls into its part."""
    operand, update, *starts = equation.operands
    b = RuleBuilder(equation)
    dims = b.factors_of(operand.shape)
    smaller = {d: dims[d] for d, (n, m) in enumerate(zip(operand.shape, update.shape)) if n != m}
    updated = tuple(() if d in smaller else entry for d, entry in enumerate(dims))
    share = _share(update, operand)
    return b.build(
        [dims, updated, *(() for _ in starts)],
        [dims],
        pinned=True,
        local_factors=_factors(smaller),
        touches=(share, 1.0, *(0.0 for _ in starts), share),
    )
