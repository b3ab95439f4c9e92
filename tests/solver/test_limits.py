"""Running out of time or work never raises, and equal problems get equal answers."""

import math
import pickle
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoshard.solver import Problem, Solution, Status, backend, check_solution, search, solve
from autoshard.solver.clock import Clock
from autoshard.solver.graph import build_graph
from autoshard.solver.simplify import simplify
from tests.helpers import run_python
from tests.solver.problems import exhaustive, exhaustive_in, layers, random_problem

WORK = 1e8  # table entries: some tenths of a second


def is_honest(problem: Problem, solution: Solution) -> bool:
    valid = not solution.choice or not check_solution(problem, solution.choice).violations
    return valid and solution.bound <= solution.cost


@pytest.mark.parametrize("time_limit_s", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("budget", [None, 900.0])
def test_running_out_of_time_never_raises(time_limit_s: float, budget: float | None) -> None:
    problem = layers(40, budget)
    solution = solve(problem, time_limit_s=time_limit_s)
    assert solution.status in (Status.OPTIMAL, Status.FEASIBLE, Status.FAILED)
    assert is_honest(problem, solution)
    if solution.status is Status.FEASIBLE:
        assert solution.message == "time was up before optimality was proven"


@pytest.mark.parametrize(("count", "budget"), [(12, 900.0), (20, 1200.0)])
def test_wherever_work_runs_out_it_never_raises(count: int, budget: float) -> None:
    problem = layers(count, budget)
    for work in np.geomspace(1e4, 2e8, 40):
        assert is_honest(problem, solve(problem, work_limit=float(work)))


@pytest.mark.parametrize("budget", [None, 900.0])
def test_running_out_of_work_gives_the_same_answer_every_time(budget: float | None) -> None:
    problem = layers(12, budget)
    first = solve(problem, work_limit=WORK)
    assert is_honest(problem, first)
    for _ in range(2):
        again = solve(problem, work_limit=WORK)
        assert (again.choice, again.cost, again.bound, again.status) == (
            first.choice, first.cost, first.bound, first.status,
        )  # fmt: skip


def test_more_work_never_worsens_bound_or_cost_much() -> None:
    problem = layers(12, 900.0)
    some, more = solve(problem, work_limit=WORK), solve(problem, work_limit=2 * WORK)
    assert is_honest(problem, some) and is_honest(problem, more)
    assert more.bound <= some.cost and some.bound <= more.cost, "every bound holds for every choice"


def test_the_same_problem_gets_the_same_choice_twenty_times() -> None:
    for problem in (layers(2, 150.0), layers(8), random_problem(7)):
        choices = {solve(problem).choice for _ in range(20)}
        assert len(choices) == 1


def test_fresh_processes_with_other_hash_seeds_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layers(3, 220.0)
    (tmp_path / "problem").write_bytes(pickle.dumps(problem))
    code = "import pathlib, pickle, sys; from autoshard.solver import solve\n"
    code += f"print(solve(pickle.loads(pathlib.Path({str(tmp_path / 'problem')!r}).read_bytes())).choice)"
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        assert run_python(code) == str(solve(problem).choice)


def permuted(problem: Problem, seed: int) -> Problem:
    """The same problem with its nodes, and what is said of them, in another order."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(problem.costs)).tolist()
    place = {node: position for position, node in enumerate(order)}
    edge_order = random.permutation(len(problem.edges)).tolist()
    edge_place = {edge: position for position, edge in enumerate(edge_order)}
    edges = [problem.edges[edge] for edge in edge_order]
    return Problem(
        names=tuple(problem.names[node] for node in order),
        costs=tuple(problem.costs[node] for node in order),
        edges=tuple(replace(edge, u=place[edge.u], v=place[edge.v]) for edge in edges),
        usages=tuple(replace(usage, node=place[usage.node]) for usage in reversed(problem.usages)),
        edge_usages=tuple(replace(copy, edge=edge_place[copy.edge]) for copy in problem.edge_usages),
        budget=problem.budget,
        ties=tuple((place[v], place[u]) for u, v in problem.ties),
    )


def test_the_order_of_nodes_does_not_change_the_cost() -> None:
    for seed in range(60):
        problem = random_problem(seed)
        assert solve(permuted(problem, seed)).cost == pytest.approx(solve(problem).cost, rel=1e-12, abs=1e-300)
    problem = layers(3, 220.0)
    proven = solve(problem)
    assert proven.status is Status.OPTIMAL
    assert [solve(permuted(problem, seed)).cost for seed in range(3)] == [proven.cost] * 3


def test_a_backend_that_does_not_listen_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, released = threading.Event(), threading.Event()

    def deaf(*arguments: object) -> None:
        asked.set()
        released.wait(60.0)

    monkeypatch.setattr(backend.math_opt, "solve", deaf)
    monkeypatch.setattr(search, "SMALL", 10**9)
    problem = layers(4, 300.0)
    solution = solve(problem, time_limit_s=0.3, incumbent=solve_by_hand(problem))
    assert asked.is_set() and not released.is_set(), "the backend was asked, and still runs"
    assert solution.status is Status.FEASIBLE and is_honest(problem, solution)
    released.set()


def solve_by_hand(problem: Problem) -> list[int]:
    """The choice that holds least."""
    return [size - 1 for size in problem.choices]


def test_a_backend_that_fails_is_no_failure_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("no licence")

    monkeypatch.setattr(backend.math_opt, "solve", broken)
    problem = layers(4, 300.0)
    solution = solve(problem, time_limit_s=0.3, incumbent=solve_by_hand(problem))
    assert solution.choice and is_honest(problem, solution)


def test_reductions_that_stop_early_keep_the_optimum() -> None:
    for seed in range(60):
        problem = random_problem(seed)
        best = exhaustive(replace(problem, budget=None))
        graph = build_graph(replace(problem, budget=None))
        simplify(graph, Clock(limit_s=0.0))
        left = exhaustive_in(graph)
        expected = pytest.approx(best, abs=graph.units.resolution, rel=1e-9)
        assert graph.units.cost(left) == expected if math.isfinite(best) else math.isinf(left), seed


@pytest.mark.parametrize("budget", [40, np.int64(40), 40.0, math.inf])
def test_budgets_are_any_numbers(budget: float) -> None:
    problem = replace(random_problem(4), budget=budget)
    assert solve(problem).cost == pytest.approx(exhaustive(problem), rel=1e-12)
