"""A smaller graph of some of the choices: nodes with one choice left are folded into the others' costs."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .graph import Graph, Indices, Load
from .packed import FORBIDDEN, Packed, Spans, Tables, summed
from .problem import Floats
from .units import Units


@dataclass(frozen=True, slots=True)
class Priced:
    """Costs per choice, and all matrices, with prices of memory in them."""

    costs: Floats
    tables: Tables


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Part of a packed graph, over positions instead of nodes.

    Args:
        graph: The nodes that still have a choice, at the memory rows asked for.
        kept: The choices that stay, one node after the other.
        starts: Where each node's begin in `kept`.
    """

    graph: Graph
    kept: Indices
    starts: Indices

    def complete(self, choice: tuple[int, ...]) -> Indices:
        """A choice of the packed graph from one of the narrowed graph, as `Graph.recover` gives it."""
        full: Indices = self.kept[self.starts + np.array(choice, dtype=np.int64)]
        return full


def narrow(
    packed: Packed, keep: NDArray[np.bool_], rows: Indices, units: Units, priced: Priced | None = None
) -> Narrowed:
    """The part with some of the choices and some of the memory rows.

    Args:
        packed: The whole.
        keep: The choices that stay, at least one a node.
        rows: The memory rows that count, ascending.
        units: Of the costs.
        priced: Costs and matrices to take instead of the whole's.
    """
    priced = priced or Priced(packed.costs, packed.tables)
    counts = np.add.reduceat(keep, packed.offsets[:-1], dtype=np.int64)
    places = np.flatnonzero(keep)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    kept = places - packed.offsets[:-1][packed.node_of[places]]
    free, first = counts > 1, kept[starts]
    graph = Graph(
        costs={}, edges={}, loads={}, edge_loads={}, room=np.zeros(0), size=len(packed.nodes), units=units
    )  # fmt: skip
    graph.constant = _fixed_cost(packed, priced, free, first)
    costs = priced.costs + _met_costs(packed, priced, free, first)
    for i in np.flatnonzero(free).tolist():
        mine = kept[starts[i] : starts[i] + counts[i]]
        cost = costs[packed.offsets[i] + mine]
        graph.costs[i] = np.where(cost >= FORBIDDEN / 2, np.inf, cost)
        graph.edges[i] = {}
    chosen = {i: kept[starts[i] : starts[i] + counts[i]] for i in graph.costs}
    for k in np.flatnonzero(free[packed.pair_u] & free[packed.pair_v]).tolist():
        u, v = int(packed.pair_u[k]), int(packed.pair_v[k])
        matrix = packed.matrix(priced.tables, k)[np.ix_(chosen[u], chosen[v])]
        graph.set_edge(u, v, np.where(matrix >= FORBIDDEN / 2, np.inf, matrix))
    if len(rows):
        _add_loads(graph, packed, chosen, first, rows)
    return Narrowed(graph, kept, starts)


def _fixed_cost(packed: Packed, priced: Priced, free: NDArray[np.bool_], first: Indices) -> float:
    nodes = priced.costs[(packed.offsets[:-1] + first)[~free]].sum()
    pairs = packed.taken(priced.tables, first)[~free[packed.pair_u] & ~free[packed.pair_v]].sum()
    return float(packed.constant + nodes + pairs)


def _met_costs(packed: Packed, priced: Priced, free: NDArray[np.bool_], first: Indices) -> Floats:
    """What every choice pays on its edges to nodes that have one choice left."""
    met = ~free[packed.half_other]
    sizes = packed.sizes[packed.half_node]
    starts = priced.tables.starts[packed.half_pair] + first[packed.half_other] * packed.half_stride
    mask = np.repeat(met, sizes)
    entries = priced.tables.entries[(packed.row_step + np.repeat(starts, sizes))[mask]]
    return summed(packed.message_place[mask], entries, len(packed.costs))


def _add_loads(graph: Graph, packed: Packed, chosen: dict[int, Indices], first: Indices, rows: Indices) -> None:
    """The memory of what is free, at some rows; what is fixed takes its bytes from the room."""
    loads: dict[int, list[Load]] = defaultdict(list)
    pair_loads: dict[tuple[int, int], list[Load]] = defaultdict(list)
    graph.room = packed.room[rows].copy()
    for k, start, stop, nbytes in _at(packed.loads, rows):
        i = int(packed.loads.owner[k])
        if i in chosen:
            loads[i].append(Load(start, stop, nbytes[chosen[i]]))
        else:
            graph.room[start:stop] -= nbytes[first[i]]
    for k, start, stop, nbytes in _at(packed.pair_loads, rows):
        pair = int(packed.pair_loads.owner[k])
        u, v = int(packed.pair_u[pair]), int(packed.pair_v[pair])
        matrix = nbytes.reshape(int(packed.sizes[u]), int(packed.sizes[v]))
        if u in chosen and v in chosen:
            key, part = ((u, v), matrix[np.ix_(chosen[u], chosen[v])])
            pair_loads[key if u < v else (v, u)].append(Load(start, stop, part if u < v else part.T))
        elif u in chosen:
            loads[u].append(Load(start, stop, matrix[chosen[u], first[v]]))
        elif v in chosen:
            loads[v].append(Load(start, stop, matrix[first[u], chosen[v]]))
        else:
            graph.room[start:stop] -= matrix[first[u], first[v]]
    for i in sorted(loads):
        graph.set_loads(i, loads[i])
    for pair_key in sorted(pair_loads):
        graph.set_edge_loads(pair_key, pair_loads[pair_key])


def _at(spans: Spans, rows: Indices) -> list[tuple[int, int, int, Floats]]:
    """The loads that are held in some of the rows: number, range of rows, bytes."""
    starts, stops = np.searchsorted(rows, spans.start), np.searchsorted(rows, spans.stop)
    return [
        (k, int(starts[k]), int(stops[k]), spans.nbytes[spans.offsets[k] : spans.offsets[k + 1]])
        for k in np.flatnonzero(starts < stops).tolist()
    ]
