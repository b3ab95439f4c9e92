"""What no reduction settles, as an integer linear program.

Variables (all within 0 and 1):
    s[i, p]        node i takes choice p; whole
    e[u, v, p, q]  edge (u, v) takes the pair (p, q); impossible pairs have no variable

Objective: minimise  sum c_i[p] s[i, p] + sum C_uv[p, q] e[u, v, p, q]

Constraints:
    1. one      sum_p s[i, p] = 1                        for every node
    2. rows     sum_q e[u, v, p, q] = s[u, p]            for every edge and choice p of u
    3. columns  sum_p e[u, v, p, q] = s[v, q]            for every edge and choice q of v
    4. memory   sum of the bytes of what is live <= room for every memory row

Row and column sums (2, 3) make the relaxation tight: it is integral on almost every instance without memory. The
textbook form e >= s_u + s_v - 1 is far weaker.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .backend import LinearModel
from .graph import Graph, Indices, Load
from .problem import Floats

OBJECTIVE_SPAN = 1e6  # the model's objective is scaled so that its largest entry has this size


@dataclass(frozen=True, slots=True)
class Block:
    """One family of constraints, rows counted from 0 within it."""

    rows: Indices
    columns: Indices
    entries: Floats
    lower: Floats
    upper: Floats


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the variables of a graph stand in the model.

    Args:
        offsets: First column of each live node's choices.
        pair_offsets: First column of each edge's allowed pairs.
        allowed: For each edge (u, v), u < v, the flat positions of its allowed pairs.
        columns: Number of columns; the first `node_columns` belong to nodes.
        node_columns: Number of columns of nodes.
    """

    offsets: dict[int, int]
    pair_offsets: dict[tuple[int, int], int]
    allowed: dict[tuple[int, int], Indices]
    columns: int
    node_columns: int

    def choice(self, graph: Graph, values: Floats) -> dict[int, int]:
        """The choice that the values of a solved model mean: the largest of each node."""
        return {
            node: int(np.argmax(values[start : start + len(graph.costs[node])])) for node, start in self.offsets.items()
        }


def build_model(graph: Graph) -> tuple[LinearModel, Layout, float]:
    """The program of what is left in a graph; also the units of cost per unit of its objective."""
    layout = _layout(graph)
    blocks = [one(graph, layout), sums(graph, layout, axis=0), sums(graph, layout, axis=1), memory(graph, layout)]
    heights = [len(block.lower) for block in blocks]
    starts = np.concatenate([[0], np.cumsum(heights)]).astype(np.int64)
    rows = np.concatenate([block.rows + start for block, start in zip(blocks, starts)])
    columns = np.concatenate([block.columns for block in blocks])
    rows, columns, entries = _coalesce(rows, columns, np.concatenate([block.entries for block in blocks]))
    cost = _objective(graph, layout)
    scale = max(1.0, float(np.abs(cost).max(initial=0.0))) / OBJECTIVE_SPAN
    model = LinearModel(
        cost=cost / scale,
        whole=np.arange(layout.columns) < layout.node_columns,
        row_lower=np.concatenate([block.lower for block in blocks]),
        row_upper=np.concatenate([block.upper for block in blocks]),
        rows=rows,
        columns=columns,
        entries=entries,
    )
    return model, layout, scale


def _coalesce(rows: Indices, columns: Indices, entries: Floats) -> tuple[Indices, Indices, Floats]:
    """Triplets sorted by row and column, entries of one place added up."""
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    first = np.flatnonzero(np.diff(rows, prepend=-1) | np.diff(columns, prepend=-1))
    return rows[first], columns[first], np.add.reduceat(entries[order], first) if len(first) else entries


def _layout(graph: Graph) -> Layout:
    offsets, pair_offsets, allowed = {}, {}, {}
    column = 0
    for node in sorted(graph.costs):
        offsets[node] = column
        column += len(graph.costs[node])
    node_columns = column
    for u, v, matrix in graph.pairs():
        allowed[u, v] = np.flatnonzero(np.isfinite(matrix))
        pair_offsets[u, v] = column
        column += len(allowed[u, v])
    return Layout(offsets, pair_offsets, allowed, column, node_columns)


def _objective(graph: Graph, layout: Layout) -> Floats:
    parts = [graph.costs[node] for node in layout.offsets]
    parts += [graph.edges[u][v].ravel()[places] for (u, v), places in layout.allowed.items()]
    return np.concatenate([np.zeros(0), *parts])


def one(graph: Graph, layout: Layout) -> Block:
    """Family 1: every node takes one choice."""
    counts = [len(graph.costs[node]) for node in layout.offsets]
    ones = np.ones(len(counts))
    rows = np.repeat(np.arange(len(counts)), counts)
    return Block(rows, np.arange(layout.node_columns), np.ones(layout.node_columns), ones, ones)


def sums(graph: Graph, layout: Layout, *, axis: int) -> Block:
    """Families 2 (axis 0, rows) and 3 (axis 1, columns): the pairs of an edge agree with its ends."""
    rows, columns, entries = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    height = 0
    for pair, places in layout.allowed.items():
        index = np.unravel_index(places, graph.edges[pair[0]][pair[1]].shape)[axis]
        size = len(graph.costs[pair[axis]])
        rows += [height + index, height + np.arange(size)]
        columns += [layout.pair_offsets[pair] + np.arange(len(places)), layout.offsets[pair[axis]] + np.arange(size)]
        entries += [np.ones(len(places)), -np.ones(size)]
        height += size
    zeros = np.zeros(height)
    return Block(np.concatenate(rows), np.concatenate(columns), np.concatenate(entries), zeros, zeros)


def memory(graph: Graph, layout: Layout) -> Block:
    """Family 4: what is live fits into the room; rows are scaled to a room of 1."""
    scale = 1.0 / np.maximum(graph.room, 1.0)
    parts = list(_load_columns(graph, layout))
    rows = [np.repeat(np.arange(load.start, load.stop), len(columns)) for load, columns, _ in parts]
    columns = [np.tile(columns, load.stop - load.start) for load, columns, _ in parts]
    entries = [np.outer(scale[load.start : load.stop], nbytes).ravel() for load, _, nbytes in parts]
    return Block(
        np.concatenate([np.zeros(0, np.int64), *rows]),
        np.concatenate([np.zeros(0, np.int64), *columns]),
        np.concatenate([np.zeros(0), *entries]),
        np.full(len(graph.room), -np.inf),
        graph.room * scale,
    )


def _load_columns(graph: Graph, layout: Layout) -> Iterator[tuple[Load, Indices, Floats]]:
    """Every load with the columns it concerns and their bytes, zeros left out."""
    for node, loads in sorted(graph.loads.items()):
        for load in loads:
            heavy = np.flatnonzero(load.nbytes)
            yield load, layout.offsets[node] + heavy, load.nbytes[heavy]
    for pair, loads in sorted(graph.edge_loads.items()):
        for load in loads:
            nbytes = load.nbytes.ravel()[layout.allowed[pair]]
            heavy = np.flatnonzero(nbytes)
            yield load, layout.pair_offsets[pair] + heavy, nbytes[heavy]
