"""Cheapest paths over specs: one table per (mesh, rank, size class), many sources at once in numpy.

Paths are ranked by seconds, ties by wire bytes, then by the number of steps. Seconds that agree within a billionth are
a tie (floating point sums of equal costs differ by less), so the three become one number:
`seconds / scale + 1e-9 * wire bytes / tensor bytes + 1e-12 * steps`.

What a step costs depends on the shape only through the bytes of the shard. So where every dimension divides, shapes of
equal bytes share one table, and states that differ by the order of dimensions share one row of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .laws import collective_law
from .links import CollectiveKind
from .mesh import MeshModel, sub_axis_name
from .runs import runs_from
from .steps import Move, Piece, Sizes, Step, StepGraph, canonical_order, single_steps, step_graph

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_BYTES_TIE = 1e-9
_STEPS_TIE = 1e-12
_BATCH = 1 << 21  # edges times sources relaxed at once: bounds the memory of a batch to some tens of MB

Law = tuple[CollectiveKind, tuple[Piece, ...]]


@dataclass(frozen=True, slots=True)
class Edges:
    """All moves of a graph, `[edges]` sorted by target: the moves of canonical states in every order of dimensions.

    Attributes:
        source: State before.
        target: State after.
        move: Which move of `moves` it is.
        order: The order of dimensions that makes its source canonical, as a row of `orders`.
        starts: First edge of every group of one target.
        moves: The moves from canonical states.
        orders: Orders of dimensions.
        laws: The collectives that occur.
        step_move: The move that a collective step belongs to, `[steps]`.
        step_law: Its collective, `[steps]`.
        step_parts: Parts per canonical dimension of the shard that its bytes count, `[steps, rank]`.
        step_count: Number of steps of each move, `[moves]`.
        is_run: Whether a move is a run, `[moves]`.
    """

    source: Indices
    target: Indices
    move: Indices
    order: Indices
    starts: Indices
    moves: tuple[Move, ...]
    orders: tuple[tuple[int, ...], ...]
    laws: tuple[Law, ...]
    step_move: Indices
    step_law: Indices
    step_parts: NDArray[np.int64]
    step_count: NDArray[np.int64]
    is_run: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Canon:
    """For every state its canonical state and the order of dimensions that leads there, `[states]`."""

    state: Indices
    order: Indices
    orders: tuple[tuple[int, ...], ...]
    reordered: Indices  # [orders, states]: every state with its dimensions in that order


@lru_cache(maxsize=1024)
def canon_of(sizes: Sizes, types: tuple[int, ...]) -> Canon:
    """Canonical states of a graph whose dimensions of one type are interchangeable."""
    graph = step_graph(sizes, len(types))
    orders: dict[tuple[int, ...], int] = {}
    found = [orders.setdefault(canonical_order(state, types), len(orders)) for state in graph.states]
    order = np.array(found, dtype=np.intp)
    reordered = np.stack([graph.reordering(o) for o in orders])
    state = reordered[order, np.arange(len(graph.states))]
    return Canon(state=state, order=order, orders=tuple(orders), reordered=reordered)


@lru_cache(maxsize=256)
def edges_of(sizes: Sizes, rank: int) -> Edges:
    """The edges of `step_graph(sizes, rank)`."""
    graph, canon = step_graph(sizes, rank), canon_of(sizes, (0,) * rank)
    canonical = np.unique(canon.state)
    moves_of = {int(c): [*single_steps(s, graph), *runs_from(s, graph)] for c in canonical for s in [graph.states[c]]}
    moves = [move for found in moves_of.values() for move in found]
    first = dict(zip(moves_of, np.cumsum([0, *(len(found) for found in moves_of.values())])))
    move_target = np.array([graph.index[move.target] for move in moves], dtype=np.intp)
    inverse = np.stack([graph.reordering(inverse_order(order)) for order in canon.orders])
    counts = np.array([len(moves_of[int(c)]) for c in canon.state], dtype=np.intp)
    source = np.repeat(np.arange(len(graph.states)), counts)
    within = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
    move = np.repeat(np.array([first[int(c)] for c in canon.state], dtype=np.intp), counts) + within
    order = canon.order[source]
    target = inverse[order, move_target[move]] if len(moves) else np.zeros(0, dtype=np.intp)
    rank_of_edge = np.lexsort((move, source, target))
    source, target, move, order = (array[rank_of_edge] for array in (source, target, move, order))
    laws: dict[Law, int] = {}
    steps = [
        (i, laws.setdefault((step.kind, tuple(sorted(step.pieces))), len(laws)), step.parts)
        for i, found in enumerate(moves)
        for step in found.steps
        if step.kind != "slice"
    ]
    return Edges(
        source=source,
        target=target,
        move=move,
        order=order,
        starts=np.flatnonzero(np.diff(target, prepend=-1)),
        moves=tuple(moves),
        orders=canon.orders,
        laws=tuple(laws),
        step_move=np.array([i for i, _, _ in steps], dtype=np.intp),
        step_law=np.array([law for _, law, _ in steps], dtype=np.intp),
        step_parts=np.array([parts for _, _, parts in steps], dtype=np.int64).reshape(len(steps), rank),
        step_count=np.array([len(found.steps) for found in moves], dtype=np.int64),
        is_run=np.array([len(found.steps) > 1 for found in moves], dtype=bool),
    )


@dataclass(frozen=True, slots=True)
class Row:
    """Cheapest paths from one state to all, `[states]`; infinite where there is none.

    Attributes:
        key: The number by which paths are ranked.
        seconds: Time.
        wire_bytes: Bytes on the wire per device.
        largest_bytes: The largest shard held along the way.
        last_edge: The last edge; -1 at the source and where there is no way.
    """

    key: Array
    seconds: Array
    wire_bytes: Array
    largest_bytes: Array
    last_edge: Indices


class PathTable:
    """Cheapest paths of one mesh, rank and size class; rows are searched when first asked for.

    Attributes:
        graph: The states.
        edges: The moves.
        shard_bytes: Bytes of one shard in every state, `[states]`.
        scale_s: Seconds that the key of a path counts as one.
        tensor_bytes: Bytes of the whole tensor.
    """

    def __init__(
        self, graph: StepGraph, edges: Edges, shard_bytes: Array, seconds: Array, wire_bytes: Array, canon: Canon
    ) -> None:
        self.graph, self.edges, self.shard_bytes = graph, edges, shard_bytes
        self._seconds, self._wire_bytes, self._canon = seconds, wire_bytes, canon
        self.scale_s = float(seconds[np.isfinite(seconds)].max(initial=0.0)) or 1.0
        self.tensor_bytes = float(shard_bytes.max()) or 1.0
        self._key = self.rank_key(seconds, wire_bytes, edges.step_count[edges.move] + 0.5 * edges.is_run[edges.move])
        self._rows: dict[int, Row] = {}

    def rank_key(self, seconds: Array, wire_bytes: Array, steps: Array) -> Array:
        """The number by which paths are ranked."""
        return seconds / self.scale_s + _BYTES_TIE * wire_bytes / self.tensor_bytes + _STEPS_TIE * steps

    def row(self, source: int) -> Row:
        """The row of one source."""
        canonical, columns = self._place(source)
        self._search([canonical])
        row = self._rows[canonical]
        return Row(
            key=row.key[columns],
            seconds=row.seconds[columns],
            wire_bytes=row.wire_bytes[columns],
            largest_bytes=row.largest_bytes[columns],
            last_edge=row.last_edge[columns],
        )

    def block(self, sources: Indices, targets: Indices) -> tuple[Array, Array, Array]:
        """Seconds, wire bytes and largest bytes, `[sources, targets]`."""
        canonical, which = np.unique(self._canon.state[sources], return_inverse=True)
        columns = self._canon.reordered[self._canon.order[sources][:, None], targets[None, :]]
        self._search([int(c) for c in canonical])
        rows = [self._rows[int(c)] for c in canonical]
        where = (which.reshape(-1, 1), columns)
        return (
            np.stack([row.seconds for row in rows])[where],
            np.stack([row.wire_bytes for row in rows])[where],
            np.stack([row.largest_bytes for row in rows])[where],
        )

    def path(self, source: int, target: int) -> list[Move]:
        """The moves of the cheapest path."""
        edges = self.edges
        start, columns = self._place(source)
        goal, last_edge = int(columns[target]), self._rows[start].last_edge
        back = inverse_order(self._canon.orders[self._canon.order[source]])
        moves: list[Move] = []
        while goal != start:
            edge = int(last_edge[goal])
            move = _reordered(edges.moves[edges.move[edge]], inverse_order(edges.orders[edges.order[edge]]))
            moves.append(_reordered(move, back))
            goal = int(edges.source[edge])
        return moves[::-1]

    def _place(self, source: int) -> tuple[int, Indices]:
        """The canonical state of a source, and where its row has every state."""
        return int(self._canon.state[source]), self._canon.reordered[self._canon.order[source]]

    def _search(self, sources: list[int]) -> None:
        missing = [source for source in sources if source not in self._rows]
        batch = max(1, _BATCH // max(1, len(self._key)))
        for i in range(0, len(missing), batch):
            self._search_batch(missing[i : i + batch])

    def _search_batch(self, sources: list[int]) -> None:
        key, last_edge = _shortest(self.edges, self._key, len(self.graph.states), sources)
        own = np.arange(len(key))[:, None]
        before = np.where(last_edge >= 0, np.append(self.edges.source, 0)[last_edge], own)
        seconds = _summed(before, np.where(last_edge >= 0, np.append(self._seconds, 0.0)[last_edge], 0.0))
        wire_bytes = _summed(before, np.where(last_edge >= 0, np.append(self._wire_bytes, 0.0)[last_edge], 0.0))
        largest = _largest(before, np.broadcast_to(self.shard_bytes[:, None], key.shape))
        for array in (seconds, wire_bytes, largest):
            array[np.isinf(key)] = np.inf
        columns = [np.ascontiguousarray(array.T) for array in (key, seconds, wire_bytes, largest, last_edge)]
        for i, source in enumerate(sources):
            self._rows[source] = Row(*(column[i] for column in columns))


def _shortest(edges: Edges, edge_key: Array, count: int, sources: list[int]) -> tuple[Array, Indices]:
    """Bellman-Ford from several sources at once: keys and last edges, `[states, sources]`."""
    key = np.full((count, len(sources)), np.inf)
    key[sources, np.arange(len(sources))] = 0.0
    last_edge = np.full(key.shape, -1, dtype=np.intp)
    if not len(edge_key):
        return key, last_edge
    ends = edges.target[edges.starts]
    while True:
        candidates = key[edges.source] + edge_key[:, None]
        best = np.minimum.reduceat(candidates, edges.starts, axis=0)
        if not (best < key[ends]).any():
            break
        key[ends] = np.minimum(best, key[ends])
    # Now every key is the least of its candidates, except at the sources, which no edge improves.
    tied = candidates == np.repeat(key[ends], np.diff(np.append(edges.starts, len(edge_key))), axis=0)
    number = np.where(tied & np.isfinite(candidates), np.arange(len(edge_key))[:, None], len(edge_key))
    winner = np.minimum.reduceat(number, edges.starts, axis=0)
    last_edge[ends] = np.where(winner < len(edge_key), winner, -1)
    last_edge[sources, np.arange(len(sources))] = -1
    return key, last_edge


def inverse_order(order: tuple[int, ...]) -> tuple[int, ...]:
    """The order of dimensions that undoes another."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _reordered(move: Move, order: tuple[int, ...]) -> Move:
    """The same move with the dimensions of the tensor in another order: place i takes dimension order[i]."""
    place = inverse_order(order)
    return Move(
        source=tuple(move.source[i] for i in order),
        target=tuple(move.target[i] for i in order),
        steps=tuple(
            Step(
                kind=step.kind,
                pieces=step.pieces,
                dims=tuple(place[dim] for dim in step.dims),
                state=tuple(step.state[i] for i in order),
                parts=tuple(step.parts[i] for i in order),
            )
            for step in move.steps
        ),
    )


