"""Cheapest paths over specs, many sources at once in numpy.

Paths are ranked by seconds, ties by wire bytes, then by the number of steps. Seconds that agree within a billionth are
a tie (floating point sums of equal costs differ by less), so the three become one number:
`seconds / scale + 1e-9 * wire bytes / tensor bytes + 1e-12 * steps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .edges import Array, Canon, Edges, Indices, inverse_order, reordered
from .steps import Move, StepGraph

_BYTES_TIE = 1e-9
_STEPS_TIE = 1e-12
_BATCH = 1 << 21  # edges times sources relaxed at once: bounds the memory of a batch to some tens of MB


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
        self.graph: StepGraph = graph
        self.edges: Edges = edges
        self.shard_bytes: Array = shard_bytes
        self._seconds, self._wire_bytes, self._canon = seconds, wire_bytes, canon
        self.scale_s: float = float(seconds[np.isfinite(seconds)].max(initial=0.0)) or 1.0
        self.tensor_bytes: float = float(shard_bytes.max()) or 1.0
        self._key = self.rank_key(seconds, wire_bytes, edges.tie[edges.move])
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
            moves.append(reordered(edges.move_of(edge), back))
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
