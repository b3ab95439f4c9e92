"""Choose one strategy per node: the optimisation problem, its reductions and its solvers."""

if __name__ != "autoshard.solver":
    raise ImportError(f"This package is autoshard.solver; imported as {__name__!r} its classes would be second copies.")

from .explain import Alternative as Alternative
from .explain import Difference as Difference
from .explain import Holder as Holder
from .explain import LeastBudget as LeastBudget
from .explain import MemoryPrice as MemoryPrice
from .explain import alternatives as alternatives
from .explain import differences as differences
from .explain import holders as holders
from .explain import least_budget as least_budget
from .explain import memory_price as memory_price
from .iopddl import load_iopddl as load_iopddl
from .problem import Edge as Edge
from .problem import EdgeUsage as EdgeUsage
from .problem import Problem as Problem
from .problem import ProblemError as ProblemError
from .problem import Usage as Usage
from .solution import Check as Check
from .solution import Progress as Progress
from .solution import Solution as Solution
from .solution import Status as Status
from .solution import check_solution as check_solution
from .solution import memory_profile as memory_profile
from .solve import solve as solve

__all__ = [
    "Alternative",
    "Check",
    "Difference",
    "Edge",
    "EdgeUsage",
    "Holder",
    "LeastBudget",
    "MemoryPrice",
    "Problem",
    "ProblemError",
    "Progress",
    "Solution",
    "Status",
    "Usage",
    "alternatives",
    "check_solution",
    "differences",
    "holders",
    "least_budget",
    "load_iopddl",
    "memory_price",
    "memory_profile",
    "solve",
]
