"""Answers to "why": what the budget would have to be, what fills the peak, what an alternative costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .clock import Clock
from .problem import Edge, Floats, Problem, ProblemError
from .solution import Solution, Status, check_solution, memory_profile
from .solve import solve

TRY_SHARE = 0.25  # of the time left, for each budget tried
SQUEEZE_SHARE = 0.4  # of the time, for a choice of low peak to start from
SQUEEZES = 60  # weights of times that are tried for it
SQUEEZE_PACE = (
    3.0  # how much more a time weighs at which the peak is reached than an empty one, each time, as a power of e
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What one node, or one edge, holds at a time.

    Args:
        node: Index of the node; for an edge, of its u.
        edge: Index of the edge; None for a node.
        nbytes: Bytes held.
    """

    node: int
    edge: int | None
    nbytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastBudget:
    """The smallest budget for which a choice exists.

    Args:
        nbytes: Bytes; a choice with this peak is known.
        bound: No choice has a lower peak; equal to `nbytes` where the answer is exact.
        choice: That choice; empty if no choice is valid with any budget.
        peak_time: First time at which it holds most.
        holders: What it holds then, largest first.
    """

    nbytes: float
    bound: float
    choice: tuple[int, ...]
    peak_time: int | None
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrice:
    """What a step more or less of budget changes; costs are those of the problem.

    Args:
        step_bytes: The step.
        saved: By how much the best cost found with a step more is lower.
        saved_at_most: No choice saves more with that budget.
        lost: By how much the best cost found with a step less is higher; `inf` if nothing was found to fit.
        lost_at_least: Every choice loses at least this with that budget; `inf` if nothing fits.
    """

    step_bytes: float
    saved: float
    saved_at_most: float
    lost: float
    lost_at_least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One choice of a node, with everything else chosen anew.

    Args:
        index: The choice.
        cost: Least total cost found with it; `inf` if it is impossible or none was found.
        bound: No solution with it costs less.
        status: Whether that is proven.
    """

    index: int
    cost: float
    bound: float
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One cost that two choices pay differently, of a node or of an edge.

    Args:
        node: Index of the node; None for an edge.
        edge: Index of the edge; None for a node.
        before: Cost with the first choice.
        after: Cost with the second choice.
    """

    node: int | None
    edge: int | None
    before: float
    after: float


def holders(problem: Problem, choice: Sequence[int], time: int) -> tuple[Holder, ...]:
    """What a choice holds at a time, largest first.

    Args:
        problem: The problem.
        choice: A choice per node.
        time: Program time.

    Example:
        >>> import numpy as np
        >>> from autoshard.solver import Problem, Usage, holders
        >>> held = (Usage(0, 0, 2, np.array([8.0, 2.0])), Usage(1, 1, 3, np.array([4.0, 6.0])))
        >>> costs = (np.array([1.0, 3.0]), np.array([0.0, 5.0]))
        >>> problem = Problem(names=("a", "b"), costs=costs, usages=held, budget=9.0)
        >>> [(holder.node, holder.nbytes) for holder in holders(problem, (0, 0), 1)]
        [(0, 8.0), (1, 4.0)]
    """
    held = [
        Holder(node=usage.node, edge=None, nbytes=float(usage.nbytes[choice[usage.node]]))
        for usage in problem.usages
        if usage.start <= time < usage.stop
    ]
    for copy in problem.edge_usages:
        edge = problem.edges[copy.edge]
        if copy.start <= time < copy.stop:
            nbytes = float(copy.nbytes[choice[edge.u], choice[edge.v]])
            held.append(Holder(node=edge.u, edge=copy.edge, nbytes=nbytes))
    return tuple(sorted((holder for holder in held if holder.nbytes), key=lambda holder: -holder.nbytes))


