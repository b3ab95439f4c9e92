"""Gathers, scatters and dynamic slices."""

from __future__ import annotations

from typing import Any

from autoshard.rules.base import Combine, Dims, Equation, OpRule, RuleBuilder, rule_for


@rule_for("gather")
def gather(equation: Equation) -> OpRule:
    """Batch and window dimensions are parallel; an indexed dimension sums masked local look-ups.

    A dimension of which the window takes one element is "indexed": split over devices, each looks up what it holds,
    gives zero for the rest, and the results add up. It runs as a per-shard region.
    """
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    operand, indices = equation.operands
    (result,) = equation.results
    b = RuleBuilder(equation)
    batch, table, rows = _index_factors(b, numbers.operand_batching_dims, numbers.start_indices_batching_dims, equation)
    window = [d for d in range(len(operand.shape)) if d not in (*numbers.collapsed_slice_dims, *table)]
    result_dims: list[tuple[int, ...]] = [()] * len(result.shape)
    for place, d in zip(numbers.offset_dims, window):
        if sizes[d] == operand.shape[d] and d not in numbers.start_index_map:
            table[d] = result_dims[place] = b.factor(sizes[d])
    batch_places = [i for i in range(len(result.shape)) if i not in numbers.offset_dims]
    for place, factor in zip(batch_places, batch):
        result_dims[place] = factor
    indexed = _indexed_factors(b, numbers.start_index_map, sizes, operand.shape)
    table |= indexed
    return b.build(
        [tuple(table.get(d, ()) for d in range(len(operand.shape))), rows],
        [tuple(result_dims)],
        flops=float(result.elements),
        pinned=True,
        local_factors=frozenset(f for entry in indexed.values() for f in entry),
    )


def _index_factors(
    b: RuleBuilder, operand_batch: Any, index_batch: Any, equation: Equation
) -> tuple[list[tuple[int, ...]], dict[int, tuple[int, ...]], Dims]:
    """Factors of the index array's dimensions (the last holds the index vector), shared with the batched operand's."""
    operand, indices, *_ = equation.operands
    batch = [b.factor(n) for n in indices.shape[:-1]]
    table = {d: batch[i] for d, i in zip(operand_batch, index_batch)}
    return batch, table, (*batch, ())


def _indexed_factors(
    b: RuleBuilder, index_map: Any, sizes: Any, shape: tuple[int, ...], combine: Combine = Combine.SUM
) -> dict[int, tuple[int, ...]]:
    """A factor for each operand dimension that is looked up one element at a time, if it is the only one."""
    indexed = [d for d in index_map if sizes[d] == 1]
    if len(indexed) != 1 or len(index_map) != 1:
        return {}
    return {indexed[0]: b.factor(shape[indexed[0]], combine)}


SCATTER_COMBINES = {"scatter-add": Combine.SUM, "scatter_add": Combine.SUM}


@rule_for("scatter", "scatter-add", "scatter_add", "scatter_sub", "scatter-mul", "scatter_mul", "scatter_min",
          "scatter_max", "scatter-min", "scatter-max")  # fmt: skip
def scatter(equation: Equation) -> OpRule:
    """Window dimensions are parallel; updates add up over their batch dimensions where the scatter is a sum.

    An indexed dimension of the operand may be split: every device applies the updates that fall into its part.
    """
    numbers = equation.params["dimension_numbers"]
    operand, indices, updates = equation.operands
    b = RuleBuilder(equation)
    combine = SCATTER_COMBINES.get(equation.primitive)
    batching = dict(zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims))
    batch: list[tuple[int, ...]] = []
    table: dict[int, tuple[int, ...]] = {}
    for i, n in enumerate(indices.shape[:-1]):
        if i in batching:
            batch.append(b.factor(n))
            table[batching[i]] = batch[-1]
        else:
            batch.append(b.factor(n, combine) if combine is not None else ())
    skipped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [d for d in range(len(operand.shape)) if d not in skipped]
    update_dims: list[tuple[int, ...]] = [()] * len(updates.shape)
    sizes = [1] * len(operand.shape)
    for place, d in zip(numbers.update_window_dims, window):
        sizes[d] = updates.shape[place]
        if sizes[d] == operand.shape[d] and d not in numbers.scatter_dims_to_operand_dims:
            table[d] = update_dims[place] = b.factor(sizes[d])
    batch_places = [i for i in range(len(updates.shape)) if i not in numbers.update_window_dims]
    for place, factor in zip(batch_places, batch):
        update_dims[place] = factor
    indexed = _indexed_factors(b, numbers.scatter_dims_to_operand_dims, sizes, operand.shape, Combine.PARALLEL)
    table |= indexed
    target = tuple(table.get(d, ()) for d in range(len(operand.shape)))
    return b.build(
        [target, (*batch, ()), tuple(update_dims)],
        [target],
        flops=float(updates.elements),
        pinned=True,
        local_factors=frozenset(f for entry in indexed.values() for f in entry),
    )


@rule_for("dynamic_slice")
def dynamic_slice(equation: Equation) -> OpRule:
    """Whole along the dimensions that are cut."""
    operand, *starts = equation.operands
    (result,) = equation.results
    b = RuleBuilder(equation)
    dims = tuple(b.factor(n) if n == m else () for n, m in zip(operand.shape, result.shape))
    return b.build([dims, *(() for _ in starts)], [dims], pinned=True)


@rule_for("dynamic_update_slice")
def dynamic_update_slice(equation: Equation) -> OpRule:
    """Whole along the dimensions where the update is smaller than the operand."""
    operand, update, *starts = equation.operands
    b = RuleBuilder(equation)
    dims = tuple(b.factor(n) if n == m else () for n, m in zip(operand.shape, update.shape))
    return b.build([dims, dims, *(() for _ in starts)], [dims], pinned=True)
