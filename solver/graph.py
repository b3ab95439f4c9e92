"""The working form of a problem: whole-number costs, one node per tie, one matrix per pair, memory as rows.

Reductions change a `Graph` in place and push what undoes them on its `trail`; `Graph.recover` walks the trail back
and turns a choice for what is left into a choice for the whole problem.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .problem import Floats, Problem
from .units import Units, units_of

Indices = NDArray[np.int64]


class Infeasible(Exception):
    """The constraints contradict each other; the argument says where."""


class Step(Protocol):
    """One reduction that was applied; `invert` completes a choice that ignores it."""

    def invert(self, choice: Indices) -> None:
        """Fill in or renumber entries of `choice`, in place."""


@dataclass(frozen=True, slots=True)
class Restricted:
    """Choices of a node were removed; `kept` are the earlier indices of those that remain."""

    node: int
    kept: Indices

    def invert(self, choice: Indices) -> None:
        """Renumber the node's choice."""
        choice[self.node] = self.kept[choice[self.node]]


@dataclass(frozen=True, slots=True)
class Tied:
    """A node is represented by another one, with the same index."""

    node: int
    representative: int

    def invert(self, choice: Indices) -> None:
        """Copy the representative's choice."""
        choice[self.node] = choice[self.representative]


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes per choice (or pair of choices) held in the memory rows `start` to `stop`, half-open."""

    start: int
    stop: int
    nbytes: Floats


@dataclass(slots=True)
class Graph:
    """What is left to decide.

    Args:
        costs: Vector of whole units per live node; eliminated nodes are absent.
        edges: Both orientations of every pair: `edges[u][v]` has a row per choice of u and is `edges[v][u].T`.
        loads: Memory of nodes, least entry 0.
        edge_loads: Memory of pairs `(u, v)` with u < v, least entry 0.
        room: Bytes left per memory row, after what every choice holds at least.
        constant: Units that every choice costs.
        trail: Applied steps, oldest first.
        size: Number of nodes of the problem.
        units: The meaning of one unit.
        products: Min-plus products made so far, by what they were made of.
        settled: Pairs whose matrices have nothing separable left in them.
    """

    costs: dict[int, Floats]
    edges: dict[int, dict[int, Floats]]
    loads: dict[int, list[Load]]
    edge_loads: dict[tuple[int, int], list[Load]]
    room: Floats
    size: int
    units: Units
    constant: float = 0.0
    trail: list[Step] = field(default_factory=list)
    products: dict[tuple[object, ...], Floats] = field(default_factory=dict)
    settled: set[tuple[int, int]] = field(default_factory=set)

    def recover(self, choice: dict[int, int]) -> tuple[int, ...]:
        """Complete a choice for the live nodes to one for the problem."""
        full = np.zeros(self.size, dtype=np.int64)
        for node, index in choice.items():
            full[node] = index
        for step in reversed(self.trail):
            step.invert(full)
        return tuple(int(index) for index in full)

    def copy(self) -> "Graph":
        """An independent copy with an empty trail: `recover` of the copy completes a choice for this graph's nodes."""
        return Graph(
            costs=dict(self.costs),
            edges={u: dict(row) for u, row in self.edges.items()},
            loads={u: list(loads) for u, loads in self.loads.items()},
            edge_loads={pair: list(loads) for pair, loads in self.edge_loads.items()},
            room=self.room.copy(),
            size=self.size,
            units=self.units,
            constant=self.constant,
        )

    def pairs(self) -> Iterator[tuple[int, int, Floats]]:
        """Every edge once, as (u, v, matrix) with u < v, in ascending order."""
        for u in sorted(self.edges):
            for v in sorted(self.edges[u]):
                if u < v:
                    yield u, v, self.edges[u][v]

    def value(self, choice: dict[int, int]) -> float:
        """Units that a choice for the live nodes costs."""
        nodes = sum(float(cost[choice[u]]) for u, cost in self.costs.items())
        return self.constant + nodes + sum(float(matrix[choice[u], choice[v]]) for u, v, matrix in self.pairs())

    def fits(self, choice: dict[int, int]) -> bool:
        """Whether a choice for the live nodes leaves no memory row overfilled."""
        change = np.zeros(len(self.room) + 1)
        held = [(load, load.nbytes[choice[u]]) for u, loads in self.loads.items() for load in loads]
        for (u, v), loads in self.edge_loads.items():
            held += [(load, load.nbytes[choice[u], choice[v]]) for load in loads]
        for load, nbytes in held:
            change[load.start] += nbytes
            change[load.stop] -= nbytes
        return bool(np.all(np.cumsum(change)[:-1] <= self.room))

    def is_loaded(self, node: int) -> bool:
        """Whether the node's choice bears on memory."""
        if self.loads.get(node):
            return True
        return any(pair in self.edge_loads for pair in self._pairs_of(node))

    def _pairs_of(self, node: int) -> Iterator[tuple[int, int]]:
        for other in self.edges[node]:
            yield (node, other) if node < other else (other, node)

    def set_edge(self, u: int, v: int, matrix: Floats) -> None:
        """Put or replace an edge, rows for u."""
        self.edges[u][v] = matrix
        self.edges[v][u] = matrix.T
        self.settled.discard((u, v) if u < v else (v, u))

    def add_edge(self, u: int, v: int, matrix: Floats) -> None:
        """Add to the edge between u and v, rows for u."""
        old = self.edges[u].get(v)
        self.set_edge(u, v, matrix if old is None else old + matrix)

    def drop_edge(self, u: int, v: int) -> None:
        """Remove an edge that costs nothing and holds nothing."""
        del self.edges[u][v]
        del self.edges[v][u]

    def restrict(self, node: int, keep: NDArray[np.bool_]) -> None:
        """Remove the choices of a node that `keep` does not hold."""
        if keep.all():
            return
        kept = np.flatnonzero(keep)
        if not len(kept):
            raise Infeasible(f"node {node} has no choice left")
        self.trail.append(Restricted(node, kept))
        self.costs[node] = self.costs[node][kept]
        for other, matrix in list(self.edges[node].items()):
            self.set_edge(node, other, matrix[kept])
        for pair in self._pairs_of(node):
            if pair in self.edge_loads:
                axis = 0 if pair[0] == node else 1
                loads = [Load(load.start, load.stop, load.nbytes.take(kept, axis)) for load in self.edge_loads[pair]]
                self.set_edge_loads(pair, loads)
        if node in self.loads:
            self.set_loads(node, [Load(load.start, load.stop, load.nbytes[kept]) for load in self.loads[node]])

    def set_loads(self, node: int, loads: Iterable[Load]) -> None:
        """Keep what differs between choices; the rest is taken from the room."""
        kept = list(self._spread(loads))
        self.loads[node] = kept
        if not kept:
            del self.loads[node]

    def set_edge_loads(self, pair: tuple[int, int], loads: Iterable[Load]) -> None:
        """The same for a pair."""
        kept = list(self._spread(loads))
        self.edge_loads[pair] = kept
        if not kept:
            del self.edge_loads[pair]

    def _spread(self, loads: Iterable[Load]) -> Iterator[Load]:
        for load in loads:
            least = load.nbytes.min()
            if least:
                self.room[load.start : load.stop] -= least
            if load.start < load.stop and load.nbytes.max() > least:
                yield Load(load.start, load.stop, load.nbytes - least)