def least_budget(problem: Problem, *, time_limit_s: float = 20.0) -> LeastBudget:
    """The smallest budget for which a choice exists, by bisection between what must and what can be held.

    Args:
        problem: The problem; its own budget does not matter.
        time_limit_s: Wall seconds, in all.

    Returns:
        The smallest budget if `nbytes` and `bound` are equal; otherwise it lies between them.

    Example:
        >>> import numpy as np
        >>> from autoshard.solver import Problem, Usage, least_budget
        >>> held = (Usage(0, 0, 2, np.array([8.0, 2.0])), Usage(1, 1, 3, np.array([4.0, 6.0])))
        >>> least = least_budget(Problem(names=("a", "b"), costs=(np.zeros(2), np.zeros(2)), usages=held))
        >>> least.nbytes, least.peak_time, least.choice
        (6.0, 1, (1, 0))
    """
    clock = Clock(limit_s=time_limit_s)
    free = _costless(problem)
    best, low = _squeezed(free, clock.part(SQUEEZE_SHARE * clock.left_s))
    if not best:
        return LeastBudget(nbytes=math.inf, bound=math.inf, choice=(), peak_time=None, holders=())
    low = max(low, _least_held(problem))
    high = check_solution(problem, best).peak_bytes
    budget = untried = low
    while untried < high and not clock.expired:
        found = solve(replace(free, budget=budget), time_limit_s=TRY_SHARE * clock.left_s)
        if found.choice:
            best, high = found.choice, found.peak_bytes
        else:
            untried = budget + 1.0
            low = untried if found.status is Status.INFEASIBLE else low
        budget = math.floor((untried + high) / 2)
    check = check_solution(problem, best)
    filled = holders(problem, best, check.peak_time) if check.peak_time is not None else ()
    return LeastBudget(nbytes=high, bound=low, choice=best, peak_time=check.peak_time, holders=filled)


def memory_price(
    problem: Problem, solution: Solution, *, step_bytes: float = float(2**30), time_limit_s: float = 20.0
) -> MemoryPrice:
    """What more memory would save, and less memory would cost: the problem solved again at two other budgets.

    Args:
        problem: The problem, with a budget.
        solution: Its solution.
        step_bytes: By how much the budget is changed.
        time_limit_s: Wall seconds, in all.

    Raises:
        ProblemError: If the problem has no budget, or the solution no choice.

    Example:
        >>> import numpy as np
        >>> from autoshard.solver import Problem, Usage, memory_price, solve
        >>> held = (Usage(0, 0, 2, np.array([8.0, 2.0])), Usage(1, 1, 3, np.array([4.0, 6.0])))
        >>> costs = (np.array([1.0, 3.0]), np.array([0.0, 5.0]))
        >>> problem = Problem(names=("a", "b"), costs=costs, usages=held, budget=9.0)
        >>> price = memory_price(problem, solve(problem), step_bytes=3.0)
        >>> price.saved, price.lost
        (2.0, 0.0)
    """
    if problem.budget is None or not solution.choice:
        raise ProblemError("The price of memory needs a problem with a budget, and a solution with a choice")
    more = replace(problem, budget=problem.budget + step_bytes)
    less = replace(problem, budget=max(0.0, problem.budget - step_bytes))
    richer = solve(more, time_limit_s=time_limit_s / 2, incumbent=solution.choice)
    poorer = solve(less, time_limit_s=time_limit_s / 2)
    return MemoryPrice(
        step_bytes=step_bytes,
        saved=solution.cost - richer.cost,
        saved_at_most=solution.cost - richer.bound,
        lost=poorer.cost - solution.cost,
        lost_at_least=max(0.0, poorer.bound - solution.cost),
    )


def _costless(problem: Problem) -> Problem:
    """The same constraints, at no cost."""

    def forbidden_only(cost: Floats) -> Floats:
        zero: Floats = np.where(np.isinf(cost), np.inf, 0.0)
        return zero

    return replace(
        problem,
        costs=tuple(forbidden_only(cost) for cost in problem.costs),
        edges=tuple(Edge(edge.u, edge.v, forbidden_only(edge.cost)) for edge in problem.edges),
    )


def _squeezed(free: Problem, clock: Clock) -> tuple[tuple[int, ...], float]:
    """A choice of low peak, and bytes that no peak is below: times weigh more the more is held at them.

    The least weighed sum over all times, for weights that add up to 1, is a lower bound of every peak.
    """
    best: tuple[int, ...] = ()
    high, low, weights = math.inf, 0.0, np.zeros(0)
    for _ in range(SQUEEZES):
        found = solve(_weighed(free, weights), time_limit_s=clock.left_s / 2)
        if not found.choice:
            break
        held = memory_profile(free, found.choice)[1]
        peak = float(held.max(initial=0.0))
        best, high = (found.choice, peak) if peak < high else (best, high)
        low = max(low, math.ceil(found.bound * (1 - 1e-9))) if len(weights) else low
        if low >= high or not len(held) or clock.expired:
            break
        weights = (weights if len(weights) else np.ones(len(held))) * np.exp(
            SQUEEZE_PACE * (held / max(peak, 1.0) - 1.0)
        )
        weights /= weights.sum()
    return best, low


