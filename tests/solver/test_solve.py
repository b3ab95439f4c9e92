"""Small random problems agree with exhaustive search."""

import pytest

from tests.solver.problems import assert_solved


@pytest.mark.parametrize("batch", range(20))
def test_agrees_with_exhaustive_search(batch: int) -> None:
    for seed in range(100 * batch, 100 * (batch + 1)):
        assert_solved(seed)
