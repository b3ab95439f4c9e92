"""When to stop: by wall time, or by work, which is the same on any machine."""

import math
import time
from dataclasses import dataclass, field

WORK_PER_SECOND = 3e8  # table entries touched in a second of an ordinary core; turns time limits into work and back


@dataclass(slots=True)
class Clock:
    """Counts time or work; changed in place by `spend`.

    Args:
        limit_s: Seconds from the clock's start.
        work_limit: Table entries that may be touched; with it, time is not looked at.
    """

    limit_s: float
    work_limit: float | None = None
    begin: float = field(default_factory=time.monotonic)
    work: float = 0.0

    def spend(self, entries: float) -> None:
        """Note that so many table entries were touched."""
        self.work += entries

    @property
    def elapsed_s(self) -> float:
        """Wall seconds since the start."""
        return time.monotonic() - self.begin

    @property
    def left_s(self) -> float:
        """Seconds left; with a work limit, the work left at the pace of an ordinary core."""
        if self.work_limit is not None:
            return max(0.0, self.work_limit - self.work) / WORK_PER_SECOND
        return max(0.0, self.limit_s - self.elapsed_s)

    @property
    def left_work(self) -> float:
        """Table entries that may still be touched; any number without a work limit."""
        return math.inf if self.work_limit is None else self.work_limit - self.work

    @property
    def patience_s(self) -> float:
        """Seconds that a backend may take: all that are left, or any number under a work limit."""
        return self.left_s if self.work_limit is None else math.inf

    @property
    def expired(self) -> bool:
        """Whether to stop."""
        return self.left_s <= 0.0

    def part(self, seconds: float) -> "Clock":
        """A clock for a part of the time that is left; what it spends has to be noted here, too."""
        seconds = min(seconds, self.left_s)
        work = None if self.work_limit is None else seconds * WORK_PER_SECOND
        return Clock(limit_s=seconds, work_limit=work)
