"""Small random problems agree with exhaustive search."""

import math

import pytest

from autoshard.solver import Status, check_solution, solve
from tests.solver.problems import exhaustive, random_problem


@pytest.mark.parametrize("batch", range(20))
def test_agrees_with_exhaustive_search(batch: int) -> None:
    for seed in range(100 * batch, 100 * (batch + 1)):
        problem = random_problem(seed)
        best = exhaustive(problem)
        solution = solve(problem)
        if math.isinf(best):
            assert solution.status is Status.INFEASIBLE, seed
            continue
        assert solution.status is Status.OPTIMAL, seed
        assert solution.cost == pytest.approx(best, rel=1e-12), seed
        assert not check_solution(problem, solution.choice).violations
        assert solution.bound <= solution.cost
