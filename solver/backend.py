"""The only file that knows OR-Tools: a model in matrices goes in, an outcome comes out, and no exception.

The backend runs in a thread of its own and the caller keeps the clock: one that does not listen to its limit is asked
to stop, then left behind.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from ortools.math_opt import callback_pb2, model_parameters_pb2, model_pb2, parameters_pb2, result_pb2, solution_pb2  # type: ignore[import-untyped]
from ortools.math_opt.core.python import solver as math_opt  # type: ignore[import-untyped]
from ortools.util.python.solve_interrupter import SolveInterrupter  # type: ignore[import-untyped]

from .problem import Floats

Answer = TypeVar("Answer")

LINGER_S = 0.3  # how long a backend may overrun its limit before it is left behind
POLL_S = 0.2  # how long a wait may last before Ctrl-C is noticed


class Backend(StrEnum):
    """The OR-Tools solvers that can take these models."""

    HIGHS = "highs"
    SCIP = "scip"
    CP_SAT = "cp_sat"
    GLOP = "glop"
    PDLP = "pdlp"


_TYPES = {
    Backend.HIGHS: parameters_pb2.SOLVER_TYPE_HIGHS,
    Backend.SCIP: parameters_pb2.SOLVER_TYPE_GSCIP,
    Backend.CP_SAT: parameters_pb2.SOLVER_TYPE_CP_SAT,
    Backend.GLOP: parameters_pb2.SOLVER_TYPE_GLOP,
    Backend.PDLP: parameters_pb2.SOLVER_TYPE_PDLP,
}


class Verdict(StrEnum):
    """What a backend says about a model."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


_VERDICTS = {
    result_pb2.TERMINATION_REASON_OPTIMAL: Verdict.OPTIMAL,
    result_pb2.TERMINATION_REASON_FEASIBLE: Verdict.FEASIBLE,
    result_pb2.TERMINATION_REASON_INFEASIBLE: Verdict.INFEASIBLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearModel:
    """Minimise cost @ x with row_lower <= A x <= row_upper and x within 0 and 1, whole where `whole` says so.

    A is given as triplets, sorted by row, then column.
    """

    cost: Floats
    whole: NDArray[np.bool_]
    row_lower: Floats
    row_upper: Floats
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    entries: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came back; values and duals are empty where there are none, `bound` and `nodes` are the backend's own."""

    verdict: Verdict
    values: Floats
    duals: Floats
    bound: float
    nodes: int
    detail: str


_NOTHING = Outcome(
    verdict=Verdict.UNKNOWN,
    values=np.zeros(0),
    duals=np.zeros(0),
    bound=-np.inf,
    nodes=0,
    detail="the backend did not stop at its limit",
)


def run_backend(
    model: LinearModel, backend: Backend, *, seconds: float, relaxed: bool = False, nodes: int | None = None
) -> Outcome:
    """Solve a model.

    Args:
        model: The model.
        backend: Which solver.
        seconds: Wall time after which the best known answer is returned; `inf` for none.
        relaxed: Solve the linear relaxation and return duals.
        nodes: Limit on branch-and-bound nodes, one that means the same on any machine.

    Returns:
        The outcome; a backend that fails, refuses or hangs gives verdict `UNKNOWN` with the reason in `detail`.
    """
    proto = _model_proto(model, relaxed)
    parameters = _parameters(backend, seconds, nodes)
    interrupter = SolveInterrupter()

    def work() -> result_pb2.SolveResultProto:
        return math_opt.solve(
            proto,
            _TYPES[backend],
            parameters_pb2.SolverInitializerProto(),
            parameters,
            model_parameters_pb2.ModelSolveParametersProto(),
            None,
            callback_pb2.CallbackRegistrationProto(),
            None,
            interrupter.pybind_interrupter,
        )

    answer = run_guarded(work, seconds, interrupter.interrupt)
    if answer is None:
        return _NOTHING
    if isinstance(answer, Exception):
        return replace(_NOTHING, detail=f"{type(answer).__name__}: {answer}")
    return _outcome(answer)


def run_guarded(work: Callable[[], Answer], seconds: float, interrupt: Callable[[], None]) -> Answer | Exception | None:
    """Run `work` in a thread for at most `seconds`; None if it neither ends nor obeys `interrupt` shortly after.

    Ctrl-C reaches the caller at once, as `KeyboardInterrupt`; the work is asked to stop.
    """
    answers: list[Answer | Exception] = []

    def keep_answer() -> None:
        try:
            answers.append(work())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=keep_answer, daemon=True)
    end = time.monotonic() + seconds
    thread.start()
    try:
        while thread.is_alive() and (left := end - time.monotonic()) > 0:
            thread.join(min(left, POLL_S))
    finally:
        interrupt()
    thread.join(LINGER_S)
    return answers[0] if answers else None


def _parameters(backend: Backend, seconds: float, nodes: int | None) -> parameters_pb2.SolveParametersProto:
    """One thread always: answers must not depend on the number of cores."""
    parameters = parameters_pb2.SolveParametersProto()
    if np.isfinite(seconds):
        parameters.time_limit.FromMicroseconds(max(1, int(seconds * 1e6)))
    parameters.relative_gap_tolerance = 0.0
    parameters.absolute_gap_tolerance = 0.0
    if nodes is not None:
        parameters.node_limit = nodes
    if backend is Backend.HIGHS:
        parameters.highs.int_options["threads"] = 1  # it refuses the common `threads`
    else:
        parameters.threads = 1
    return parameters


def _model_proto(model: LinearModel, relaxed: bool) -> model_pb2.ModelProto:
    proto = model_pb2.ModelProto()
    columns, rows = len(model.cost), len(model.row_lower)
    proto.variables.ids.extend(range(columns))
    proto.variables.lower_bounds.extend(np.zeros(columns))
    proto.variables.upper_bounds.extend(np.ones(columns))
    proto.variables.integers.extend((np.zeros(columns, bool) if relaxed else model.whole).tolist())
    priced = np.flatnonzero(model.cost)
    proto.objective.linear_coefficients.ids.extend(priced.tolist())
    proto.objective.linear_coefficients.values.extend(model.cost[priced].tolist())
    proto.linear_constraints.ids.extend(range(rows))
    proto.linear_constraints.lower_bounds.extend(model.row_lower.tolist())
    proto.linear_constraints.upper_bounds.extend(model.row_upper.tolist())
    proto.linear_constraint_matrix.row_ids.extend(model.rows.tolist())
    proto.linear_constraint_matrix.column_ids.extend(model.columns.tolist())
    proto.linear_constraint_matrix.coefficients.extend(model.entries.tolist())
    return proto


def _outcome(answer: result_pb2.SolveResultProto) -> Outcome:
    reason = answer.termination.reason
    verdict = _VERDICTS.get(reason, Verdict.UNKNOWN)
    solution = answer.solutions[0] if answer.solutions else solution_pb2.SolutionProto()
    values = np.array(solution.primal_solution.variable_values.values, dtype=np.float64)
    if verdict in (Verdict.OPTIMAL, Verdict.FEASIBLE) and not len(values):
        verdict = Verdict.UNKNOWN
    return Outcome(
        verdict=verdict,
        values=values if verdict in (Verdict.OPTIMAL, Verdict.FEASIBLE) else np.zeros(0),
        duals=np.array(solution.dual_solution.dual_values.values, dtype=np.float64),
        bound=answer.termination.objective_bounds.dual_bound,
        nodes=answer.solve_stats.node_count,
        detail=f"{result_pb2.TerminationReasonProto.Name(reason)} {answer.termination.detail}".strip(),
    )
