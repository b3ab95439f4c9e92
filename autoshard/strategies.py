"""Every way to split one operation over the mesh: strategies from a rule.

A strategy assigns each mesh axis to one factor of the operation, or leaves it idle (the work is then repeated along
it). From the assignment follow the input shardings it requires, the output shardings it produces, and what it costs:

- compute: the operation's flops and memory traffic, divided by the axes that split any factor;
- communication: a split reduction factor leaves partial sums, which end in an all-reduce, or in a reduce-scatter onto
  a dimension of the result, or are left to a later operation (`autoshard.partial_sums`); windows, running folds and
  rows that move exchange what `autoshard.rules.base.Combine` says.

A factor that is not the major one of its dimension may be split only if those before it are split completely, since
only then the parts of the dimension are contiguous (the strided merge of a reshape is thus never taken for free).
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autoshard.costs import (
    ZERO_COST,
    Cost,
    MeshModel,
    ShardingSpec,
    all_gather,
    all_reduce,
    all_to_all,
    collective_permute,
    compute_cost,
    joined_spec,
    reduce_scatter,
    refined_spec,
)
from autoshard.exchange import rounds
from autoshard.rules.base import EXCHANGES, REDUCTIONS, Combine, InnerCollective, OpRule, TensorFacts

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective that a strategy runs on its result.

    Attributes:
        kind: ``all-reduce``, ``reduce-scatter``, ``all-gather`` or ``permute``.
        axes: Mesh axes it runs over.
        dimension: The result dimension that a reduce-scatter splits; -1 otherwise.
        wire_bytes: Bytes sent per device and execution.
    """

    kind: str
    axes: Axes
    dimension: int
    wire_bytes: float


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to split an operation.

    Attributes:
        assignment: Per factor, the mesh axes that split it, major first.
        operands: Required sharding of each operand.
        results: Sharding of each result.
        collectives: What ends the partial sums, in order.
        local: It is carried out as a per-shard region.
        compute: Compute of one execution, per device.
        communication: Communication of one execution, per device.
        scratch_bytes: Memory held only while it runs: partial sums before they are scattered.
    """

    assignment: tuple[Axes, ...]
    operands: tuple[ShardingSpec, ...]
    results: tuple[ShardingSpec, ...]
    collectives: tuple[Collective, ...]
    local: bool
    compute: Cost
    communication: Cost
    scratch_bytes: float

    @property
    def seconds(self) -> float:
        """Time of one execution."""
        return (self.compute + self.communication).seconds


@dataclass(frozen=True, slots=True)
class SpecColumn:
    """The shardings of one operand or result over all strategies: the distinct ones, and which strategy has which."""

    specs: tuple[ShardingSpec, ...]
    index: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class StrategySet:
    """All strategies of one operation, with what the optimiser needs as arrays.

    Attributes:
        strategies: In a fixed order; the first is the replicated one.
        operands: Per operand, its required shardings.
        results: Per result, its shardings.
        seconds: Cost of one execution of each strategy.
    """

    strategies: tuple[Strategy, ...]
    operands: tuple[SpecColumn, ...]
    results: tuple[SpecColumn, ...]
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.strategies)

    def keep(self, positions: Sequence[int]) -> StrategySet:
        """The set with only the strategies at these positions."""
        return _as_set([self.strategies[i] for i in positions])


@cache
def enumerate_strategies(
    rule: OpRule,
    operands: tuple[TensorFacts, ...],
    results: tuple[TensorFacts, ...],
    traffic: tuple[bool, ...],
    mesh: MeshModel,
    uneven: tuple[tuple[int, ShardingSpec], ...] = (),
    divided: bool = True,
) -> StrategySet:
    """All strategies of an operation on a mesh, without those that another one beats with the same shardings.

    Memoised: layer 40 of a network costs a look-up.

    Args:
        rule: The operation's factors.
        operands: Shapes and types of the operands.
        results: Shapes and types of the results.
        traffic: Per operand, then per result, whether it is read from or written to device memory here.
        mesh: The mesh model.
        uneven: Operands that come in a sharding that does not divide them, and that sharding. Where XLA works on padded
            shards as they are, the operation may keep it; no other strategy is uneven.
        divided: Whether the parts of an axis that is cut may be used apart from each other.

    Returns:
        The strategies with their costs for one execution.
    """
    if mesh.parts and not divided and rule.fixed is None:
        joined = tuple((k, joined_spec(spec, mesh.whole_sizes)) for k, spec in uneven)
        return _refined(enumerate_strategies(rule, operands, results, traffic, mesh.whole, joined), mesh)
    pricing = _Pricing(rule, operands, results, traffic, mesh)
    if rule.fixed is not None:
        return _as_set([pricing.fixed(rule.fixed)])
    with _uncollected():
        best = _best(pricing, rule, mesh)
        for operand, spec in uneven:
            kept = _keeping(rule, operand, spec)
            strategy = pricing.strategy(kept, (), (), ()) if kept is not None else None
            if strategy is not None:
                best.setdefault(strategy.operands + strategy.results, strategy)
        return _as_set(list(best.values()))


def _refined(strategies: StrategySet, mesh: MeshModel) -> StrategySet:
    """Strategies over whole axes, written over the axes of a mesh that is cut."""
    sizes, whole = mesh.sizes, mesh.whole_sizes
    specs: dict[ShardingSpec, ShardingSpec] = {}

    def refined(spec: ShardingSpec) -> ShardingSpec:
        if spec not in specs:
            specs[spec] = refined_spec(spec, sizes, whole)
        return specs[spec]

    def parts(axes: Axes) -> Axes:
        """The same axes, those that are cut in parts; parts along links stay as they are."""
        return tuple(
            part for axis in axes for part in (refined(ShardingSpec.of(axis)).axes if axis in whole else (axis,))
        )

    return _as_set(
        [
            replace(
                s,
                assignment=tuple(map(parts, s.assignment)),
                operands=tuple(map(refined, s.operands)),
                results=tuple(map(refined, s.results)),
                collectives=tuple(replace(c, axes=parts(c.axes)) for c in s.collectives),
            )
            for s in strategies.strategies
        ]
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: what is made here is kept; looking through it takes a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _best(pricing: _Pricing, rule: OpRule, mesh: MeshModel) -> dict[tuple[ShardingSpec, ...], Strategy]:
    """The cheapest strategy for each choice of shardings."""
    best: dict[tuple[ShardingSpec, ...], Strategy] = {}
    for assignment, scattered, left, busy in _assignments(rule, mesh):
        strategy = pricing.strategy(assignment, scattered, left, busy)
        if strategy is None:
            continue
        key = strategy.operands + strategy.results
        rival = best.get(key)
        if rival is None or strategy.seconds < rival.seconds:
            best[key] = strategy
    return best


def _keeping(rule: OpRule, operand: int, spec: ShardingSpec) -> tuple[Axes, ...] | None:
    """The assignment that keeps an operand's uneven sharding.

    None unless the operation only maps or renames elements, along factors that are alone in their dimensions: a padded
    shard of the operand is then a padded shard of the result.
    """
    if not (rule.fusible or rule.aliases):
        return None
    entries = [entry for dims in (*rule.operands, *rule.results) for entry in dims]
    axes_of: dict[int, Axes] = {}
    for entry, axes in zip(rule.operands[operand], spec.dims):
        if axes and (len(entry) != 1 or any(entry[0] in other and len(other) > 1 for other in entries)):
            return None
        if axes:
            axes_of[entry[0]] = axes
    return tuple(axes_of.get(f, ()) for f in range(len(rule.factors)))


def _as_set(strategies: Sequence[Strategy]) -> StrategySet:
    first = strategies[0]
    return StrategySet(
        strategies=tuple(strategies),
        operands=tuple(_column([s.operands[k] for s in strategies]) for k in range(len(first.operands))),
        results=tuple(_column([s.results[k] for s in strategies]) for k in range(len(first.results))),
        seconds=np.array([s.seconds for s in strategies]),
    )


def _column(specs: Sequence[ShardingSpec]) -> SpecColumn:
    places: dict[ShardingSpec, int] = {}
    index = [places.setdefault(spec, len(places)) for spec in specs]
    return SpecColumn(tuple(places), np.array(index, dtype=np.intp))


Scattered = tuple[tuple[int, Axes], ...]
"""Result dimensions onto which reduction axes are scattered, with the axes."""


Busy = tuple[tuple[int, Axes], ...]
"""The factors that communicate, with their axes: what communication depends on.

