"""Costs become whole numbers here, once: every later sum is exact, in any order and on any machine.

A float64 holds whole numbers up to 2**53 exactly. Costs are divided by a power of two, the *step*, and rounded down so
that the sum of all largest entries stays below 2**50; rounding down keeps every lower bound valid for the problem as
given. Costs that are whole numbers already, and small enough, keep step 1 and lose nothing.
"""

import math
from dataclasses import dataclass

import numpy as np

from .problem import Floats, Problem

HEADROOM = 2.0**50


@dataclass(frozen=True, slots=True)
class Units:
    """The size of one unit of cost, and conversions.

    Args:
        step: Cost of one unit (seconds, if costs are seconds); a power of two.
        terms: Number of costs that a choice adds up: one per node and edge.
    """

    step: float
    terms: int

    def whole(self, cost: Floats) -> Floats:
        """Costs as whole units, rounded down; infinite ones stay infinite."""
        units: Floats = np.floor(cost / self.step)
        return units

    def cost(self, units: float) -> float:
        """Whole units as a cost."""
        return units * self.step

    @property
    def resolution(self) -> float:
        """How far the optimum in units can lie below the optimum of the problem as given; 0 for whole costs."""
        return 0.0 if self.step == 1.0 else self.step * self.terms


def units_of(problem: Problem) -> Units:
    """The finest step with headroom for the sum of all largest entries; 1 for whole costs that fit."""
    arrays = [*problem.costs, *(edge.cost for edge in problem.edges)]
    largest = math.fsum(_largest(array) for array in arrays)
    whole = largest < HEADROOM and all(_is_whole(array) for array in arrays)
    step = 1.0 if whole or largest == 0.0 else 2.0 ** math.ceil(math.log2(largest / HEADROOM))
    return Units(step=step, terms=len(arrays))


def _largest(array: Floats) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _is_whole(array: Floats) -> bool:
    return bool(np.all((np.floor(array) == array) | np.isinf(array)))
