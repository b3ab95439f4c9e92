"""The way through bounds and parts agrees with exhaustive search, whatever the integer program is left with."""

import math

import numpy as np
import pytest

from autoshard.solver import Edge, Problem, Status, Usage, search, solve
from autoshard.solver.clock import Clock
from autoshard.solver.graph import Graph
from autoshard.solver.narrow import narrow
from autoshard.solver.packed import pack
from autoshard.solver.search import Search, ignore
from tests.solver.problems import assert_solved, exhaustive_in, solvable


@pytest.mark.parametrize("batch", range(4))
def test_the_search_agrees_with_exhaustive_search(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SMALL", -1)
    for seed in range(3000 + 50 * batch, 3000 + 50 * (batch + 1)):
        assert_solved(seed)


def test_a_part_holds_what_it_should() -> None:
    for seed, (_, graph, best) in enumerate(solvable(150)):
        packed, random = pack(graph), np.random.default_rng(seed)
        keep = random.random(len(packed.costs)) < 0.7
        keep[packed.offsets[:-1]] = True
        rows = np.flatnonzero(random.random(len(packed.room)) < 0.7)
        part = narrow(packed, keep, rows, graph.units)
        optimum = exhaustive_in(part.graph)
        if keep.all() and len(rows) == len(packed.room):
            assert optimum == best, seed
        assert optimum == exhaustive_in(restricted(graph, packed.nodes, keep, packed.offsets, rows)), seed


def restricted(graph: Graph, nodes: tuple[int, ...], keep: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> Graph:
    """The same part by the graph's own means."""
    copy = graph.copy()
    for i, node in enumerate(nodes):
        copy.restrict(node, keep[offsets[i] : offsets[i + 1]])
    ignored = np.ones(len(copy.room), dtype=bool)
    ignored[rows] = False
    copy.room[ignored] = math.inf
    return copy


def ladder(layers: int, seed: int) -> Problem:
    """Layers in a row, cross-linked, that hold memory all the while: too large to try everything."""
    random = np.random.default_rng(seed)
    nodes, edges = 3 * layers, []
    for i in range(nodes):
        for j in (i + 1, i + 3):
            if j < nodes:
                edges.append(Edge(i, j, random.integers(0, 50, (6, 6))))
    return Problem(
        names=tuple(f"n{i}" for i in range(nodes)),
        costs=tuple(random.integers(0, 50, 6).astype(float) for _ in range(nodes)),
        edges=tuple(edges),
        usages=tuple(Usage(i, i % 7, nodes - i % 5, random.permutation(6) * 100) for i in range(nodes)),
        budget=170.0 * nodes,
    )


def test_what_the_integer_program_proves_is_within_what_the_search_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(2):
        problem = ladder(5, seed)
        exact = solve(problem)
        assert exact.status is Status.OPTIMAL
        monkeypatch.setattr(search, "SMALL", -1)
        monkeypatch.setattr(search, "LARGE", 2_000)
        searched = solve(problem, work_limit=4e8)
        monkeypatch.undo()
        assert searched.bound <= exact.cost <= searched.cost
        assert searched.cost <= 1.05 * exact.cost, "regions and unions should come close"


def test_a_budget_that_nothing_fits_is_found_out_by_bounds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ladder(5, 0)
    loads = [usage.nbytes for usage in problem.usages]
    costs = tuple(np.where(np.array(load) < 300, np.inf, cost) for load, cost in zip(loads, problem.costs, strict=True))
    crowded = Problem(names=problem.names, costs=costs, edges=problem.edges, usages=problem.usages, budget=2_000.0)
    monkeypatch.setattr(search, "SMALL", -1)
    monkeypatch.setattr(search, "LARGE", 0)
    assert solve(crowded).status is Status.INFEASIBLE


def test_a_target_gap_ends_the_search() -> None:
    problem = ladder(6, 1)
    solution = solve(problem, target_gap=0.2)
    assert solution.gap <= 0.2
    if solution.status is Status.FEASIBLE:
        assert solution.message == "within the target gap"


def test_a_choice_to_start_from_is_never_worsened() -> None:
    problem = ladder(5, 2)
    known = solve(problem)
    again = solve(problem, time_limit_s=0.0, incumbent=known.choice)
    assert again.choice == known.choice and again.cost == known.cost


def test_an_interrupt_keeps_the_best_choice() -> None:
    problem = ladder(5, 3)
    known = solve(problem).choice

    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    solution = solve(problem, incumbent=known, on_progress=interrupt)
    assert solution.choice == known
    if solution.status is not Status.OPTIMAL:
        assert solution.status is Status.FEASIBLE and "interrupted" in solution.message


def test_a_search_keeps_its_books() -> None:
    for _, graph, best in solvable(60, needs_memory=True):
        search = Search(graph, Clock(limit_s=5.0), ignore)
        search.run()
        found = search.found()
        assert found.proven and found.choice is not None
        assert graph.fits(found.choice) and graph.value(found.choice) == found.cost == best
