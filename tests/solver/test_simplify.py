"""Every reduction, applied alone and as often as it applies, keeps the optimum and can be undone."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from autoshard.solver.graph import Graph, Infeasible, build_graph, drop_slack_rows
from autoshard.solver.simplify import min_plus, minimise_out, settle_edge, simplify
from tests.solver.problems import clean, exhaustive_in, random_problem, reduced


def forbid(graph: Graph) -> None:
    for node in sorted(graph.costs):
        clean(graph, node)


def settle_edges(graph: Graph) -> None:
    for u, v, _ in list(graph.pairs()):
        settle_edge(graph, u, v)


def minimise(graph: Graph) -> None:
    for node in sorted(graph.costs):
        if not graph.is_loaded(node) and np.isfinite(graph.costs[node]).all():
            minimise_out(graph, node)


REDUCTIONS = {
    "forbidden entries": forbid,
    "separable and zero edges": settle_edges,
    "degree 0, 1 and 2": minimise,
    "slack rows": drop_slack_rows,
    "all": simplify,
}


@pytest.mark.parametrize("reduction", REDUCTIONS.values(), ids=REDUCTIONS)
def test_a_reduction_alone_keeps_the_optimum(reduction: Callable[[Graph], None]) -> None:
    changed = 0
    for seed in range(400):
        graph = build_or_none(seed)
        if graph is None:
            continue
        before, size = exhaustive_in(graph), measure(graph)
        original = graph.copy()
        graph.trail.clear()
        try:
            reduction(graph)
        except Infeasible:
            assert math.isinf(before), seed
            continue
        assert exhaustive_in(graph) == before, seed
        changed += measure(graph) != size
        if math.isfinite(before):
            full = graph.recover(best_of(graph))
            choice = {node: full[node] for node in original.costs}
            assert original.value(choice) == before and original.fits(choice), seed
    assert changed >= 50, "the random problems hardly exercise this reduction"


def build_or_none(seed: int) -> Graph | None:
    problem = random_problem(seed)
    if seed % 2:
        return reduced(problem)
    try:
        return build_graph(problem)
    except Infeasible:
        return None


def measure(graph: Graph) -> tuple[int, int, int, float]:
    entries = sum(np.count_nonzero(matrix) for _, _, matrix in graph.pairs())
    return sum(map(len, graph.costs.values())), entries, len(graph.room), graph.constant


def best_of(graph: Graph) -> dict[int, int]:
    """A best choice for what is left, one node after the other."""
    best, choice = exhaustive_in(graph), {}
    rest = graph.copy()
    for node in sorted(graph.costs):
        for index in range(len(graph.costs[node])):
            trial = rest.copy()
            trial.restrict(node, np.arange(len(graph.costs[node])) == index)
            if exhaustive_in(trial) == best:
                rest, choice[node] = trial, index
                break
    return choice


def test_min_plus_products() -> None:
    random = np.random.default_rng(0)
    left, right = random.integers(0, 9, (4, 5)).astype(float), random.integers(0, 9, (5, 3)).astype(float)
    left[0, :] = math.inf
    expected = (left[:, :, None] + right[None, :, :]).min(axis=1)
    np.testing.assert_array_equal(min_plus(left, right), expected)
