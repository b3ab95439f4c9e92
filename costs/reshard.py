"""Resharding: from one spec to another as the cheapest list of steps that XLA carries out exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from .collectives import all_reduce, reduce_scatter
from .mesh import MeshModel
from .search import PathTable, path_table
from .spec import ShardingSpec
from .steps import State, StepKind

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardStep:
    """One step of a resharding.

    Attributes:
        kind: `slice`, `all-gather`, `all-to-all`, `permute`, `all-reduce` or `reduce-scatter`.
        axes: Mesh axes along which bytes travel, or that are sliced over.
        dims: Tensor dimensions touched; source and destination of an all-to-all, in this order.
        spec: The spec after the step.
        seconds: Its time.
        wire_bytes: Bytes that one device sends.
    """

    kind: StepKind
    axes: tuple[str, ...]
    dims: tuple[int, ...]
    spec: ShardingSpec
    seconds: float
    wire_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardingPlan:
    """The cheapest way from one spec to another.

    Attributes:
        source: The spec at the start.
        target: The spec at the end.
        steps: What happens in between; empty if the specs are equal.
        seconds: Time of all steps; infinite if there is no way (a sum cannot become partial again).
        wire_bytes: Bytes that one device sends.
        extra_bytes: The largest shard held along the way, minus the source's.
    """

    source: ShardingSpec
    target: ShardingSpec
    steps: tuple[ReshardStep, ...]
    seconds: float
    wire_bytes: float
    extra_bytes: float

    @property
    def constraints(self) -> tuple[ShardingSpec, ...]:
        """The specs to constrain the tensor to, one after the other, after its source spec is pinned."""
        return tuple(step.spec for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardTable:
    """Costs between many specs, `[source, target]`; infinite where there is no way."""

    seconds: Array
    wire_bytes: Array
    extra_bytes: Array


@lru_cache(maxsize=1 << 17)
def plan_resharding(
    source: ShardingSpec,
    target: ShardingSpec,
    shape: tuple[int, ...],
    itemsize: int,
    mesh: MeshModel,
    *,
    wire_scale: float = 1.0,
) -> ReshardingPlan:
    """The cheapest sequence of exact steps from `source` to `target`.

    Args:
        source: The spec that the tensor has.
        target: The spec that is wanted.
        shape: Shape of the whole tensor.
        itemsize: Bytes of one element.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.

    Example:
        >>> mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
        >>> move = plan_resharding(ShardingSpec.of("y", None, "x"), ShardingSpec.of(None, ("x", "y"), None), (16, 16, 16), 4, mesh)
        >>> [step.kind for step in move.steps], move.wire_bytes
        (['all-to-all', 'all-to-all'], 2560.0)
    """
    planner = _Planner(mesh, shape, itemsize, wire_scale)
    if source.partial:
        return planner.plan_partial(source, target)
    return planner.plan(source, target)


def reshard_table(
    sources: Sequence[ShardingSpec],
    targets: Sequence[ShardingSpec],
    shape: Sequence[int],
    itemsize: int,
    mesh: MeshModel,
    *,
    wire_scale: float = 1.0,
) -> ReshardTable:
    """Costs of `plan_resharding` between all `sources` and all `targets`."""
    return _reshard_table(tuple(sources), tuple(targets), tuple(shape), itemsize, mesh, wire_scale)


@lru_cache(maxsize=1 << 12)
def _reshard_table(
    sources: tuple[ShardingSpec, ...],
    targets: tuple[ShardingSpec, ...],
    shape: tuple[int, ...],
    itemsize: int,
    mesh: MeshModel,
    wire_scale: float,
) -> ReshardTable:
    planner = _Planner(mesh, shape, itemsize, wire_scale)
    table = planner.table
    if any(spec.partial for spec in (*sources, *targets)):
        plans = [
            [plan_resharding(s, t, shape, itemsize, mesh, wire_scale=wire_scale) for t in targets] for s in sources
        ]
        seconds, wire_bytes, extra_bytes = (
            np.array([[getattr(plan, name) for plan in row] for row in plans]).reshape(len(sources), len(targets))
            for name in ("seconds", "wire_bytes", "extra_bytes")
        )
    else:
        rows = np.array([planner.state_index(spec) for spec in sources], dtype=np.intp)
        columns = np.array([planner.state_index(spec) for spec in targets], dtype=np.intp)
        where = np.ix_(rows, columns)
        seconds, wire_bytes = table.seconds[where], table.wire_bytes[where]
        extra_bytes = table.largest_bytes[where] - table.shard_bytes[rows][:, None]
    for array in (seconds, wire_bytes, extra_bytes):
        array.setflags(write=False)
    return ReshardTable(seconds=seconds, wire_bytes=wire_bytes, extra_bytes=extra_bytes)


def communication_resharding_cost_vector(
    sources: Sequence[ShardingSpec],
    shape: Sequence[int],
    itemsize: int,
    required: ShardingSpec,
    mesh: MeshModel,
    *,
    wire_scale: float = 1.0,
) -> Array:
    """Seconds to bring a tensor into `required`, one entry for each spec that its producer may leave it in."""
    return reshard_table(sources, (required,), shape, itemsize, mesh, wire_scale=wire_scale).seconds[:, 0]


def memory_resharding_cost_vector(
    sources: Sequence[ShardingSpec], shape: Sequence[int], itemsize: int, required: ShardingSpec, mesh: MeshModel
) -> Array:
    """Bytes held beyond the source shard on the way to `required`, one entry for each spec of the producer."""
    return reshard_table(sources, (required,), shape, itemsize, mesh).extra_bytes[:, 0]


class _Planner:
    """Translates between specs and states of one mesh and shape."""

    def __init__(self, mesh: MeshModel, shape: tuple[int, ...], itemsize: int, wire_scale: float) -> None:
        self.mesh, self.shape, self.itemsize, self.wire_scale = mesh, shape, itemsize, wire_scale
        self.names = tuple(name for name in mesh.axis_names if mesh.size(name) > 1)
        self.table: PathTable = path_table(mesh, shape, itemsize, wire_scale)

    def state_index(self, spec: ShardingSpec) -> int:
        if spec.rank != len(self.shape):
            raise ValueError(f"sharding spec {spec} has rank {spec.rank}, but the tensor has shape {self.shape}")
        return self.table.graph.index[self.state(spec)]

    def state(self, spec: ShardingSpec) -> State:
        position = {name: i for i, name in enumerate(self.names)}
        return tuple(tuple(position[axis] for axis in dim if self.mesh.size(axis) > 1) for dim in spec.dims)

    def spec(self, state: State, partial: tuple[str, ...] = ()) -> ShardingSpec:
        return ShardingSpec.of(*(tuple(self.names[axis] for axis in dim) for dim in state), partial=partial)

    def plan(self, source: ShardingSpec, target: ShardingSpec) -> ReshardingPlan:
        start, goal = self.state_index(source), self.state_index(target)
        if target.partial or not np.isfinite(self.table.seconds[start, goal]):
            return _no_way(source, target)
        steps = [self._step(move) for move in self.table.path(start, goal)]
        return ReshardingPlan(
            source=source,
            target=target,
            steps=tuple(steps),
            seconds=float(self.table.seconds[start, goal]),
            wire_bytes=float(self.table.wire_bytes[start, goal]),
            extra_bytes=float(self.table.largest_bytes[start, goal] - self.table.shard_bytes[start]),
        )

    def _step(self, index: int) -> ReshardStep:
        move = self.table.graph.moves[index]
        return ReshardStep(
            kind=move.kind,
            axes=tuple(self.names[axis] for axis in move.axes),
            dims=move.dims,
            spec=self.spec(move.state),
            seconds=float(self.table.move_seconds[index]),
            wire_bytes=float(self.table.move_wire_bytes[index]),
        )

    def plan_partial(self, source: ShardingSpec, target: ShardingSpec) -> ReshardingPlan:
        """Sums are taken first, over some axes at a time, all-reduced or scattered; the rest is an ordinary plan."""
        if source == target:
            return ReshardingPlan(source=source, target=target, steps=(), seconds=0.0, wire_bytes=0.0, extra_bytes=0.0)
        if not source.partial or not set(target.partial) <= set(source.partial):
            return self.plan(source, target)
        held = source.shard_bytes(self.shape, self.itemsize, self.mesh)
        best = _no_way(source, target)
        for step in self._reductions(source, frozenset(source.partial) - frozenset(target.partial), held):
            rest = self.plan_partial(step.spec, target)
            after = step.spec.shard_bytes(self.shape, self.itemsize, self.mesh)
            plan = ReshardingPlan(
                source=source,
                target=target,
                steps=(step, *rest.steps),
                seconds=step.seconds + rest.seconds,
                wire_bytes=step.wire_bytes + rest.wire_bytes,
                extra_bytes=max(0.0, after + rest.extra_bytes - held),
            )
            best = min(best, plan, key=lambda p: (p.seconds, p.wire_bytes, len(p.steps) or len(self.names) + 9))
        return best

    def _reductions(self, spec: ShardingSpec, over: frozenset[str], held: int) -> list[ReshardStep]:
        steps = []
        for count in range(1, len(over) + 1):
            for axes in combinations(sorted(over), count):
                left = tuple(axis for axis in spec.partial if axis not in axes)
                cost = all_reduce(held, axes, self.mesh, self.wire_scale)
                summed = ShardingSpec.of(*spec.dims, partial=left)
                steps.append(
                    ReshardStep(
                        kind="all-reduce",
                        axes=axes,
                        dims=(),
                        spec=summed,
                        seconds=cost.seconds,
                        wire_bytes=cost.wire_bytes,
                    )
                )
                steps.extend(self._scatters(spec, axes, left, held))
        return steps

    def _scatters(
        self, spec: ShardingSpec, axes: tuple[str, ...], left: tuple[str, ...], held: int
    ) -> list[ReshardStep]:
        cost = reduce_scatter(held, axes, self.mesh, self.wire_scale)
        steps = []
        for order in permutations(axes):
            for i, dim in enumerate(spec.dims):
                dims = (*spec.dims[:i], (*dim, *order), *spec.dims[i + 1 :])
                scattered = ShardingSpec.of(*dims, partial=left)
                if not scattered.divides(self.shape, self.mesh):
                    continue
                steps.append(
                    ReshardStep(
                        kind="reduce-scatter",
                        axes=order,
                        dims=(i,),
                        spec=scattered,
                        seconds=cost.seconds,
                        wire_bytes=cost.wire_bytes,
                    )
                )
        return steps


def _no_way(source: ShardingSpec, target: ShardingSpec) -> ReshardingPlan:
    inf = float("inf")
    return ReshardingPlan(source=source, target=target, steps=(), seconds=inf, wire_bytes=inf, extra_bytes=inf)