The axes are in the order of the mesh, except where rows move: the order says which devices are neighbours.
"""


def _assignments(rule: OpRule, mesh: MeshModel) -> Iterator[tuple[tuple[Axes, ...], Scattered, Axes, Busy]]:
    """Every assignment of axes to factors, every order of axes on a factor, every end of a reduction.

    Each axis takes one of: idle; a factor; a summing factor with a scatter onto a dimension of the first result, or
    left open. Axes of size one stay idle. The extents must divide.
    """
    quiet = [factor.combine is Combine.PARALLEL for factor in rule.factors]
    moves = [factor.combine is Combine.MOVE for factor in rule.factors]
    axes = [(a, mesh.size(a)) for a in mesh.axis_names if mesh.size(a) > 1]
    places = _places(rule)
    together = len(places) ** len(axes) > MANY_PLACES
    cuts = [_cut_of(a, mesh) for a, _ in axes]
    for choice in _choices(rule, places, [size for _, size in axes], cuts, [1] * len(rule.factors)):
        by_factor: dict[int, list[str]] = {}
        by_dimension: dict[int, list[str]] = {}
        for (axis, _), place in zip(axes, choice):
            if place is None:
                continue
            by_factor.setdefault(place[0], []).append(axis)
            if place[1] >= 0:
                by_dimension.setdefault(place[1], []).append(axis)
        if together and len(by_dimension) > 1:
            continue
        canonical = [(f, tuple(by_factor[f])) for f in sorted(by_factor) if not quiet[f]]
        groups = by_dimension.values()
        scatter_orders = [tuple(map(tuple, groups))] if together else _orders(groups, mesh)
        scatters = [tuple(zip(by_dimension, orders)) for orders in scatter_orders]
        left = tuple(axis for (axis, _), place in zip(axes, choice) if place is not None and place[1] == LEFT_OPEN)
        for orders in _orders(by_factor.values(), mesh):
            of = dict(zip(by_factor, orders))
            assignment = tuple(of.get(f, ()) for f in range(len(rule.factors)))
            busy = tuple([(f, of[f] if moves[f] else axes) for f, axes in canonical])
            for scattered in scatters:
                yield assignment, scattered, left, busy


MANY_PLACES = 1000
"""From so many ways to place all axes on, sums are scattered onto one dimension at a time, in the order of the mesh.

