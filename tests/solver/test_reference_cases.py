"""A small instance with known answers: five nodes, one of which follows another, and an alias between two.

Facts of XLA's solver tests (auto_sharding_solver_test.cc and its evaluator tests) and of the contest's example,
restated by their names among the reference cases. Intervals there are closed; departures from a default are costs of
their own here.
"""

from dataclasses import replace

import numpy as np
import pytest

from autoshard.solver import Edge, EdgeUsage, Problem, Status, Usage, check_solution, differences, least_budget, solve
from autoshard.solver.iopddl import parse_iopddl

SIZES = (4, 3, 4, 4, 3)
INTERVALS = ((0, 4), (0, 4), (2, 3), (3, 4))  # closed; node 4 is never live
MEMORY = [100_000.0 * (node + 1) + 10_000 * np.arange(size) for node, size in enumerate(SIZES)]
MEMORY[0][2] = 990_000.0
FIRST = 1000.0 * np.arange(1, 5)[:, None] + 100 * np.arange(4)  # of edge (0, 2)
SECOND = 1000.0 * np.arange(5, 8)[:, None] + 100 * np.arange(4)  # of edge (1, 2)
DEFAULT = 1  # the strategy of every node that is no departure


def costs() -> list[np.ndarray]:
    """Compute and communication."""
    return [110.0 * (node + 1) + 11 * np.arange(size) for node, size in enumerate(SIZES)]


def reference(
    *,
    node_costs: list[np.ndarray] | None = None,
    first: np.ndarray = FIRST,
    more_edges: tuple[Edge, ...] = (),
    memory: list[np.ndarray] | None = None,
    budget: float = 1_500_000.0,
    edge_usages: tuple[EdgeUsage, ...] = (),
) -> Problem:
    alias = np.where(np.eye(3) == 1.0, 0.0, np.inf)
    held = MEMORY if memory is None else memory
    return Problem(
        names=tuple(f"node {i}" for i in range(5)),
        costs=tuple(node_costs or costs()),
        edges=(Edge(0, 2, first), Edge(1, 2, SECOND), Edge(1, 4, alias), *more_edges),
        usages=tuple(Usage(i, start, stop + 1, held[i]) for i, (start, stop) in enumerate(INTERVALS)),
        edge_usages=edge_usages,
        budget=budget,
        ties=((2, 3),),
    )


def forbidding(matrix: np.ndarray, row: int, column: int) -> np.ndarray:
    changed = matrix.copy()
    changed[row, column] = np.inf
    return changed


OWN = np.array([[9000, 5100, 5200, 5300], [6000, 6100, 6200, 6300], [7000, 7100, 7200, 7300], [8000, 8100, 8200, 8300]])
COPIES = (
    EdgeUsage(0, 1, 3, np.where(np.arange(16).reshape(4, 4) == 0, 1e6, FIRST)),
    EdgeUsage(1, 2, 4, np.where(np.arange(12).reshape(3, 4) == 0, 5e6, SECOND)),
)
TINY = [np.full(size, held) for size, held in zip(SIZES, (1.0, 2.0, 300.0, 4000.0, 50_000.0), strict=True)]
SOLVED = {
    "plain": (reference(), 7650.0, (0, 0, 0, 0, 0)),
    "solver-006: forbidden pair": (reference(first=forbidding(FIRST, 0, 0)), 7872.0, (0, 0, 1, 1, 0)),
    "solver-007: edge to a follower": (reference(more_edges=(Edge(1, 3, SECOND),)), 12650.0, (0, 0, 0, 0, 0)),
    "solver-008: edge to its own follower": (reference(more_edges=(Edge(2, 3, OWN),)), 13972.0, (0, 0, 1, 1, 0)),
    "solver-016: memory of edges": (reference(edge_usages=COPIES), 7872.0, (0, 0, 1, 1, 0)),
    "solver-017: tiny memory": (reference(memory=TINY, budget=4321.0), 7650.0, (0, 0, 0, 0, 0)),
}


