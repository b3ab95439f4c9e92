"""Small random problems, and their optima by trying everything."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from autoshard.solver import Edge, EdgeUsage, Problem, Status, Usage, check_solution, solve
from autoshard.solver.graph import Graph, Infeasible, build_graph, drop_slack_rows


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


def reduced(problem: Problem) -> Graph | None:
    """The working form without reductions beyond the forbidden entries; None if they leave a node without a choice."""
    try:
        graph = build_graph(problem)
        drop_slack_rows(graph)
        queue = sorted(graph.costs)
        while queue:
            queue = sorted({touched for node in queue for touched in clean(graph, node)})
    except Infeasible:
        return None
    return graph


def clean(graph: Graph, node: int) -> set[int]:
    """Remove a node's forbidden choices, and those without a partner; the nodes to look at again."""
    keep = np.isfinite(graph.costs[node])
    for matrix in graph.edges[node].values():
        keep &= np.isfinite(matrix).any(axis=1)
    graph.restrict(node, keep)
    return set() if keep.all() else set(graph.edges[node])


def solvable(count: int, needs_memory: bool = False) -> Iterator[tuple[Problem, Graph, float]]:
    """Random problems that have a valid choice, with their working forms and optima in units."""
    found = 0
    for seed in itertools.count():
        problem = random_problem(seed)
        graph = reduced(problem)
        if graph is None or (needs_memory and not len(graph.room)):
            continue
        best = exhaustive_in(graph)
        if math.isfinite(best):
            yield problem, graph, best
            found += 1
        if found == count:
            return


def assert_solved(seed: int) -> None:
    """A random problem is solved as exhaustive search does, to a valid choice and a bound that is none too high."""
    problem = random_problem(seed)
    best = exhaustive(problem)
    solution = solve(problem)
    if math.isinf(best):
        assert solution.status is Status.INFEASIBLE, seed
        return
    assert solution.status is Status.OPTIMAL, seed
    assert solution.cost == pytest.approx(best, rel=1e-12), seed
    assert not check_solution(problem, solution.choice).violations
    assert solution.bound <= solution.cost


def exhaustive_in(graph: Graph) -> float:
    """The optimum of a graph's live nodes, in units; inf if nothing is valid."""
    nodes = sorted(graph.costs)
    choices = itertools.product(*(range(len(graph.costs[node])) for node in nodes))
    named = (dict(zip(nodes, choice, strict=True)) for choice in choices)
    return min((graph.value(choice) for choice in named if graph.fits(choice)), default=math.inf)


def layers(count: int, budget: float | None = None) -> Problem:
    """Equal layers in a row, cross-linked, that hold memory until the end: too many to try everything."""
    random = np.random.default_rng(0)
    apart = np.abs(np.arange(7)[:, None] - np.arange(7))
    forward, skip = 20 * apart + random.integers(0, 9, (7, 7)), 5 * apart + random.integers(0, 9, (7, 7))
    nodes = range(3 * count)
    steps = ((1, forward), (2, skip), (5, skip.T))
    return Problem(
        names=tuple(map(str, nodes)),
        costs=tuple(np.arange(7) * 5.0 + random.integers(0, 9, 7) for _ in nodes),
        edges=tuple(Edge(i, i + step, cost) for i in nodes for step, cost in steps if i + step < 3 * count),
        usages=tuple(Usage(i, i, 6 * count - i, np.arange(7)[::-1] * 10) for i in nodes),
        budget=budget,
    )
