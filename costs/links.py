"""Links: the physical dimensions of a network, and what was measured on them."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Topology = Literal["switch", "ring", "line", "full"]
TORUS: tuple[Topology, ...] = ("ring", "line")
"""Topologies whose devices pass on what is not for them."""

CollectiveKind = Literal["all-gather", "all-reduce", "reduce-scatter", "all-to-all", "permute"]


class Frozen(BaseModel):
    """Settings of the boundary models: values that neither change nor take unknown fields."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class CollectiveFit(Frozen):
    """A time law fitted to measurements of one collective: what it takes among n devices that send s bytes each.

    `base_s + hop_s (n - 1) + s (1 + small_group_ratio / n) / bytes_per_s + 2 sqrt(fill_s s / bytes_per_s)`

    The last term is a pipeline that fills and drains: cut in k chunks that each cost `fill_s`, the message takes
    `k fill_s + s / bytes_per_s / k` longer, which the best k makes twice the root of the product.

    Attributes:
        kind: The collective.
        base_s: Seconds that it takes however small it is.
        hop_s: Seconds per further device.
        bytes_per_s: What one device sends, in the limit of large messages and groups.
        small_group_ratio: How much slower a group of n is, times n: few devices use few of the cables.
        fill_s: Seconds that one chunk of a pipeline costs.
    """

    kind: CollectiveKind
    base_s: float = Field(ge=0)
    hop_s: float = Field(default=0.0, ge=0)
    bytes_per_s: float = Field(gt=0)
    small_group_ratio: float = Field(default=0.0, ge=0)
    fill_s: float = Field(default=0.0, ge=0)

    def latency_s(self, size: int) -> float:
        """Seconds of an empty collective among `size` devices."""
        return self.base_s + self.hop_s * (size - 1)

    def s_per_byte(self, size: int) -> float:
        """Seconds per byte sent among `size` devices."""
        return (1 + self.small_group_ratio / size) / self.bytes_per_s

    def fill_s2_per_byte(self) -> float:
        """The square of the pipeline's seconds, per byte sent."""
        return 4 * self.fill_s / self.bytes_per_s

    def seconds(self, size: int, sent_bytes: float) -> float:
        """The time of a collective in which each of `size` devices sends `sent_bytes`."""
        linear_s = self.latency_s(size) + self.s_per_byte(size) * sent_bytes
        return linear_s + math.sqrt(self.fill_s2_per_byte() * sent_bytes)


class Link(Frozen):
    """One physical dimension of the network, or a part of it.

    Attributes:
        topology: `ring` (wraps around, used both ways), `line` (a torus dimension that does not wrap), `switch` (every
            pair at full speed) or `full` (a cable between every pair).
        size: Number of devices along it.
        bytes_per_s: What one link carries one way (`ring`, `line`, `full`), or what one device sends in all (`switch`).
        latency_s: Seconds per hop (`ring`, `line`), or per collective (`switch`, `full`).
        fits: Measured laws; they take the place of the formulas for the collectives they name.
        fabric: Links of one fabric share the work of a collective; different fabrics are levels of a hierarchy.
    """

    topology: Topology
    size: int = Field(ge=1)
    bytes_per_s: float = Field(gt=0)
    latency_s: float = Field(ge=0)
    fabric: str = "network"
    fits: tuple[CollectiveFit, ...] = ()

    @field_validator("fits", mode="before")
    @classmethod
    def _fits_from_json(cls, fits: object) -> object:
        return tuple(fits) if isinstance(fits, list) else fits

    @field_validator("fits")
    @classmethod
    def _one_fit_of_a_kind(cls, fits: tuple[CollectiveFit, ...]) -> tuple[CollectiveFit, ...]:
        kinds = [fit.kind for fit in fits]
        twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        if twice:
            raise ValueError(f"two laws for {twice[0]}: a link carries one for each collective")
        return fits

    def fit(self, kind: CollectiveKind) -> CollectiveFit | None:
        """What was measured for a collective, if anything."""
        return next((fit for fit in self.fits if fit.kind == kind), None)

    def part(self, *, size: int, stride: int) -> Link:
        """Every `stride`-th device of the link, `size` of them.

        Devices of a torus dimension that are not neighbours reach each other through those in between: a hop takes
        `stride` times as long, and the `stride` interleaved groups share the wires. A part that does not go all the way
        round does not wrap.

        Args:
            size: Number of devices.
            stride: How far apart they are; together they have to divide the link.
        """
        if size < 1 or stride < 1 or self.size % (size * stride):
            raise ValueError(f"a link of {self.size} devices has no part of {size} at a stride of {stride}")
        if size == self.size:
            return self
        if self.topology in ("switch", "full"):
            return self.model_copy(update={"size": size})
        return self.model_copy(
            update={
                "size": size,
                "topology": self.topology if size * stride == self.size else "line",
                "bytes_per_s": self.bytes_per_s / stride,
                "latency_s": self.latency_s * stride,
            }
        )


def cut_links(links: tuple[Link, ...], start: int, stop: int) -> list[Link]:
    """The parts of links, major first, between two boundaries given as products of what is major of them.

    A boundary may fall inside a link at a place that does not divide it (6 devices as 3 of 2 on links of 2 and 3). The
    devices in between then lie across several links, and are taken to share the slowest one.
    """
    cut, major = [], 1
    for link in links:
        low, high = max(major, start), min(major * link.size, stop)
        if high > low:
            if low % major or high % low or major * link.size % high:
                return [_across(links, stop // start)]
            cut.append(link.part(size=high // low, stride=major * link.size // high))
        major *= link.size
    return cut


def _across(links: tuple[Link, ...], size: int) -> Link:
    slowest = min(links, key=lambda link: link.bytes_per_s)
    topology = "line" if slowest.topology in TORUS else "switch"
    latency_s = sum(link.latency_s for link in links)
    return slowest.model_copy(update={"topology": topology, "size": size, "latency_s": latency_s, "fits": ()})