@pytest.mark.parametrize(("problem", "cost", "choice"), SOLVED.values(), ids=SOLVED)
def test_the_optimum_is_known(problem: Problem, cost: float, choice: tuple[int, ...]) -> None:
    solution = solve(problem)
    assert (solution.status, solution.cost, solution.choice) == (Status.OPTIMAL, cost, choice)


def test_a_slightly_wrong_start_does_not_matter() -> None:
    """solver-009."""
    assert solve(reference(), incumbent=(1, 0, 0, 0, 0)).choice == (0, 0, 0, 0, 0)


def alike() -> Problem:
    """Choices that are each other's equals but for one of node 2, one of node 3 and one pair."""
    sizes = (4, 3, 7, 7, 3)
    node_costs = [np.full(size, 110.0 * (node + 1)) for node, size in enumerate(sizes)]
    node_costs[2][2] += 1
    node_costs[3][6] += 10
    first = np.repeat(1000.0 * np.arange(1, 5)[:, None], 7, axis=1)
    first[2, 4] += 100
    second = np.repeat(1000.0 * np.arange(5, 8)[:, None], 7, axis=1)
    apart = np.tile([0.0, np.inf, 0.0], (7, 1))
    apart[5] = [np.inf, 0.0, np.inf]
    held = [np.full(size, 10_000.0 * (node + 1)) for node, size in enumerate(sizes)]
    held[2][3] += 1000
    return Problem(
        names=tuple(f"node {i}" for i in range(5)),
        costs=tuple(node_costs),
        edges=(Edge(0, 2, first), Edge(1, 2, second), Edge(2, 4, apart)),
        usages=tuple(Usage(i, start, stop + 1, held[i]) for i, (start, stop) in enumerate(INTERVALS)),
        budget=1_500_000.0,
        ties=((2, 3),),
    )


def test_choices_that_equal_each_other_do_not_change_the_optimum() -> None:
    """solver-012: nine choices are optimal."""
    solution = solve(alike())
    assert (solution.status, solution.cost) == (Status.OPTIMAL, 7650.0)
    optima = {(0, 0, k, k, last) for k in (0, 1, 3, 4) for last in (0, 2)} | {(0, 0, 5, 5, 1)}
    assert solution.choice in optima


def test_negative_costs_are_costs_like_others() -> None:
    """cost-normalize-neg: what shifting would leave at the minimum is found without, at its own cost."""
    edge = np.array([[-100.0, 200.0], [300.0, 400.0]])
    for cost, expected in ((edge, -100.0), (edge + 100, 0.0)):
        nodes = (np.zeros(2), np.zeros(2))
        solution = solve(Problem(names=("u", "v"), costs=nodes, edges=(Edge(0, 1, cost),), budget=1.0))
        assert (solution.status, solution.cost, solution.choice) == (Status.OPTIMAL, expected, (0, 0))


def test_departures_from_a_default_are_costs() -> None:
    """solver-004."""
    departures = [np.where(np.arange(size) == DEFAULT, 0.0, 1.0) for size in SIZES]
    problem = reference(node_costs=departures)
    problem = replace(
        problem, edges=tuple(Edge(e.u, e.v, np.where(np.isinf(e.cost), np.inf, 0)) for e in problem.edges)
    )
    solution = solve(problem)
    assert solution.cost == 0.0 and solution.choice == (1, 1, 1, 1, 1)