def build_graph(problem: Problem) -> Graph:
    """The working form of a problem.

    Raises:
        Infeasible: If a node has no allowed choice, or a row has no room even with the least usage everywhere.
    """
    units = units_of(problem)
    leaders = _leaders(problem)
    graph = Graph(costs={}, edges={}, loads={}, edge_loads={}, room=np.zeros(0), size=len(problem.costs), units=units)
    for i, cost in enumerate(problem.costs):
        leader = leaders[i]
        if leader == i:
            graph.costs[i] = units.whole(cost)
            graph.edges[i] = {}
        else:
            graph.costs[leader] = graph.costs[leader] + units.whole(cost)
            graph.trail.append(Tied(i, leader))
    for edge in problem.edges:
        u, v = leaders[edge.u], leaders[edge.v]
        if u == v:
            graph.costs[u] = graph.costs[u] + units.whole(edge.cost.diagonal())
        else:
            graph.add_edge(u, v, units.whole(edge.cost))
    if problem.budget is not None:
        _add_memory(graph, problem, leaders)
    return graph


def _leaders(problem: Problem) -> list[int]:
    """For every node the smallest node it is tied to."""
    leader = list(range(len(problem.costs)))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    for u, v in problem.ties:
        low, high = sorted((find(u), find(v)))
        leader[high] = low
    return [find(i) for i in range(len(leader))]


