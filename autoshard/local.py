"""Strategies as per-shard regions: a `shard_map` around one operation and the collectives that end it.

Constraints alone do not make XLA scatter a sum exactly as planned, nor look up a sharded table without gathering it.
A region says it exactly: each device works on its shards, then the partial sums are reduced or scattered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.sharding import AbstractMesh, Mesh

from autoshard.plan import Decision, Ending, spec_of
from autoshard.shardings import partition_spec

Axes = tuple[str, ...]


def run_local(eqn: core.JaxprEqn, decision: Decision, arrays: Sequence[Any], mesh: Mesh | AbstractMesh) -> list[Any]:
    """Run one equation on shards.

    Args:
        eqn: The equation.
        decision: Its operand and result shardings, and the collectives that end it.
        arrays: Whole operands, already in the required shardings.
        mesh: A mesh with Auto axes.

    Returns:
        Whole results in the decided shardings.
    """
    body = _BODIES.get(eqn.primitive.name, _plain)

    def region(*shards: Any) -> tuple[Any, ...]:
        return tuple(_end(out, decision.endings) for out in body(eqn, decision, shards))

    in_specs = tuple(
        partition_spec(spec_of(dims)) if jnp.ndim(array) else jax.sharding.PartitionSpec()
        for dims, array in zip(decision.operands, arrays)
    )
    out_specs = tuple(partition_spec(spec_of(dims)) for dims in decision.results)
    mapped = jax.shard_map(region, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return list(mapped(*arrays))


def _end(partial: Any, endings: Sequence[Ending]) -> Any:
    """Reduce partial sums over their axes, scattering first."""
    for ending in endings:
        if ending.kind == "reduce-scatter":
            partial = lax.psum_scatter(partial, ending.axes, scatter_dimension=ending.dimension, tiled=True)
        else:
            partial = lax.psum(partial, ending.axes)
    return partial


def _plain(eqn: core.JaxprEqn, decision: Decision, shards: Sequence[Any]) -> list[Any]:
    """The same operation on the shards; right for all operations whose parameters hold no extents."""
    out = eqn.primitive.bind(*shards, **eqn.params)
    return list(out) if eqn.primitive.multiple_results else [out]


def _offset(axes: Axes, extent: int) -> Any:
    """Where this device's part of a dimension begins, given the part's extent."""
    return lax.axis_index(axes) * extent if axes else 0


def _gather(eqn: core.JaxprEqn, decision: Decision, shards: Sequence[Any]) -> list[Any]:
    """Look up the rows that this shard holds; zero for the others, so that the shards' results add up."""
    table, indices = shards
    numbers = eqn.params["dimension_numbers"]
    sizes = list(eqn.params["slice_sizes"])
    for d, n in enumerate(eqn.invars[0].aval.shape):
        if sizes[d] == n:
            sizes[d] = table.shape[d]
    (dim,) = numbers.start_index_map
    total = eqn.invars[0].aval.shape[dim]
    mode = eqn.params["mode"]
    if mode == lax.GatherScatterMode.CLIP:
        indices = jnp.clip(indices, 0, total - 1)
    mine = indices - _offset(decision.operands[0][dim], table.shape[dim])
    params = {**eqn.params, "slice_sizes": tuple(sizes), "mode": lax.GatherScatterMode.CLIP}
    found = eqn.primitive.bind(table, mine, **params)
    held = _over_result((mine >= 0) & (mine < table.shape[dim]), numbers.offset_dims)
    looked_up = jnp.where(held, found, jnp.zeros_like(found))
    if mode != lax.GatherScatterMode.FILL_OR_DROP:
        return [looked_up]
    nowhere = _over_result((indices < 0) | (indices >= total), numbers.offset_dims)
    first = _is_first(_reduced_axes(decision))
    fill = jnp.full_like(found, _fill_value(eqn.params["fill_value"], found.dtype))
    return [jnp.where(nowhere & first, fill, looked_up)]


def _fill_value(value: Any, dtype: Any) -> Any:
    """What JAX puts in the place of an index out of bounds: NaN, the least signed or the largest unsigned number."""
    if value is not None:
        return value
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.nan
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return jnp.iinfo(dtype).min
    return jnp.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.unsignedinteger) else True


def _over_result(mask: Any, offset_dims: Sequence[int]) -> Any:
    """A mask over the index vectors, stretched over the window dimensions of the result."""
    return jnp.expand_dims(mask[..., 0], tuple(sorted(offset_dims)))


def _reduced_axes(decision: Decision) -> Axes:
    return tuple(axis for ending in decision.endings for axis in ending.axes)


def _is_first(axes: Axes) -> Any:
    """True on one device of every group that is reduced over."""
    return lax.axis_index(axes) == 0 if axes else True


def _scatter(eqn: core.JaxprEqn, decision: Decision, shards: Sequence[Any]) -> list[Any]:
    """Apply the updates that fall into this shard; what was there before counts on one device of a group only."""
    target, indices, updates = shards
    numbers = eqn.params["dimension_numbers"]
    mode = eqn.params["mode"]
    if len(numbers.scatter_dims_to_operand_dims) == 1:
        (dim,) = numbers.scatter_dims_to_operand_dims
        if mode == lax.GatherScatterMode.CLIP:
            window = eqn.invars[0].aval.shape[dim] - 1
            indices = jnp.clip(indices, 0, window)
        indices = indices - _offset(decision.operands[0][dim], target.shape[dim])
        mode = lax.GatherScatterMode.FILL_OR_DROP
    reduced = _reduced_axes(decision)
    if reduced:
        target = jnp.where(_is_first(reduced), target, jnp.zeros_like(target))
    return [eqn.primitive.bind(target, indices, updates, **{**eqn.params, "mode": mode})]


_BODIES: dict[str, Callable[[core.JaxprEqn, Decision, Sequence[Any]], list[Any]]] = {
    "gather": _gather,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "scatter_add": _scatter,
    "scatter_sub": _scatter,
    "scatter_mul": _scatter,
    "scatter-mul": _scatter,
    "scatter_min": _scatter,
    "scatter_max": _scatter,
    "scatter-min": _scatter,
    "scatter-max": _scatter,
}
