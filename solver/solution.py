"""What a solve returns, and the independent check of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from .problem import Floats, Problem


class Status(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"  # no choice costs less, up to the stated resolution
    FEASIBLE = "feasible"  # a valid choice; `gap` says how far from optimal it can be
    INFEASIBLE = "infeasible"  # proven: no choice satisfies the constraints
    FAILED = "failed"  # nothing valid found and nothing proven before the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known while a solve runs; `cost` and `bound` are infinite where nothing is known yet."""

    phase: str
    seconds: float
    cost: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A choice per node, and what is proven about it.

    Args:
        choice: Index of the chosen strategy of each node; empty if there is none.
        cost: Total cost, recomputed in floating point from the problem; `inf` without a choice.
        bound: No choice that satisfies the constraints costs less than this.
        status: See `Status`.
        peak_bytes: Largest sum of live usages over time.
        memory_price: What a byte more of budget saves at the bound (the sum of the Lagrange multipliers); 0 where the
            budget does not bind, None where memory was not priced.
        seconds: Wall time per phase, in order.
        message: A sentence for the user: what ended the solve, and for an infeasible one what to change.
    """

    choice: tuple[int, ...]
    cost: float
    bound: float
    status: Status
    peak_bytes: float
    memory_price: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    message: str = ""

    @property
    def gap(self) -> float:
        """The relative distance of cost and bound: 0 where proven optimal, `inf` without a choice or a bound."""
        if self.status is Status.OPTIMAL:
            return 0.0
        if not (math.isfinite(self.cost) and math.isfinite(self.bound)):
            return math.inf
        return max(0.0, self.cost - self.bound) / max(abs(self.cost), 1e-300)


class Fault(StrEnum):
    """The ways in which a choice can be invalid."""

    LENGTH = "bad_length"
    INDEX = "bad_index"
    TIE = "tie"
    FORBIDDEN_NODE = "forbidden_node"
    FORBIDDEN_EDGE = "forbidden_edge"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken constraint, with the nodes (or the one edge) that break it."""

    fault: Fault
    where: tuple[int, ...]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a choice really costs and holds.

    Args:
        cost: Sum of the chosen entries; `inf` if one is forbidden, NaN if the choice does not fit the problem.
        peak_bytes: Largest sum of live usages.
        peak_time: First time at which that sum is reached; None if nothing is ever live.
        violations: Every broken constraint; empty if the choice is valid.
    """

    cost: float
    peak_bytes: float
    peak_time: int | None
    violations: tuple[Violation, ...]


def check_solution(problem: Problem, choice: Sequence[int]) -> Check:
    """Recompute cost, memory and constraints of a choice from the problem alone, sharing no code with the solver.

    Example:
        >>> from autoshard.solver import Edge, Problem, check_solution
        >>> problem = Problem(names=("a", "b"), costs=([1.0, 2.0], [0.0, 5.0]), edges=(Edge(0, 1, [[9, 9], [0, 9]]),))
        >>> check_solution(problem, (1, 0)).cost
        2.0
    """
    if misfit := _misfit(problem, choice):
        return Check(cost=math.nan, peak_bytes=math.nan, peak_time=None, violations=misfit)
    node_costs = [float(cost[k]) for cost, k in zip(problem.costs, choice, strict=True)]
    edge_costs = [float(edge.cost[choice[edge.u], choice[edge.v]]) for edge in problem.edges]
    times, nbytes = memory_profile(problem, choice)
    peak = int(np.argmax(nbytes)) if len(nbytes) else None
    peak_bytes = float(nbytes[peak]) if peak is not None else 0.0
    peak_time = int(times[peak]) if peak is not None else None
    violations = [
        *(_forbidden(Fault.FORBIDDEN_NODE, (i,)) for i, cost in enumerate(node_costs) if math.isinf(cost)),
        *(_forbidden(Fault.FORBIDDEN_EDGE, (e,)) for e, cost in enumerate(edge_costs) if math.isinf(cost)),
        *(_untied(problem, u, v) for u, v in problem.ties if choice[u] != choice[v]),
    ]
    if problem.budget is not None and peak_bytes > problem.budget:
        message = f"{peak_bytes:.0f} bytes are live at time {peak_time}, the budget is {problem.budget:.0f}"
        violations.append(Violation(fault=Fault.MEMORY, where=(), message=message))
    cost = math.fsum([*node_costs, *edge_costs])
    return Check(cost=cost, peak_bytes=peak_bytes, peak_time=peak_time, violations=tuple(violations))


def memory_profile(problem: Problem, choice: Sequence[int]) -> tuple[Floats, Floats]:
    """The bytes live over time, as a step function.

    Returns:
        The times at which something starts or stops being live, ascending, and the bytes live from each on.

    Example:
        >>> from autoshard.solver import Problem, Usage, memory_profile
        >>> problem = Problem(names=("a",), costs=([1.0],), usages=(Usage(0, 2, 5, [64]),))
        >>> times, nbytes = memory_profile(problem, (0,))
        >>> times.tolist(), nbytes.tolist()
        ([2.0, 5.0], [64.0, 0.0])
    """
    held = [(u.start, u.stop, float(u.nbytes[choice[u.node]])) for u in problem.usages]
    for copy in problem.edge_usages:
        edge = problem.edges[copy.edge]
        held.append((copy.start, copy.stop, float(copy.nbytes[choice[edge.u], choice[edge.v]])))
    held = [(start, stop, nbytes) for start, stop, nbytes in held if start < stop]
    times = np.array(sorted({t for start, stop, _ in held for t in (start, stop)}), dtype=np.float64)
    change = np.zeros(len(times))
    np.add.at(change, np.searchsorted(times, [start for start, _, _ in held]), [nbytes for _, _, nbytes in held])
    np.subtract.at(change, np.searchsorted(times, [stop for _, stop, _ in held]), [nbytes for _, _, nbytes in held])
    return times, np.cumsum(change)


def _misfit(problem: Problem, choice: Sequence[int]) -> tuple[Violation, ...]:
    if len(choice) != len(problem.costs):
        message = f"the choice has {len(choice)} entries, the problem {len(problem.costs)} nodes"
        return (Violation(fault=Fault.LENGTH, where=(), message=message),)
    return tuple(
        Violation(fault=Fault.INDEX, where=(i,), message=f"node {i} chooses {k}, it has {size} choices")
        for i, (k, size) in enumerate(zip(choice, problem.choices, strict=True))
        if not 0 <= k < size
    )


def _forbidden(fault: Fault, where: tuple[int, ...]) -> Violation:
    what = "node" if fault is Fault.FORBIDDEN_NODE else "edge"
    return Violation(fault=fault, where=where, message=f"{what} {where[0]} takes a forbidden (infinite) entry")


def _untied(problem: Problem, u: int, v: int) -> Violation:
    message = f"nodes {u} ({problem.names[u]}) and {v} ({problem.names[v]}) are tied but choose differently"
    return Violation(fault=Fault.TIE, where=(u, v), message=message)
