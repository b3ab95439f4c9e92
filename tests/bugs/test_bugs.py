"""Programs that went wrong for somebody: planned, compiled for eight devices, run, held to what is known to be best.

`benchmarks/bug_cases.py` runs all of them and prints what they send.
"""

from __future__ import annotations

import pytest

from tests.bugs import layers, lookups, moves
from tests.bugs.case import Case, examine

CASES = (*moves.CASES, *lookups.CASES, *layers.CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case.everyday and not case.open], ids=str)
def test_a_plan_reaches_what_is_known_to_be_best(case: Case) -> None:
    assert examine(case).faults == ()


@pytest.mark.parametrize("case", [case for case in CASES if case.everyday and case.open], ids=str)
def test_what_is_not_reached_is_still_said(case: Case) -> None:
    """An expectation that is met is no longer to be listed as open; everything but the bytes has to be right anyway."""
    faults = examine(case).faults
    assert len(faults) == 1 and ("suffice" in faults[0] or "of the products" in faults[0])


def test_the_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 50
