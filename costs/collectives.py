"""What a collective costs: one function each, (bytes, axes, mesh) -> Cost.

Every function returns the time that the topology allows and the bytes that one device sends by ring formulas. Symbols:
V bytes of the full array, s bytes of a shard, n devices, w bytes per second of one link one way, a seconds per hop.

| | ring (both ways, whole shards) | line | switch |
|---|---|---|---|
| all-gather, reduce-scatter | max(a h, h V / (n w)), h = n // 2 | max(a (n-1), V (n-1) / (n w)) | a + V (n-1) / (n w) |
| all-to-all | max(a h, s c / (2 n w)), c = n*n // 4 | max(a (n-1), s c / (n w)) | a + s (n-1) / (n w) |
| permute | max(a h, s max(1, n/8) / w) | max(a (n-1), s max(1, n/4) / w) | a + s / w |

The ring's h steps move one whole shard each way, so for an even n its bandwidth time is V / (2 w), whatever n is. An
all-to-all on a ring is bound by the load of a link: n*n // 4 shard pieces per device travel, over 2 n directed links.
A permute is charged as traffic between random pairs, bound by the middle cut. An all-reduce is a reduce-scatter and an
all-gather.

Axes of one fabric share a collective: torus axes add their rates, switch axes are one larger switch. Different fabrics
(within and between hosts) are a hierarchy: the outer one moves the part that the inner one has split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .cost import ZERO_COST, Cost
from .mesh import Link, MeshModel

CollectiveKind = Literal["all-gather", "all-reduce", "reduce-scatter", "all-to-all", "permute"]


@dataclass(frozen=True, slots=True)
class _Term:
    """Seconds per byte and latency of one level of the network; `bound` says that the larger counts, not the sum."""

    s_per_byte: float
    latency_s: float
    bound: bool


@dataclass(frozen=True, slots=True)
class CollectiveLaw:
    """The time of one collective over one group of devices, as a function of its bytes.

    Attributes:
        terms: One per level of the network.
        overlap: Whether the levels run in a pipeline, so that the slowest counts.
        wire_bytes_per_byte: Bytes sent by one device per byte asked for.
    """

    terms: tuple[_Term, ...]
    overlap: bool
    wire_bytes_per_byte: float

    def cost(self, nbytes: float) -> Cost:
        """The cost of the collective for `nbytes` (the meaning of the bytes depends on the kind)."""
        if not self.terms:
            return ZERO_COST
        busy_s = [term.s_per_byte * nbytes for term in self.terms]
        wait_s = [max(0.0, t.latency_s - busy) if t.bound else t.latency_s for t, busy in zip(self.terms, busy_s)]
        wire_bytes = self.wire_bytes_per_byte * nbytes
        if self.overlap:
            slowest = max(range(len(self.terms)), key=lambda i: busy_s[i] + wait_s[i])
            return Cost(communication_s=busy_s[slowest], latency_s=wait_s[slowest], wire_bytes=wire_bytes)
        return Cost(communication_s=sum(busy_s), latency_s=sum(wait_s), wire_bytes=wire_bytes)

    def seconds(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """`cost(b).seconds` for every b of an array."""
        total = np.zeros_like(nbytes)
        for term in self.terms:
            busy_s = term.s_per_byte * nbytes
            level_s = np.maximum(busy_s, term.latency_s) if term.bound else busy_s + term.latency_s
            total = np.maximum(total, level_s) if self.overlap else total + level_s
        return total


def all_gather(nbytes: float, axes: Sequence[str], mesh: MeshModel, wire_scale: float = 1.0) -> Cost:
    """Collects the shards along `axes`.

    Args:
        nbytes: Bytes of the gathered result on one device.
        axes: Mesh axes gathered over.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.
    """
    return collective_law("all-gather", tuple(axes), mesh).cost(nbytes * wire_scale)


def reduce_scatter(nbytes: float, axes: Sequence[str], mesh: MeshModel, wire_scale: float = 1.0) -> Cost:
    """Sums along `axes` and leaves every device its shard; costs what gathering the result back would.

    Args:
        nbytes: Bytes of the unreduced input on one device.
        axes: Mesh axes summed over.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.
    """
    return collective_law("reduce-scatter", tuple(axes), mesh).cost(nbytes * wire_scale)


def all_reduce(nbytes: float, axes: Sequence[str], mesh: MeshModel, wire_scale: float = 1.0) -> Cost:
    """Sums along `axes` and leaves every device the whole sum.

    Args:
        nbytes: Bytes of the tensor on one device.
        axes: Mesh axes summed over.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.
    """
    return collective_law("all-reduce", tuple(axes), mesh).cost(nbytes * wire_scale)


def all_to_all(nbytes: float, axes: Sequence[str], mesh: MeshModel, wire_scale: float = 1.0) -> Cost:
    """Moves a split from one dimension to another.

    Args:
        nbytes: Bytes of the shard of one device (the same before and after).
        axes: Mesh axes that change their dimension.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.
    """
    return collective_law("all-to-all", tuple(axes), mesh).cost(nbytes * wire_scale)


def collective_permute(nbytes: float, axes: Sequence[str], mesh: MeshModel, wire_scale: float = 1.0) -> Cost:
    """Every device sends its shard to another one, anywhere along `axes`.

    Args:
        nbytes: Bytes of the shard of one device.
        axes: Mesh axes along which the shards travel.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.
    """
    return collective_law("permute", tuple(axes), mesh).cost(nbytes * wire_scale)


@lru_cache(maxsize=1 << 14)
def collective_law(kind: CollectiveKind, axes: tuple[str, ...], mesh: MeshModel) -> CollectiveLaw:
    """The time law of `kind` over `axes`; axes of size 1 drop out."""
    levels = _levels(axes, mesh)
    size = _size([link for level in levels for link in level])
    terms, inner = [], size
    for level in levels:
        inner //= _size(level)
        terms.append(_TERMS[kind](level, inner))
    return CollectiveLaw(tuple(terms), mesh.levels_overlap, _wire_bytes_per_byte(kind, size))


def _wire_bytes_per_byte(kind: CollectiveKind, size: int) -> float:
    """Bytes that one of `size` devices sends per byte asked for, by ring formulas."""
    if size == 1:
        return 0.0
    if kind == "permute":
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (size - 1) / size


def _levels(axes: tuple[str, ...], mesh: MeshModel) -> list[list[Link]]:
    """The links along `axes`, grouped by fabric, slow fabrics first."""
    links = [link for axis in axes for link in mesh.links(axis) if link.size > 1]
    rate_of = {
        fabric: min(link.bytes_per_s for link in links if link.fabric == fabric)
        for fabric in dict.fromkeys(link.fabric for link in links)
    }
    ordered = sorted(links, key=lambda link: (rate_of[link.fabric], link.fabric))
    return [list(level) for _, level in groupby(ordered, key=lambda link: link.fabric)]


def _size(links: Sequence[Link]) -> int:
    size = 1
    for link in links:
        size *= link.size
    return size


def _is_torus(level: Sequence[Link]) -> bool:
    return level[0].topology in ("ring", "line")


def _hops(link: Link) -> int:
    return link.size // 2 if link.topology == "ring" else link.size - 1


def _switch_term(sent_per_byte: float, level: Sequence[Link]) -> _Term:
    """A switch sends at one rate to all; a full mesh has a cable to each of the others."""
    cables = _size(level) - 1 if level[0].topology == "full" else 1
    rate = cables * min(link.bytes_per_s for link in level)
    return _Term(sent_per_byte / rate, max(link.latency_s for link in level), bound=False)


def _torus_term(s_per_byte: float, level: Sequence[Link]) -> _Term:
    return _Term(s_per_byte, sum(link.latency_s * _hops(link) for link in level), bound=True)


def _gather_term(level: Sequence[Link], inner: int) -> _Term:
    size = _size(level)
    if not _is_torus(level):
        return _switch_term((size - 1) / size / inner, level)
    # Every axis carries its own part of the bytes at the same time, so the rates add.
    rate = sum(link.bytes_per_s * link.size / _hops(link) for link in level)
    return _torus_term(1.0 / rate / inner, level)


def _reduce_term(level: Sequence[Link], inner: int) -> _Term:
    """Scatter and gather; a switch starts only once."""
    once = _gather_term(level, inner)
    return _Term(2 * once.s_per_byte, 2 * once.latency_s if once.bound else once.latency_s, once.bound)


def _exchange_term(level: Sequence[Link], inner: int) -> _Term:
    del inner  # what crosses a level does not shrink with the levels inside it
    size = _size(level)
    if not _is_torus(level):
        return _switch_term((size - 1) / size, level)
    loads = [(link.size**2 // 4) / (link.size * link.bytes_per_s) for link in level]
    return _torus_term(max(load / 2 if link.topology == "ring" else load for load, link in zip(loads, level)), level)


def _permute_term(level: Sequence[Link], inner: int) -> _Term:
    del inner
    if not _is_torus(level):
        return _switch_term(1.0, level)
    cuts = [max(1.0, link.size / (8 if link.topology == "ring" else 4)) / link.bytes_per_s for link in level]
    return _torus_term(max(cuts), level)


_TERMS = {
    "all-gather": _gather_term,
    "reduce-scatter": _gather_term,
    "all-reduce": _reduce_term,
    "all-to-all": _exchange_term,
    "permute": _permute_term,
}
