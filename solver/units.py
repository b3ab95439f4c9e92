"""Costs become whole numbers here, once: every later sum is exact, in any order and on any machine.

A float64 holds whole numbers up to 2**53 exactly. Costs are divided by a power of two, the *step*, and rounded down;
the step is the finest for which the sum of all largest entries stays below 2**48. Rounding down keeps every lower bound
valid for the problem as given; costs that are multiples of the step, as moderate whole numbers are, lose nothing.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .problem import Floats, Problem

HEADROOM = 2.0**48
CHUNK = 100_000  # entries looked at together: few calls for small matrices, little memory for large ones


@dataclass(frozen=True, slots=True)
class Units:
    """The size of one unit of cost, and conversions.

    Args:
        step: Cost of one unit (seconds, if costs are seconds); a power of two.
        terms: Number of costs that a choice adds up: one per node and edge.
        exact: Whether all costs are multiples of the step.
        grain: Units that lie between two different totals at least.
    """

    step: float
    terms: int
    exact: bool
    grain: float

    def whole(self, cost: Floats) -> Floats:
        """Costs as whole units, rounded down; infinite ones stay infinite."""
        units: Floats = np.floor(cost / self.step)
        return units

    def cost(self, units: float) -> float:
        """Whole units as a cost."""
        return units * self.step

    def reachable(self, units: float) -> float:
        """The least total that is not below a bound."""
        return math.ceil(units / self.grain) * self.grain if math.isfinite(units) else units

    @property
    def resolution(self) -> float:
        """How far the optimum in units can lie below the optimum of the problem as given; 0 where nothing is lost."""
        return 0.0 if self.exact else self.step * self.terms


def units_of(problem: Problem) -> Units:
    """The finest step with headroom for the sum of all largest entries."""
    arrays = [*problem.costs, *(edge.cost for edge in problem.edges)]
    largest = sum(float(np.maximum.reduceat(np.abs(entries), starts).sum()) for entries, starts in _chunks(arrays))
    if largest == 0.0:
        return Units(step=1.0, terms=len(arrays), exact=True, grain=1.0)
    step = 2.0 ** math.ceil(math.log2(largest / HEADROOM))
    exact = all(_is_whole(entries / step) for entries, _ in _chunks(arrays))
    whole = step < 1.0 and all(_is_whole(entries) for entries, _ in _chunks(arrays))
    return Units(step=step, terms=len(arrays), exact=exact, grain=1.0 / step if whole else 1.0)


def _chunks(arrays: Sequence[Floats]) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    """The finite entries (zeros for others) of a few arrays at a time, and where each array's start."""
    sizes = np.array([array.size for array in arrays], dtype=np.int64)
    chunk = np.cumsum(sizes) // CHUNK
    bounds = [*np.flatnonzero(np.diff(chunk, prepend=-1)).tolist(), len(arrays)]
    for first, last in pairwise(bounds):
        part = [array.ravel() for array in arrays[first:last] if array.size]
        if part:
            entries = np.concatenate(part)
            entries[np.isinf(entries)] = 0.0
            yield entries, np.cumsum([0, *(array.size for array in part[:-1])])


def _is_whole(entries: Floats) -> bool:
    return bool((np.floor(entries) == entries).all())
