"""Strategies as per-shard regions: a `shard_map` around one operation and the collectives that begin and end it.

Constraints alone do not make XLA scatter a sum exactly as planned, nor look up a sharded table without gathering it.
A region says it exactly: each device works on its shards, then the partial results are combined.

A partial sum that is left open travels between regions as an array with one more dimension in front, which has an entry
per shard and is split over the axes that are summed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend import core
from jax.sharding import AbstractMesh, Mesh

from autoshard.costs.mesh import split_sub_axis
from autoshard.exchange import Exchange, exchange
from autoshard.plan import Decision, Ending, SpecDims, spec_of
from autoshard.rules.base import Equation
from autoshard.rules.custom import local_function
from autoshard.rules.shape import SEGMENTS
from autoshard.shardings import partition_spec

Axes = tuple[str, ...]
Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Region:
    """One equation as seen by one device.

    Attributes:
        eqn: The equation on whole arrays.
        decision: Its shardings and the collectives that end it.
        sizes: Mesh axis sizes.
    """

    eqn: core.JaxprEqn
    decision: Decision
    sizes: dict[str, int]

    @property
    def params(self) -> Params:
        """Parameters of the equation."""
        return dict(self.eqn.params)

    def bind(self, shards: Sequence[Any], **changed: Any) -> list[Any]:
        """The same operation on shards, with some parameters changed."""
        primitive = self.eqn.primitive
        out = primitive.bind(*shards, **primitive.get_bind_params(self.params | changed))
        return list(out) if primitive.multiple_results else [out]

    def shape(self, operand: int) -> tuple[int, ...]:
        """Shape of a whole operand."""
        return self.shapes(self.eqn.invars)[operand]

    @staticmethod
    def shapes(atoms: Sequence[Any]) -> list[tuple[int, ...]]:
        """Shapes of whole operands or results."""
        return [tuple(atom.aval.shape) for atom in atoms]

    def axes(self, operand: int, dimension: int) -> Axes:
        """Mesh axes that split a dimension of an operand."""
        return self.decision.operands[operand][dimension]

    def parts(self, axes: Axes) -> int:
        """Number of shards along axes."""
        count = 1
        for axis in axes:
            count *= self.sizes[axis]
        return count

    def offset(self, operand: int, dimension: int) -> Any:
        """Where this device's part of an operand's dimension begins."""
        axes = self.axes(operand, dimension)
        extent = self.shape(operand)[dimension]
        return lax.axis_index(axes) * (extent // self.parts(axes)) if axes else jnp.int32(0)

    def result_axes(self, dimension: int) -> Axes:
        """Mesh axes that split a dimension of the first result, before any scatter."""
        return self.unreduced(0)[dimension]

    def unreduced(self, result: int) -> tuple[Axes, ...]:
        """Mesh axes that split the dimensions of a result, before any scatter."""
        endings = (e for e in self.decision.endings if e.kind == "reduce-scatter")
        scattered = {axis for e in endings for part in e.axes for axis in _axes_of(part, self.sizes)}
        return tuple(_without(axes, scattered) for axes in self.decision.results[result])

    @property
    def reduced(self) -> Axes:
        """Mesh axes over which the partial results are combined."""
        parts = (part for ending in self.decision.endings for part in ending.axes)
        return (*dict.fromkeys(axis for part in parts for axis in _axes_of(part, self.sizes)), *self.decision.left)

    @property
    def is_first(self) -> Any:
        """True on one device of every group that is reduced over."""
        return lax.axis_index(self.reduced) == 0 if self.reduced else True


Body = Callable[[Region, Sequence[Any]], list[Any]]


def _axes_of(name: str, mesh_axes: Collection[str]) -> Axes:
    """The mesh axes that a name is, or that make up the axis that it names a part of, major first."""
    part = split_sub_axis(name)
    if name in mesh_axes or part is None:
        return (name,)
    return tuple(axis for axis in mesh_axes if (split_sub_axis(axis) or (axis,))[0] == part[0])


def _without(axes: Axes, others: Collection[str]) -> Axes:
    return tuple(a for a in axes if a not in others)


def run_local(eqn: core.JaxprEqn, decision: Decision, arrays: Sequence[Any], mesh: Mesh | AbstractMesh) -> list[Any]:
    """Run one equation on shards.

    Args:
        eqn: The equation.
        decision: Its operand and result shardings, and the collectives that end it.
        arrays: Whole operands, already in the required shardings; partial sums with their dimension in front.
        mesh: A mesh with Auto axes.

    Returns:
        Whole results in the decided shardings; a sum that is left open has its dimension in front.
    """
    at = Region(eqn, decision, dict(zip(mesh.axis_names, mesh.axis_sizes)))
    body = _body(eqn)

    stacked = [bool(decision.arriving) and not isinstance(atom, core.Literal) for atom in eqn.invars]

    def region(*shards: Any) -> tuple[Any, ...]:
        shards = tuple(jnp.squeeze(x, 0) if partial else x for x, partial in zip(shards, stacked))
        outs = [_end(eqn.primitive.name, out, decision.endings) for out in body(at, shards)]
        return tuple(jnp.expand_dims(out, 0) for out in outs) if decision.left else tuple(outs)

    in_specs = tuple(
        _in_front(decision.arriving if partial else None, dims) if jnp.ndim(array) else jax.sharding.PartitionSpec()
        for dims, array, partial in zip(decision.operands, arrays, stacked)
    )
    out_specs = tuple(_in_front(decision.left or None, dims) for dims in decision.results)
    mapped = jax.shard_map(region, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return list(mapped(*arrays))


def open_sum(array: Any, decision: Decision, mesh: Mesh | AbstractMesh) -> Any:
    """An array as a partial sum, where a loop begins that adds to it: one shard has it, the others have zeros.

    Args:
        array: The array, in the sharding of the decision's first operand.
        decision: That of the loop's carry.
        mesh: A mesh with Auto axes.

    Returns:
        The partial sum, with its dimension in front.
    """

    def region(shard: Any) -> Any:
        mine = jnp.where(lax.axis_index(decision.arriving) == 0, shard, jnp.zeros_like(shard))
        return jnp.expand_dims(mine, 0)

    before, after = _in_front(None, decision.operands[0]), _in_front(decision.arriving, decision.results[0])
    return jax.shard_map(region, mesh=mesh, in_specs=before, out_specs=after, check_vma=False)(array)


def end_sum(array: Any, decision: Decision, mesh: Mesh | AbstractMesh) -> Any:
    """A partial sum ended as decided, after the loop that added to it.

    Args:
        array: The partial sum, with its dimension in front.
        decision: That of the loop's carry.
        mesh: A mesh with Auto axes.

    Returns:
        The whole array, in the sharding of the decision's second result.
    """

    def region(shard: Any) -> Any:
        return _end("add", jnp.squeeze(shard, 0), decision.endings)

    before, after = _in_front(decision.arriving, decision.results[0]), _in_front(None, decision.results[1])
    return jax.shard_map(region, mesh=mesh, in_specs=before, out_specs=after, check_vma=False)(array)


def _in_front(summed: Axes | None, dims: SpecDims) -> jax.sharding.PartitionSpec:
    """The spec of an array, with the dimension of a partial sum in front where it is one."""
    return partition_spec(spec_of(dims if summed is None else (summed, *dims)))


_FOLDS: dict[str, Callable[[Any, Axes], Any]] = {
    "reduce_max": lax.pmax,
    "reduce_min": lax.pmin,
    "scatter-max": lax.pmax,
    "scatter-min": lax.pmin,
}
"""How partial results combine where they are not summed."""


def _end(primitive: str, partial: Any, endings: Sequence[Ending]) -> Any:
    """Combine partial results over their axes, scattering first; booleans are summed as bytes."""
    dtype = partial.dtype
    fold: Callable[[Any, Axes], Any] = _FOLDS.get(primitive, lax.psum)
    if dtype == jnp.bool_ and endings:
        partial = partial.astype(jnp.uint8)
    for ending in endings:
        if ending.kind == "reduce-scatter":
            partial = _scattered(partial, ending)
        elif ending.kind == "all-reduce":
            partial = fold(partial, ending.axes)
    return partial.astype(dtype) if dtype == jnp.bool_ else partial


TILE = (8, 128)
"""Rows and columns that a TPU lays arrays out in."""


def _scattered(partial: Any, ending: Ending) -> Any:
    """Scatter the sum of partial results.

    The TPU compiler makes an all-reduce of it where the shards of the scattered dimension do not fill tiles in the
    layout that it chooses (on libtpu 0.0.52: eight shards of `[32, 2048]`, of the columns of `[1024, 1024]`, or of the
    rows of `[1024, 16, 64]`). Along a leading dimension of whole tiles, one shard an entry, it stays a reduce-scatter.
    """
    d, shape = ending.dimension, partial.shape
    axes, groups = _named_groups(ending.axes)
    parts = lax.axis_size(axes) if groups is None else len(groups[0])
    if (partial.size // parts) % math.prod(TILE):
        return lax.psum_scatter(partial, axes, scatter_dimension=d, tiled=True, axis_index_groups=groups)
    shards = jnp.moveaxis(partial.reshape(*shape[:d], parts, shape[d] // parts, *shape[d + 1 :]), d, 0)
    tiles = shards.reshape(parts, -1, TILE[1])
    mine = lax.psum_scatter(tiles, axes, scatter_dimension=0, tiled=False, axis_index_groups=groups)
    return mine.reshape(shards.shape[1:])


def _named_groups(axes: Axes) -> tuple[Axes, list[list[int]] | None]:
    """The axes that the mesh has; of a part of one, such as ``x:(2)4``, the groups of positions that differ in it."""
    known = jax.sharding.get_abstract_mesh().axis_names
    part = split_sub_axis(axes[0]) if len(axes) == 1 and axes[0] not in known else None
    if part is None:
        return axes, None
    _, major, size = part
    whole = _axes_of(axes[0], known)
    positions = np.arange(lax.axis_size(whole)).reshape(major, size, -1)
    return whole, np.moveaxis(positions, 1, -1).reshape(-1, size).tolist()


def _body(eqn: core.JaxprEqn) -> Body:
    """What one device runs of an equation: the user's function, one of ours, or the operation itself."""
    given = local_function(Equation(eqn.primitive.name, eqn.params, (), ()))
    if given is None:
        return _BODIES.get(eqn.primitive.name, _plain)
    return lambda at, shards: jax.tree.leaves(given(*shards))


