"""Choose one strategy per node: the optimisation problem, its reductions and its solvers."""

if __name__ != "autoshard.solver":
    raise ImportError(f"This package is autoshard.solver; imported as {__name__!r} its classes would be second copies.")

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
    "Check",
    "Edge",
    "EdgeUsage",
    "Problem",
    "ProblemError",
    "Progress",
    "Solution",
    "Status",
    "Usage",
    "check_solution",
    "load_iopddl",
    "memory_profile",
    "solve",
]
