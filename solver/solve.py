"""Problem in, Solution out: reduce, bracket the optimum, rule out, solve what is left, undo the reductions, check."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from .backend import Backend, Verdict, run_backend
from .bounding import RELATIVE_GAP, Bracket, bracket, near, rule_out
from .dual import Dual
from .graph import Graph, Infeasible, build_graph, drop_slack_rows
from .ilp import build_model
from .lagrange import Priced, search_prices
from .problem import Problem
from .simplify import simplify
from .solution import Progress, Solution, Status, check_solution

SMALL_CORE = 2_000  # edge entries up to which the integer program is the quickest way
DIRECT_CORE = 120_000  # edge entries up to which the integer program with memory rows is tried first
DIRECT_SHARE = 0.15  # of the time limit, for that
LARGE_CORE = 150_000  # edge entries from which the integer program is not worth its time
BRACKET_SHARE = 0.8  # of the time limit, for bounds and heuristics; the rest is the integer program's
FIRST_SLACK = 1024  # the first part holds what is within this fraction of the gap
DIVE_ENTRIES = 60_000  # edge entries of a part that the integer program is given
DIVE_SHARE = 0.15  # of the time limit, for each exact solution of a promising part
PRICES_SHARE = 0.65  # of the time limit, until the search for the price of memory ends
RELAXED_SHARE = 0.3  # of the time limit, for solving without the memory limit first
PATIENCE = (1e-4, 1e-5, 1e-6, 1e-7)  # relative gain of the bound at which each round of bracketing stops


def solve(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    work_limit: float | None = None,
    incumbent: Sequence[int] | None = None,
    target_gap: float = 0.0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Choose one strategy per node at least cost.

    Args:
        problem: What to solve.
        time_limit_s: Wall seconds, from this call on; what is best known then is returned.
        work_limit: Limits work instead of time, so that the answer is the same on any machine and run.
        incumbent: A choice to start from; it only has to fit the problem.
        target_gap: Relative distance of cost and bound at which a choice is good enough to stop.
        on_progress: Called with what is known whenever that changes.

    Returns:
        The best choice found, with a valid lower bound; running out of time never raises, nor does Ctrl-C once a
        choice is known.

    Example:
        >>> import numpy as np
        >>> from autoshard.solver import Edge, Problem, solve
        >>> free = np.zeros(2)
        >>> move = Edge(0, 1, np.array([[0.0, 3.0], [3.0, 0.0]]))
        >>> problem = Problem(names=("a", "b"), costs=(np.array([1.0, 2.0]), free), edges=(move,))
        >>> solve(problem).choice
        (0, 0)
    """
    return _Solve(problem, time_limit_s, target_gap, on_progress).run(incumbent)


