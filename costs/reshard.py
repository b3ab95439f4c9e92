"""Resharding: from one spec to another as the cheapest list of steps that XLA carries out exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .edges import Array
from .mesh import MeshModel
from .planner import Planner, ReshardingPlan, planner_of
from .spec import ShardingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardTable:
    """What it costs to get from many specs to many, `[sources, targets]`; infinite where there is no way.

    Attributes:
        seconds: Time.
        wire_bytes: Bytes that one device sends.
        extra_bytes: The largest shard held along the way, minus the source's.
    """

    seconds: Array
    wire_bytes: Array
    extra_bytes: Array


def plan_resharding(
    source: ShardingSpec,
    target: ShardingSpec,
    shape: Sequence[int],
    itemsize: int,
    mesh: MeshModel,
    *,
    wire_scale: float = 1.0,
    sub_axes: bool = False,
) -> ReshardingPlan:
    """The cheapest sequence of exact steps from `source` to `target`.

    Ranked by time, ties by wire bytes, then by the number of steps. Plans are remembered.

    Args:
        source: The spec that the tensor has.
        target: The spec that is wanted.
        shape: Shape of the whole tensor.
        itemsize: Bytes of one element.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor (`mesh.wire_scale(dtype)`).
        sub_axes: Whether constraints may name parts of axes, such as `x:(2)4`. That saves a little on meshes with axes
            of several sizes, but the constraints have to be written on a mesh with its axes cut (`refined_axes`).

    Raises:
        TypeError: A spec is no `ShardingSpec`, or the mesh no `MeshModel`.
        ValueError: A rank differs, an axis is unknown or cut, or a size is negative.

    Example:
        >>> mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
        >>> source, target = ShardingSpec.of("y", None, "x"), ShardingSpec.of(None, ("x", "y"), None)
        >>> move = plan_resharding(source, target, (16, 16, 16), 4, mesh)
        >>> [step.kind for step in move.steps], move.wire_bytes
        (['all-to-all', 'all-to-all'], 2560.0)
    """
    return _planned(source, target, tuple(shape), itemsize, mesh, wire_scale, sub_axes)


@lru_cache(maxsize=1 << 17)
def _planned(
    source: ShardingSpec,
    target: ShardingSpec,
    shape: tuple[int, ...],
    itemsize: int,
    mesh: MeshModel,
    wire_scale: float,
    sub_axes: bool,
) -> ReshardingPlan:
    _check_specs(source, target)
    planner = planner_of(mesh, shape, itemsize, wire_scale)
    return planner.plan_cutting(source, target) if sub_axes else planner.plan(source, target)


def reshard_table(
    sources: Sequence[ShardingSpec],
    targets: Sequence[ShardingSpec],
    shape: Sequence[int],
    itemsize: int,
    mesh: MeshModel,
    *,
    wire_scale: float = 1.0,
) -> ReshardTable:
    """Costs of `plan_resharding` between all `sources` and all `targets`.

    Args:
        sources: The specs that the tensor may have.
        targets: The specs that may be wanted.
        shape: Shape of the whole tensor.
        itemsize: Bytes of one element.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor (`mesh.wire_scale(dtype)`).

    Example:
        >>> mesh = MeshModel.uniform({"x": 4}, bytes_per_s=1.0, latency_s=0.0)
        >>> specs = [ShardingSpec.of("x", None), ShardingSpec.of(None, None)]
        >>> reshard_table(specs, specs, (8, 8), 4, mesh).seconds.tolist()  # a slice is free
        [[0.0, 192.0], [0.0, 0.0]]
    """
    return _tabled(tuple(sources), tuple(targets), tuple(shape), itemsize, mesh, wire_scale)


@lru_cache(maxsize=512)
def _tabled(
    sources: tuple[ShardingSpec, ...],
    targets: tuple[ShardingSpec, ...],
    shape: tuple[int, ...],
    itemsize: int,
    mesh: MeshModel,
    wire_scale: float,
) -> ReshardTable:
    _check_specs(*sources, *targets)
    planner = planner_of(mesh, shape, itemsize, wire_scale)
    cells = np.full((3, len(sources), len(targets)), np.inf)
    summed = [j for j, spec in enumerate(targets) if not spec.partial]
    whole = [i for i, spec in enumerate(sources) if not spec.partial]
    columns = np.array([planner.state_index(targets[j]) for j in summed], dtype=np.intp)
    if whole and summed:
        rows = np.array([planner.state_index(sources[i]) for i in whole], dtype=np.intp)
        cells[:, np.array(whole)[:, None], summed] = planner.table.block(rows, columns)
    for i, source in enumerate(sources):
        if source.partial:
            row = planner.row(source)
            cells[:, i, summed] = [row.seconds[columns], row.wire_bytes[columns], row.largest_bytes[columns]]
        _fill_partial_targets(cells, i, source, targets, planner)
    held = np.array([planner.shard_bytes(spec) for spec in sources]).reshape(-1, 1)
    cells[2] -= held
    cells.setflags(write=False)
    return ReshardTable(seconds=cells[0], wire_bytes=cells[1], extra_bytes=cells[2])


def _check_specs(*specs: object) -> None:
    for spec in specs:
        if not isinstance(spec, ShardingSpec):
            raise TypeError(f"{spec!r} is no ShardingSpec: ShardingSpec.of takes what a PartitionSpec does")


def _fill_partial_targets(
    cells: Array, i: int, source: ShardingSpec, targets: tuple[ShardingSpec, ...], planner: Planner
) -> None:
    for j, target in enumerate(targets):
        if target.partial and set(target.partial) <= set(source.partial):
            plan = planner.plan(source, target)
            cells[:, i, j] = plan.seconds, plan.wire_bytes, plan.extra_bytes + planner.shard_bytes(source)


def communication_resharding_cost_vector(
    sources: Sequence[ShardingSpec],
    shape: Sequence[int],
    itemsize: int,
    required: ShardingSpec,
    mesh: MeshModel,
    *,
    wire_scale: float = 1.0,
) -> Array:
    """Seconds to bring a tensor into `required`, one entry for each spec in which its producer may leave it.

    Args:
        sources: The specs in which the producer may leave the tensor.
        shape: Shape of the whole tensor.
        itemsize: Bytes of one element.
        required: The spec that is wanted.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor (`mesh.wire_scale(dtype)`).

    Returns:
        `[sources]`, at least 0; infinite where there is no way (a sum cannot become partial again).

    Example:
        >>> mesh = MeshModel.uniform({"x": 2, "y": 4}, bytes_per_s=1.0, latency_s=0.0)
        >>> held = [ShardingSpec.of("x", "y"), ShardingSpec.of("x", None), ShardingSpec.of(None, None)]
        >>> communication_resharding_cost_vector(held, (8, 8), 4, ShardingSpec.of("x", None), mesh).tolist()
        [96.0, 0.0, 0.0]
    """
    return reshard_table(sources, (required,), shape, itemsize, mesh, wire_scale=wire_scale).seconds[:, 0]


def memory_resharding_cost_vector(
    sources: Sequence[ShardingSpec],
    shape: Sequence[int],
    itemsize: int,
    required: ShardingSpec,
    mesh: MeshModel,
    *,
    wire_scale: float = 1.0,
) -> Array:
    """Bytes held beyond the source shard on the way to `required`, one entry for each spec of the producer.

    Args:
        sources: The specs in which the producer may leave the tensor.
        shape: Shape of the whole tensor.
        itemsize: Bytes of one element.
        required: The spec that is wanted.
        mesh: The mesh.
        wire_scale: As for `communication_resharding_cost_vector`: the way taken may depend on it.

    Returns:
        `[sources]`, at least 0; infinite where there is no way.

    Example:
        >>> mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
        >>> held = [ShardingSpec.of("x", None), ShardingSpec.of(None, None)]
        >>> memory_resharding_cost_vector(held, (8, 8), 4, ShardingSpec.of(None, None), mesh).tolist()
        [192.0, 0.0]
    """
    return reshard_table(sources, (required,), shape, itemsize, mesh, wire_scale=wire_scale).extra_bytes[:, 0]
