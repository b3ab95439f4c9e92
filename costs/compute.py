"""What local work costs: a roofline over arithmetic and memory traffic, and the bytes a spec holds."""

from __future__ import annotations

from collections.abc import Sequence

from .cost import Cost
from .mesh import MeshModel
from .spec import ShardingSpec


def compute_cost(flops: float, nbytes: float, dtype: str, mesh: MeshModel) -> Cost:
    """The roofline of one device: the larger of arithmetic time and memory time.

    Args:
        flops: Floating point operations of one device, on its padded shard.
        nbytes: Bytes that one device reads and writes.
        dtype: Precision of the operands, by numpy's name.
        mesh: The mesh whose device does the work.

    Raises:
        ValueError: A number is negative.

    Example:
        >>> mesh = MeshModel.preset("tpu-v5e", {"x": 4})
        >>> cost = compute_cost(1e12, 1e6, "bfloat16", mesh)
        >>> cost.compute_s > 1e6 / mesh.device.memory_bytes_per_s  # bound by arithmetic
        True
    """
    if not (flops >= 0 and nbytes >= 0):
        raise ValueError(f"work is not negative, got {flops} floating point operations and {nbytes} bytes")
    device = mesh.device
    seconds = max(flops / device.peak(dtype), nbytes / device.memory_bytes_per_s)
    return Cost(compute_s=seconds, flops=flops, memory_traffic_bytes=nbytes)


def memory_cost(spec: ShardingSpec, shape: Sequence[int], itemsize: int, mesh: MeshModel) -> int:
    """Bytes that one device holds of a tensor: its shard, padded up where a dimension does not divide.

    Example:
        >>> mesh = MeshModel.uniform({"x": 4}, bytes_per_s=1.0, latency_s=0.0)
        >>> memory_cost(ShardingSpec.of("x", None), (6, 8), 4, mesh)  # two of six rows on each device, padded
        64
    """
    return spec.shard_bytes(shape, itemsize, mesh)