def _plain(at: Region, shards: Sequence[Any]) -> list[Any]:
    """The same operation on the shards; right for all operations whose parameters hold no extents."""
    return at.bind(shards)


def _reshaped(at: Region, shards: Sequence[Any]) -> list[Any]:
    """The shard of a reshaped array: where dimensions merge or split, only the major parts of them are split."""
    (whole,) = at.shapes(at.eqn.outvars)
    sizes = tuple(n // at.parts(axes) for n, axes in zip(whole, at.unreduced(0)))
    return at.bind(shards, new_sizes=sizes)


def _transform(at: Region, shards: Sequence[Any]) -> list[Any]:
    """An FFT in row-major layouts: XLA's CPU backend refuses others, which its neighbours may lead it to."""
    return [_row_major(out) for out in at.bind([_row_major(shards[0])])]


def _row_major(array: Any) -> Any:
    layout = Layout(tuple(range(array.ndim)))
    return lax.platform_dependent(array, cpu=lambda x: with_layout_constraint(x, layout), default=lambda x: x)


def _foreign(at: Region, shards: Sequence[Any]) -> list[Any]:
    """A custom call on the shards: its results are shards, too."""
    avals = tuple(
        aval.update(shape=tuple(n // at.parts(axes) for n, axes in zip(aval.shape, at.unreduced(k))))
        for k, aval in enumerate(at.params["result_avals"])
    )
    return at.bind(shards, result_avals=avals)


# Look-ups and updates


def _gather(at: Region, shards: Sequence[Any]) -> list[Any]:
    """Look up the rows that this shard holds; zero for the others, so that the shards' results add up."""
    table, indices = shards
    numbers, mode = at.params["dimension_numbers"], at.params["mode"]
    indices = _wide(indices)
    whole = at.shape(0)
    sizes = tuple(table.shape[d] if n == whole[d] else n for d, n in enumerate(at.params["slice_sizes"]))
    split = [k for k, d in enumerate(numbers.start_index_map) if at.axes(0, d)]
    if not split:
        return at.bind(shards, slice_sizes=sizes)
    last = jnp.array([whole[d] - at.params["slice_sizes"][d] for d in numbers.start_index_map], indices.dtype)
    nowhere = jnp.any((indices < 0) | (indices > last), axis=-1)
    if mode == lax.GatherScatterMode.CLIP:
        indices = jnp.clip(indices, 0, last)
    held = jnp.ones(indices.shape[:-1], bool)
    for k in split:
        d = numbers.start_index_map[k]
        mine = indices[..., k] - at.offset(0, d)
        held &= (mine >= 0) & (mine < table.shape[d])
        indices = indices.at[..., k].set(mine)
    (found,) = at.bind((table, indices), slice_sizes=sizes, mode=lax.GatherScatterMode.CLIP)
    fills = mode == lax.GatherScatterMode.FILL_OR_DROP
    kept = held & ~nowhere if fills else held
    looked_up = jnp.where(_over_result(kept, numbers.offset_dims), found, jnp.zeros_like(found))
    if not fills:
        return [looked_up]
    fill = jnp.full_like(found, _fill_value(at.params["fill_value"], found.dtype))
    return [jnp.where(_over_result(nowhere & at.is_first, numbers.offset_dims), fill, looked_up)]


def _wide(indices: Any) -> Any:
    """Signed indices that can hold the extent of any dimension; what is out of bounds above stays so."""
    if indices.dtype.itemsize < 4:
        return indices.astype(jnp.int32)
    if jnp.issubdtype(indices.dtype, jnp.signedinteger):
        return indices
    return jnp.minimum(indices, jnp.iinfo(jnp.int32).max).astype(jnp.int32)


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
    return jnp.expand_dims(mask, tuple(sorted(offset_dims)))


def _scatter(at: Region, shards: Sequence[Any]) -> list[Any]:
    """Apply the updates that fall into this shard; what was there before counts on one device of a group only."""
    target, indices, updates = shards
    numbers, mode = at.params["dimension_numbers"], at.params["mode"]
    indices = _wide(indices)
    whole = at.shape(0)
    mapped = numbers.scatter_dims_to_operand_dims
    split = [k for k, d in enumerate(mapped) if at.axes(0, d)]
    if split:
        last = jnp.array([whole[d] - n for d, n in zip(mapped, _window_extents(at))], indices.dtype)
        if mode == lax.GatherScatterMode.CLIP:
            indices = jnp.clip(indices, 0, last)
        nowhere = jnp.any((indices < 0) | (indices > last), axis=-1, keepdims=True)
        for k in split:
            indices = indices.at[..., k].add(-at.offset(0, mapped[k]))
        indices = jnp.where(nowhere, -1 - jnp.array(whole, indices.dtype).max(), indices)
        mode = lax.GatherScatterMode.FILL_OR_DROP
    if at.reduced and at.eqn.primitive.name not in _FOLDS:
        target = jnp.where(at.is_first, target, jnp.zeros_like(target))
    windows = {mapped[k]: (k, n) for k, n in enumerate(_window_extents(at)) if k in split and n > 1}
    if windows:
        return _scatter_window(at, target, indices, updates, windows)
    return at.bind((target, indices, updates), mode=mode)


def _scatter_window(
    at: Region, target: Any, indices: Any, updates: Any, windows: Mapping[int, tuple[int, int]]
) -> list[Any]:
    """Write one window, of which a part may fall into this shard.

    What the window can touch is cut out, with room on both sides for the parts that fall into neighbours.

    Args:
        at: The equation and its shardings.
        target: The shard that is written to.
        indices: Where the window begins in it, beyond it for a window that is not written at all.
        updates: The window.
        windows: Split dimension of the target to its place in the index vector and the window's extent.
    """
    begins: list[Any] = [0] * target.ndim
    extents, room = list(target.shape), [(0, 0)] * target.ndim
    for d, (k, n) in windows.items():
        first = indices.reshape(-1)[k]
        extents[d], room[d] = min(n, target.shape[d]), (n - 1, n - 1)
        begins[d] = jnp.clip(first, 0, target.shape[d] - extents[d])
        indices = indices.at[..., k].add(n - 1 - begins[d].astype(indices.dtype))
    block = jnp.pad(lax.dynamic_slice(target, _starts(begins), extents), room)
    (block,) = at.bind((block, indices, updates), mode=lax.GatherScatterMode.FILL_OR_DROP)
    block = lax.slice(block, [low for low, _ in room], [low + n for (low, _), n in zip(room, extents)])
    return [lax.dynamic_update_slice(target, block, _starts(begins))]


def _window_extents(at: Region) -> list[int]:
    """Extent of the updates' window along each dimension that is indexed."""
    numbers = at.params["dimension_numbers"]
    updates = at.shape(2)
    skipped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [d for d in range(len(at.shape(0))) if d not in skipped]
    extents = {d: updates[place] for d, place in zip(window, numbers.update_window_dims)}
    return [extents.get(d, 1) for d in numbers.scatter_dims_to_operand_dims]


def _dynamic_slice(at: Region, shards: Sequence[Any]) -> list[Any]:
    """What this shard holds of the slice, zero for the rest."""
    operand, *starts = shards
    starts = [_wide(start) for start in starts]
    whole, sizes = at.shape(0), at.params["slice_sizes"]
    for d, size in enumerate(sizes):
        start = jnp.clip(starts[d], 0, whole[d] - size)
        if not at.axes(0, d) or size == whole[d]:
            starts[d] = 0 if size == whole[d] else start
            continue
        places = start + jnp.arange(size) - at.offset(0, d)
        held = (places >= 0) & (places < operand.shape[d])
        taken = jnp.take(operand, jnp.clip(places, 0, operand.shape[d] - 1), axis=d, mode="clip")
        operand = jnp.where(_along(held, d, operand.ndim), taken, jnp.zeros_like(taken))
        starts[d] = 0
    sizes = tuple(min(size, n) for size, n in zip(sizes, operand.shape))
    return at.bind((operand, *_starts(starts)), slice_sizes=sizes)


def _starts(starts: Sequence[Any]) -> list[Any]:
    return [jnp.asarray(start, jnp.int32) for start in starts]


def _along(mask: Any, dimension: int, rank: int) -> Any:
    """A mask over one dimension, for arrays of a rank."""
    return jnp.expand_dims(mask, tuple(d for d in range(rank) if d != dimension))


def _dynamic_update_slice(at: Region, shards: Sequence[Any]) -> list[Any]:
    """Write what falls into this shard: a window of it is read, mixed with the update, and written back."""
    operand, update, *starts = shards
    starts = [_wide(start) for start in starts]
    whole, full = at.shape(0), at.shape(1)
    split = [d for d in range(operand.ndim) if at.axes(0, d) and full[d] != whole[d]]
    starts = [jnp.clip(start, 0, n - m) if n != m else 0 for start, n, m in zip(starts, whole, full)]
    mine = jnp.ones((1,) * operand.ndim, bool)
    for d in split:
        first = starts[d] - at.offset(0, d)
        extent = min(full[d], operand.shape[d])
        starts[d] = jnp.clip(first, 0, operand.shape[d] - extent)
        places = starts[d] - first + jnp.arange(extent)
        mine &= _along((places >= 0) & (places < full[d]), d, operand.ndim)
        update = jnp.take(update, jnp.clip(places, 0, full[d] - 1), axis=d, mode="clip")
    before = lax.dynamic_slice(operand, _starts(starts), update.shape)
    return at.bind((operand, jnp.where(mine, update, before), *_starts(starts)))


def _tile(at: Region, shards: Sequence[Any]) -> list[Any]:
    """The copies that this device holds."""
    split = [_without(at.result_axes(d), at.axes(0, d)) for d in range(len(at.shape(0)))]
    return at.bind(shards, reps=tuple(n // at.parts(axes) for n, axes in zip(at.params["reps"], split)))


# Candidates and running totals


def _best(at: Region, shards: Sequence[Any]) -> list[Any]:
    """An arg-reduction: each shard's best value and its index, then the best of those."""
    (operand,) = shards
    (dimension,) = at.params["axes"]
    (index,) = at.bind(shards)
    axes = at.axes(0, dimension)
    if not axes:
        return [index]
    value = jnp.squeeze(jnp.take_along_axis(operand, jnp.expand_dims(index, dimension), dimension), dimension)
    index = index + at.offset(0, dimension).astype(index.dtype)
    values, indices = (lax.all_gather(x, axes) for x in (value, index))
    winner = at.eqn.primitive.bind(values, axes=(0,), index_dtype=at.params["index_dtype"])
    return [jnp.squeeze(jnp.take_along_axis(indices, winner[None], 0), 0)]


def _top_k(at: Region, shards: Sequence[Any]) -> list[Any]:
    """The best of each shard are gathered in order of the shards, so that ties still go to the lower index."""
    (operand,) = shards
    dimension = at.params.get("axis", operand.ndim - 1)
    values, indices = at.bind(shards)
    axes = at.axes(0, dimension)
    if not axes:
        return [values, indices]
    indices = indices + at.offset(0, dimension)
    values, indices = (lax.all_gather(x, axes, axis=dimension, tiled=True) for x in (values, indices))
    values, places = at.bind((values,))
    return [values, jnp.take_along_axis(indices, places, dimension)]


def _logsumexp(x: Any, dimension: int) -> Any:
    return jax.nn.logsumexp(x, axis=dimension, keepdims=True)


_RUNNING: dict[str, tuple[Callable[[Any, int], Any], Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "cumsum": (lambda x, d: jnp.sum(x, d, x.dtype, keepdims=True), jnp.add, lambda dtype: 0),
    "cumprod": (lambda x, d: jnp.prod(x, d, x.dtype, keepdims=True), jnp.multiply, lambda dtype: 1),
    "cummax": (lambda x, d: jnp.max(x, d, keepdims=True), jnp.maximum, lambda dtype: _bound(dtype, lowest=True)),
    "cummin": (lambda x, d: jnp.min(x, d, keepdims=True), jnp.minimum, lambda dtype: _bound(dtype, lowest=False)),
    "cumlogsumexp": (_logsumexp, jnp.logaddexp, lambda dtype: -jnp.inf),
}
"""Per running fold: the fold of a dimension, the fold of two arrays, the neutral element of a dtype."""


def _bound(dtype: Any, *, lowest: bool) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf if lowest else jnp.inf
    if dtype == jnp.bool_:
        return not lowest
    return jnp.iinfo(dtype).min if lowest else jnp.iinfo(dtype).max


def _cumulative(at: Region, shards: Sequence[Any]) -> list[Any]:
    """A running fold of the shard, joined to the total of all shards before it."""
    dimension, reverse = at.params["axis"], at.params["reverse"]
    (running,) = at.bind(shards)
    axes = at.axes(0, dimension)
    if not axes:
        return [running]
    fold, join, neutral = _RUNNING[at.eqn.primitive.name]
    last = 0 if reverse else running.shape[dimension] - 1
    total = lax.slice_in_dim(running, last, last + 1, axis=dimension)
    totals = lax.all_gather(total, axes, axis=dimension, tiled=True)
    here, shard = lax.axis_index(axes), jnp.arange(totals.shape[dimension])
    earlier = _along(shard > here if reverse else shard < here, dimension, running.ndim)
    before = fold(jnp.where(earlier, totals, jnp.asarray(neutral(running.dtype), running.dtype)), dimension)
    return [join(before, running)]


# Neighbours


def _send(at: Region, x: Any, axes: Axes, pairs: Sequence[tuple[int, int]]) -> Any:
    """A permute along axes, major first; JAX counts the devices of a permute in the order of the mesh's axes."""
    ordered = tuple(a for a in at.sizes if a in axes)
    shape = [at.sizes[a] for a in axes]
    places = np.arange(math.prod(shape)).reshape(shape).transpose([axes.index(a) for a in ordered]).ravel()
    place = np.argsort(places)
    return lax.ppermute(x, ordered, [(int(place[i]), int(place[j])) for i, j in pairs])


def _rearranged(at: Region, shards: Sequence[Any]) -> list[Any]:
    """Slices, pads, joins, parts and reversals: what stays on the device by the operation itself, the rest is sent.

    Dimensions that are not split shrink before anything is sent and grow afterwards.
    """
    before, after = at.shapes(at.eqn.invars), at.shapes(at.eqn.outvars)
    segments = SEGMENTS[at.eqn.primitive.name](at.params, before, after)
    moved = [d for d in segments if at.axes(0, d)]
    arrays, fill = list(shards), 0
    if at.eqn.primitive.name == "pad":
        arrays, fill = [shards[0]], shards[1]
    kept = [d for d in segments if d not in moved]
    shrinking = [d for d in kept if after[0][d] < before[0][d]]
    arrays = _along_only(at, arrays, shrinking, fill)
    for d in moved:
        extents = tuple(shape[d] if len(shape) > d else 0 for shape in before)
        axes = at.axes(0, d)
        plans = [exchange(tuple(segments[d]), k, extents, shape[d], at.parts(axes)) for k, shape in enumerate(after)]
        arrays = [_assembled(at, arrays, d, axes, plan, fill) for plan in plans]
    return _along_only(at, arrays, [d for d in kept if d not in shrinking], fill)


def _along_only(at: Region, arrays: list[Any], dims: Collection[int], fill: Any) -> list[Any]:
    """The operation along some dimensions only; joins and parts have a single one, which is always sent."""
    if not dims:
        return arrays
    (x,) = arrays
    p = at.params
    match at.eqn.primitive.name:
        case "rev":
            return at.bind((x,), dimensions=tuple(dims))
        case "pad":
            config = [entry if d in dims else (0, 0, 0) for d, entry in enumerate(p["padding_config"])]
            return at.bind((x, fill), padding_config=tuple(config))
        case _:
            start = [n if d in dims else 0 for d, n in enumerate(p["start_indices"])]
            limit = [n if d in dims else x.shape[d] for d, n in enumerate(p["limit_indices"])]
            steps = [n if d in dims else 1 for d, n in enumerate(p["strides"] or (1,) * x.ndim)]
            changed = {"start_indices": tuple(start), "limit_indices": tuple(limit), "strides": tuple(steps)}
            return at.bind((x,), **changed)


def _assembled(at: Region, arrays: Sequence[Any], dimension: int, axes: Axes, plan: Exchange, fill: Any) -> Any:
    """A shard of a result, from what this device has and what it is sent."""
    here = lax.axis_index(axes)
    pool = [arrays[k] for k in plan.operands]
    for moved in plan.rounds:
        message = jnp.take(arrays[moved.operand], jnp.asarray(moved.rows)[here], axis=dimension, mode="clip")
        pool.append(_send(at, message, axes, moved.pairs))
    rows = jnp.asarray(plan.rows)[here]
    out = jnp.take(jnp.concatenate(pool, dimension), jnp.maximum(rows, 0), axis=dimension, mode="clip")
    if (plan.rows >= 0).all():
        return out
    return jnp.where(_along(rows >= 0, dimension, out.ndim), out, jnp.asarray(fill, out.dtype))


def _with_borders(at: Region, x: Any, dimension: int, halo: tuple[int, int], fill: Any) -> Any:
    """A shard with what its windows need of its neighbours; ``fill`` beyond the ends; cut where less is needed."""
    axes = at.axes(0, dimension)
    count, extent = at.parts(axes), x.shape[dimension]
    low, high = halo
    here = lax.axis_index(axes)
    pieces = [x if high >= 0 else lax.slice_in_dim(x, 0, extent + high, axis=dimension)]
    if low > 0:
        border = lax.slice_in_dim(x, extent - low, extent, axis=dimension)
        sent = _send(at, border, axes, [(i, i + 1) for i in range(count - 1)])
        pieces.insert(0, jnp.where(here == 0, jnp.full_like(sent, fill), sent))
    if high > 0:
        border = lax.slice_in_dim(x, 0, high, axis=dimension)
        sent = _send(at, border, axes, [(i + 1, i) for i in range(count - 1)])
        pieces.append(jnp.where(here == count - 1, jnp.full_like(sent, fill), sent))
    return jnp.concatenate(pieces, dimension) if len(pieces) > 1 else pieces[0]


def _convolution(at: Region, shards: Sequence[Any]) -> list[Any]:
    """A convolution of the shards: fewer groups, and borders instead of padding along split spatial dimensions."""
    x, kernel = shards
    numbers, p = at.params["dimension_numbers"], at.params
    padding = list(p["padding"])
    for k, d in enumerate(numbers.lhs_spec[2:]):
        if not at.axes(0, d):
            continue
        reach = (kernel.shape[numbers.rhs_spec[2 + k]] - 1) * p["rhs_dilation"][k] + 1
        low = padding[k][0]
        x = _with_borders(at, x, d, (low, reach - p["window_strides"][k] - low), 0)
        padding[k] = (0, 0)
    features = x.shape[numbers.lhs_spec[1]] // kernel.shape[numbers.rhs_spec[1]]
    batches = p["batch_group_count"] // _group_parts(at, p["batch_group_count"])
    return at.bind((x, kernel), padding=tuple(padding), feature_group_count=features, batch_group_count=batches)


def _group_parts(at: Region, groups: int) -> int:
    """Into how many parts the batch groups are split: the parts of the batch that the result's batch does not have."""
    if groups == 1:
        return 1
    numbers = at.params["dimension_numbers"]
    split = _without(at.axes(0, numbers.lhs_spec[0]), at.result_axes(numbers.out_spec[0]))
    return at.parts(split)


def _windows(at: Region, shards: Sequence[Any]) -> list[Any]:
    """A windowed reduction with borders instead of padding along split dimensions."""
    p = at.params
    count = len(at.eqn.outvars)
    padding = list(p["padding"])
    arrays = list(shards)
    for d in range(len(padding)):
        if not at.axes(0, d):
            continue
        reach = (p["window_dimensions"][d] - 1) * p["window_dilation"][d] + 1
        low = padding[d][0]
        halo = low, reach - p["window_strides"][d] - low
        for k in range(count):
            fill = arrays[count + k] if len(arrays) > count else _WINDOW_FILLS[at.eqn.primitive.name](arrays[k].dtype)
            arrays[k] = _with_borders(at, arrays[k], d, halo, fill)
        padding[d] = (0, 0)
    return at.bind(arrays, padding=tuple(padding))


_WINDOW_FILLS: dict[str, Callable[[Any], Any]] = {
    "reduce_window_sum": lambda dtype: 0,
    "reduce_window_max": lambda dtype: _bound(dtype, lowest=True),
    "reduce_window_min": lambda dtype: _bound(dtype, lowest=False),
}


# Ragged products


def _ragged_dot(at: Region, shards: Sequence[Any]) -> list[Any]:
    """Groups are cut at the borders of this device's rows, and only its own groups are multiplied.

    The rows of the first group of this device are rolled to the front, where the primitive expects them.
    """
    lhs, rhs, sizes = shards
    numbers = at.params["ragged_dot_dimension_numbers"]
    (ragged,) = numbers.lhs_ragged_dimensions
    ends = jnp.cumsum(sizes)
    first, rows = at.offset(0, ragged), lhs.shape[ragged]
    starts, ends = (jnp.clip(x - first, 0, rows) for x in (ends - sizes, ends))
    contracts = ragged in numbers.dot_dimension_numbers[0][0]
    axes = at.result_axes(0) if contracts else at.axes(1, numbers.rhs_group_dimensions[0])
    if not axes:
        return at.bind((lhs, rhs, (ends - starts).astype(sizes.dtype)))
    count = sizes.shape[0] // at.parts(axes)
    mine = lax.axis_index(axes) * count
    starts, ends = (lax.dynamic_slice_in_dim(x, mine, count) for x in (starts, ends))
    lhs = jnp.roll(lhs, -starts[0], ragged)
    if contracts:
        (contracted,) = (j for i, j in zip(*numbers.dot_dimension_numbers[0]) if i == ragged)
        rhs = jnp.roll(rhs, -starts[0], contracted)
    (out,) = at.bind((lhs, rhs, (ends - starts).astype(sizes.dtype)))
    if contracts:
        return [out]
    row = [i for i in range(lhs.ndim) if i not in numbers.dot_dimension_numbers[0][0]].index(ragged)
    multiplied = jnp.arange(rows) < ends[-1] - starts[0]
    return [jnp.roll(jnp.where(_along(multiplied, row, out.ndim), out, jnp.zeros_like(out)), starts[0], row)]


_BODIES: dict[str, Body] = {
    "argmax": _best,
    "argmin": _best,
    "concatenate": _rearranged,
    "conv_general_dilated": _convolution,
    "cumlogsumexp": _cumulative,
    "cummax": _cumulative,
    "cummin": _cumulative,
    "cumprod": _cumulative,
    "cumsum": _cumulative,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "ffi_call": _foreign,
    "fft": _transform,
    "gather": _gather,
    "pad": _rearranged,
    "ragged_dot_general": _ragged_dot,
    "reduce_window": _windows,
    "reduce_window_max": _windows,
    "reduce_window_min": _windows,
    "reduce_window_sum": _windows,
    "reshape": _reshaped,
    "rev": _rearranged,
    "roll": _rearranged,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "scatter-max": _scatter,
    "scatter-min": _scatter,
    "scatter-mul": _scatter,
    "scatter-sub": _scatter,
    "slice": _rearranged,
    "split": _rearranged,
    "tile": _tile,
    "top_k": _top_k,
}
