"""Explanations agree with exhaustive search."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from autoshard.solver import (
    Problem,
    ProblemError,
    Status,
    Usage,
    alternatives,
    check_solution,
    differences,
    holders,
    least_budget,
    memory_price,
    solve,
)
from tests.solver.problems import exhaustive, random_problem


def problems(count: int) -> list[Problem]:
    """Random problems with a budget, a valid choice, and memory."""
    drawn = (random_problem(seed) for seed in itertools.count())
    fitting = (p for p in drawn if p.budget is not None and p.usages and math.isfinite(exhaustive(p)))
    return list(itertools.islice(fitting, count))


def least_peak(problem: Problem) -> float:
    """The smallest peak of all choices that are valid without a budget."""
    unlimited = replace(problem, budget=None)
    checks = (check_solution(unlimited, choice) for choice in itertools.product(*map(range, problem.choices)))
    return min((check.peak_bytes for check in checks if not check.violations), default=math.inf)


def test_the_least_budget_is_the_smallest_peak() -> None:
    for seed in range(120):
        problem = random_problem(seed)
        least = least_budget(problem)
        assert least.nbytes == least.bound == least_peak(problem), seed
        if not least.choice:
            continue
        check = check_solution(replace(problem, budget=least.nbytes), least.choice)
        assert not check.violations and check.peak_time == least.peak_time
        assert sum(holder.nbytes for holder in least.holders) == least.nbytes, "what is listed fills the peak"


def test_holders_name_nodes_and_edges_largest_first() -> None:
    for problem in problems(40):
        choice = solve(problem).choice
        check = check_solution(problem, choice)
        if check.peak_time is None:
            continue
        found = holders(problem, choice, check.peak_time)
        assert [holder.nbytes for holder in found] == sorted((holder.nbytes for holder in found), reverse=True)
        for holder in found:
            assert holder.edge is None or holder.node == problem.edges[holder.edge].u


def test_alternatives_are_chosen_anew() -> None:
    for problem in problems(25):
        for node in range(len(problem.costs)):
            for row in alternatives(problem, node):
                only = np.where(np.arange(problem.choices[node]) == row.index, problem.costs[node], np.inf)
                costs = (*problem.costs[:node], only, *problem.costs[node + 1 :])
                best = exhaustive(replace(problem, costs=costs))
                assert row.cost == pytest.approx(best, rel=1e-12) or (math.isinf(best) and math.isinf(row.cost))
                assert row.status is (Status.INFEASIBLE if math.isinf(best) else Status.OPTIMAL)


def test_differences_explain_the_difference() -> None:
    for problem in problems(25):
        before, after = solve(problem).choice, solve(replace(problem, budget=None)).choice
        total = sum(change.after - change.before for change in differences(problem, before, after))
        gained = check_solution(problem, after).cost - check_solution(problem, before).cost
        assert total == pytest.approx(gained, rel=1e-9, abs=1e-15)
        assert differences(problem, before, before) == ()


def test_the_price_of_memory_is_what_other_budgets_cost() -> None:
    for problem in problems(40):
        assert problem.budget is not None
        solution = solve(problem)
        price = memory_price(problem, solution, step_bytes=5.0)
        richer = exhaustive(replace(problem, budget=problem.budget + 5.0))
        poorer = exhaustive(replace(problem, budget=max(0.0, problem.budget - 5.0)))
        assert price.saved == pytest.approx(solution.cost - richer, rel=1e-9, abs=1e-12)
        assert price.lost == pytest.approx(poorer - solution.cost, rel=1e-9, abs=1e-12)
        assert price.saved <= price.saved_at_most + 1e-9 and price.lost >= price.lost_at_least - 1e-9


def test_a_price_needs_a_budget_and_a_choice() -> None:
    problem = Problem(names=("a",), costs=([1.0, 2.0],), usages=(Usage(0, 0, 1, [3, 1]),))
    with pytest.raises(ProblemError, match="needs a problem with a budget"):
        memory_price(problem, solve(problem))
    with pytest.raises(ProblemError, match="a solution with a choice"):
        memory_price(replace(problem, budget=0.0), solve(replace(problem, budget=0.0)))


def test_the_multiplier_of_memory_is_zero_where_the_budget_does_not_bind() -> None:
    problem = Problem(names=("a",), costs=([1.0, 2.0],), usages=(Usage(0, 0, 1, [3, 1]),), budget=3.0)
    assert solve(problem).memory_price == 0.0
    assert solve(replace(problem, budget=None)).memory_price == 0.0
