"""Bounds are bounds, what is ruled out was not needed, and the way through them agrees with exhaustive search."""

import importlib
import math
import time
from itertools import pairwise

import numpy as np
import pytest

from autoshard.solver import Edge, Problem, Status, solve
from autoshard.solver.bounding import bracket, near, rule_out
from autoshard.solver.dual import Dual
from autoshard.solver.graph import Graph, Infeasible, build_graph, drop_slack_rows
from autoshard.solver.lagrange import priced
from autoshard.solver.primal import LocalSearch, fits, rows_held, value
from tests.solver.test_solve import exhaustive, random_problem


def graphs(needs_memory: bool = False) -> list[tuple[int, Problem, Graph, float]]:
    """Random problems that have a valid choice, with their working forms and optima."""
    found = []
    for seed in range(400):
        problem = random_problem(seed)
        graph = reduced(problem)
        if graph is None or (needs_memory and not len(graph.room)):
            continue
        best = exhaustive(problem)
        if math.isfinite(best):
            found.append((seed, problem, graph, best))
    assert len(found) >= 10
    return found


def reduced(problem: Problem) -> Graph | None:
    """The working form without reductions beyond the forbidden entries, so that there is something to bound."""
    try:
        graph = build_graph(problem)
        for node in sorted(graph.costs):
            graph.restrict(node, np.isfinite(graph.costs[node]))
        for _, _, matrix in list(graph.pairs()):
            if not np.isfinite(matrix).any(axis=1).all() or not np.isfinite(matrix).any(axis=0).all():
                return None
        drop_slack_rows(graph)
    except Infeasible:
        return None
    return graph


def test_bounds_stay_below_the_optimum_and_rise() -> None:
    for seed, _, graph, best in graphs():
        dual = Dual(graph)
        bounds = [dual.sweep() for _ in range(12)]
        slack = graph.units.resolution + 1e-9 * abs(best)
        assert all(graph.units.cost(bound) <= best + slack for bound in bounds), seed
        assert all(later >= earlier - 1e-6 * abs(earlier) - 1e-6 for earlier, later in pairwise(bounds)), seed


def test_priced_memory_still_gives_a_bound() -> None:
    for seed, _, graph, best in graphs(needs_memory=True):
        dual = Dual(graph)
        rng = np.random.default_rng(seed)
        for _ in range(5):
            dual.price(rng.random(len(graph.room)) * rng.choice([0.0, 0.1, 10.0]))
            bound = max(dual.sweep() for _ in range(3))
            assert graph.units.cost(bound) <= best + graph.units.resolution + 1e-9 * abs(best), seed


def test_an_optimum_survives_ruling_out() -> None:
    for seed, _, graph, best in graphs():
        known, dual = bracket(graph, time.monotonic() + 5, lambda cost, bound: None)
        if known.choice is None:
            continue
        assert fits(graph, known.choice) and value(graph, known.choice) == known.cost, seed
        part = near(graph, dual, known, known.cost - known.bound)
        assert part is not None, "the best choice known always stays"
        rule_out(graph, dual, known)
        if len(graph.room) or not graph.costs:
            continue
        left = solve(_problem(graph)).cost + graph.constant
        tolerance = graph.units.resolution + 1e-9 * abs(best)
        assert min(graph.units.cost(left), graph.units.cost(known.cost)) == pytest.approx(best, abs=tolerance), seed


def _problem(graph: Graph) -> Problem:
    """The live part of a graph as a problem of its own."""
    nodes = sorted(graph.costs)
    place = {node: i for i, node in enumerate(nodes)}
    return Problem(
        names=tuple(map(str, nodes)),
        costs=tuple(graph.costs[node] for node in nodes),
        edges=tuple(Edge(place[u], place[v], matrix) for u, v, matrix in graph.pairs()),
    )


def test_local_search_never_worsens_and_keeps_its_books() -> None:
    for seed, _, graph, _ in graphs():
        start = {u: 0 for u in graph.costs}
        search = LocalSearch(graph, start)
        search.run(np.inf, rounds=5)
        np.testing.assert_allclose(search.held, rows_held(graph, search.choice))
        if fits(graph, start) and math.isfinite(value(graph, start)):
            assert fits(graph, search.choice) and value(graph, search.choice) <= value(graph, start), seed


@pytest.mark.parametrize("batch", range(5))
def test_the_bracketing_path_agrees_with_exhaustive_search(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("autoshard.solver.solve"), "SMALL_CORE", -1)
    for seed in range(1000 + 40 * batch, 1000 + 40 * (batch + 1)):
        problem = random_problem(seed)
        best = exhaustive(problem)
        solution = solve(problem)
        if math.isinf(best):
            assert solution.status is Status.INFEASIBLE, seed
            continue
        assert solution.status is Status.OPTIMAL, seed
        assert solution.cost == pytest.approx(best, rel=1e-12), seed


def test_prices_of_memory_give_bounds_and_choices_that_fit() -> None:
    for seed, problem, _, best in graphs(needs_memory=True):
        budget = float(problem.budget or 0.0)
        times = sorted({usage.start for usage in problem.usages})
        for scale in (0.0, 0.3, 5.0):
            prices = {t: scale * (1 + t) for t in times}
            free = solve(priced(problem, prices))
            assert free.cost - budget * sum(prices.values()) <= best + 1e-9 * abs(best), seed


def test_an_interrupt_keeps_the_best_choice() -> None:
    rng = np.random.default_rng(0)
    sizes = [12] * 30
    pairs = [(i, j) for i in range(30) for j in range(i) if rng.random() < 0.4]
    problem = Problem(
        names=tuple(map(str, range(30))),
        costs=tuple(rng.random(k) for k in sizes),
        edges=tuple(Edge(i, j, rng.random((12, 12))) for i, j in pairs),
    )

    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    solution = solve(problem, incumbent=[0] * 30, on_progress=interrupt)
    assert solution.status is Status.FEASIBLE and solution.choice == (0,) * 30
    assert "interrupted" in solution.message
    with pytest.raises(KeyboardInterrupt):
        solve(problem, on_progress=interrupt)
