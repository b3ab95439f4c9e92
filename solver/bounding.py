"""Bounds and choices that close in on each other, and the choices that the gap between them rules out."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .dual import Dual
from .graph import Graph, Infeasible, drop_slack_rows
from .primal import Choice, fits, repaired, rows_held, value
from .problem import Floats
from .simplify import simplify

SWEEPS_PER_LOOK = 10  # sweeps between two attempts to round the messages to a choice
STALLED = 1e-4  # relative gain of the bound between looks below which the first bracket's sweeping stops
LOOKS = 100  # at most
RELATIVE_GAP = 1e-9  # upper and lower bound that agree to this are equal: what is left is rounding of float sums


@dataclass(slots=True)
class Bracket:
    """What is known of the optimum of a graph, in units; updated in place.

    Attributes:
        bound: No choice costs less.
        cost: Cost of the best choice known; infinite if there is none.
        choice: That choice for the live nodes.
    """

    bound: float = -np.inf
    cost: float = np.inf
    choice: Choice | None = None

    @property
    def closed(self) -> bool:
        """Whether the best choice is proven to be best."""
        return self.choice is not None and self.cost - self.bound <= max(1.0, RELATIVE_GAP * abs(self.cost))

    def offer(self, graph: Graph, choice: Choice) -> None:
        """Take a valid choice if it is better."""
        cost = value(graph, choice)
        if cost < self.cost and fits(graph, choice):
            self.cost, self.choice = cost, choice


def bracket(
    graph: Graph, stop: float, tell: Callable[[float, float], None], stalled: float = STALLED
) -> tuple[Bracket, Dual]:
    """Sweep, round, price memory; until the bracket is closed, the bound stalls, or time is up.

    Args:
        graph: The graph; it is not changed.
        stop: Monotonic time at which to stop.
        tell: Called with cost and bound after every look.
        stalled: Relative gain of the bound between two looks below which sweeping stops.

    Returns:
        The bracket, and the messages at its best bound.
    """
    known = Bracket()
    dual = Dual(graph)
    _sweep_until_stalled(graph, dual, known, stop, tell, stalled)
    if len(graph.room) and not known.closed and time.monotonic() < stop:
        dual = _price_memory(graph, dual, known, stop, tell, stalled)
    return known, dual


def _sweep_until_stalled(
    graph: Graph, dual: Dual, known: Bracket, stop: float, tell: Callable[[float, float], None], stalled: float
) -> None:
    for _ in range(LOOKS):
        before = known.bound
        for _ in range(SWEEPS_PER_LOOK):
            known.bound = max(known.bound, dual.sweep())
            if time.monotonic() > stop:
                break
        _look(graph, dual, known)
        tell(known.cost, known.bound)
        gain = known.bound - before
        if known.closed or time.monotonic() > stop or gain < stalled * abs(known.bound):
            return


def _look(graph: Graph, dual: Dual, known: Bracket) -> Choice:
    """Round the messages; offer the choice, repaired if it overfills memory."""
    rounded = dual.round()
    scale = max(abs(known.bound), 1.0) / max(float(graph.room.sum()), 1.0) if len(graph.room) else 1.0
    choice = repaired(graph, rounded, scale)
    if choice is not None:
        known.offer(graph, choice)
    return rounded


def _price_memory(
    graph: Graph, dual: Dual, known: Bracket, stop: float, tell: Callable[[float, float], None], stalled: float
) -> Dual:
    """Polyak's subgradient steps on the multipliers of the memory rows, a few sweeps each."""
    prices: Floats = np.zeros(len(graph.room))
    best = (known.bound, prices)
    pace, unimproved = 1.0, 0
    for _ in range(400):
        slope = rows_held(graph, dual.round()) - graph.room
        slope = np.where((slope < 0) & (prices == 0), 0.0, slope)
        norm = float(slope @ slope)
        if norm == 0 or known.closed or time.monotonic() > stop or pace < 1e-3:
            break
        target = known.cost if np.isfinite(known.cost) else known.bound + 0.05 * abs(known.bound)
        prices = np.maximum(0.0, prices + pace * (target - best[0]) / norm * slope)
        dual.price(prices)
        bound = max(dual.sweep() for _ in range(3))
        if bound > best[0]:
            best, unimproved = (bound, prices), 0
        else:
            unimproved += 1
        if unimproved >= 5:
            pace, unimproved, prices = pace / 2, 0, best[1]
        known.bound = max(known.bound, bound)
        _look(graph, dual, known)
        tell(known.cost, known.bound)
    dual.price(best[1])
    _sweep_until_stalled(graph, dual, known, stop, tell, stalled)
    return dual


def near(graph: Graph, dual: Dual, known: Bracket, slack: float) -> Graph | None:
    """A reduced copy of the graph with only the choices that the last sweep prices within ``slack`` of the best.

    A solution of the copy is one of the graph. With a slack of the whole gap the copy holds every better choice.

    Args:
        graph: The graph; it is not changed.
        dual: Messages after a sweep.
        known: The bracket; a known choice stays in the copy.
        slack: Units.

    Returns:
        The copy; None if it admits no choice.
    """
    copy = graph.copy()
    try:
        for u, marginal in dual.marginals.items():
            keep = marginal - marginal.min() <= slack
            if known.choice is not None:
                keep[known.choice[u]] = True
            copy.restrict(u, keep)
        simplify(copy)
        drop_slack_rows(copy)
    except Infeasible:
        return None
    return copy


def rule_out(graph: Graph, dual: Dual, known: Bracket) -> int:
    """Remove the choices that cannot be in a better solution, and reduce again; returns how many went.

    The graph keeps what could beat the best choice known, and that choice itself.
    """
    assert known.choice is not None
    before = dual.sweep()
    dual.sweep()
    removed = 0
    for node, keep in dual.contenders(before, known.cost).items():
        keep[known.choice[node]] = True
        removed += int((~keep).sum())
        graph.restrict(node, keep)
    if removed:
        simplify(graph)
    return removed
