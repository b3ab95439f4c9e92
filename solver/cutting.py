"""Prices of memory by cutting planes: the cheapest mixture of choices that fits tells what memory is worth.

Variables: a weight w[k] for every choice seen, and the share s of `worth` that is paid for what does not fit.

    minimise    sum_k cost[k] w[k] + worth s
    subject to  sum_k w[k] = 1
                sum_k held[k, t] w[k] <= room[t] (1 + s)     for every memory row t that some choice overfills

The shadow prices of the rows maximise the bound that the choices seen allow. At these prices, or between them and the
best ones so far, the cheapest choice of all is sought; it is the next column (J. E. Kelley, Journal of the SIAM 8,
1960; between: P. Wentges, International Transactions in Operational Research 4, 1997). Few rows have a price other
than zero, never more than there are choices: what is live nowhere near them costs what it costs.
"""

import math
from dataclasses import dataclass

import numpy as np

from .backend import Backend, LinearModel, run_backend
from .problem import Floats

STRIDE = 0.5  # how far prices move from the best ones towards those of the mixture, after a step that was too long
MOST_FAILURES = 10  # prices tried in a row that prove no more
DEARER = 4.0  # factor of the worth while nothing that was seen fits


@dataclass(frozen=True, slots=True)
class _Mixture:
    prices: Floats
    unpaid: float
    bound: float


class Cuts:
    """The choices seen, and the prices that are best so far; changed in place by `add`.

    Attributes:
        best: Units per byte of each memory row: of all prices tried those that prove most.
        bound: What they prove.
    """

    def __init__(self, room: Floats, worth: float) -> None:
        """Start at prices of zero.

        Args:
            room: Bytes of each row.
            worth: Units that all room may cost in all; raised as needed.
        """
        self.best: Floats = np.zeros(len(room))
        self.bound: float = -math.inf
        self._room = np.maximum(room, 1.0)
        self._worth = worth
        self._tried = self.best
        self._stride = 1.0
        self._failures = 0
        self._costs: list[float] = []
        self._fills: list[Floats] = []

    def add(self, bound: float, cost: float, held: Floats) -> None:
        """Note what the prices tried last prove, and the cheapest choice at them.

        Args:
            bound: Units that every choice that fits costs at least.
            cost: Units that the choice costs.
            held: Bytes that it holds per row.
        """
        better = bound > self.bound
        self._stride = min(2 * self._stride, 1.0) if better else STRIDE
        self._failures = 0 if better else self._failures + 1
        if better:
            self.best, self.bound = self._tried, bound
        self._costs.append(cost)
        self._fills.append(held / self._room)

    def next_prices(self, seconds: float, gap: float) -> Floats | None:
        """The next prices to try.

        Args:
            seconds: Time for the backend.
            gap: Relative distance of what is proven to what can be, at which prices are good enough.

        Returns:
            Units per byte of each row; None if no prices prove more by so much, if the last ones tried did not, or if
            the backend has no answer.
        """
        if self._failures >= MOST_FAILURES:
            return None
        mixture = self._mixture(seconds)
        if mixture is not None and mixture.unpaid > 0.0 and (self._fills[-1] > 1.0).any() and self._tried.any():
            self._worth *= DEARER
            mixture = self._mixture(seconds)
        if mixture is None or mixture.bound - self.bound <= gap * abs(self.bound):
            return None
        self._tried = self.best + self._stride * (mixture.prices - self.best)
        return self._tried

    def _mixture(self, seconds: float) -> _Mixture | None:
        fills, costs = np.array(self._fills), np.array(self._costs)
        rows = np.flatnonzero((fills > 1.0).any(axis=0))
        count, least = len(costs), float(costs.min())
        table = np.zeros((1 + len(rows), count + 1))
        table[0, :count] = 1.0
        table[1:, :count] = fills[:, rows].T - 1.0
        table[1:, count] = -1.0
        row, column = np.nonzero(table)
        model = LinearModel(
            cost=np.append((costs - least) / self._worth, 1.0),
            whole=np.zeros(count + 1, dtype=bool),
            row_lower=np.append(1.0, np.full(len(rows), -np.inf)),
            row_upper=np.append(1.0, np.zeros(len(rows))),
            rows=row,
            columns=column,
            entries=table[row, column],
        )
        outcome = run_backend(model, Backend.GLOP, seconds=seconds, relaxed=True)
        if not len(outcome.values) or len(outcome.duals) != len(table):
            return None
        prices = np.zeros(len(self._room))
        prices[rows] = np.maximum(-outcome.duals[1:], 0.0) * self._worth / self._room[rows]
        bound = float(model.cost @ outcome.values) * self._worth + least
        return _Mixture(prices, float(outcome.values[count]), bound)
