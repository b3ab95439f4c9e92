"""Published collective times of GPUs, as measurements of the cost model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from autoshard.costs.fitting import Measurement
from autoshard.costs.links import CollectiveKind

Seen = list[Measurement]
Unseen = list[Measurement]

SMALLEST_FITTED_BYTES = 1 << 18
"""Below this, times are launches and outliers."""

KINDS: dict[str, CollectiveKind] = {
    "all-gather": "all-gather",
    "all-reduce": "all-reduce",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
    "collective-permute": "permute",
}


def published(device: str) -> dict[CollectiveKind, dict[int, list[Measurement]]]:
    """Measurements of one device by collective and group size, ascending in bytes."""
    table = json.loads((Path(__file__).parent / "data" / "measured_collectives.json").read_text())[device]
    found: dict[CollectiveKind, dict[int, list[Measurement]]] = {}
    for label, kind, size in _series(table):
        series = [
            Measurement(kind=kind, size=size, nbytes=nbytes, seconds=microseconds * 1e-6)
            for nbytes, microseconds in table[label]
            if nbytes >= SMALLEST_FITTED_BYTES
        ]
        before = found.setdefault(kind, {}).get(size, [])
        found[kind][size] = sorted([*before, *series], key=lambda point: point.nbytes)
    return found


def held_out(by_size: dict[int, list[Measurement]], *, same_group: bool = False) -> Iterator[tuple[Seen, Unseen]]:
    """What to fit a law of one collective to, and what to test it on, until every point has been tested once.

    A law is tested on one group size and every other message size, having seen the other message sizes of the other
    group sizes, or of this one too where there are too few.
    """
    sizes = sorted({point.nbytes for points in by_size.values() for point in points})
    for group, tested in by_size.items():
        others = [points for size, points in by_size.items() if size != group or same_group]
        for half in (set(sizes[::2]), set(sizes[1::2])):
            seen = [point for points in others for point in points if point.nbytes not in half]
            yield seen, [point for point in tested if point.nbytes in half]


def _series(table: dict[str, list[list[float]]]) -> Iterator[tuple[str, CollectiveKind, int]]:
    for label in table:
        name, groups = label.split("|", 1)
        if "one-way" not in groups:  # every device sends and receives in the others
            yield label, KINDS[name], int(groups.replace("=", "x").rsplit("x", 1)[1])