class _Solve:
    """One call of `solve`; keeps what is best known while it works."""

    def __init__(
        self,
        problem: Problem,
        time_limit_s: float,
        target_gap: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.problem = problem
        self.begin = time.monotonic()
        self.limit_s = time_limit_s
        self.target_gap = target_gap
        self.on_progress = on_progress
        self.seconds: dict[str, float] = {}
        self.mark = self.begin
        self.best: tuple[int, ...] = ()
        self.cost = math.inf
        self.bound = -math.inf
        self.message = ""

    def run(self, incumbent: Sequence[int] | None) -> Solution:
        if incumbent is not None:
            self._offer(tuple(incumbent))
        try:
            status = self._work()
        except Infeasible as reason:
            return self._infeasible(str(reason))
        except KeyboardInterrupt:
            if not self.best:
                raise
            self.message, status = "interrupted: the best choice so far", Status.FEASIBLE
        if not self.best:
            return self._nothing(self.message or "no valid choice was found in time")
        bound = self.cost if status is Status.OPTIMAL else min(self.bound, self.cost)
        peak = check_solution(self.problem, self.best).peak_bytes
        return Solution(
            choice=self.best, cost=self.cost, bound=bound, status=status, peak_bytes=peak,
            seconds=self.seconds, message=self.message,
        )  # fmt: skip

    def _work(self) -> Status:
        relaxed = self._without_limit() if self.problem.budget is not None else None
        if relaxed is not None and self._gap() <= RELATIVE_GAP:
            return Status.OPTIMAL
        graph = build_graph(self.problem)
        drop_slack_rows(graph)
        simplify(graph)
        drop_slack_rows(graph)
        self._phase("reduce")
        if len(graph.room) and _entries(graph) <= DIRECT_CORE:
            status = self._integer_program(graph, DIRECT_SHARE * self.limit_s)
            if status is Status.OPTIMAL:
                return status
        if relaxed is not None and not self.best:
            self._search_prices(relaxed)
        if self._gap() <= self.target_gap:
            self.message = "within the target gap"
            return Status.FEASIBLE
        if _entries(graph) > SMALL_CORE or len(graph.room):
            if self._close_in(graph):
                return Status.OPTIMAL
        if not graph.costs:
            self._offer(graph.recover({}))
            self._raise_bound(graph, graph.constant)
            return Status.OPTIMAL
        if _entries(graph) > LARGE_CORE:
            self.message = "time was up before optimality was proven"
            return Status.FEASIBLE
        return self._integer_program(graph, self.limit_s)

    def _without_limit(self) -> "_Solve | None":
        """Solve without memory, which is far easier: a bound, and the answer if it fits; None if nothing was found."""
        free = replace(self.problem, usages=(), edge_usages=(), budget=None)
        relaxed = _Solve(free, RELAXED_SHARE * self.limit_s, 0.0, None)
        status = relaxed._work()
        self.seconds.update({f"{name}, no limit": s for name, s in relaxed.seconds.items()})
        self.mark = time.monotonic()
        self.bound = relaxed.cost if status is Status.OPTIMAL else relaxed.bound
        if not relaxed.best:
            return None
        self._offer(relaxed.best)
        return relaxed

    def _search_prices(self, relaxed: "_Solve") -> None:
        """Price memory until the budget is kept, with one easy solve a price."""

        def solve_free(priced: Problem) -> Priced:
            left = self.begin + PRICES_SHARE * self.limit_s - time.monotonic()
            inner = _Solve(priced, max(left, 0.1), 0.0, None)
            inner._work()
            if self.on_progress is not None:
                elapsed = time.monotonic() - self.begin
                self.on_progress(Progress(phase="prices", seconds=elapsed, cost=self.cost, bound=self.bound))
            return Priced(inner.best, inner.bound)

        stop = self.begin + PRICES_SHARE * self.limit_s
        bound = search_prices(self.problem, relaxed.best, relaxed.cost, solve_free, self._offer, stop)
        self.bound = max(self.bound, bound)
        self._phase("prices")

    def _gap(self) -> float:
        """Relative distance of the best choice to the bound; infinite without a choice."""
        return (self.cost - self.bound) / max(abs(self.cost), 1e-300) if self.best else math.inf

    def _close_in(self, graph: Graph) -> bool:
        """Bracket, solve ever larger parts near the bound, rule out, again; whether the best is proven best."""
        for patience in PATIENCE[1:] if len(graph.room) else PATIENCE:
            if not graph.costs:
                break
            known, dual = bracket(graph, self._stop(), lambda cost, bound: self._tell(graph, cost, bound), patience)
            self._phase("bound")
            if not known.closed:
                self._dive(graph, dual, known)
                self._phase("dive")
            self._keep(graph, known)
            if known.closed:
                return True
            if known.choice is None or time.monotonic() > self._stop():
                break
            before = sum(map(len, graph.costs.values()))
            if rule_out(graph, dual, known) < 0.05 * before:
                break
            drop_slack_rows(graph)
        return False

    def _stop(self) -> float:
        return self.begin + BRACKET_SHARE * self.limit_s

    def _dive(self, graph: Graph, dual: Dual, known: Bracket) -> None:
        """Solve the part of the graph near the bound, then larger ones, until a part holds all that can be better."""
        gap = known.cost - known.bound if known.choice is not None else 0.1 * abs(known.bound)
        slack = gap / FIRST_SLACK
        while time.monotonic() < self._stop() and not known.closed:
            whole = known.choice is not None and slack >= known.cost - known.bound
            part = near(graph, dual, known, slack)
            solved = part is None or self._solve_part(graph, part, known)
            if whole and solved:
                known.bound = known.cost
                return
            if not solved or slack > gap:
                return
            slack *= 4

    def _solve_part(self, graph: Graph, part: Graph, known: Bracket) -> bool:
        """Solve a reduced copy; offer its solution; whether it is proven best within the copy."""

        def offer(choice: dict[int, int]) -> None:
            full = part.recover(choice)
            known.offer(graph, {u: full[u] for u in graph.costs})

        if not part.costs:
            offer({})
            return True
        found, _ = bracket(part, self._stop(), lambda cost, bound: None)
        if found.choice is not None:
            offer(found.choice)
        if found.closed:
            return True
        left = self._stop() - time.monotonic()
        if _entries(part) > DIVE_ENTRIES or left <= 0:
            return False
        model, layout, _ = build_model(part)
        outcome = run_backend(model, Backend.HIGHS, seconds=min(DIVE_SHARE * self.limit_s, left))
        if len(outcome.values):
            offer(layout.choice(part, outcome.values))
        return outcome.verdict in (Verdict.OPTIMAL, Verdict.INFEASIBLE)

    def _keep(self, graph: Graph, known: Bracket) -> None:
        self._raise_bound(graph, known.bound)
        if known.choice is not None:
            self._offer(graph.recover(known.choice))

    def _integer_program(self, graph: Graph, seconds: float) -> Status:
        left = min(seconds, self.limit_s - (time.monotonic() - self.begin))
        if left <= 0:
            self.message = "time was up before optimality was proven"
            return Status.FEASIBLE
        model, layout, scale = build_model(graph)
        outcome = run_backend(model, Backend.HIGHS, seconds=left)
        self._phase("ilp")
        if outcome.verdict is Verdict.INFEASIBLE:
            if self.best:
                return Status.OPTIMAL  # nothing better than the best choice known was left in the graph
            raise Infeasible("no choice fits the memory budget and the forbidden entries")
        if math.isfinite(outcome.bound):
            self._raise_bound(graph, math.ceil(outcome.bound * scale - 0.5) + graph.constant)
        if len(outcome.values):
            self._offer(graph.recover(layout.choice(graph, outcome.values)))
        if outcome.verdict is Verdict.OPTIMAL:
            return Status.OPTIMAL
        self.message = outcome.detail
        return Status.FEASIBLE

    def _offer(self, choice: tuple[int, ...]) -> None:
        check = check_solution(self.problem, choice)
        if not check.violations and check.cost < self.cost:
            self.best, self.cost = choice, check.cost

    def _raise_bound(self, graph: Graph, units: float) -> None:
        self.bound = max(self.bound, graph.units.cost(units))

    def _tell(self, graph: Graph, cost: float, bound: float) -> None:
        if self.on_progress is not None:
            best = min(self.cost, graph.units.cost(cost))
            low = max(self.bound, graph.units.cost(bound))
            self.on_progress(Progress(phase="bound", seconds=time.monotonic() - self.begin, cost=best, bound=low))

    def _phase(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.mark
        self.mark = now

    def _infeasible(self, message: str) -> Solution:
        return Solution(
            choice=(), cost=math.inf, bound=math.inf, status=Status.INFEASIBLE, peak_bytes=math.nan,
            seconds=self.seconds, message=message,
        )  # fmt: skip

    def _nothing(self, message: str) -> Solution:
        return Solution(
            choice=(), cost=math.inf, bound=self.bound, status=Status.FAILED, peak_bytes=math.nan,
            seconds=self.seconds, message=message,
        )  # fmt: skip


def _entries(graph: Graph) -> int:
    return sum(matrix.size for _, _, matrix in graph.pairs())
