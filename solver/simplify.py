"""Exact reductions: each removes something and keeps the optimum; each pushes its inverse on the graph's trail.

* Forbidden entries: a choice without any allowed partner on some edge is removed.
* Separable edges: a matrix r[p] + c[q] moves into the node costs; a zero matrix disappears.
* Degree 0, 1, 2: a node without bearing on memory is minimised out; its neighbours inherit a min-plus product.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from .clock import Clock
from .graph import Graph, Indices
from .problem import Floats

MAX_TABLE = 4_000_000  # entries touched by one min-plus product; larger ones are left to the later stages


@dataclass(frozen=True, slots=True)
class Minimised:
    """A node that was minimised out; its best choice follows from its neighbours' choices."""

    node: int
    cost: Floats
    tables: tuple[tuple[int, Floats], ...]  # (neighbour, matrix with a row per choice of the neighbour)

    def invert(self, choice: Indices) -> None:
        """Choose the cheapest, the first of equals."""
        total = self.cost
        for neighbour, matrix in self.tables:
            total = total + matrix[choice[neighbour]]
        choice[self.node] = int(np.argmin(total))


def simplify(graph: Graph, clock: Clock | None = None) -> None:
    """Apply all reductions until none applies.

    Args:
        graph: The graph, reduced in place.
        clock: When to stop early; what was applied by then is as exact as ever.

    Raises:
        Infeasible: If a node has no choice left.
    """
    queue = deque(sorted(graph.costs))
    waiting = set(queue)
    while queue and not (clock is not None and clock.expired):
        node = queue.popleft()
        waiting.discard(node)
        if node not in graph.costs:
            continue
        for touched in sorted(reduce_node(graph, node)):
            if touched not in waiting and touched in graph.costs:
                waiting.add(touched)
                queue.append(touched)


def reduce_node(graph: Graph, node: int) -> set[int]:
    """Clean a node's choices and edges, then minimise it out if that is cheap; returns the nodes it changed."""
    touched: set[int] = set()
    if np.isinf(graph.costs[node]).any():
        graph.restrict(node, np.isfinite(graph.costs[node]))
        touched.update((node, *graph.edges[node]))
    for other in sorted(graph.edges[node]):
        if settle_edge(graph, node, other):
            touched.update((node, other))
    if touched or graph.is_loaded(node):
        return touched
    return touched | minimise_out(graph, node)


def settle_edge(graph: Graph, u: int, v: int) -> bool:
    """Move what is separable of an edge into its ends; returns whether anything that matters to others changed."""
    pair = (u, v) if u < v else (v, u)
    if pair in graph.settled:
        return False
    matrix = graph.edges[u][v]
    rows = matrix.min(axis=1)
    if np.isinf(rows).any():
        graph.restrict(u, np.isfinite(rows))
        return True
    if rows.any():
        graph.costs[u] = graph.costs[u] + rows
        matrix = matrix - rows[:, None]
    columns = matrix.min(axis=0)
    if np.isinf(columns).any():
        graph.set_edge(u, v, matrix)
        graph.restrict(v, np.isfinite(columns))
        return True
    if columns.any():
        graph.costs[v] = graph.costs[v] + columns
        matrix = matrix - columns[None, :]
    if not matrix.any() and pair not in graph.edge_loads:
        graph.drop_edge(u, v)
        return True
    graph.set_edge(u, v, matrix)
    graph.settled.add(pair)
    return False


def minimise_out(graph: Graph, node: int) -> set[int]:
    """Eliminate a node of degree at most 2 that does not bear on memory; returns its former neighbours."""
    neighbours = sorted(graph.edges[node])
    cost = graph.costs[node]
    if len(neighbours) > 2 or len(cost) * np.prod([len(graph.costs[n]) for n in neighbours]) > MAX_TABLE:
        return set()
    tables = tuple((n, graph.edges[n][node]) for n in neighbours)
    if not neighbours:
        graph.constant += float(cost.min())
    elif len(neighbours) == 1:
        (other, matrix) = tables[0]
        graph.costs[other] = graph.costs[other] + (matrix + cost).min(axis=1)
    else:
        (u, left), (v, right) = tables
        graph.add_edge(u, v, _product(graph, left + cost, right.T))
    for n in neighbours:
        del graph.edges[n][node]
    del graph.edges[node], graph.costs[node]
    graph.trail.append(Minimised(node, cost, tables))
    return set(neighbours)


def _product(graph: Graph, left: Floats, right: Floats) -> Floats:
    """The min-plus product, looked up where the same was made before, as for layers that repeat."""
    key = (left.shape, left.tobytes(), right.tobytes())
    known = graph.products.get(key)
    if known is None:
        known = graph.products[key] = min_plus(left, right)
    return known


def min_plus(left: Floats, right: Floats) -> Floats:
    """The min-plus product: entry (p, q) is the least left[p, k] + right[k, q]."""
    out = np.full((left.shape[0], right.shape[1]), np.inf)
    for k in range(left.shape[1]):
        np.minimum(out, left[:, k, None] + right[k], out=out)
    return out
