"""Prices of memory, one per byte and row: raised where choices overfill a row, lowered where they leave room.

The update is multiplicative, as in the multiplicative weights method (S. Arora, E. Hazan, S. Kale, Theory of Computing
8, 2012): it finds the few rows of thousands that matter, and the size of the costs does not.
"""

import numpy as np

from .problem import Floats

FIRST_PACE = 0.1  # relative change of a price per iteration and per room's worth of excess
HALVED_AFTER = 100  # iterations after which the pace is halved; it falls like 1 / iterations
SMOOTHING = 0.1  # weight of the last choice in the average of what choices hold
MOST_CHANGE = 0.3  # relative change of a price in one iteration
FLOOR = 1e-12  # least price, relative to the highest


class Pricing:
    """Prices of the memory rows, changed in place by `update`.

    Attributes:
        prices: Units per byte of each row.
    """

    def __init__(self, room: Floats, worth: float) -> None:
        """Start with equal prices.

        Args:
            room: Bytes of each row.
            worth: Units that all the room costs at first.
        """
        self._room = np.maximum(room, 1.0)
        self.prices: Floats = max(worth, 1.0) / len(room) / self._room
        self._held: Floats | None = None
        self._iterations = 0

    def update(self, held: Floats) -> Floats:
        """Change the prices after a choice that holds so many bytes per row."""
        fill = held / self._room
        self._held = fill if self._held is None else (1 - SMOOTHING) * self._held + SMOOTHING * fill
        pace = FIRST_PACE * HALVED_AFTER / (HALVED_AFTER + self._iterations)
        change = np.clip(pace * (self._held - 1.0), -MOST_CHANGE, MOST_CHANGE)
        prices = self.prices * (1.0 + change)
        self.prices = np.maximum(prices, FLOOR * prices.max())
        self._iterations += 1
        return self.prices
