"""Random programs compute the same when they are planned: results and gradients, on three meshes.

`benchmarks/random_programs.py` runs five hundred larger ones.
"""

from __future__ import annotations

import jax
import pytest

from tests.programs.outcomes import run
from tests.programs.random_programs import random_program

PROGRAMS = 40


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_results_and_gradients_are_those_of_the_unsharded_program(seed: int) -> None:
    outcome = run(random_program(10_000 + seed, steps=(2, 4)))
    jax.clear_caches()
    assert outcome.faults == ()
    assert outcome.rematerializations == 0


def test_conversions_of_stacked_gradients_carry_no_sharding_of_the_callers() -> None:
    """JAX writes a sharding over no mesh at all into some conversions of a scan's gradient."""
    assert run(random_program(259)).faults == ()
