"""A sign of life while planning takes longer than a second."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autoshard.solver import Progress

logger: logging.Logger = logging.getLogger("autoshard")

QUIET_S = 1.0
"""Planning that ends sooner is not worth a line."""


@contextmanager
def show_progress(name: str) -> Iterator[Callable[[Progress], None]]:
    """Tell what the solver knows: a live line on a terminal, else a log record every few seconds.

    Args:
        name: What is planned.

    Yields:
        A function to call with every `Progress`.
    """
    begin = time.monotonic()
    if not sys.stderr.isatty():
        yield _logging_progress(name, begin)
        return
    from rich.console import Console
    from rich.status import Status

    console = Console(stderr=True)
    status = Status(f"planning {name} ...", console=console)
    started = False

    def show(progress: Progress) -> None:
        nonlocal started
        if not started and time.monotonic() - begin > QUIET_S:
            status.start()
            started = True
        status.update(f"planning {name}: {_describe(progress)}")

    try:
        yield show
    finally:
        status.stop()


def _logging_progress(name: str, begin: float) -> Callable[[Progress], None]:
    last = begin

    def log(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - begin > QUIET_S and now - last > QUIET_S:
            last = now
            logger.info("planning %s: %s", name, _describe(progress))

    return log


def _describe(progress: Progress) -> str:
    known = []
    if math.isfinite(progress.cost):
        known.append(f"best {progress.cost * 1e3:.3g} ms")
    if math.isfinite(progress.bound):
        known.append(f"bound {progress.bound * 1e3:.3g} ms")
    return ", ".join([f"{progress.phase}, {progress.seconds:.0f} s", *known])
