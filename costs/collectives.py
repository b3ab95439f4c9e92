"""What a collective costs: one function each, (bytes, axes, mesh) -> Cost.

The time is what the links allow (`laws.py` says how), the wire bytes are what one device sends by ring formulas:
all-gather and reduce-scatter V (n-1)/n, all-reduce twice that, all-to-all s (n-1)/n, permute s, where V is the whole
array, s a shard and n the number of devices. Axes are names, or one name; bytes that are negative, and axes that are
unknown or overlap, raise a ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence

from .cost import Cost
from .laws import collective_law
from .links import CollectiveKind
from .mesh import MeshModel


def all_gather(nbytes: float, axes: str | Sequence[str], mesh: MeshModel, wire_scale: float = 1.0) -> Cost:
    """Collects the shards along `axes`.

    Args:
        nbytes: Bytes of the gathered result on one device.
        axes: Mesh axes gathered over.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.

    Example:
        >>> mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
        >>> all_gather(1024, "x", mesh).wire_bytes  # three quarters of the result come from elsewhere
        768.0
    """
    return _cost("all-gather", nbytes, axes, mesh, wire_scale)


def reduce_scatter(nbytes: float, axes: str | Sequence[str], mesh: MeshModel, wire_scale: float = 1.0) -> Cost:
    """Sums along `axes` and leaves every device its shard; costs what gathering the result back would.

    Args:
        nbytes: Bytes of the unreduced input on one device.
        axes: Mesh axes summed over.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.

    Example:
        >>> mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
        >>> reduce_scatter(1024, ("x", "y"), mesh).seconds
        896.0
    """
    return _cost("reduce-scatter", nbytes, axes, mesh, wire_scale)


def all_reduce(nbytes: float, axes: str | Sequence[str], mesh: MeshModel, wire_scale: float = 1.0) -> Cost:
    """Sums along `axes` and leaves every device the whole sum.

    Args:
        nbytes: Bytes of the tensor on one device.
        axes: Mesh axes summed over.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.

    Example:
        >>> mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
        >>> all_reduce(1024, "x", mesh) == reduce_scatter(1024, "x", mesh) + all_gather(1024, "x", mesh)
        True
    """
    return _cost("all-reduce", nbytes, axes, mesh, wire_scale)


def all_to_all(nbytes: float, axes: str | Sequence[str], mesh: MeshModel, wire_scale: float = 1.0) -> Cost:
    """Moves a split from one dimension to another.

    Args:
        nbytes: Bytes of the shard of one device (the same before and after).
        axes: Mesh axes that change their dimension.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.

    Example:
        >>> mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
        >>> all_to_all(1024, "y", mesh).wire_bytes
        512.0
    """
    return _cost("all-to-all", nbytes, axes, mesh, wire_scale)


def collective_permute(nbytes: float, axes: str | Sequence[str], mesh: MeshModel, wire_scale: float = 1.0) -> Cost:
    """Every device sends its shard to another one, anywhere along `axes`.

    Args:
        nbytes: Bytes of the shard of one device.
        axes: Mesh axes along which the shards travel.
        mesh: The mesh.
        wire_scale: Bytes on the wire per byte of the tensor.

    Example:
        >>> mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
        >>> collective_permute(1024, ("x", "y"), mesh).wire_bytes
        1024.0
    """
    return _cost("permute", nbytes, axes, mesh, wire_scale)


def _cost(kind: CollectiveKind, nbytes: float, axes: str | Sequence[str], mesh: MeshModel, wire_scale: float) -> Cost:
    if not (nbytes >= 0 and wire_scale > 0):
        raise ValueError(f"{kind} of {nbytes} bytes times {wire_scale} on the wire: bytes are not negative")
    return collective_law(kind, (axes,) if isinstance(axes, str) else tuple(axes), mesh).cost(nbytes * wire_scale)
