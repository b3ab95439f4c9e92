"""Problem in, Solution out: reduce, bracket the optimum, rule out, solve what is left, undo the reductions, check."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .branch import conclude
from .clock import Clock
from .graph import Graph, Infeasible, build_graph, drop_slack_rows
from .problem import Problem
from .search import Found, ignore
from .solution import Progress, Solution, Status, check_solution

RELAXED_SHARE = 0.35  # of the time limit, for solving without the memory limit first
FITTING_SHARE = 0.8  # of the time left, for the same once more where what it found fits
TIGHT = 0.8  # share of the budget that the least usage fills at the peak, from which on the limit surely binds
FINISH_SHARE = 0.02  # of the time limit, kept for undoing the reductions and the check


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
        work_limit: Table entries that may be touched (an ordinary core touches about 3e8 a second); with it the clock
            is not looked at, and the answer is the same on any machine and run.
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
    clock = Clock(limit_s=time_limit_s * (1 - FINISH_SHARE), work_limit=work_limit)
    return _Solve(problem, clock, target_gap, on_progress).run(incumbent)


@dataclass(slots=True)
class _Pending:
    """A choice that still has to be completed."""

    graph: Graph
    choice: dict[int, int]


class _Solve:
    """One call of `solve`; keeps what is best known while it works."""

    def __init__(
        self, problem: Problem, clock: Clock, target_gap: float, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self.problem = problem
        self.clock = clock
        self.target_gap = target_gap
        self.on_progress = on_progress
        self.seconds: dict[str, float] = {}
        self.phase, self.mark = "reduce", 0.0
        self.best: tuple[int, ...] = ()
        self.cost = math.inf
        self.bound = -math.inf
        self.price: float | None = None
        self.pending: _Pending | None = None

    def run(self, incumbent: Sequence[int] | None) -> Solution:
        if incumbent is not None:
            self._offer(tuple(int(index) for index in incumbent))
        message = ""
        proven = False
        try:
            proven = self._work()
        except Infeasible as reason:
            self._enter("end")
            return _nothing(Status.INFEASIBLE, math.inf, self.seconds, str(reason))
        except KeyboardInterrupt:
            self._complete()
            if not self.best:
                raise
            message = "interrupted: the best choice so far"
        self._complete()
        self._enter("end")
        if not self.best:
            return _nothing(Status.FAILED, self.bound, self.seconds, message or "no valid choice was found in time")
        if not proven and not message:
            message = "within the target gap" if self._is_close() else "time was up before optimality was proven"
        return Solution(
            choice=self.best,
            cost=self.cost,
            bound=min(self.bound, self.cost),
            status=Status.OPTIMAL if proven else Status.FEASIBLE,
            peak_bytes=check_solution(self.problem, self.best).peak_bytes,
            memory_price=self.price,
            seconds=self.seconds,
            message=message,
        )

    def _work(self) -> bool:
        """Whether the best choice is proven best in the end."""
        graph = build_graph(self.problem)
        drop_slack_rows(graph)
        if not len(graph.room):
            self.price = 0.0
        elif graph.room.min() > (1 - TIGHT) * (self.problem.budget or 0.0):
            proven = self._without_limit(RELAXED_SHARE)
            if not proven and not self._is_close() and self.best:  # it fits: the budget hardly binds
                proven = self._without_limit(FITTING_SHARE)
            if proven or self._is_close():
                self.price = 0.0
                return proven
        self._enter("search")
        return self._settled(graph, conclude(graph, self.clock, self._teller(graph), self.target_gap))

    def _is_close(self) -> bool:
        return bool(self.best) and self.cost - self.bound <= self.target_gap * abs(self.cost)

    def _without_limit(self, share: float) -> bool:
        """Solve without memory, which is far easier: a bound, and the answer if it fits; whether it is."""
        self._enter("without limit")
        graph = build_graph(replace(self.problem, usages=(), edge_usages=(), budget=None))
        clock = self.clock.part(share * self.clock.left_s)
        found = conclude(graph, clock, ignore, self.target_gap)
        self.clock.spend(clock.work)
        return self._settled(graph, found)

    def _settled(self, graph: Graph, found: Found) -> bool:
        """Take what a search came to; whether the best choice is now proven best."""
        self.bound = max(self.bound, graph.units.cost(found.bound))
        if found.price is not None:
            self.price = graph.units.cost(found.price)
        if found.choice is not None:
            self.pending = _Pending(graph, found.choice)
            self._complete()
        slack = graph.units.resolution + 1e-9 * abs(self.cost)
        return bool(self.best) and found.proven and self.cost <= graph.units.cost(found.cost) + slack

    def _teller(self, graph: Graph) -> Callable[[float, float, dict[int, int] | None], None]:
        def tell(cost: float, bound: float, choice: dict[int, int] | None) -> None:
            self.bound = max(self.bound, graph.units.cost(bound))
            if choice is not None:
                self.pending = _Pending(graph, choice)
            if self.on_progress is not None:
                known = min(self.cost, graph.units.cost(cost))
                self.on_progress(
                    Progress(phase=self.phase, seconds=self.clock.elapsed_s, cost=known, bound=min(self.bound, known))
                )

        return tell

    def _complete(self) -> None:
        """Complete the pending choice and offer it."""
        if self.pending is not None:
            self._offer(self.pending.graph.recover(self.pending.choice))
            self.pending = None

    def _offer(self, choice: tuple[int, ...]) -> None:
        check = check_solution(self.problem, choice)
        if not check.violations and check.cost < self.cost:
            self.best, self.cost = choice, check.cost

    def _enter(self, phase: str) -> None:
        now = self.clock.elapsed_s
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self.mark
        self.phase, self.mark = phase, now


def _nothing(status: Status, bound: float, seconds: dict[str, float], message: str) -> Solution:
    return Solution(
        choice=(),
        cost=math.inf,
        bound=bound,
        status=status,
        peak_bytes=math.nan,
        seconds=seconds,
        message=message,
    )
