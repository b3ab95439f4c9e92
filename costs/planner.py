"""Between specs and the numbers of the search: plans, rows and sums that have not been taken yet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations, product
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from .cost import ZERO_COST, Cost
from .cutting import Cutter
from .edges import Array
from .laws import collective_law
from .links import CollectiveKind
from .mesh import MeshModel
from .search import PathTable
from .spec import ShardingSpec
from .steps import Move, Piece, PieceState, State, Step, StepKind, parts_of, piece_state
from .tables import padded_extents, path_table, piece_name, split_axes

_SAVING = 1e-8  # a way that saves less than this part of the time is the same, up to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardStep:
    """One step of a resharding.

    Attributes:
        kind: `slice`, `all-gather`, `all-to-all`, `permute`, `all-reduce` or `reduce-scatter`.
        axes: Mesh axes along which bytes travel, or that are sliced over.
        dims: Tensor dimensions touched; source and destination of an all-to-all, in this order.
        spec: The spec after the step. It may name parts of axes, such as `x:(2)2`, which no PartitionSpec can.
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
        constraints: The specs to constrain the tensor to, one after the other, after its source spec is pinned. All
            name whole axes (a run of steps over parts of axes is one constraint), unless `sub_axes` was asked for.
        seconds: Time of all steps; infinite if there is no way (a sum cannot become partial again).
        wire_bytes: Bytes that one device sends.
        extra_bytes: The largest shard held along the way, minus the source's.
    """

    source: ShardingSpec
    target: ShardingSpec
    steps: tuple[ReshardStep, ...] = ()
    constraints: tuple[ShardingSpec, ...] = ()
    seconds: float = 0.0
    wire_bytes: float = 0.0
    extra_bytes: float = 0.0

    @property
    def possible(self) -> bool:
        """Whether there is a way."""
        return math.isfinite(self.seconds)


@dataclass(frozen=True, slots=True)
class SpecRow:
    """Cheapest ways from one spec to every state of a table, `[states]`.

    Attributes:
        key: The number by which ways are ranked; infinite where there is none.
        seconds: Time.
        wire_bytes: Bytes on the wire per device.
        largest_bytes: The largest shard held.
        first: For a source with sums to take: which of `reductions` comes first, else None.
        reductions: The steps that may come first.
    """

    key: Array
    seconds: Array
    wire_bytes: Array
    largest_bytes: Array
    first: NDArray[np.intp] | None = None
    reductions: tuple[ReshardStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans reshardings of tensors of one shape on one mesh.

    Attributes:
        mesh: The mesh.
        shape: Shape of the tensor.
        itemsize: Bytes of one element.
        wire_scale: Bytes on the wire per byte of the tensor.
        table: Cheapest paths between specs without partial sums.
        names: The mesh axes above 1, as the table counts them.
        sizes: Their sizes.
    """

    mesh: MeshModel
    shape: tuple[int, ...]
    itemsize: int
    wire_scale: float
    table: PathTable
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def state_index(self, spec: ShardingSpec) -> int:
        """Position in the table of a spec, partial axes left out."""
        if spec.rank != len(self.shape):
            raise ValueError(f"sharding spec {spec} has rank {spec.rank}, but the tensor has shape {self.shape}")
        state: State = tuple(
            tuple(self._position(axis) for axis in dim if self.mesh.size(axis) > 1) for dim in spec.dims
        )
        for axis in spec.partial:
            self.mesh.size(axis)
        return self.table.graph.index[state]

    def _position(self, axis: str) -> int:
        if axis not in self.names:
            raise ValueError(f"{axis!r} is a part of an axis: a resharding starts and ends with whole axes")
        return self.names.index(axis)

    def plan(self, source: ShardingSpec, target: ShardingSpec) -> ReshardingPlan:
        """The cheapest way."""
        self.state_index(target)
        if not set(target.partial) <= set(source.partial):
            return _no_way(source, target)
        if target.partial:
            return self._plan_to_partial(source, target)
        if source.partial:
            return self._plan_from_partial(source, target)
        return self._plan(source, target)

    def plan_cutting(self, source: ShardingSpec, target: ShardingSpec) -> ReshardingPlan:
        """The cheapest way where specs in between may split by parts of axes."""
        plan = self.plan(source, target)
        if source.partial or not plan.steps or len(set(self.sizes)) == 1:
            return plan
        start, end = (self.table.graph.states[self.state_index(spec)] for spec in (source, target))
        cutter = Cutter(self.sizes, self.shape, lambda step: self._cost(step, self.shape).seconds)
        chain = cutter.cheapest(
            piece_state(start, self.sizes), piece_state(end, self.sizes), plan.seconds * (1 - _SAVING)
        )
        if chain is None:
            return plan
        steps = [self._step(step, self.shape) for step in chain]
        steps[-1] = replace(steps[-1], spec=target)
        held = [
            self.shard_bytes(source),
            *(step.spec.shard_bytes(self.shape, self.itemsize, self.mesh) for step in steps),
        ]
        return ReshardingPlan(
            source=source,
            target=target,
            steps=tuple(steps),
            constraints=tuple(step.spec for step in steps),
            seconds=sum(step.seconds for step in steps),
            wire_bytes=sum(step.wire_bytes for step in steps),
            extra_bytes=max(held) - held[0],
        )

    def row(self, source: ShardingSpec) -> SpecRow:
        """Cheapest ways from `source` to every state."""
        if source.partial:
            return _partial_row(self, source)
        row = self.table.row(self.state_index(source))
        return SpecRow(row.key, row.seconds, row.wire_bytes, row.largest_bytes)

    def shard_bytes(self, spec: ShardingSpec) -> float:
        """Bytes of one shard."""
        return float(self.table.shard_bytes[self.state_index(spec)])

    def _plan(self, source: ShardingSpec, target: ShardingSpec) -> ReshardingPlan:
        start, goal = self.state_index(source), self.state_index(target)
        row = self.table.row(start)
        if not math.isfinite(row.key[goal]):
            return _no_way(source, target)
        moves = self.table.path(start, goal)
        steps = [self._step(step, self._padded(move)) for move in moves for step in move.steps]
        constraints = [self._spec(piece_state(move.target, self.sizes)) for move in moves]
        if moves:  # the target also says the axes of size 1, which states leave out
            steps[-1], constraints[-1] = replace(steps[-1], spec=target), target
        return ReshardingPlan(
            source=source,
            target=target,
            steps=tuple(steps),
            constraints=tuple(constraints),
            seconds=float(row.seconds[goal]),
            wire_bytes=float(row.wire_bytes[goal]),
            extra_bytes=float(row.largest_bytes[goal] - self.table.shard_bytes[start]),
        )

    def _plan_from_partial(self, source: ShardingSpec, target: ShardingSpec) -> ReshardingPlan:
        row, goal = self.row(source), self.state_index(target)
        if row.first is None or not math.isfinite(row.key[goal]):
            return _no_way(source, target)
        first = row.reductions[row.first[goal]]
        rest = self.plan(first.spec, target)
        return self._joined(source, first, rest)

    def _plan_to_partial(self, source: ShardingSpec, target: ShardingSpec) -> ReshardingPlan:
        """While sums are open only reductions happen, so the ways to a partial target are few."""
        if self.state_index(source) == self.state_index(target) and source.partial == target.partial:
            return ReshardingPlan(source=source, target=target)
        best = _no_way(source, target)
        for step in self.reductions(source, frozenset(source.partial) - frozenset(target.partial)):
            rest = self._plan_to_partial(step.spec, target)
            if rest.possible:
                best = min(best, self._joined(source, step, rest), key=_rank)
        return best

    def _joined(self, source: ShardingSpec, first: ReshardStep, rest: ReshardingPlan) -> ReshardingPlan:
        held = self.shard_bytes(source)
        return ReshardingPlan(
            source=source,
            target=rest.target,
            steps=(first, *rest.steps),
            constraints=(first.spec, *rest.constraints),
            seconds=first.seconds + rest.seconds,
            wire_bytes=first.wire_bytes + rest.wire_bytes,
            extra_bytes=max(0.0, self.shard_bytes(first.spec) + rest.extra_bytes - held),
        )

    def reductions(self, spec: ShardingSpec, over: frozenset[str]) -> Iterator[ReshardStep]:
        """Every way to take the sums over some of the axes `over` in one collective."""
        for count in range(1, len(over) + 1):
            for axes in combinations(sorted(over), count):
                left = tuple(axis for axis in spec.partial if axis not in axes)
                yield self._reduction("all-reduce", axes, (), ShardingSpec.of(*spec.dims, partial=left), spec)
                if len(self.mesh.scatter_steps(axes)) == 1:
                    yield from self._scatters(axes, left, spec)

    def _scatters(self, axes: tuple[str, ...], left: tuple[str, ...], spec: ShardingSpec) -> Iterator[ReshardStep]:
        """Every way to scatter the sums over `axes` onto one dimension."""
        for order, i in product(permutations(axes), range(spec.rank)):
            dims = (*spec.dims[:i], (*spec.dims[i], *order), *spec.dims[i + 1 :])
            scattered = ShardingSpec.of(*dims, partial=left)
            if scattered.divides(self.shape, self.mesh):
                yield self._reduction("reduce-scatter", order, (i,), scattered, spec)

    def _reduction(
        self,
        kind: CollectiveKind,
        axes: tuple[str, ...],
        dims: tuple[int, ...],
        after: ShardingSpec,
        before: ShardingSpec,
    ) -> ReshardStep:
        cost = collective_law(kind, axes, self.mesh).cost(self.shard_bytes(before) * self.wire_scale)
        return ReshardStep(
            kind=kind, axes=axes, dims=dims, spec=after, seconds=cost.seconds, wire_bytes=cost.wire_bytes
        )

    def _padded(self, move: Move) -> tuple[int, ...]:
        before, after = (np.array(parts_of(state, self.sizes)) for state in (move.source, move.target))
        return tuple(int(size) for size in padded_extents(np.array(self.shape), before, after))

    def _step(self, step: Step, extents: tuple[int, ...]) -> ReshardStep:
        cost = self._cost(step, extents)
        return ReshardStep(
            kind=step.kind,
            axes=tuple(self._name(piece) for piece in step.pieces),
            dims=step.dims,
            spec=self._spec(step.state),
            seconds=cost.seconds,
            wire_bytes=cost.wire_bytes,
        )

    def _cost(self, step: Step, extents: tuple[int, ...]) -> Cost:
        if step.kind == "slice":
            return ZERO_COST
        nbytes = math.prod(size // parts for size, parts in zip(extents, step.parts)) * self.itemsize
        axes = tuple(self._name(piece) for piece in step.pieces)
        return collective_law(step.kind, axes, self.mesh).cost(nbytes * self.wire_scale)

    def _spec(self, state: PieceState) -> ShardingSpec:
        return ShardingSpec.of(*(tuple(self._name(piece) for piece in dim) for dim in state))

    def _name(self, piece: Piece) -> str:
        return piece_name(piece, self.names, self.mesh)


@lru_cache(maxsize=1024)
def planner_of(mesh: MeshModel, shape: tuple[int, ...], itemsize: int, wire_scale: float) -> Planner:
    """The planner of one shape on one mesh."""
    if not isinstance(mesh, MeshModel):
        raise TypeError(f"{mesh!r} is no MeshModel: make one with MeshModel.preset or MeshModel.uniform")
    if not all(isinstance(size, Integral) and size >= 0 for size in shape):
        raise ValueError(f"a tensor has no shape {shape}: sizes are whole numbers of at least 0")
    if not (itemsize > 0 and wire_scale > 0):
        raise ValueError(f"an element takes some bytes, got {itemsize}, and {wire_scale} on the wire for each of them")
    names, sizes = split_axes(mesh)
    table = path_table(mesh, shape, itemsize, wire_scale)
    return Planner(mesh, shape, itemsize, wire_scale, table, names, sizes)


@lru_cache(maxsize=1024)
def _partial_row(planner: Planner, source: ShardingSpec) -> SpecRow:
    """The row of a source with sums to take: one reduction first, the rest is the row of what it leaves."""
    reductions = tuple(planner.reductions(source, frozenset(source.partial)))
    rows = [planner.row(step.spec) for step in reductions]
    seconds = np.stack([row.seconds + step.seconds for row, step in zip(rows, reductions)])
    wire_bytes = np.stack([row.wire_bytes + step.wire_bytes for row, step in zip(rows, reductions)])
    steps_key = [
        planner.table.rank_key(np.array(step.seconds), np.array(step.wire_bytes), np.array(1.0)) for step in reductions
    ]
    key = np.stack([row.key + own for row, own in zip(rows, steps_key)])
    first = key.argmin(axis=0)
    everywhere = (first, np.arange(len(first)))
    largest = np.stack([row.largest_bytes for row in rows])[everywhere]
    return SpecRow(
        key=key[everywhere],
        seconds=seconds[everywhere],
        wire_bytes=wire_bytes[everywhere],
        largest_bytes=np.maximum(largest, planner.shard_bytes(source)),
        first=first,
        reductions=reductions,
    )


def _rank(plan: ReshardingPlan) -> tuple[float, float, int]:
    return plan.seconds, plan.wire_bytes, len(plan.steps)


def _no_way(source: ShardingSpec, target: ShardingSpec) -> ReshardingPlan:
    inf = float("inf")
    return ReshardingPlan(source=source, target=target, seconds=inf, wire_bytes=inf, extra_bytes=inf)