@lru_cache(maxsize=256)
def _even_table(mesh: MeshModel, rank: int, tensor_bytes: int, wire_scale: float) -> PathTable:
    names, sizes = split_axes(mesh)
    graph, edges = step_graph(sizes, rank), edges_of(sizes, rank)
    shard_bytes = tensor_bytes / graph.parts.prod(axis=1)
    step_bytes = tensor_bytes / edges.step_parts.prod(axis=1)
    seconds, wire_bytes = _step_prices(edges, edges.step_law, step_bytes * wire_scale, names, mesh)
    move_seconds = _totals(edges.step_move, seconds, len(edges.moves))[edges.move]
    move_bytes = _totals(edges.step_move, wire_bytes, len(edges.moves))[edges.move]
    return PathTable(graph, edges, shard_bytes, move_seconds, move_bytes, canon_of(sizes, (0,) * rank))


@lru_cache(maxsize=256)
def _uneven_table(mesh: MeshModel, shape: tuple[int, ...], itemsize: int, wire_scale: float) -> PathTable:
    names, sizes = split_axes(mesh)
    graph, edges = step_graph(sizes, len(shape)), edges_of(sizes, len(shape))
    extent = np.array(shape, dtype=np.int64)
    padded = -(-extent // graph.parts)
    shard_bytes = padded.prod(axis=1).astype(np.float64) * itemsize
    edge_of_step, law, parts = _edge_steps(edges)
    held = padded_extents(extent, graph.parts[edges.source], graph.parts[edges.target])[edge_of_step]
    step_bytes = (held // parts).prod(axis=1).astype(np.float64) * itemsize
    seconds, wire_bytes = _step_prices(edges, law, step_bytes * wire_scale, names, mesh)
    exact = _exact(graph, edges, extent)
    edge_seconds = np.where(exact, _totals(edge_of_step, seconds, len(exact)), np.inf)
    edge_bytes = _totals(edge_of_step, wire_bytes, len(exact))
    return PathTable(graph, edges, shard_bytes, edge_seconds, edge_bytes, canon_of(sizes, _types(shape, mesh)))


def padded_extents(extent: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sizes that a move counts: every dimension padded up to whole shards, before and after it."""
    return np.maximum(before * -(-extent // before), after * -(-extent // after))


def _totals(group: Indices, values: Array, count: int) -> Array:
    return np.bincount(group, weights=values, minlength=count).astype(np.float64)


def path_table(mesh: MeshModel, shape: tuple[int, ...], itemsize: int, wire_scale: float) -> PathTable:
    """The table for tensors of `shape`."""
    if not any(_types(shape, mesh)):
        return _even_table(mesh, len(shape), math.prod(shape) * itemsize, wire_scale)
    return _uneven_table(mesh, shape, itemsize, wire_scale)


@lru_cache(maxsize=1 << 14)
def _types(shape: tuple[int, ...], mesh: MeshModel) -> tuple[int, ...]:
    """0 for a dimension that divides however it is split, else its size: dimensions of one type are interchangeable."""
    return tuple(size if size % mesh.num_devices else 0 for size in shape)


def split_axes(mesh: MeshModel) -> tuple[tuple[str, ...], Sizes]:
    """Names and sizes of the axes above 1: the others split nothing."""
    names = tuple(name for name in mesh.axis_names if mesh.size(name) > 1)
    return names, tuple(mesh.size(name) for name in names)


def piece_name(piece: Piece, names: tuple[str, ...], sizes: Sizes) -> str:
    """The name of a whole axis or of a part of it."""
    axis, major, size = piece
    return names[axis] if size == sizes[axis] else sub_axis_name(names[axis], major, size)


def _step_prices(
    edges: Edges, step_law: Indices, step_bytes: Array, names: tuple[str, ...], mesh: MeshModel
) -> tuple[Array, Array]:
    """Seconds and wire bytes of every step."""
    _, sizes = split_axes(mesh)
    seconds, wire_bytes = np.zeros(len(step_law)), np.zeros(len(step_law))
    by_law = np.argsort(step_law, kind="stable")
    bounds = np.searchsorted(step_law[by_law], np.arange(len(edges.laws) + 1))
    for i, (kind, pieces) in enumerate(edges.laws):
        law = collective_law(kind, tuple(piece_name(piece, names, sizes) for piece in pieces), mesh)
        members = by_law[bounds[i] : bounds[i + 1]]
        seconds[members] = law.seconds(step_bytes[members])
        wire_bytes[members] = law.wire_bytes_per_byte * step_bytes[members]
    return seconds, wire_bytes


def _edge_steps(edges: Edges) -> tuple[Indices, Indices, NDArray[np.int64]]:
    """The collective steps of every edge: their edge, law, and parts in the edge's own order of dimensions."""
    first = np.searchsorted(edges.step_move, np.arange(len(edges.moves) + 1))
    counts = np.diff(first)[edges.move]
    edge = np.repeat(np.arange(len(edges.move)), counts)
    step = np.repeat(first[edges.move], counts) + np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.array([inverse_order(order) for order in edges.orders], dtype=np.intp)[edges.order[edge]]
    return edge, edges.step_law[step], np.take_along_axis(edges.step_parts[step], places, axis=1)


def _exact(graph: StepGraph, edges: Edges, extent: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which moves XLA carries out exactly on a shape that does not divide everywhere.

    A single step is exact if every dimension that it splits differently was or becomes whole, or keeps its padded
    extent; a run only where those dimensions divide.
    """
    before, after = graph.parts[edges.source], graph.parts[edges.target]
    changed = before != after
    same_extent = before * -(-extent // before) == after * -(-extent // after)
    fine = np.where(
        edges.is_run[edges.move][:, None],
        extent % np.maximum(before, after) == 0,
        (np.minimum(before, after) == 1) | same_extent,
    )
    return np.asarray((~changed | fine).all(axis=1), dtype=np.bool_)


def _summed(before: Indices, own: Array) -> Array:
    """Sums a value over every node and those before it, `[nodes, columns]`; roots precede themselves and have 0."""
    columns = np.arange(own.shape[1])
    value = own
    while True:
        value = value + value[before, columns]
        further = before[before, columns]
        if (further == before).all():
            return value
        before = further


def _largest(before: Indices, own: Array) -> Array:
    """The largest value of every node and those before it, `[nodes, columns]`; roots precede themselves."""
    columns = np.arange(own.shape[1])
    value = own
    while True:
        value = np.maximum(value, value[before, columns])
        further = before[before, columns]
        if (further == before).all():
            return value
        before = further