def _add_memory(graph: Graph, problem: Problem, leaders: list[int]) -> None:
    """Memory as rows at maximal live sets, without the rows that no choice can overfill."""
    held = [(u.start, u.stop, u.nbytes) for u in problem.usages]
    held += [(u.start, u.stop, u.nbytes) for u in problem.edge_usages]
    relevant = [start < stop and bool(nbytes.any()) for start, stop, nbytes in held]
    spans = [(start, stop) for (start, stop, _), keep in zip(held, relevant, strict=True) if keep]
    if not spans:
        return
    times = maximal_times(spans)
    node_loads: dict[int, dict[tuple[int, int], Floats]] = defaultdict(dict)
    pair_loads: dict[tuple[int, int], dict[tuple[int, int], Floats]] = defaultdict(dict)

    def rows(start: int, stop: int) -> tuple[int, int]:
        first, last = np.searchsorted(times, (start, stop))
        return int(first), int(last)

    for usage in problem.usages:
        _accumulate(node_loads[leaders[usage.node]], rows(usage.start, usage.stop), usage.nbytes)
    for copy in problem.edge_usages:
        edge = problem.edges[copy.edge]
        u, v = leaders[edge.u], leaders[edge.v]
        span = rows(copy.start, copy.stop)
        if u == v:
            _accumulate(node_loads[u], span, copy.nbytes.diagonal())
        else:
            _accumulate(pair_loads[min(u, v), max(u, v)], span, copy.nbytes if u < v else copy.nbytes.T)
    graph.room = np.full(len(times), np.floor(float(problem.budget or 0.0)))
    for node, spread in node_loads.items():
        graph.set_loads(node, [Load(start, stop, nbytes) for (start, stop), nbytes in spread.items()])
    for pair, spread in pair_loads.items():
        graph.set_edge_loads(pair, [Load(start, stop, nbytes) for (start, stop), nbytes in spread.items()])


def _accumulate(spread: dict[tuple[int, int], Floats], span: tuple[int, int], nbytes: Floats) -> None:
    spread[span] = spread[span] + nbytes if span in spread else nbytes


def maximal_times(spans: Iterable[tuple[int, int]]) -> Indices:
    """One time per maximal live set of half-open spans: where something starts and the next event is a stop."""
    starts, stops = np.unique([s for s, _ in spans]), np.unique([t for _, t in spans])
    following = np.searchsorted(starts, stops, side="left") - 1
    return starts[np.unique(following)].astype(np.int64)


def drop_slack_rows(graph: Graph) -> None:
    """Remove the memory rows that no choice can overfill, and the loads that are left without a row.

    Raises:
        Infeasible: If a row is overfilled by every choice.
    """
    if np.any(graph.room < 0):
        row = int(np.argmin(graph.room))
        raise Infeasible(f"memory row {row} lacks {-graph.room[row]:.0f} bytes even with the least usage everywhere")
    most = row_sums(graph, (load for loads in _all_loads(graph) for load in loads))
    tight = most > graph.room
    position = np.concatenate([[0], np.cumsum(tight)])
    graph.room = graph.room[tight]
    for loads in _all_loads(graph):
        moved = [Load(int(position[x.start]), int(position[x.stop]), x.nbytes) for x in loads]
        loads[:] = [load for load in moved if load.start < load.stop]
    graph.loads = {node: loads for node, loads in graph.loads.items() if loads}
    graph.edge_loads = {pair: loads for pair, loads in graph.edge_loads.items() if loads}


def _all_loads(graph: Graph) -> Iterator[list[Load]]:
    yield from graph.loads.values()
    yield from graph.edge_loads.values()


def row_sums(graph: Graph, loads: Iterable[Load]) -> Floats:
    """The largest entries of some loads, added up per memory row."""
    change = np.zeros(len(graph.room) + 1)
    for load in loads:
        most = load.nbytes.max()
        change[load.start] += most
        change[load.stop] -= most
    return np.cumsum(change)[:-1]
