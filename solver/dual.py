"""Lower bounds by message passing (TRW-S), memory priced by Lagrange multipliers.

Every edge matrix C_uv is reparametrised by messages: m[u][v] is what edge uv gives to node u (it may be negative: what
u has lent to it). With t_u = c_u + sum_v m[u][v] the cost of any choice is unchanged. A sweep visits the nodes in order
and back. At a node it first takes all it can from the edges behind it, m[u][v] = min_y C_uv[., y] - m[v][u](y), and
then lends the share t_u / max(forward degree, backward degree) to each edge ahead. After the backward half every edge's
least entry is zero, so the sum of the nodes' least remainders is a lower bound. When a node is visited, t_u is the sum
of the min-marginals of the monotonic chains through it: a choice whose t_u exceeds the least one by more than (upper
bound - lower bound) is in no better solution.

Source: V. Kolmogorov, "Convergent tree-reweighted message passing for energy minimization", PAMI 28(10), 2006.
A multiplier per memory row adds its price times the bytes held to the costs; the bound then loses price times room.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .graph import Graph, Load
from .problem import Floats

ROUNDING = 1e-12  # relative error allowed for float sums of whole units, taken off every bound


class Dual:
    """Messages, prices and bounds over the live nodes of a graph; changed in place by its sweeps."""

    def __init__(self, graph: Graph) -> None:
        self.graph: Graph = graph
        self.order: list[int] = sorted(graph.costs)
        place = {node: i for i, node in enumerate(self.order)}
        self.before: dict[int, list[int]] = {}
        self.after: dict[int, list[int]] = {}
        for u in self.order:
            self.before[u] = [v for v in sorted(graph.edges[u]) if place[v] < place[u]]
            self.after[u] = [v for v in sorted(graph.edges[u]) if place[v] > place[u]]
        self.messages: dict[int, dict[int, Floats]] = {
            u: {v: np.zeros(len(graph.costs[u])) for v in graph.edges[u]} for u in self.order
        }
        self.marginals: dict[int, Floats] = {}
        self.prices: Floats = np.zeros(len(graph.room))
        self.costs: Mapping[int, Floats] = graph.costs
        self.edges: Mapping[int, Mapping[int, Floats]] = graph.edges

    def price(self, prices: Floats) -> None:
        """Set the multipliers of the memory rows; messages stay valid."""
        self.prices = prices
        total = np.concatenate([[0.0], np.cumsum(prices)])
        loads = self.graph.loads
        self.costs = {u: c + _priced(loads[u], total) if u in loads else c for u, c in self.graph.costs.items()}
        edges = {u: dict(row) for u, row in self.graph.edges.items()}
        for (u, v), held in self.graph.edge_loads.items():
            edges[u][v] = edges[u][v] + _priced(held, total)
            edges[v][u] = np.ascontiguousarray(edges[u][v].T)
        self.edges = edges

    def sweep(self) -> float:
        """Forward and back; returns the lower bound in units, the graph's constant included."""
        for u in self.order:
            total = self._collect(u, self.before[u])
            self._lend(u, self.after[u], total)
        bound = self.graph.constant - float(self.prices @ self.graph.room)
        for u in reversed(self.order):
            total = self._collect(u, self.after[u])
            share = self._lend(u, self.before[u], total)
            self.marginals[u] = total
            bound += float((total - share * len(self.before[u])).min())
        return float(bound - ROUNDING * abs(bound) * len(self.order) ** 0.5)

    def _collect(self, u: int, behind: list[int]) -> Floats:
        """Take what the edges behind can give; the node's total."""
        mine = self.messages[u]
        for v in behind:
            mine[v] = (self.edges[u][v] - self.messages[v][u]).min(axis=1)
        total = self.costs[u].copy()
        for message in mine.values():
            total += message
        return total

    def _lend(self, u: int, ahead: list[int], total: Floats) -> Floats:
        """Give the edges ahead equal shares of the total; the share."""
        share: Floats = total / max(1, len(self.before[u]), len(self.after[u]))
        for v in ahead:
            self.messages[u][v] = self.messages[u][v] - share
        return share

    def round(self) -> dict[int, int]:
        """A choice: node by node the least of its cost, of the edges to what is chosen, and of the messages ahead."""
        choice: dict[int, int] = {}
        for u in self.order:
            total = self.costs[u].copy()
            for v in self.before[u]:
                total += self.edges[u][v][:, choice[v]]
            for v in self.after[u]:
                total += self.messages[u][v]
            choice[u] = int(np.argmin(total))
        return choice

    def contenders(self, bound: float, cost: float) -> dict[int, NDArray[np.bool_]]:
        """Per node the choices that may be in a solution that costs less than ``cost``, by the last sweep.

        Args:
            bound: The lower bound before that sweep, in units.
            cost: The upper bound.
        """
        slack = (cost - bound) * (1 + ROUNDING) + 1.0
        return {u: t - t.min() <= slack for u, t in self.marginals.items()}


def _priced(loads: list[Load], total: Floats) -> Floats:
    return np.asarray(sum(load.nbytes * (total[load.stop] - total[load.start]) for load in loads))
