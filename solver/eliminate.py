"""Exact elimination of nodes with any number of neighbours, where the tables stay small.

Memory apart, the optimum is a chain of minima: a node's costs and edges are added up over all choices of its
neighbours, the node is minimised out, and the table that is left joins the neighbours (bucket elimination: R. Dechter,
Artificial Intelligence 113, 1999). The work is exponential only in how densely the graph hangs together, not in its
size: layers in a row, with a few choices left for each node, take time in proportion to their number. The order is
planned before any table is made.
"""

import heapq
import math
from dataclasses import dataclass

import numpy as np

from .clock import WORK_PER_SECOND, Clock
from .graph import Graph
from .problem import Floats

MAX_ENTRIES = 500_000  # of one table
STEP_WORK = 3e4  # work of one elimination, whatever its size


@dataclass(frozen=True, slots=True)
class Table:
    """Costs over the choices of some nodes: an axis per node, nodes ascending."""

    nodes: tuple[int, ...]
    costs: Floats

    def over(self, scope: tuple[int, ...]) -> Floats:
        """The same with an axis of one for every other node of an ascending scope."""
        sizes = dict(zip(self.nodes, self.costs.shape, strict=True))
        return self.costs.reshape([sizes.get(node, 1) for node in scope])

    def at(self, choice: dict[int, int], node: int) -> Floats:
        """Costs per choice of one of the nodes, given the choices of the others."""
        vector: Floats = self.costs[tuple(slice(None) if n == node else choice[n] for n in self.nodes)]
        return vector


def eliminate(graph: Graph, clock: Clock, most_work: float = math.inf) -> tuple[dict[int, int], float] | None:
    """A best choice for the live nodes of a graph without memory, and its cost.

    Args:
        graph: The graph; it is not changed.
        clock: When to stop.
        most_work: Table entries that it may take.

    Returns:
        The first of the best choices, and its units; infinite if every choice is forbidden. None if a table would be
        too large or time would be up.
    """
    order = _order(graph, min(most_work, clock.left_work, clock.left_s * WORK_PER_SECOND / 3))
    if order is None:
        return None
    held: dict[int, list[Table]] = {node: [Table((node,), cost)] for node, cost in graph.costs.items()}
    for u, v, matrix in graph.pairs():
        held[u].append(Table((u, v), matrix))
        held[v].append(held[u][-1])
    constant, buckets = graph.constant, []
    for node in order:
        if clock.expired:
            return None
        bucket = held.pop(node)
        buckets.append((node, bucket))
        left = _minimised(node, bucket)
        clock.spend(STEP_WORK + left.costs.size * len(graph.costs[node]))
        for other in {n for table in bucket for n in table.nodes} - {node}:
            held[other] = [table for table in held[other] if node not in table.nodes]
        if left.nodes:
            for other in left.nodes:
                held[other].append(left)
        else:
            constant += float(left.costs)
    choice: dict[int, int] = {}
    for node, bucket in reversed(buckets):
        choice[node] = int(np.argmin(sum(table.at(choice, node) for table in bucket)))
    return choice, constant


def _minimised(node: int, bucket: list[Table]) -> Table:
    """All tables of a node added up, and the node minimised out."""
    scope = tuple(sorted({n for table in bucket for n in table.nodes}))
    total = bucket[0].over(scope)
    for table in sorted(bucket[1:], key=lambda table: table.costs.size):
        total = total + table.over(scope)
    return Table(tuple(n for n in scope if n != node), total.min(axis=scope.index(node)))


def _order(graph: Graph, most_work: float) -> list[int] | None:
    """An order in which tables stay small: always the node whose table is smallest; None if one is too large."""
    sizes = {node: len(cost) for node, cost in graph.costs.items()}
    around = {node: set(others) for node, others in graph.edges.items()}

    def entries(node: int) -> int:
        return math.prod(sizes[other] for other in around[node]) * sizes[node]

    heap = [(entries(node), node) for node in sorted(sizes)]
    heapq.heapify(heap)
    order, work, latest = [], 0.0, {node: size for size, node in heap}
    while heap:
        size, node = heapq.heappop(heap)
        if node not in around or latest[node] != size:
            continue
        work += STEP_WORK + size
        if size > MAX_ENTRIES or work > most_work:
            return None
        order.append(node)
        others = around.pop(node)
        for other in others:
            around[other] |= others
            around[other] -= {node, other}
        for other in sorted(others):
            latest[other] = entries(other)
            heapq.heappush(heap, (latest[other], other))
    return order
