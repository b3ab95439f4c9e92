"""Problem in, Solution out: reduce, solve what is left, undo the reductions, check."""

import math
import time
from collections.abc import Callable, Sequence

from .backend import Backend, Verdict, run_backend
from .graph import Graph, Infeasible, build_graph, drop_slack_rows
from .ilp import build_model
from .problem import Problem
from .simplify import simplify
from .solution import Progress, Solution, Status, check_solution


def solve(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    work_limit: float | None = None,
    incumbent: Sequence[int] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Choose one strategy per node at least cost.

    Args:
        problem: What to solve.
        time_limit_s: Wall seconds, from this call on; what is best known then is returned.
        work_limit: Limits work instead of time, so that the answer is the same on any machine and run.
        incumbent: A choice to start from; it only has to fit the problem.
        on_progress: Called with what is known whenever that changes.

    Returns:
        The best choice found, with a valid lower bound; running out of time never raises.
    """
    begin = time.monotonic()
    seconds: dict[str, float] = {}
    try:
        graph = build_graph(problem)
        drop_slack_rows(graph)
        simplify(graph)
        drop_slack_rows(graph)
        seconds["reduce"] = time.monotonic() - begin
    except Infeasible as reason:
        return _infeasible(str(reason), seconds)
    if not graph.costs:
        return _solution(problem, graph, graph.recover({}), graph.constant, Status.OPTIMAL, seconds)
    model, layout, scale = build_model(graph)
    outcome = run_backend(model, Backend.HIGHS, seconds=time_limit_s - (time.monotonic() - begin))
    seconds["ilp"] = time.monotonic() - begin - seconds["reduce"]
    if outcome.verdict is Verdict.INFEASIBLE:
        return _infeasible("no choice fits the memory budget and the forbidden entries", seconds)
    bound = math.ceil(outcome.bound * scale - 0.5) + graph.constant if math.isfinite(outcome.bound) else -math.inf
    if not len(outcome.values):
        return _failed(outcome.detail, graph.units.cost(bound), seconds)
    choice = graph.recover(layout.choice(graph, outcome.values))
    status = Status.OPTIMAL if outcome.verdict is Verdict.OPTIMAL else Status.FEASIBLE
    return _solution(problem, graph, choice, bound, status, seconds)


def _solution(
    problem: Problem, graph: Graph, choice: tuple[int, ...], bound: float, status: Status, seconds: dict[str, float]
) -> Solution:
    check = check_solution(problem, choice)
    if check.violations:
        return _failed(check.violations[0].message, graph.units.cost(bound), seconds)
    cost = check.cost
    return Solution(
        choice=choice,
        cost=cost,
        bound=min(cost, graph.units.cost(bound)),
        status=status,
        peak_bytes=check.peak_bytes,
        seconds=seconds,
    )


def _infeasible(message: str, seconds: dict[str, float]) -> Solution:
    return Solution(
        choice=(),
        cost=math.inf,
        bound=math.inf,
        status=Status.INFEASIBLE,
        peak_bytes=math.nan,
        seconds=seconds,
        message=message,
    )


def _failed(message: str, bound: float, seconds: dict[str, float]) -> Solution:
    return Solution(
        choice=(),
        cost=math.inf,
        bound=bound,
        status=Status.FAILED,
        peak_bytes=math.nan,
        seconds=seconds,
        message=message,
    )
