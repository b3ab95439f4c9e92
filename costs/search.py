"""Cheapest paths over specs: one table per (mesh, rank, size class), all sources at once in numpy.

Paths are ranked by seconds, ties by wire bytes, then by the number of steps. Seconds that agree within a billionth are a tie
(floating point sums of equal costs differ by less), so the three become one number:
`seconds / scale + 1e-9 * wire bytes / total bytes + 1e-12 * steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .collectives import CollectiveKind, collective_law
from .mesh import MeshModel
from .steps import StepGraph, step_graph

_BYTES_TIE = 1e-9
_STEPS_TIE = 1e-12

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PathTable:
    """Cheapest paths between all states of one mesh, rank and size class.

    Attributes:
        graph: The states and moves.
        seconds: Time of the cheapest path, `[source, target]`; infinite where there is none.
        wire_bytes: Its bytes on the wire per device.
        largest_bytes: The largest shard held along it.
        last_move: The last move of it, `[source, target]`; -1 where source and target agree or there is none.
        shard_bytes: Bytes of one shard in every state.
        move_seconds: Time of every move.
        move_wire_bytes: Bytes of every move.
    """

    graph: StepGraph
    seconds: Array
    wire_bytes: Array
    largest_bytes: Array
    last_move: NDArray[np.intp]
    shard_bytes: Array
    move_seconds: Array
    move_wire_bytes: Array

    def path(self, source: int, target: int) -> list[int]:
        """The moves of the cheapest path."""
        moves: list[int] = []
        while target != source:
            move = int(self.last_move[source, target])
            moves.append(move)
            target = int(self.graph.source[move])
        return moves[::-1]


@lru_cache(maxsize=512)
def path_table(mesh: MeshModel, shape: tuple[int, ...], itemsize: int, wire_scale: float) -> PathTable:
    """The table for tensors of `shape`."""
    names = tuple(name for name in mesh.axis_names if mesh.size(name) > 1)
    graph = step_graph(tuple(mesh.size(name) for name in names), len(shape))
    padded = -(-np.array(shape, dtype=np.int64) // graph.parts) if shape else np.zeros((1, 0), dtype=np.int64)
    shard_bytes = padded.prod(axis=1).astype(np.float64) * itemsize
    seconds, wire_bytes = _price_moves(graph, shard_bytes * wire_scale, names, mesh)
    exact = _exact_moves(graph, padded * graph.parts, np.array(shape, dtype=np.int64))
    seconds = np.where(exact, seconds, np.inf)
    return _solve(graph, seconds, wire_bytes, shard_bytes)


def _price_moves(graph: StepGraph, shard_bytes: Array, names: tuple[str, ...], mesh: MeshModel) -> tuple[Array, Array]:
    seconds, wire_bytes = np.zeros(len(graph.moves)), np.zeros(len(graph.moves))
    groups: dict[tuple[CollectiveKind, frozenset[int]], list[int]] = {}
    for i, move in enumerate(graph.moves):
        if move.kind != "slice":
            groups.setdefault((move.kind, frozenset(move.axes)), []).append(i)
    for (kind, axes), members in groups.items():
        law = collective_law(kind, tuple(names[axis] for axis in sorted(axes)), mesh)
        ends = graph.target if kind == "all-gather" else graph.source
        nbytes = shard_bytes[ends[members]]
        seconds[members] = law.seconds(nbytes)
        wire_bytes[members] = law.wire_bytes_per_byte * nbytes
    return seconds, wire_bytes


def _exact_moves(graph: StepGraph, extents: NDArray[np.int64], shape: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which moves XLA carries out exactly: no touched dimension changes its padded extent, unless it was whole."""
    before, after = graph.parts[graph.source], graph.parts[graph.target]
    whole = (np.minimum(before, after) == 1) | (before == after)
    same = extents[graph.source] == extents[graph.target]
    split_of_one = (shape == 1) & (np.maximum(before, after) > 1) & (before != after)
    return ((whole | same) & ~split_of_one).all(axis=1)


def _solve(graph: StepGraph, seconds: Array, wire_bytes: Array, shard_bytes: Array) -> PathTable:
    count = len(graph.states)
    finite = seconds[np.isfinite(seconds)]
    scale = float(finite.max(initial=0.0)) or 1.0
    total = float(shard_bytes.max(initial=1.0)) or 1.0
    key = seconds / scale + _BYTES_TIE * wire_bytes / total + _STEPS_TIE
    distance = np.where(np.eye(count, dtype=bool), 0.0, np.inf)
    last_move = np.full((count, count), -1, dtype=np.intp)
    if len(graph.moves):
        _relax(graph, key, distance, last_move)
    source_of = np.where(last_move >= 0, graph.source[last_move] if len(graph.moves) else 0, np.arange(count))
    reached = np.isfinite(distance)
    depth_seconds = _along(source_of, np.where(last_move >= 0, np.append(seconds, 0.0)[last_move], 0.0), np.add)
    depth_bytes = _along(source_of, np.where(last_move >= 0, np.append(wire_bytes, 0.0)[last_move], 0.0), np.add)
    largest = _along(source_of, np.broadcast_to(shard_bytes, (count, count)), np.maximum)
    unreachable = ~reached
    for array in (depth_seconds, depth_bytes, largest):
        array[unreachable] = np.inf
    return PathTable(graph, depth_seconds, depth_bytes, largest, last_move, shard_bytes, seconds, wire_bytes)


def _relax(graph: StepGraph, key: Array, distance: Array, last_move: NDArray[np.intp]) -> None:
    """Bellman-Ford for all sources at once, in place; stops when nothing changes."""
    starts = np.flatnonzero(np.diff(graph.target, prepend=-1))
    ends = graph.target[starts]
    sizes = np.diff(np.append(starts, len(graph.target)))
    while True:
        candidates = distance[:, graph.source] + key
        best = np.minimum.reduceat(candidates, starts, axis=1)
        better = best < distance[:, ends]
        if not better.any():
            return
        is_best = candidates == np.repeat(best, sizes, axis=1)
        order = np.where(is_best, np.arange(len(key)), len(key))
        winner = np.minimum.reduceat(order, starts, axis=1)
        distance[:, ends] = np.where(better, best, distance[:, ends])
        last_move[:, ends] = np.where(better, winner, last_move[:, ends])


def _along(source_of: NDArray[np.intp], own: Array, combine: np.ufunc) -> Array:
    """Combines a value of every node with those of the nodes before it; roots (their own source) must be neutral."""
    rows = np.arange(len(own))[:, None]
    value, before = np.array(own), source_of
    while True:
        value = combine(value, value[rows, before])
        further = before[rows, before]
        if (further == before).all():
            return value
        before = further
