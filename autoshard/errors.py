"""Every error that autoshard raises on purpose.

::

    AutoshardError
    ├── InputError            the caller's arguments are wrong (also a ValueError)
    │   ├── MeshError         the mesh, or an axis that it does not have
    │   ├── SpecError         a sharding that does not fit its array
    │   ├── OptionError       an unknown or contradictory option
    │   └── CapturedValuesError  the function uses values of an enclosing trace
    ├── UnsupportedError      strict mode met a primitive without a rule
    ├── PlanningError         no plan came out
    │   ├── InfeasibleError   no plan fits the memory budget or the fixed shardings
    │   └── SolverError       the solver stopped without a plan
    └── PlanMismatchError     a saved plan does not belong to this program, mesh or options

A message says what is wrong, where (argument path, primitive, the user's file and line) and what to do next.
Validation collects all faults of one call and raises once, one line a fault.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class AutoshardError(Exception):
    """Base of all errors raised by autoshard."""


class InputError(AutoshardError, ValueError):
    """The caller's arguments are wrong."""


class MeshError(InputError):
    """The mesh is not one, or an axis is named that it does not have."""


class SpecError(InputError):
    """A sharding does not fit the array that it is given for."""


class OptionError(InputError):
    """An option is unknown, of the wrong type, or contradicts another."""


class CapturedValuesError(InputError):
    """The function uses values of an enclosing jit, grad or vmap that are not among its arguments."""


class UnsupportedError(AutoshardError):
    """A primitive has no sharding rule and ``strict=True`` was asked for."""


class PlanningError(AutoshardError):
    """Planning ended without a plan."""


class InfeasibleError(PlanningError):
    """No plan fits the memory budget together with the fixed shardings."""


class SolverError(PlanningError):
    """The solver stopped without any choice, for a reason given in the message."""


class PlanMismatchError(AutoshardError):
    """A saved plan does not belong to this program, mesh or options."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'h100-sxm'?``, or nothing if no known word is near.

    Example:
        >>> did_you_mean("donate_argnum", ["donate_argnums", "static_argnums"])
        "; did you mean 'donate_argnums'?"
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def raise_all(kind: type[AutoshardError], headline: str, faults: Sequence[str]) -> None:
    """Raise one error of ``kind`` that lists every fault on a line of its own; do nothing if there is none."""
    if not faults:
        return
    raise kind("\n".join([headline, *(f"  {fault}" for fault in faults)]))