EVALUATED = {
    "eval-001, eval-009: clean": (reference(), (3, 1, 2, 2, 1), set(), 12149.0, 1_080_000.0),
    "eval-002, eval-005: over budget": (reference(), (2, 1, 2, 2, 1), {"memory"}, 11138.0, 1_940_000.0),
    "eval-003: not a follower": (reference(), (3, 1, 2, 1, 1), {"tie"}, 12138.0, 1_070_000.0),
    "eval-004: alias broken": (reference(), (3, 1, 2, 2, 0), {"forbidden_edge"}, np.inf, 1_080_000.0),
    "eval-006: forbidden node": (
        reference(node_costs=[np.array([np.inf, np.inf, np.inf, 143.0]), *costs()[1:]]),
        (0, 1, 2, 2, 1), {"forbidden_node"}, np.inf, 1_050_000.0,
    ),
    "eval-007: forbidden edge": (
        reference(first=forbidding(FIRST, 0, 2)), (0, 1, 2, 2, 1), {"forbidden_edge"}, np.inf, 1_050_000.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("problem", "choice", "faults", "cost", "peak_bytes"), EVALUATED.values(), ids=EVALUATED)
def test_choices_are_judged(
    problem: Problem, choice: tuple[int, ...], faults: set[str], cost: float, peak_bytes: float
) -> None:
    check = check_solution(problem, choice)
    assert {violation.fault.value for violation in check.violations} == faults
    assert (check.cost, check.peak_bytes) == (cost, peak_bytes)


def test_the_least_budget_of_the_instance() -> None:
    least = least_budget(reference())
    assert least.nbytes == least.bound == 1_000_000.0


def test_a_worse_choice_is_explained_by_what_grew() -> None:
    """solver-018."""
    grown = differences(reference(), (0, 1, 2, 2, 1), (3, 1, 2, 2, 1))
    assert [(change.node, change.edge, change.before, change.after) for change in grown] == [
        (0, None, 110.0, 143.0),
        (None, 0, 1200.0, 4200.0),
    ]


CONTEST = {
    "nodes": {
        "intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
        "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
        "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]],
    },
    "edges": {
        "nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
        "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]],
    },
    "usage_limit": 50,
}


def test_the_example_of_the_contest() -> None:
    """iopddl-002, iopddl-003."""
    problem = parse_iopddl(CONTEST)
    solution = solve(problem)
    assert (solution.status, solution.cost, solution.choice) == (Status.OPTIMAL, 445.0, (0, 0, 2, 1, 0))
    assert solve(parse_iopddl({**CONTEST, "usage_limit": 0})).status is Status.INFEASIBLE


@pytest.mark.parametrize(
    ("choice", "limit", "cost", "faults"),
    [
        ((0, 1, 2, 0, 0), 50, 495.0, set()),
        ((0, 0, 1, 1, 0), None, 415.0, set()),
        ((0, 0, 1, 1, 0), 50, 415.0, {"memory"}),
        ((0, 0, 0, 0, 0, 0), 50, None, {"bad_length"}),
        ((0, 0, 0, 0), 50, None, {"bad_length"}),
        ((0, 0, -1, 0, 0), 50, None, {"bad_index"}),
        ((0, 0, 4, 0, 0), 50, None, {"bad_index"}),
    ],
)
def test_choices_of_the_contest_are_judged(
    choice: tuple[int, ...], limit: int | None, cost: float | None, faults: set[str]
) -> None:
    """iopddl-001."""
    check = check_solution(parse_iopddl({**CONTEST, "usage_limit": limit}), choice)
    assert {violation.fault.value for violation in check.violations} == faults
    assert np.isnan(check.cost) if cost is None else check.cost == cost


OF_THEIR_OWN = "solver-004 solver-009 solver-012 solver-018 cost-normalize-neg iopddl-001 iopddl-002 iopddl-003".split()
"""Those with a test of their own above."""

LEFT_OUT = {
    "eval-008": "a limit on departures from a default, an option of XLA's pass: here they are costs",
    "solver-014": "two nodes known only through what they hold together: intervals are merged inside of the solver",
}
"""Those without a meaning here, and why."""


def test_every_case_is_run_or_left_out_with_a_reason() -> None:
    """What holds for any correct solver, or any sane one: 19 of the first kind, 4 of the second."""
    run = [name for key in (*SOLVED, *EVALUATED) if ": " in key for name in key.split(": ")[0].split(", ")]
    seen = sorted([*run, *OF_THEIR_OWN, *LEFT_OUT])
    must = [f"solver-{n:03}" for n in (4, 6, 7, 8, 9, 12, 17)] + [f"eval-{n:03}" for n in range(1, 10)]
    must += [f"iopddl-{n:03}" for n in (1, 2, 3)]
    should = ["solver-014", "solver-016", "solver-018", "cost-normalize-neg"]
    assert seen == sorted([*must, *should])
    assert (len(must), len(should)) == (19, 4)