def _weighed(free: Problem, weights: Floats) -> Problem:
    """Bytes times weight of their times as the cost, and no budget; without weights, times lifetime."""
    times, _ = memory_profile(free, (0,) * len(free.costs))
    past = np.concatenate([[0.0], np.cumsum(weights)]) if len(weights) else np.append(times, 0.0)

    def weight(start: int, stop: int) -> float:
        return float(past[np.searchsorted(times, stop)] - past[np.searchsorted(times, start)]) if start < stop else 0.0

    costs, edges = list(free.costs), list(free.edges)
    for usage in free.usages:
        costs[usage.node] = costs[usage.node] + usage.nbytes * weight(usage.start, usage.stop)
    for copy in free.edge_usages:
        edge = edges[copy.edge]
        edges[copy.edge] = Edge(edge.u, edge.v, edge.cost + copy.nbytes * weight(copy.start, copy.stop))
    return replace(free, costs=tuple(costs), edges=tuple(edges), usages=(), edge_usages=(), budget=None)


def _least_held(problem: Problem) -> float:
    """The peak if every node and edge held its least, which is a lower bound of every peak."""
    change: dict[int, float] = {}
    held = [(usage.start, usage.stop, usage.nbytes) for usage in problem.usages]
    held += [(copy.start, copy.stop, copy.nbytes) for copy in problem.edge_usages]
    for start, stop, nbytes in held:
        if start < stop:
            least = float(nbytes.min())
            change[start] = change.get(start, 0.0) + least
            change[stop] = change.get(stop, 0.0) - least
    level, peak = 0.0, 0.0
    for time in sorted(change):
        level += change[time]
        peak = max(peak, level)
    return peak


def alternatives(problem: Problem, node: int, *, time_limit_s: float = 20.0) -> tuple[Alternative, ...]:
    """What each choice of a node costs in all, with everything else chosen anew.

    Args:
        problem: The problem.
        node: Index of the node.
        time_limit_s: Wall seconds, in all; choices that run out of it come with a bound.

    Example:
        >>> import numpy as np
        >>> from autoshard.solver import Problem, Usage, alternatives
        >>> held = (Usage(0, 0, 2, np.array([8.0, 2.0])), Usage(1, 1, 3, np.array([4.0, 6.0])))
        >>> costs = (np.array([1.0, 3.0]), np.array([0.0, 5.0]))
        >>> problem = Problem(names=("a", "b"), costs=costs, usages=held, budget=9.0)
        >>> [(row.index, row.cost, row.status.value) for row in alternatives(problem, 1)]
        [(0, 3.0, 'optimal'), (1, 8.0, 'optimal')]
    """
    size = problem.costs[node].size
    found = []
    for index in range(size):
        only = np.full(size, np.inf)
        only[index] = problem.costs[node][index]
        costs = (*problem.costs[:node], only, *problem.costs[node + 1 :])
        solution = solve(replace(problem, costs=costs), time_limit_s=time_limit_s / size)
        found.append(Alternative(index=index, cost=solution.cost, bound=solution.bound, status=solution.status))
    return tuple(found)


def differences(problem: Problem, before: Sequence[int], after: Sequence[int]) -> tuple[Difference, ...]:
    """The costs that two choices pay differently: nodes first, then edges, in order.

    Args:
        problem: The problem.
        before: A choice per node.
        after: Another one.

    Example:
        >>> import numpy as np
        >>> from autoshard.solver import Problem, Usage, differences
        >>> held = (Usage(0, 0, 2, np.array([8.0, 2.0])), Usage(1, 1, 3, np.array([4.0, 6.0])))
        >>> costs = (np.array([1.0, 3.0]), np.array([0.0, 5.0]))
        >>> problem = Problem(names=("a", "b"), costs=costs, usages=held, budget=9.0)
        >>> differences(problem, (0, 0), (1, 0))
        (Difference(node=0, edge=None, before=1.0, after=3.0),)
    """
    nodes = [
        Difference(node=i, edge=None, before=float(cost[before[i]]), after=float(cost[after[i]]))
        for i, cost in enumerate(problem.costs)
    ]
    edges = [
        Difference(
            node=None,
            edge=e,
            before=float(edge.cost[before[edge.u], before[edge.v]]),
            after=float(edge.cost[after[edge.u], after[edge.v]]),
        )
        for e, edge in enumerate(problem.edges)
    ]
    return tuple(change for change in (*nodes, *edges) if change.before != change.after)
