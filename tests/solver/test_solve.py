"""Small random problems agree with exhaustive search."""

import itertools
import math

import numpy as np
import pytest

from autoshard.solver import Edge, EdgeUsage, Problem, Status, Usage, check_solution, solve


def random_problem(seed: int) -> Problem:
    """Up to five nodes with up to four choices, forbidden entries, parallel edges, ties and memory."""
    rng = np.random.default_rng(seed)
    sizes = [int(k) for k in rng.integers(1, 5, rng.integers(1, 6))]
    nodes = range(len(sizes))
    unit = 1.0 if seed % 3 else float(rng.uniform(1e-9, 1e-3))

    def matrix(*shape: int) -> np.ndarray:
        values = rng.integers(0, 20, shape) * unit
        values[rng.random(shape) < rng.choice([0.0, 0.15])] = np.inf
        return values

    def span() -> tuple[int, int]:
        start = int(rng.integers(6))
        return start, start + int(rng.integers(5))

    pairs = [rng.choice(len(sizes), 2, replace=False).tolist() for _ in range(rng.integers(8) if len(sizes) > 1 else 0)]
    edges = [Edge(u, v, matrix(sizes[u], sizes[v])) for u, v in pairs]
    loaded = rng.integers(len(sizes), size=rng.integers(6)).tolist()
    copied = rng.integers(len(edges), size=rng.integers(3)).tolist() if edges else []
    return Problem(
        names=tuple(f"n{i}" for i in nodes),
        costs=tuple(matrix(size) for size in sizes),
        edges=tuple(edges),
        usages=tuple(Usage(i, *span(), rng.integers(0, 10, sizes[i])) for i in loaded),
        edge_usages=tuple(EdgeUsage(e, *span(), rng.integers(0, 10, edges[e].cost.shape)) for e in copied),
        budget=None if rng.random() < 0.3 else float(rng.integers(40)),
        ties=tuple((i, j) for i in nodes for j in range(i) if sizes[i] == sizes[j] and rng.random() < 0.15),
    )


def exhaustive(problem: Problem) -> float:
    """The optimum by trying everything; inf if nothing is valid."""
    checks = (check_solution(problem, choice) for choice in itertools.product(*map(range, problem.choices)))
    return min((check.cost for check in checks if not check.violations), default=math.inf)


@pytest.mark.parametrize("batch", range(10))
def test_agrees_with_exhaustive_search(batch: int) -> None:
    for seed in range(40 * batch, 40 * (batch + 1)):
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
