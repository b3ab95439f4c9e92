"""Every way to split one operation over the mesh: strategies from a rule.

A strategy assigns each mesh axis to one factor of the operation, or leaves it idle (the work is then repeated along
it). From the assignment follow the input shardings it requires, the output shardings it produces, and what it costs:

- compute: the operation's flops and memory traffic, divided by the axes that split any factor;
- communication: a split reduction factor leaves partial sums, which end in an all-reduce, or in a reduce-scatter onto
  a dimension of the result.

A factor that is not the major one of its dimension may be split only if those before it are split completely, since
only then the parts of the dimension are contiguous (the strided merge of a reshape is thus never taken for free).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autoshard.costs import ZERO_COST, Cost, MeshModel, ShardingSpec, all_gather, all_reduce, compute_cost, reduce_scatter
from autoshard.rules.base import Combine, Dims, OpRule, TensorFacts

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective that a strategy runs on its result.

    Attributes:
        kind: ``all-reduce``, ``reduce-scatter`` or ``all-gather``.
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


@lru_cache(maxsize=None)
def enumerate_strategies(
    rule: OpRule,
    operands: tuple[TensorFacts, ...],
    results: tuple[TensorFacts, ...],
    traffic: tuple[bool, ...],
    mesh: MeshModel,
) -> StrategySet:
    """All strategies of an operation on a mesh, without those that another one beats with the same shardings.

    Memoised: layer 40 of a network costs a look-up.

    Args:
        rule: The operation's factors.
        operands: Shapes and types of the operands.
        results: Shapes and types of the results.
        traffic: Per operand, then per result, whether it is read from or written to device memory here.
        mesh: The mesh model.

    Returns:
        The strategies with their costs for one execution.
    """
    best: dict[tuple[ShardingSpec, ...], Strategy] = {}
    for assignment, scattered in _assignments(rule, mesh):
        strategy = _strategy(rule, operands, results, traffic, mesh, assignment, scattered)
        if strategy is None:
            continue
        key = (*strategy.operands, *strategy.results)
        rival = best.get(key)
        if rival is None or strategy.seconds < rival.seconds:
            best[key] = strategy
    return _as_set(list(best.values()))


def _as_set(strategies: Sequence[Strategy]) -> StrategySet:
    first = strategies[0]
    return StrategySet(
        strategies=tuple(strategies),
        operands=tuple(_column([s.operands[k] for s in strategies]) for k in range(len(first.operands))),
        results=tuple(_column([s.results[k] for s in strategies]) for k in range(len(first.results))),
        seconds=np.array([s.seconds for s in strategies]),
    )


def _column(specs: Sequence[ShardingSpec]) -> SpecColumn:
    distinct = {spec: None for spec in specs}
    places = {spec: i for i, spec in enumerate(distinct)}
    return SpecColumn(tuple(distinct), np.array([places[spec] for spec in specs], dtype=np.intp))


Scattered = tuple[tuple[int, Axes], ...]
"""Result dimensions onto which reduction axes are scattered, with the axes."""


def _assignments(rule: OpRule, mesh: MeshModel) -> Iterator[tuple[tuple[Axes, ...], Scattered]]:
    """Every assignment of axes to factors, every order of axes on a factor, every end of a reduction.

    Each axis takes one of: idle; a factor; a summing factor with a scatter onto a dimension of the first result.
    Axes of size one stay idle. The extents must divide.
    """
    axes = [a for a in mesh.axis_names if mesh.size(a) > 1]
    places: list[tuple[int, int] | None] = [None]
    for f, factor in enumerate(rule.factors):
        places.append((f, -1))
        if factor.combine is Combine.SUM and len(rule.results) == 1:
            places += [(f, d) for d, entry in enumerate(rule.results[0]) if entry]
    for choice in itertools.product(places, repeat=len(axes)):
        by_factor: dict[int, list[str]] = {}
        by_dimension: dict[int, list[str]] = {}
        for axis, place in zip(axes, choice):
            if place is None:
                continue
            by_factor.setdefault(place[0], []).append(axis)
            if place[1] >= 0:
                by_dimension.setdefault(place[1], []).append(axis)
        if any(rule.factors[f].size % math.prod(map(mesh.size, group)) for f, group in by_factor.items()):
            continue
        orders = [[(f, order) for order in itertools.permutations(group)] for f, group in by_factor.items()]
        for ordered in itertools.product(*orders):
            of = dict(ordered)
            assignment = tuple(of.get(f, ()) for f in range(len(rule.factors)))
            yield assignment, tuple((d, tuple(group)) for d, group in sorted(by_dimension.items()))


def _strategy(
    rule: OpRule,
    operands: tuple[TensorFacts, ...],
    results: tuple[TensorFacts, ...],
    traffic: tuple[bool, ...],
    mesh: MeshModel,
    assignment: tuple[Axes, ...],
    scattered: Scattered,
) -> Strategy | None:
    """The strategy of an assignment; None if a dimension could not be split that way."""
    required = [_spec(rule, dims, assignment, mesh) for dims in rule.operands]
    partial = [_spec(rule, dims, assignment, mesh, skip_reductions=True) for dims in rule.results]
    if any(spec is None for spec in (*required, *partial)):
        return None
    before = [spec for spec in partial if spec is not None]
    after = list(before)
    if scattered:
        final = _scatter(before[0], scattered, results[0], mesh)
        if final is None:
            return None
        after[0] = final
    collectives, communication = _end_reductions(rule, assignment, scattered, before, results, mesh)
    ins = tuple(spec for spec in required if spec is not None)
    compute = _compute(rule, assignment, traffic, operands, results, ins, before, mesh)
    local = bool(scattered) or any(assignment[f] for f in rule.local_factors)
    scratch = 0.0
    if scattered:
        sizes = [spec.shard_bytes(results[0].shape, results[0].itemsize, mesh) for spec in (before[0], after[0])]
        scratch = float(sizes[0] - sizes[1])
    return Strategy(assignment, ins, tuple(after), tuple(collectives), local, compute, communication, scratch)


def _spec(
    rule: OpRule, dims: Dims, assignment: tuple[Axes, ...], mesh: MeshModel, *, skip_reductions: bool = False
) -> ShardingSpec | None:
    """The sharding of one tensor; None if a minor factor is split under a major one that is not split completely."""
    entries: list[Axes] = []
    for factors in dims:
        axes: Axes = ()
        complete = True
        for f in factors:
            mine = assignment[f]
            if mine and not complete:
                return None
            if not (skip_reductions and rule.factors[f].combine is not Combine.PARALLEL):
                axes += mine
            complete = complete and math.prod(map(mesh.size, mine)) == rule.factors[f].size
        entries.append(axes)
    return ShardingSpec.of(*entries)


def _scatter(
    spec: ShardingSpec, scattered: Scattered, result: TensorFacts, mesh: MeshModel
) -> ShardingSpec | None:
    """Append the scattered axes as the minor ones; None if the dimension does not divide."""
    dims = list(spec.dims)
    for d, axes in scattered:
        dims[d] += axes
        if result.shape[d] % math.prod(map(mesh.size, dims[d])):
            return None
    return ShardingSpec.of(*dims)


def _end_reductions(
    rule: OpRule,
    assignment: tuple[Axes, ...],
    scattered: Scattered,
    before: Sequence[ShardingSpec],
    results: tuple[TensorFacts, ...],
    mesh: MeshModel,
) -> tuple[list[Collective], Cost]:
    """Scatter first, on ever smaller shards, then all-reduce over the axes that are left."""
    reduced = {a: rule.factors[f].combine for f, group in enumerate(assignment) for a in group}
    reduced = {a: combine for a, combine in reduced.items() if combine is not Combine.PARALLEL}
    collectives: list[Collective] = []
    total = ZERO_COST
    if not reduced:
        return collectives, total
    scale = mesh.wire_scale(results[0].dtype)
    nbytes = before[0].shard_bytes(results[0].shape, results[0].itemsize, mesh)
    for d, axes in scattered:
        cost = reduce_scatter(nbytes, axes, mesh, wire_scale=scale)
        collectives.append(Collective("reduce-scatter", axes, d, cost.wire_bytes))
        nbytes /= math.prod(map(mesh.size, axes))
        total += cost
    done = {a for _, axes in scattered for a in axes}
    left = tuple(a for a in mesh.axis_names if a in reduced and a not in done)
    if not left:
        return collectives, total
    if any(reduced[a] is Combine.ARG for a in left):
        cost = _gather_candidates(left, before, results, mesh)
        collectives.append(Collective("all-gather", left, -1, cost.wire_bytes))
    else:
        others = sum(s.shard_bytes(t.shape, t.itemsize, mesh) for s, t in zip(before[1:], results[1:]))
        cost = all_reduce(nbytes + others, left, mesh, wire_scale=scale)
        collectives.append(Collective("all-reduce", left, -1, cost.wire_bytes))
    return collectives, total + cost


def _gather_candidates(
    axes: Axes, before: Sequence[ShardingSpec], results: tuple[TensorFacts, ...], mesh: MeshModel
) -> Cost:
    """An arg-reduction gathers each shard's best value (taken as 4 bytes) and its index."""
    shards = math.prod(map(mesh.size, axes))
    elements = before[0].shard_bytes(results[0].shape, 1, mesh)
    return all_gather(elements * shards * (results[0].itemsize + 4), axes, mesh)


def _compute(
    rule: OpRule,
    assignment: tuple[Axes, ...],
    traffic: tuple[bool, ...],
    operands: tuple[TensorFacts, ...],
    results: tuple[TensorFacts, ...],
    required: Sequence[ShardingSpec],
    before: Sequence[ShardingSpec],
    mesh: MeshModel,
) -> Cost:
    """Roofline over the local part of the work; the traffic is that of the operands and results kept in memory."""
    split = math.prod(mesh.size(a) for group in assignment for a in group)
    tensors = zip((*operands, *results), (*required, *before), traffic)
    nbytes = sum(spec.shard_bytes(t.shape, t.itemsize, mesh) for t, spec, touched in tensors if touched)
    dtype = operands[0].dtype if operands else results[0].dtype if results else "float32"
    return compute_cost(rule.flops / split, nbytes, dtype, mesh)


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
