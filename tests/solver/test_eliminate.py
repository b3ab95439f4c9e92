"""Elimination finds what exhaustive search finds, or says that it is out of reach."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoshard.solver import Edge, Problem, Status, eliminate, solve
from autoshard.solver.clock import Clock
from autoshard.solver.graph import Graph, build_graph
from tests.solver.problems import exhaustive_in, layers, random_problem


def without_memory(seed: int) -> Graph:
    return build_graph(replace(random_problem(seed), budget=None))


def test_elimination_agrees_with_exhaustive_search() -> None:
    found = 0
    for seed in range(200):
        graph = without_memory(seed)
        best = exhaustive_in(graph)
        answer = eliminate.eliminate(graph, Clock(limit_s=5.0))
        assert answer is not None
        choice, cost = answer
        assert cost == best, seed
        if math.isfinite(best):
            assert graph.value(choice) == best, seed
            found += 1
    assert found > 100


def test_tables_that_are_too_large_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_graph(layers(4))
    assert eliminate.eliminate(graph, Clock(limit_s=0.0)) is None
    assert eliminate.eliminate(graph, Clock(limit_s=5.0, work_limit=1.0)) is None
    monkeypatch.setattr(eliminate, "MAX_ENTRIES", 7)
    assert eliminate.eliminate(graph, Clock(limit_s=5.0)) is None


def test_what_hangs_together_too_densely_is_left_to_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is as large as the whole is not searched again and again."""
    random = np.random.default_rng(0)
    nodes = range(6)
    dense = Problem(
        names=tuple(map(str, nodes)),
        costs=tuple(random.integers(0, 50, 8).astype(float) for _ in nodes),
        edges=tuple(Edge(i, j, random.integers(0, 50, (8, 8))) for i in nodes for j in range(i)),
    )
    exact = solve(dense)
    monkeypatch.setattr("autoshard.solver.search.LARGE_PART", 1)
    monkeypatch.setattr("autoshard.solver.search.SHRUNK", 1.0)
    monkeypatch.setattr(eliminate, "MAX_ENTRIES", 7)
    searched = solve(dense, time_limit_s=5.0)
    assert searched.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert searched.bound <= exact.cost <= searched.cost
