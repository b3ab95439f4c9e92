"""A graph as a few flat arrays, so that one numpy call serves thousands of nodes.

Nodes are sorted by *level*. Nodes of one level are not adjacent, so a level is processed at once. The first levels
peel trees off from their leaves; the others colour the *core* that is left. Every edge is seen from both ends as two
*half-edges*; a half-edge holds one message, a number per choice of its node, and the edge's entries with a row per
choice of its node. Half-edges are sorted by level, and within it by kind: to a child in a tree, down to a lower level
of the core, up to a higher level.

Repeated layers have equal matrices: each is kept once. Half-edges of one level and kind whose matrices are equal (or
large) form a *batch*, and one call serves them all; the entries of the others stand in one flat list, row after row.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .graph import Graph, Indices, Load
from .problem import Floats

FORBIDDEN = 2.0**51  # stands for an infinite entry where sums have to stay comparable
BATCH = 2_000  # entries from which half-edges of one matrix form a batch
CHILD, DOWN, UP = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Spans:
    """Memory of nodes (or of edges), flat.

    Args:
        start, stop: First row, and first row no longer held, of each load.
        owner: The node (or pair) of each load.
        offsets: Where the entries of each load start in `nbytes`; one more at the end.
        nbytes: Bytes per choice (or per pair of choices, row-major).
        place: For each entry its place among all choices (or in the pair's matrix).
        load_of: For each entry its load.
    """

    start: Indices
    stop: Indices
    owner: Indices
    offsets: Indices
    nbytes: Floats
    place: Indices
    load_of: Indices


@dataclass(frozen=True, slots=True)
class Tables:
    """The matrices of all pairs.

    Args:
        starts: Where each pair's matrix starts in `entries`; equal matrices may stand in one place.
        entries: Matrices one after the other, row-major, rows for `pair_u`.
    """

    starts: Indices
    entries: Floats


@dataclass(frozen=True, slots=True)
class Batch:
    """Half-edges of one level and kind, next to each other, whose matrices are equal.

    Args:
        pairs: Their pairs.
        forward: Whether the matrix has a row per choice of the pair's u; it has one per choice of its v otherwise.
        messages: Where the half-edges' message entries start and stop.
        sources: For each half-edge and column the message entry of the other end that belongs to it.
    """

    pairs: Indices
    forward: bool
    messages: slice
    sources: Indices


@dataclass(frozen=True, slots=True)
class Packed:
    """The flat arrays; see the module's docstring for the order of nodes and half-edges.

    Args:
        nodes: The graph's node at each position.
        sizes: Number of choices per node.
        offsets: Where each node's choices start; one more at the end.
        node_of: For each choice its node.
        costs: Cost per choice.
        trees: Number of levels that peel trees.
        level_nodes: Where each level's nodes start; one more at the end.
        level_kinds: Where the half-edges of each (level, kind) start, three per level; one more at the end.
        half_node, half_other: Node at this end and at the other end of each half-edge.
        half_pair: The pair of each half-edge.
        message_offsets: Where each half-edge's message starts; one more at the end.
        message_place: For each message entry its choice.
        row_step: For each message entry, how far into its pair's matrix its row's first column is.
        half_stride: Distance in the matrix between the columns of a row of each half-edge.
        flat_stops: For each (level, kind) the message entry at which its half-edges outside batches end.
        batches: For each (level, kind) its batches.
        entries: Allowed entries of the half-edges outside batches, row after row.
        entry_source: For each entry, the message entry of the other end that belongs to its column.
        entry_step: For each entry, how far into its pair's matrix it is.
        row_starts: Where each row, that is each message entry, starts in `entries`; one more at the end. In batches
            rows are empty.
        pair_u, pair_v: Nodes of each pair.
        tables: The matrices, each once, `FORBIDDEN` for infinite entries.
        loads, pair_loads: Memory of nodes and of pairs.
        room: Bytes per memory row.
        constant: Units that every choice costs.
    """

    nodes: tuple[int, ...]
    sizes: Indices
    offsets: Indices
    node_of: Indices
    costs: Floats
    trees: int
    level_nodes: Indices
    level_kinds: Indices
    half_node: Indices
    half_other: Indices
    half_pair: Indices
    message_offsets: Indices
    message_place: Indices
    row_step: Indices
    half_stride: Indices
    flat_stops: Indices
    batches: tuple[tuple[Batch, ...], ...]
    entries: Floats
    entry_source: Indices
    entry_step: Indices
    row_starts: Indices
    pair_u: Indices
    pair_v: Indices
    tables: Tables
    loads: Spans
    pair_loads: Spans
    room: Floats
    constant: float

    @property
    def levels(self) -> int:
        """Number of levels."""
        return len(self.level_nodes) - 1

    @property
    def work(self) -> float:
        """Number of entries of all pairs, equal matrices counted as often as they occur."""
        return float((self.sizes[self.pair_u] * self.sizes[self.pair_v]).sum())

    def matrix(self, tables: Tables, pair: int) -> Floats:
        """The matrix of a pair."""
        rows, columns = int(self.sizes[self.pair_u[pair]]), int(self.sizes[self.pair_v[pair]])
        start = int(tables.starts[pair])
        return tables.entries[start : start + rows * columns].reshape(rows, columns)

    def value(self, choice: Indices) -> float:
        """Units that a choice (per position) costs; `FORBIDDEN` and more if it takes a forbidden pair."""
        pairs = self.taken(self.tables, choice)
        return float(self.constant + self.costs[self.offsets[:-1] + choice].sum() + pairs.sum())

    def taken(self, tables: Tables, choice: Indices) -> Floats:
        """The entry that a choice takes of every pair's matrix."""
        width = self.sizes[self.pair_v]
        entries: Floats = tables.entries[tables.starts + choice[self.pair_u] * width + choice[self.pair_v]]
        return entries

    def usage(self, choice: Indices) -> Floats:
        """Bytes per memory row that a choice holds."""
        nodes, pairs = self.loads, self.pair_loads
        width = self.sizes[self.pair_v[pairs.owner]]
        column = choice[self.pair_u[pairs.owner]] * width + choice[self.pair_v[pairs.owner]]
        held = (
            (nodes, nodes.nbytes[nodes.offsets[:-1] + choice[nodes.owner]]),
            (pairs, pairs.nbytes[pairs.offsets[:-1] + column]),
        )
        change = np.zeros(len(self.room) + 1)
        for spans, nbytes in held:
            change += summed(spans.start, nbytes, len(change)) - summed(spans.stop, nbytes, len(change))
        return np.cumsum(change)[:-1]

    def least(self, values: Floats, first: int = 0, last: int | None = None) -> Floats:
        """The least value of each node, for values of the choices of the nodes `first` to `last`."""
        starts = self.offsets[first : len(self.nodes) if last is None else last]
        return np.minimum.reduceat(values, starts - starts[0]) if len(starts) else np.zeros(0)

    def best(self, values: Floats, first: int, last: int) -> Indices:
        """The first choice of least value of each node, for values of the choices of the nodes `first` to `last`."""
        least = np.repeat(self.least(values, first, last), self.sizes[first:last])
        hits = np.flatnonzero(values == least)
        owners = self.node_of[hits + self.offsets[first]]
        winners = hits[np.flatnonzero(np.diff(owners, prepend=-1))]
        chosen: Indices = winners - (self.offsets[first:last] - self.offsets[first])
        return chosen


def summed(places: Indices, values: Floats, size: int) -> Floats:
    """Values added up per place."""
    return np.bincount(places, values, size).astype(np.float64, copy=False)


def pack(graph: Graph) -> Packed:
    """The flat arrays of a graph in which every choice has an allowed partner on every edge."""
    level, trees = _levels(graph)
    nodes = tuple(sorted(graph.costs, key=lambda node: (level[node], node)))
    position = {node: i for i, node in enumerate(nodes)}
    levels = np.array([level[node] for node in nodes], dtype=np.int64)
    sizes = np.array([len(graph.costs[node]) for node in nodes], dtype=np.int64)
    offsets = offsets_of(sizes)
    pairs = list(graph.pairs())
    pair_u = np.array([position[u] for u, _, _ in pairs], dtype=np.int64)
    pair_v = np.array([position[v] for _, v, _ in pairs], dtype=np.int64)
    tables = _tables(pairs)
    half = _half_edges(levels, trees, pair_u, pair_v, tables, sizes)
    count = int(levels[-1]) + 1 if len(levels) else 0
    level_kinds = np.searchsorted(levels[half.node] * 3 + half.kind, np.arange(3 * count + 1))
    message_offsets = offsets_of(sizes[half.node])
    entries = _entries(half, sizes, tables, message_offsets)
    row_step = _row_steps(half, sizes)
    return Packed(
        nodes=nodes,
        sizes=sizes,
        offsets=offsets,
        node_of=np.repeat(np.arange(len(nodes)), sizes),
        costs=_concatenate([graph.costs[node] for node in nodes]),
        trees=trees,
        level_nodes=np.searchsorted(levels, np.arange(count + 1)),
        level_kinds=level_kinds,
        half_node=half.node,
        half_other=half.other,
        half_pair=half.pair,
        message_offsets=message_offsets,
        message_place=ranges(offsets[half.node], sizes[half.node]),
        row_step=row_step,
        half_stride=np.where(half.forward, 1, sizes[half.node]),
        flat_stops=_flat_stops(half, level_kinds, message_offsets),
        batches=_batches(half, level_kinds, sizes, message_offsets),
        entries=entries.values,
        entry_source=entries.source,
        entry_step=entries.step,
        row_starts=entries.row_starts,
        pair_u=pair_u,
        pair_v=pair_v,
        tables=Tables(tables.starts, np.minimum(tables.matrices, FORBIDDEN)),
        loads=_spans(
            [(position[node], load) for node, loads in sorted(graph.loads.items()) for load in loads], offsets
        ),
        pair_loads=_pair_spans(graph, pairs),
        room=graph.room.copy(),
        constant=graph.constant,
    )


def _concatenate(arrays: list[Floats]) -> Floats:
    return np.concatenate(arrays) if arrays else np.zeros(0)


def offsets_of(counts: Indices) -> Indices:
    """Where each of a few ranges begins that stand one after the other; one more at the end."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def ranges(starts: Indices, counts: Indices) -> Indices:
    """The ranges `start` to `start + count`, one after the other."""
    return np.arange(int(counts.sum())) + np.repeat(starts - offsets_of(counts)[:-1], counts)


def _levels(graph: Graph) -> tuple[dict[int, int], int]:
    """A level per node, and how many of the levels peel trees."""
    level: dict[int, int] = {}
    degree = {node: len(others) for node, others in graph.edges.items()}
    leaves = {node for node, count in degree.items() if count <= 1}
    depth = 0
    while leaves:
        peeled: set[int] = set()
        for leaf in sorted(leaves):
            if peeled.isdisjoint(graph.edges[leaf]):
                peeled.add(leaf)
        for leaf in peeled:
            level[leaf] = depth
            for other in graph.edges[leaf]:
                degree[other] -= 1
                if degree[other] <= 1 and other not in level:
                    leaves.add(other)
        leaves -= peeled
        depth += 1
    core = sorted((node for node in graph.costs if node not in level), key=lambda node: (-len(graph.edges[node]), node))
    for node in core:
        taken = {level[other] for other in graph.edges[node] if other in level}
        colour = depth
        while colour in taken:
            colour += 1
        level[node] = colour
    return level, depth


@dataclass(frozen=True, slots=True)
class _Tables:
    """The different matrices: the number of each pair's, where it starts, and the entries one after the other."""

    numbers: Indices
    starts: Indices
    matrices: Floats


def _tables(pairs: list[tuple[int, int, Floats]]) -> _Tables:
    """Every matrix once."""
    known: dict[tuple[object, ...], int] = {}
    different: list[Floats] = []
    numbers = np.zeros(len(pairs), dtype=np.int64)
    for k, (_, _, matrix) in enumerate(pairs):
        key = (matrix.shape, matrix.tobytes())
        numbers[k] = known.setdefault(key, len(different))
        if numbers[k] == len(different):
            different.append(matrix.ravel())
    starts = offsets_of(np.array([table.size for table in different], dtype=np.int64))
    return _Tables(numbers, starts[numbers], _concatenate(different))


@dataclass(frozen=True, slots=True)
class _Half:
    """Half-edges in their final order; `forward` where the node at this end is the pair's u, `batch` -1 outside one."""

    node: Indices
    other: Indices
    pair: Indices
    kind: Indices
    batch: Indices
    forward: NDArray[np.bool_]
    twin: Indices


def _half_edges(
    levels: Indices, trees: int, pair_u: Indices, pair_v: Indices, tables: _Tables, sizes: Indices
) -> _Half:
    count = len(pair_u)
    node, other = np.concatenate([pair_u, pair_v]), np.concatenate([pair_v, pair_u])
    pair, forward = np.tile(np.arange(count), 2), np.arange(2 * count) < count
    kind = np.where(levels[other] > levels[node], UP, np.where(levels[other] < trees, CHILD, DOWN))
    group = np.stack([levels[node] * 3 + kind, tables.numbers[pair] * 2 + ~forward])
    _, batch, members = np.unique(group, axis=1, return_inverse=True, return_counts=True)
    batch = batch.ravel()
    batch = np.where(members[batch] * sizes[node] * sizes[other] >= BATCH, batch, -1)
    order = np.lexsort((other, node, batch, kind, levels[node]))
    rank = np.empty(2 * count, dtype=np.int64)
    rank[order] = np.arange(2 * count)
    twin = rank[(order + count) % (2 * count)] if count else rank
    return _Half(node[order], other[order], pair[order], kind[order], batch[order], forward[order], twin)


@dataclass(frozen=True, slots=True)
class _Entries:
    values: Floats
    step: Indices
    source: Indices
    row_starts: Indices


def _entries(half: _Half, sizes: Indices, tables: _Tables, message_offsets: Indices) -> _Entries:
    """The allowed entries outside batches, row after row: where they stand, and which message entry they meet."""
    rows = sizes[half.node]
    row_half = np.repeat(np.arange(len(rows)), rows)
    width = np.where(half.batch < 0, sizes[half.other], 0)[row_half]
    stride = np.where(half.forward, 1, rows)[row_half]
    column = ranges(np.zeros(len(width), dtype=np.int64), width)
    step = np.repeat(_row_steps(half, sizes), width) + column * np.repeat(stride, width)
    values = tables.matrices[np.repeat(tables.starts[half.pair][row_half], width) + step]
    allowed = np.isfinite(values)
    source = np.repeat(message_offsets[half.twin][row_half], width) + column
    counted = np.concatenate([[0], np.cumsum(allowed)])
    return _Entries(values[allowed], step[allowed], source[allowed], counted[offsets_of(width)])


def _row_steps(half: _Half, sizes: Indices) -> Indices:
    """For each row of each half-edge, how far into the matrix its first column is."""
    rows = sizes[half.node]
    row = ranges(np.zeros(len(rows), dtype=np.int64), rows)
    steps: Indices = row * np.repeat(np.where(half.forward, sizes[half.other], 1), rows)
    return steps


def _flat_stops(half: _Half, level_kinds: Indices, message_offsets: Indices) -> Indices:
    """Half-edges outside batches come first in every (level, kind)."""
    flat = np.concatenate([[0], np.cumsum(half.batch < 0)])
    stops: Indices = message_offsets[level_kinds[:-1] + np.diff(flat[level_kinds])]
    return stops


def _batches(
    half: _Half, level_kinds: Indices, sizes: Indices, message_offsets: Indices
) -> tuple[tuple[Batch, ...], ...]:
    bounds = np.flatnonzero(np.diff(half.batch, prepend=-2, append=-2))
    found: list[list[Batch]] = [[] for _ in level_kinds[:-1]]
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
        if half.batch[start] < 0:
            continue
        columns = np.arange(int(sizes[half.other[start]]))
        batch = Batch(
            pairs=half.pair[start:stop],
            forward=bool(half.forward[start]),
            messages=slice(int(message_offsets[start]), int(message_offsets[stop])),
            sources=message_offsets[half.twin[start:stop]][:, None] + columns,
        )
        found[int(np.searchsorted(level_kinds, start, side="right")) - 1].append(batch)
    return tuple(map(tuple, found))


def _spans(loads: Iterable[tuple[int, Load]], offsets: Indices) -> Spans:
    """Loads with their owners, flat; an owner's entries stand from its offset on."""
    owned = list(loads)
    owner = np.array([position for position, _ in owned], dtype=np.int64)
    counts = np.array([load.nbytes.size for _, load in owned], dtype=np.int64)
    return Spans(
        start=np.array([load.start for _, load in owned], dtype=np.int64),
        stop=np.array([load.stop for _, load in owned], dtype=np.int64),
        owner=owner,
        offsets=offsets_of(counts),
        nbytes=_concatenate([load.nbytes.ravel() for _, load in owned]),
        place=ranges(offsets[owner], counts),
        load_of=np.repeat(np.arange(len(owned)), counts),
    )


def _pair_spans(graph: Graph, pairs: list[tuple[int, int, Floats]]) -> Spans:
    position = {(u, v): k for k, (u, v, _) in enumerate(pairs)}
    owned = [(position[pair], load) for pair, loads in sorted(graph.edge_loads.items()) for load in loads]
    return _spans(owned, np.zeros(len(pairs), dtype=np.int64))
