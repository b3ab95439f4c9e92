"""The algebra of costs: parts stay apart until one place turns them into seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an operation costs one device: a commutative monoid under `+`, scaled by `*`.

    Laws: `ZERO_COST + c == c`, `a + b == b + a`, `0 * c == ZERO_COST`, `k * (a + b) == k * a + k * b`.

    Attributes:
        compute_s: Seconds of arithmetic and local memory traffic (a roofline maximum of the two).
        communication_s: Seconds in which a network link is busy moving bytes.
        latency_s: Seconds of waiting that no bandwidth removes: hops, launches.
        wire_bytes: Bytes that one device sends, by ring formulas.
        flops: Floating point operations of one device.
        memory_traffic_bytes: Bytes that one device reads and writes in its own memory.
    """

    compute_s: float = 0.0
    communication_s: float = 0.0
    latency_s: float = 0.0
    wire_bytes: float = 0.0
    flops: float = 0.0
    memory_traffic_bytes: float = 0.0

    @property
    def seconds(self) -> float:
        """The one place where a cost becomes time: the plain sum, nothing overlaps."""
        return self.compute_s + self.communication_s + self.latency_s

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            compute_s=self.compute_s + other.compute_s,
            communication_s=self.communication_s + other.communication_s,
            latency_s=self.latency_s + other.latency_s,
            wire_bytes=self.wire_bytes + other.wire_bytes,
            flops=self.flops + other.flops,
            memory_traffic_bytes=self.memory_traffic_bytes + other.memory_traffic_bytes,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(
            compute_s=self.compute_s * times,
            communication_s=self.communication_s * times,
            latency_s=self.latency_s * times,
            wire_bytes=self.wire_bytes * times,
            flops=self.flops * times,
            memory_traffic_bytes=self.memory_traffic_bytes * times,
        )

    __rmul__ = __mul__


ZERO_COST = Cost()
