"""Several processes must have made one plan; tests/test_examples.py trains in two of them."""

from __future__ import annotations

from autoshard.hosts import DIGEST_NBYTES, disagreement
from tests.autoshard.two_processes import run_two


def test_processes_that_disagree_are_told() -> None:
    for done in run_two("1", "2"):
        assert done.returncode != 0
        assert "PlanMismatchError: processes 1 have traced other programs than process 0 for '<lambda>'" in done.stderr


def test_what_differs() -> None:
    program, other, choice = (letter * DIGEST_NBYTES for letter in (b"p", b"o", b"c"))
    assert disagreement("step", [program + choice] * 3) == ""
    found = disagreement("step", [program + choice, *[other + choice] * 2])
    assert "processes 1, 2 have traced other programs" in found
    found = disagreement("step", [program + choice, program + choice, program + other])
    assert "processes 2 have made other plans of the same program than process 0 for 'step'" in found
