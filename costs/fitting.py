"""Fitting time laws to measured collectives, and saying how well they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .laws import sent_per_byte
from .links import CollectiveFit, CollectiveKind

Array = NDArray[np.float64]

_ROUNDS = 30
_TOLERATED = 0.03  # relative errors below this weigh alike: measurements repeat no better


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured collective.

    Attributes:
        kind: The collective.
        size: Devices that took part in a group.
        nbytes: Bytes, as the cost function of the collective counts them.
        seconds: Median time.
    """

    kind: CollectiveKind
    size: int
    nbytes: float
    seconds: float

    def __post_init__(self) -> None:
        if not (self.size >= 2 and self.nbytes > 0 and self.seconds > 0):
            raise ValueError(
                f"a measured {self.kind} among {self.size} devices of {self.nbytes} bytes in {self.seconds} s: "
                "it takes at least 2 devices, some bytes and some time"
            )

    @property
    def sent_bytes(self) -> float:
        """Bytes that one device sent, by ring formulas."""
        return self.nbytes * sent_per_byte(self.kind, self.size)


def fit_collective(measurements: Sequence[Measurement]) -> CollectiveFit:
    """The law that comes closest to the measurements of one collective, in relative error.

    Large errors count less than by their square (iteratively reweighted least squares), so that single outliers do not
    bend the law. Every coefficient is at least 0. With one group size only, nothing is said about others; of permutes
    it does not matter, because every device sends to one other.

    Example:
        >>> sizes = (1_000, 10_000, 100_000, 1_000_000)
        >>> runs = [Measurement(kind="all-gather", size=4, nbytes=s, seconds=1e-6 + 0.75e-9 * s) for s in sizes]
        >>> round(fit_collective(runs).seconds(4, 75_000) * 1e6)  # to gather 100,000 bytes, each sends 75,000
        76
    """
    if len(measurements) < 2:
        raise ValueError(f"a time law needs at least 2 measurements, got {len(measurements)}")
    kinds = {measurement.kind for measurement in measurements}
    if len(kinds) > 1:
        raise ValueError(f"a time law is of one collective, got measurements of {', '.join(sorted(kinds))}")
    sent = np.array([measurement.sent_bytes for measurement in measurements])
    sizes = np.array([measurement.size for measurement in measurements], dtype=np.float64)
    seconds = np.array([measurement.seconds for measurement in measurements])
    columns = [np.ones_like(sent), sizes - 1, sent, sent / sizes, np.sqrt(sent)]
    if len(set(sizes)) == 1 or kinds == {"permute"}:
        columns[1], columns[3] = np.zeros_like(sent), np.zeros_like(sent)
    base, hop, per_byte, small_group, root = _relative_fit(np.stack(columns, axis=1), seconds)
    per_byte = max(per_byte, seconds.min() / sent.max() * 1e-9)  # measurements that show no bandwidth limit at all
    return CollectiveFit(
        kind=measurements[0].kind,
        base_s=base,
        hop_s=hop,
        bytes_per_s=1 / per_byte,
        small_group_ratio=small_group / per_byte,
        fill_s=root**2 / (4 * per_byte),
    )


def relative_errors(fit: CollectiveFit, measurements: Sequence[Measurement]) -> Array:
    """Modelled over measured time, minus 1, of every measurement.

    Example:
        >>> sizes = (1_000, 10_000, 100_000, 1_000_000)
        >>> runs = [Measurement(kind="all-gather", size=4, nbytes=s, seconds=1e-6 + 0.75e-9 * s) for s in sizes]
        >>> bool(abs(relative_errors(fit_collective(runs), runs)).max() < 0.01)
        True
    """
    return np.array([fit.seconds(m.size, m.sent_bytes) / m.seconds - 1 for m in measurements])


def _relative_fit(columns: Array, seconds: Array) -> list[float]:
    """Non-negative coefficients of the columns, `[measurements, coefficients]`."""
    relative = columns / seconds[:, None]
    scale = np.abs(relative).mean(axis=0)
    scale[scale == 0] = 1.0
    weights = np.ones_like(seconds)
    solution = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        solution = _non_negative(relative / scale * root[:, None], root)
        weights = 1 / np.maximum(np.abs(relative / scale @ solution - 1), _TOLERATED)
    return [float(value) for value in solution / scale]


def _non_negative(columns: Array, wanted: Array) -> Array:
    """Least squares with coefficients of at least 0: the best of all subsets of columns, of which there are few."""
    corner = np.linalg.qr(np.column_stack([columns, wanted])).R  # the same problem in as few rows as unknowns
    columns, wanted = corner[:, :-1], corner[:, -1]
    subsets = _subsets(columns.shape[1])
    inverses = np.linalg.pinv(np.where(subsets[:, None, :], columns, 0.0), rcond=1e-13)
    found = np.where(subsets, inverses @ wanted, 0.0)
    errors = np.sum((found @ columns.T - wanted) ** 2, axis=1)
    errors[(found < 0).any(axis=1)] = np.inf
    best = np.flatnonzero(errors <= errors.min() + 1e-12)[0]
    return np.asarray(found[best], dtype=np.float64)


@lru_cache
def _subsets(count: int) -> NDArray[np.bool_]:
    """All subsets of so many things, smaller ones first, `[subsets, things]`."""
    every = np.array(list(product((False, True), repeat=count)))
    return every[np.argsort(every.sum(axis=1), kind="stable")]