Three axes and tensors of five dimensions would otherwise make thousands of strategies of one operation, which no solver
gets through in time. With two axes that takes more than thirty places, which no operation has."""

Place = tuple[int, int] | None
"""What a mesh axis does: nothing, or split a factor and, if it sums, scatter the sum onto a dimension of the result,
all-reduce it, or leave it open."""

ALL_REDUCE, LEFT_OPEN = -1, -2


def _places(rule: OpRule) -> list[Place]:
    places: list[Place] = [None]
    for f, factor in enumerate(rule.factors):
        places.append((f, ALL_REDUCE))
        if factor.combine is Combine.SUM and (len(rule.results) == 1 or rule.carries_open):
            places += [(f, d) for d, entry in enumerate(rule.results[-1]) if entry]
            places += [(f, LEFT_OPEN)] if rule.leaves_open else []
    return places


def _cut_of(axis: str, mesh: MeshModel) -> int:
    """Size of the whole axis that this one continues as a minor part; 0 for a whole axis, or the major part of one."""
    position, major = mesh.place(axis)
    return mesh.axes[position].size if major > 1 else 0


def _choices(
    rule: OpRule,
    places: Sequence[Place],
    sizes: Sequence[int],
    cuts: Sequence[int],
    parts: list[int],
    before: Place = None,
) -> Iterator[tuple[Place, ...]]:
    """A place for every axis, such that the number of parts divides every factor.

    Parts of one axis go apart only where the major one takes what the whole axis does not divide; elsewhere, a minor
    part stays with the one before it or is idle.
    """
    if not sizes:
        yield ()
        return
    (size, *rest), (cut, *later) = sizes, cuts
    if cut and (before is None or rule.factors[before[0]].size % cut == 0):
        places_here: Sequence[Place] = list(dict.fromkeys((None, before)))
    else:
        places_here = places
    for place in places_here:
        if place is None:
            yield from ((None, *others) for others in _choices(rule, places, rest, later, parts, None))
            continue
        f = place[0]
        if rule.factors[f].size % (parts[f] * size) == 0:
            parts[f] *= size
            yield from ((place, *others) for others in _choices(rule, places, rest, later, parts, place))
            parts[f] //= size


def _orders(groups: Iterable[Sequence[str]], mesh: MeshModel) -> list[tuple[Axes, ...]]:
    """Every order of the axes within each group; parts of one axis stay major first."""
    orders: Iterable[Iterable[Axes]] = (itertools.permutations(group) for group in groups)
    if mesh.parts:
        orders = ([order for order in found if _parts_in_order(order, mesh)] for found in orders)
    return list(itertools.product(*orders))


@cache
def _parts_in_order(order: Axes, mesh: MeshModel) -> bool:
    places = [mesh.place(axis) for axis in order]
    return all(a < b for a, b in itertools.combinations(places, 2) if a[0] == b[0])


Placed = tuple[ShardingSpec, float]
"""A sharding of one tensor and the bytes of a shard."""


class _Pricing:
    """Shardings and costs of one operation's strategies; remembers what strategies have in common."""

    def __init__(
        self,
        rule: OpRule,
        operands: tuple[TensorFacts, ...],
        results: tuple[TensorFacts, ...],
        traffic: tuple[bool, ...],
        mesh: MeshModel,
    ) -> None:
        self.rule, self.mesh, self.operands, self.results = rule, mesh, operands, results
        self.sizes = {a: mesh.size(a) for a in mesh.axis_names}
        self.combines = [factor.combine for factor in rule.factors]
        tensors = [*zip(rule.operands, operands), *zip(rule.results, results)]
        self.tensors = [
            (tuple(f for entry in dims for f in entry), dims, facts, k >= len(operands))
            for k, (dims, facts) in enumerate(tensors)
        ]
        touches = rule.touches or (1.0,) * len(tensors)
        self.touched = [(k, share) for k, (kept, share) in enumerate(zip(traffic, touches)) if kept and share]
        self.placed: list[dict[tuple[Axes, ...], Placed | None]] = [{} for _ in tensors]
        self.scatters: dict[tuple[ShardingSpec, Scattered], ShardingSpec | None] = {}
        self.computes: dict[tuple[int, float], Cost] = {}
        self.ends: dict[object, tuple[tuple[Collective, ...], Cost]] = {}
        self.dtype = (operands or results)[0].dtype if operands or results else "float32"

    def strategy(self, assignment: tuple[Axes, ...], scattered: Scattered, left: Axes, busy: Busy) -> Strategy | None:
        """The strategy of an assignment; None if a dimension could not be split that way."""
        placed = []
        for k, (factors, *_) in enumerate(self.tensors):
            key = tuple([assignment[f] for f in factors])
            known = self.placed[k]
            if key not in known:
                known[key] = self._place(k, assignment)
            entry = known[key]
            if entry is None:
                return None
            placed.append(entry)
        count = len(self.operands)
        before = [spec for spec, _ in placed[:count]]
        after = [spec for spec, _ in placed[count:]]
        arriving = assignment[-1] if self.rule.open_operands else ()
        for k in self.rule.open_operands if arriving else ():
            before[k] = ShardingSpec.of(*before[k].dims, partial=arriving)
        scratch = 0.0
        if scattered:
            final = self._scatter(after[-1 if self.rule.carries_open else 0], scattered)
            if final is None:
                return None
            after[-1 if self.rule.carries_open else 0] = final
            scratch = placed[count][1] * (1 - 1 / math.prod(self._parts(axes) for _, axes in scattered))
        still_open = arriving if self.rule.carries_open else left
        if still_open:
            after[0] = ShardingSpec.of(*after[0].dims, partial=still_open)
        collectives, communication = self._communication(busy, scattered, left, placed) if busy else ((), ZERO_COST)
        return Strategy(
            assignment,
            tuple(before),
            tuple(after),
            collectives,
            bool(scattered or left or arriving) or self._is_local(assignment, busy),
            self._compute(assignment, placed),
            communication,
            scratch,
        )

    def fixed(self, specs: Sequence[ShardingSpec]) -> Strategy:
        """The one strategy of an operation whose shardings are given; everything whole if the mesh lacks their axes."""
        tensors = (*self.operands, *self.results)
        known = all(axis in self.sizes for spec in specs for axis in spec.axes)
        if not known:
            specs = [ShardingSpec.replicated(len(t.shape)) for t in tensors]
        placed = [(spec, self._shard_bytes(spec, facts)) for spec, facts in zip(specs, tensors)]
        nbytes = sum(share * placed[k][1] for k, share in self.touched)
        split = math.prod(self.sizes[axis] for axis in {axis for spec in specs for axis in spec.axes})
        compute = compute_cost(self.rule.flops / split, nbytes, self.dtype, self.mesh)
        priced = [_priced_inner(inner, self.mesh) for inner in self.rule.inner] if known else []
        communication = sum((cost for _, cost in priced), ZERO_COST)
        collectives = tuple(collective for collective, _ in priced)
        count = len(self.operands)
        return Strategy((), tuple(specs[:count]), tuple(specs[count:]), collectives, False, compute, communication, 0.0)

    def _parts(self, axes: Axes) -> int:
        parts = 1
        for axis in axes:
            parts *= self.sizes[axis]
        return parts

    def _shard_bytes(self, spec: ShardingSpec, facts: TensorFacts) -> float:
        elements = 1
        for extent, axes in zip(facts.shape, spec.dims):
            elements *= -(-extent // self._parts(axes))
        return elements * facts.itemsize

    def _place(self, k: int, assignment: tuple[Axes, ...]) -> Placed | None:
        """The sharding of one tensor; None if it has none.

        A minor factor may not be split under a major one that is not split completely, nor a shard be left with less
        than the factor's least.
        """
        _, dims, facts, is_result = self.tensors[k]
        entries: list[Axes] = []
        for entry, extent in zip(dims, facts.shape):
            axes: Axes = ()
            complete = True
            for f in entry:
                mine, factor = assignment[f], self.rule.factors[f]
                if mine and not complete:
                    return None
                if not (is_result and factor.combine in REDUCTIONS):
                    axes += mine
                parts = self._parts(mine)
                if not is_result and -(-extent // parts) < factor.least and mine:
                    return None
                complete = complete and parts == factor.size
            entries.append(axes)
        spec = ShardingSpec.of(*entries)
        return spec, self._shard_bytes(spec, facts)

    def _scatter(self, spec: ShardingSpec, scattered: Scattered) -> ShardingSpec | None:
        """Append the scattered axes as the minor ones; None if the dimension does not divide."""
        key = spec, scattered
        if key not in self.scatters:
            dims = list(spec.dims)
            for d, axes in scattered:
                dims[d] += axes
            divides = all(self.results[0].shape[d] % self._parts(dims[d]) == 0 for d, _ in scattered)
            self.scatters[key] = ShardingSpec.of(*dims) if divides else None
        return self.scatters[key]

    def _is_local(self, assignment: tuple[Axes, ...], busy: Busy) -> bool:
        """Whether XLA would do something else, unless told shard by shard."""
        if any([assignment[f] for f in self.rule.local_factors]):
            return True
        if not busy:
            return False
        several = self.rule.merges and sum(self.combines[f] in REDUCTIONS for f, _ in busy) > 1
        return several or any(self.combines[f] in EXCHANGES for f, _ in busy)

    def _compute(self, assignment: tuple[Axes, ...], placed: Sequence[Placed]) -> Cost:
        """Roofline over the local part of the work; the traffic is that of the operands and results kept in memory."""
        split = 1
        for axes in assignment[:-1] if self.rule.open_operands else assignment:
            for axis in axes:
                split *= self.sizes[axis]
        nbytes = 0.0
        for k, share in self.touched:
            nbytes += share * placed[k][1]
        cost = self.computes.get((split, nbytes))
        if cost is None:
            cost = self.computes[split, nbytes] = compute_cost(self.rule.flops / split, nbytes, self.dtype, self.mesh)
        return cost

    def _communication(
        self, busy: Busy, scattered: Scattered, left: Axes, placed: Sequence[Placed]
    ) -> tuple[tuple[Collective, ...], Cost]:
        """All collectives of a strategy, in order: exchanges of operands, ends of reductions, running totals."""
        key = busy, scattered, left, placed[0][1], placed[len(self.operands)][1]
        known = self.ends.get(key)
        if known is None:
            found = [*self._before(busy, placed), *self._after(busy, scattered, left, placed)]
            total = sum((cost for _, cost in found), ZERO_COST)
            known = self.ends[key] = tuple(collective for collective, _ in found), total
        return known

    def _before(self, busy: Busy, placed: Sequence[Placed]) -> Iterator[tuple[Collective, Cost]]:
        """Rows that change shards, and borders that are sent to neighbours.

        The borders of later dimensions include those of earlier ones.
        """
        scale = self.mesh.wire_scale(self.dtype)
        moved = {f: self._parts(axes) for f, axes in busy if self.combines[f] is Combine.MOVE}
        for f, axes in busy:
            if f in moved:
                for nbytes, along in self._messages(f, axes, moved, placed):
                    yield _priced("permute", along, collective_permute(nbytes, along, self.mesh, scale))
        nbytes = placed[0][1] if placed else 0.0
        for f, axes in busy:
            if self.combines[f] is not Combine.HALO:
                continue
            extent = self._operand_extent(f) / self._parts(axes)
            halo = self.rule.factors[f].halo
            for border in halo:
                if border > 0:
                    cost = collective_permute(nbytes * border / extent, axes, self.mesh, scale)
                    yield _priced("permute", axes, cost)
            nbytes *= (extent + sum(max(0, border) for border in halo)) / extent

    def _messages(
        self, factor: int, axes: Axes, moved: Mapping[int, int], placed: Sequence[Placed]
    ) -> Iterator[tuple[float, Axes]]:
        """Bytes of the messages that move rows along one dimension, and the mesh axes along which they move.

        Dimensions that only shrink on every device do so before, those that grow do so after; dimensions whose rows
        move are handled one after the other, in their order.
        """
        dimension = self.rule.results[0].index((factor,))
        extents = [t.shape[dimension] if len(t.shape) > dimension else 0 for t in self.operands]
        results = [t.shape[dimension] for t in self.results]
        segments = self.rule.factors[factor].segments
        for message in rounds(segments, extents, results, moved[factor]):
            elements = 1.0
            facts = self.operands[message.operand]
            shapes = zip(self.rule.results[0], facts.shape, self.results[0].shape)
            for d, (entry, before, after) in enumerate(shapes):
                parts = math.prod(moved.get(f, 1) for f in entry)
                if d == dimension:
                    elements *= message.length
                elif parts > 1:
                    elements *= (after if d < dimension else before) // parts
                else:
                    elements *= min(before, after) // self._parts(placed[message.operand][0].dims[d])
            along = message.along([self.sizes[a] for a in axes])
            yield elements * facts.itemsize, tuple(axes[k] for k in along)

    def _operand_extent(self, factor: int) -> int:
        """Extent of the dimension of the first operand that has this factor."""
        return next(n for entry, n in zip(self.rule.operands[0], self.operands[0].shape) if factor in entry)

    def _after(
        self, busy: Busy, scattered: Scattered, left: Axes, placed: Sequence[Placed]
    ) -> Iterator[tuple[Collective, Cost]]:
        """Scatter first, on ever smaller shards, then all-reduce over the axes that are left, or gather candidates."""
        result = self.results[0]
        scale = self.mesh.wire_scale(result.dtype)
        nbytes = placed[len(self.operands)][1]
        for d, axes in scattered:
            for together in self.mesh.scatter_steps(axes):
                cost = reduce_scatter(nbytes, together, self.mesh, scale)
                yield _priced("reduce-scatter", together, cost, d)
                nbytes /= math.prod(map(self.mesh.size, together))
        done = {*left, *(a for _, axes in scattered for a in axes)}
        for combine, axes in self._reduced(busy, done):
            if combine is Combine.ARG:
                candidates = nbytes / result.itemsize * self._parts(axes)
                pair = self.operands[0].itemsize * self.mesh.wire_scale(self.dtype) + self.results[-1].itemsize
                yield _priced("all-gather", axes, all_gather(candidates * pair, axes, self.mesh))
            else:
                yield _priced("all-reduce", axes, all_reduce(nbytes, axes, self.mesh, scale))
        for f, axes in busy:
            if self.combines[f] is Combine.PREFIX:
                parts = self._parts(axes)
                totals = nbytes / (self.rule.factors[f].size / parts)
                yield _priced("all-gather", axes, all_gather(totals * parts, axes, self.mesh, scale))

    def _reduced(self, busy: Busy, done: set[str]) -> Iterator[tuple[Combine, Axes]]:
        """The axes to reduce over that are not done yet: all at once, or factor by factor."""
        left = [(self.combines[f], tuple(a for a in axes if a not in done)) for f, axes in busy]
        left = [(combine, axes) for combine, axes in left if axes and combine in REDUCTIONS]
        if not self.rule.merges:
            yield from left
        elif left:
            together = {a for _, axes in left for a in axes}
            yield left[0][0], tuple(a for a in self.mesh.axis_names if a in together)


def _priced(kind: str, axes: Axes, cost: Cost, dimension: int = -1) -> tuple[Collective, Cost]:
    return Collective(kind, axes, dimension, cost.wire_bytes), cost


COLLECTIVES: Mapping[str, Callable[..., Cost]] = {
    "all-gather": all_gather,
    "all-reduce": all_reduce,
    "all-to-all": all_to_all,
    "permute": collective_permute,
    "reduce-scatter": reduce_scatter,
}
"""What a collective of a kind costs."""


def _priced_inner(inner: InnerCollective, mesh: MeshModel) -> tuple[Collective, Cost]:
    """A collective inside of an operation, all its trips together."""
    axes = tuple(axis for axis in inner.axes if axis in mesh.axis_names)
    return _priced(inner.kind, axes, COLLECTIVES[inner.kind](inner.nbytes, axes, mesh) * inner.trips)


def tensor_specs(shape: tuple[int, ...], mesh: MeshModel) -> tuple[ShardingSpec, ...]:
    """All shardings of a tensor on a mesh in which every dimension divides, the replicated one first."""
    factors = tuple(n for n in shape)
    found: dict[ShardingSpec, None] = {}
    axes = [a for a in mesh.axis_names if mesh.size(a) > 1]
    for choice in itertools.product(range(-1, len(factors)), repeat=len(axes)):
        groups: list[list[str]] = [[] for _ in factors]
        for axis, d in zip(axes, choice):
            if d >= 0:
                groups[d].append(axis)
        if any(n % math.prod(map(mesh.size, group)) for n, group in zip(factors, groups)):
            continue
        for dims in itertools.product(*(itertools.permutations(group) for group in groups)):
            found[ShardingSpec.of(*dims)] = None
    return tuple(found)
