"""Memory as a price: problems without a budget, whose solutions hold less the more a byte costs.

For prices p_t >= 0 per byte at some times t, the optimum of the problem without its budget but with p_t times the bytes
live at t added to its costs, less p_t times the budget, is a lower bound of the problem with the budget. Without memory
rows every reduction applies, so each price costs one easy solve. The search prices the time of the peak, adds the times
that overfill instead, and closes in on the lowest price at which everything fits.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .problem import Edge, Floats, Problem
from .solution import memory_profile

FIRST_PRICE = 0.02  # the excess at the peak is first priced at this fraction of the cost
CLOSE_ENOUGH = 1.15  # ratio of a price that suffices to one that does not, at which the search ends
MOST_PRICES = 16


@dataclass(frozen=True, slots=True)
class Priced:
    """What a problem without a budget came to: a choice (empty if none was found) and a lower bound of its cost."""

    choice: tuple[int, ...]
    bound: float


def priced(problem: Problem, prices: Mapping[int, float]) -> Problem:
    """The problem without its budget, with the bytes live at some times added to its costs.

    Args:
        problem: The problem.
        prices: Cost per byte, by time.
    """
    costs = list(problem.costs)
    edges = list(problem.edges)
    for usage in problem.usages:
        price = _price(prices, usage.start, usage.stop)
        if price:
            costs[usage.node] = costs[usage.node] + price * usage.nbytes
    for copy in problem.edge_usages:
        price = _price(prices, copy.start, copy.stop)
        if price:
            edge = edges[copy.edge]
            edges[copy.edge] = Edge(edge.u, edge.v, edge.cost + price * copy.nbytes)
    return replace(problem, costs=tuple(costs), edges=tuple(edges), usages=(), edge_usages=(), budget=None)


def _price(prices: Mapping[int, float], start: int, stop: int) -> float:
    return sum(price for t, price in prices.items() if start <= t < stop)


def search_prices(
    problem: Problem,
    relaxed: Sequence[int],
    cost: float,
    solve_free: Callable[[Problem], Priced],
    offer: Callable[[tuple[int, ...]], None],
    stop: float,
) -> float:
    """Look for the lowest price of memory at which the budget is kept.

    Args:
        problem: The problem with its budget.
        relaxed: The best choice without a budget; it overfills memory.
        cost: Its cost.
        solve_free: Solves a problem without a budget.
        offer: Takes every choice that keeps the budget.
        stop: Monotonic time at which to stop.

    Returns:
        The best lower bound found; minus infinity if there is none.
    """
    budget = float(problem.budget or 0.0)
    peak, excess = _overfull(problem, relaxed, budget)
    rows = {peak}
    price = FIRST_PRICE * max(abs(cost), 1e-300) / max(excess, 1.0)
    too_low, enough, bound = 0.0, np.inf, -np.inf
    for _ in range(MOST_PRICES):
        if time.monotonic() > stop or enough <= CLOSE_ENOUGH * too_low:
            break
        found = solve_free(priced(problem, dict.fromkeys(rows, price)))
        bound = max(bound, found.bound - price * budget * len(rows))
        if not found.choice:
            break
        peak, excess = _overfull(problem, found.choice, budget)
        if excess <= 0:
            offer(found.choice)
            enough = price
        elif peak not in rows:
            rows.add(peak)
            continue
        else:
            too_low = price
        price = _next_price(too_low, enough, price)
    return bound


def _next_price(too_low: float, enough: float, price: float) -> float:
    if enough == np.inf:
        return price * 4
    return enough / 4 if too_low == 0.0 else float(np.sqrt(too_low * enough))


def _overfull(problem: Problem, choice: Sequence[int], budget: float) -> tuple[int, float]:
    """The time of the peak, and by how many bytes it exceeds the budget."""
    times, held = memory_profile(problem, choice)
    at: Floats = held
    worst = int(np.argmax(at))
    return int(times[worst]), float(at[worst]) - budget
