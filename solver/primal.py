"""Choices that are valid: price them, repair what overfills memory, improve them node by node."""

import numpy as np

from .graph import Graph, Load
from .problem import Floats

Choice = dict[int, int]


def value(graph: Graph, choice: Choice) -> float:
    """Cost of a choice for the live nodes, in units; infinite if it is forbidden."""
    nodes = sum(float(graph.costs[u][choice[u]]) for u in graph.costs)
    edges = sum(float(matrix[choice[u], choice[v]]) for u, v, matrix in graph.pairs())
    return graph.constant + nodes + edges


def rows_held(graph: Graph, choice: Choice) -> Floats:
    """Bytes held in every memory row."""
    change = np.zeros(len(graph.room) + 1)
    for u, loads in graph.loads.items():
        for load in loads:
            _hold(change, load, float(load.nbytes[choice[u]]))
    for (u, v), loads in graph.edge_loads.items():
        for load in loads:
            _hold(change, load, float(load.nbytes[choice[u], choice[v]]))
    return np.cumsum(change)[:-1]


def _hold(change: Floats, load: Load, nbytes: float) -> None:
    change[load.start] += nbytes
    change[load.stop] -= nbytes


def fits(graph: Graph, choice: Choice) -> bool:
    """Whether memory suffices."""
    return bool(np.all(rows_held(graph, choice) <= graph.room))


class LocalSearch:
    """Single-node moves from a choice, with overfilled memory at a penalty; changes its choice in place."""

    def __init__(self, graph: Graph, choice: Choice) -> None:
        self.graph: Graph = graph
        self.choice: Choice = dict(choice)
        self.held: Floats = rows_held(graph, choice)
        self.pairs: dict[int, list[tuple[int, list[Load]]]] = {u: [] for u in graph.costs}
        for (u, v), loads in graph.edge_loads.items():
            self.pairs[u].append((v, loads))
            self.pairs[v].append((u, [Load(x.start, x.stop, x.nbytes.T) for x in loads]))

    def run(self, penalty: float, rounds: int) -> bool:
        """Move every node to its best choice, up to so many rounds.

        Args:
            penalty: Units per byte and row that exceeds its room; infinite forbids moves that overfill.
            rounds: How often to go over all nodes.

        Returns:
            Whether the choice fits into memory.
        """
        for _ in range(rounds):
            moved = [self._improve(u, penalty) for u in sorted(self.graph.costs)]
            if not any(moved):
                break
        return bool(np.all(self.held <= self.graph.room))

    def _improve(self, u: int, penalty: float) -> bool:
        now = self.choice[u]
        total = self.graph.costs[u].copy()
        for v, matrix in self.graph.edges[u].items():
            total += matrix[:, self.choice[v]]
        loads = self._loads(u)
        if loads:
            total += self._excess(loads, now, penalty)
        best = int(np.argmin(total))
        if not total[best] < total[now]:
            return False
        for load in loads:
            self.held[load.start : load.stop] += load.nbytes[best] - load.nbytes[now]
        self.choice[u] = best
        return True

    def _loads(self, u: int) -> list[Load]:
        """What the node's choices hold, given the others'."""
        own = list(self.graph.loads.get(u, ()))
        return own + [Load(x.start, x.stop, x.nbytes[:, self.choice[v]]) for v, held in self.pairs[u] for x in held]

    def _excess(self, loads: list[Load], now: int, penalty: float) -> Floats:
        """The penalty of each choice for the rows that it overfills."""
        start, stop = min(x.start for x in loads), max(x.stop for x in loads)
        rows = np.repeat((self.held - self.graph.room)[None, start:stop], len(loads[0].nbytes), axis=0)
        for load in loads:
            rows[:, load.start - start : load.stop - start] += (load.nbytes - load.nbytes[now])[:, None]
        over = np.maximum(rows, 0.0).sum(axis=1)
        return np.where(over > 0, over * penalty if np.isfinite(penalty) else np.inf, 0.0)


def repaired(graph: Graph, choice: Choice, scale: float) -> Choice | None:
    """A choice near this one that fits into memory; None if local moves do not find one.

    Args:
        graph: The graph.
        choice: Where to start.
        scale: Units per byte: the size of the first penalty, which grows tenfold until everything fits.
    """
    search = LocalSearch(graph, choice)
    penalty = scale
    for _ in range(8):
        if search.run(penalty, rounds=6):
            search.run(np.inf, rounds=6)
            return search.choice
        penalty *= 10
    return None
