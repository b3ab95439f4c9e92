"""The time of a collective as a function of its bytes: the law of the links that it runs over.

Symbols: V bytes of the full array, s bytes of a shard, n devices, w bytes per second of one link one way, a seconds of
latency.

| | ring (both ways, whole shards) | line | switch |
|---|---|---|---|
| all-gather, reduce-scatter | max(a h, h V / (n w)), h = n // 2 | max(a (n-1), V (n-1) / (n w)) | a + V (n-1) / (n w) |
| all-to-all | max(a h, s c / (2 n w)), c = n*n // 4 | max(a (n-1), s c / (n w)) | a + s (n-1) / (n w) |
| permute | max(a h, s max(1, n/8) / w) | max(a (n-1), s max(1, n/4) / w) | a + s / w |

The ring's h steps move one whole shard each way, so for an even n its bandwidth time is V / (2 w), whatever n is. An
all-to-all on a ring is bound by the load of a link: n*n // 4 shard pieces per device travel, over 2 n directed links.
A permute is charged as traffic between random pairs, bound by the middle cut. An all-reduce is a reduce-scatter and an
all-gather; a switch starts it only once. Where a link carries measurements (`CollectiveFit`), they take the place of
these formulas.

Axes of one fabric share a collective: torus axes add their rates (but no chip takes in more than its links carry: on
lines V (n-1)/n over w for each), switch axes are one larger switch. Different fabrics (within and between hosts) are a
hierarchy: the outer one moves the part that the inner one has split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .cost import ZERO_COST, Cost
from .links import TORUS, CollectiveFit, CollectiveKind, Link
from .mesh import MeshModel

Level = Sequence[Link]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelTerm:
    """The time of one level of the network.

    Attributes:
        s_per_byte: Seconds per byte asked for.
        latency_s: Seconds of an empty collective.
        fill_s2_per_byte: The square of the seconds in which a pipeline fills and drains, per byte asked for.
        bound: Whether the larger of bandwidth and latency counts (hops hide behind sending), or their sum.
    """

    s_per_byte: float
    latency_s: float
    fill_s2_per_byte: float = 0.0
    bound: bool = False

    def busy_s(self, nbytes: float) -> float:
        """Seconds in which the links are busy."""
        return self.s_per_byte * nbytes + math.sqrt(self.fill_s2_per_byte * nbytes)

    def wait_s(self, nbytes: float) -> float:
        """Seconds of latency on top."""
        return max(0.0, self.latency_s - self.busy_s(nbytes)) if self.bound else self.latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveLaw:
    """The time of one collective over one group of devices.

    Attributes:
        terms: One per level of the network.
        overlap: Whether the levels run in a pipeline, so that the slowest counts.
        wire_bytes_per_byte: Bytes that one device sends, per byte asked for.
    """

    terms: tuple[LevelTerm, ...]
    overlap: bool
    wire_bytes_per_byte: float

    def cost(self, nbytes: float) -> Cost:
        """The cost for `nbytes`, whose meaning depends on the collective."""
        if not self.terms:
            return ZERO_COST
        parts = [(term.busy_s(nbytes), term.wait_s(nbytes)) for term in self.terms]
        busy_s, wait_s = max(parts, key=sum) if self.overlap else (sum(p[0] for p in parts), sum(p[1] for p in parts))
        return Cost(communication_s=busy_s, latency_s=wait_s, wire_bytes=self.wire_bytes_per_byte * nbytes)

    def seconds(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """`cost(b).seconds` for every b of an array."""
        total_s = np.zeros_like(nbytes)
        for term in self.terms:
            busy_s = term.s_per_byte * nbytes + np.sqrt(term.fill_s2_per_byte * nbytes)
            level_s = np.maximum(busy_s, term.latency_s) if term.bound else busy_s + term.latency_s
            total_s = np.maximum(total_s, level_s) if self.overlap else total_s + level_s
        return total_s


@lru_cache(maxsize=1 << 14)
def collective_law(kind: CollectiveKind, axes: tuple[str, ...], mesh: MeshModel) -> CollectiveLaw:
    """The law of `kind` over `axes`; axes of size 1 drop out."""
    _check_disjoint(axes, mesh)
    levels = _levels(axes, mesh)
    size = _size([link for level in levels for link in level])
    terms, inner = [], size
    for level in levels:
        inner //= _size(level)
        terms.append(_term(kind, level, inner))
    return CollectiveLaw(terms=tuple(terms), overlap=mesh.levels_overlap, wire_bytes_per_byte=sent_per_byte(kind, size))


def sent_per_byte(kind: CollectiveKind, size: int) -> float:
    """Bytes that one of `size` devices sends per byte asked for, by ring formulas."""
    if size == 1:
        return 0.0
    if kind == "permute":
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (size - 1) / size


def _check_disjoint(axes: tuple[str, ...], mesh: MeshModel) -> None:
    for one, other in pairwise(sorted(axes, key=mesh.place)):
        (axis, major), (next_axis, next_major) = mesh.place(one), mesh.place(other)
        if axis == next_axis and next_major < major * mesh.size(one):
            raise ValueError(f"a collective runs over every axis once: {one!r} and {other!r} overlap")


def _levels(axes: tuple[str, ...], mesh: MeshModel) -> list[list[Link]]:
    """The links along `axes`, grouped by fabric: slow fabrics first, equally fast ones as they lie in the mesh."""
    links = [link for axis in mesh.joined(axes) for link in mesh.links(axis) if link.size > 1]
    fabrics: dict[str, list[Link]] = {}
    for link in links:
        fabrics.setdefault(link.fabric, []).append(link)
    return sorted(fabrics.values(), key=lambda level: min(link.bytes_per_s for link in level))


def _size(level: Level) -> int:
    return math.prod(link.size for link in level)


def _term(kind: CollectiveKind, level: Level, inner: int) -> LevelTerm:
    """The term of one level, inside which `inner` devices split what it moves."""
    share = 1 if kind in ("all-to-all", "permute") else inner  # what those send across does not shrink inside
    fits = [fit for link in level if (fit := link.fit(kind)) is not None]
    if len(fits) == len(level):
        return _fitted(fits, sent_per_byte(kind, _size(level)) / share, _size(level))
    if level[0].topology not in TORUS:
        return _switched(sent_per_byte(kind, _size(level)) / share, level)
    hops_s = sum(link.latency_s * _hops(link) for link in level) * (2 if kind == "all-reduce" else 1)
    return LevelTerm(s_per_byte=_TORUS_S_PER_BYTE[kind](level) / share, latency_s=hops_s, bound=True)


def _fitted(fits: list[CollectiveFit], sent: float, size: int) -> LevelTerm:
    """Measurements of the same collective along several axes: the slowest counts."""
    return LevelTerm(
        s_per_byte=sent * max(fit.s_per_byte(size) for fit in fits),
        latency_s=max(fit.latency_s(size) for fit in fits),
        fill_s2_per_byte=sent * max(fit.fill_s2_per_byte() for fit in fits),
    )


def _switched(sent: float, level: Level) -> LevelTerm:
    """A switch sends at one rate to all; a full mesh has a cable to each of the others."""
    cables = _size(level) - 1 if level[0].topology == "full" else 1
    rate = cables * min(link.bytes_per_s for link in level)
    return LevelTerm(s_per_byte=sent / rate, latency_s=max(link.latency_s for link in level))


def _hops(link: Link) -> int:
    return link.size // 2 if link.topology == "ring" else link.size - 1


def _torus_gather(level: Level) -> float:
    """Every axis carries its own part of the bytes at the same time: rates add, up to what a corner can take in."""
    size = _size(level)
    corner_rate = sum(link.bytes_per_s * (2 if link.topology == "ring" else 1) for link in level)
    together = 1.0 / sum(link.bytes_per_s * link.size / _hops(link) for link in level)
    return max(together, (size - 1) / size / corner_rate)


def _torus_reduce(level: Level) -> float:
    return 2 * _torus_gather(level)


def _torus_exchange(level: Level) -> float:
    """The load of the busiest link, whichever axis it lies on."""
    return max(
        link.size**2 // 4 / (link.size * link.bytes_per_s) / (2 if link.topology == "ring" else 1) for link in level
    )


def _torus_permute(level: Level) -> float:
    """Random pairs: half of the shards cross the middle of an axis; one shard alone takes one link."""
    return max(max(1.0, link.size / (8 if link.topology == "ring" else 4)) / link.bytes_per_s for link in level)


_TORUS_S_PER_BYTE: dict[CollectiveKind, Callable[[Level], float]] = {
    "all-gather": _torus_gather,
    "reduce-scatter": _torus_gather,
    "all-reduce": _torus_reduce,
    "all-to-all": _torus_exchange,
    "permute": _torus_permute,
}
