"""Sharding specs: for each dimension of a tensor, the mesh axes that split it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .mesh import MeshModel


@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """How a tensor is split over a mesh; axes that no dimension names hold copies.

    Specs are values: equal if their dimensions and partial axes are equal, hashable, and cheap to compare.

    Example:
        >>> ShardingSpec.of("y", None, ("x", "z"))
        ShardingSpec([y, -, (x,z)])

    Attributes:
        dims: For each tensor dimension the mesh axes that split it, major first.
        partial: Mesh axes over which the tensor is a sum that has not been taken yet, sorted.
    """

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.dims, tuple) or not all(map(_is_axes, (*self.dims, self.partial))):
            raise TypeError(
                f"a sharding spec holds a tuple of axis names for each dimension, got {self.dims!r} and partial "
                f"{self.partial!r}: ShardingSpec.of('x', None, ('y', 'z')) makes them"
            )
        object.__setattr__(self, "partial", tuple(sorted(self.partial)))
        names = [*self.axes, *self.partial]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"sharding spec {self} uses mesh axis {twice[0]!r} twice: an axis splits one dimension once"
            )
        object.__setattr__(self, "_hash", hash((self.dims, self.partial)))

    @staticmethod
    def of(*dims: str | Sequence[str] | None, partial: str | Sequence[str] | None = ()) -> ShardingSpec:
        """Builds a spec as one writes a `PartitionSpec`: `None`, an axis name, or several names, major first.

        Raises:
            TypeError: An entry is none of these.
            ValueError: An axis is used twice.
        """
        return _interned(tuple(map(_axes_of, dims)), _axes_of(partial))

    @staticmethod
    def replicated(rank: int) -> ShardingSpec:
        """The spec of a tensor with `rank` dimensions of which every device holds a full copy."""
        return _interned(((),) * rank, ())

    @property
    def rank(self) -> int:
        """Number of tensor dimensions."""
        return len(self.dims)

    @property
    def axes(self) -> tuple[str, ...]:
        """All mesh axes that split a dimension, in order of the dimensions."""
        return tuple(axis for dim in self.dims for axis in dim)

    def parts(self, mesh: MeshModel) -> tuple[int, ...]:
        """Into how many parts each dimension is split."""
        return _parts(self, mesh)

    def shard_shape(self, shape: Sequence[int], mesh: MeshModel) -> tuple[int, ...]:
        """Shape held by one device, padded up where a dimension does not divide."""
        if len(shape) != self.rank:
            raise ValueError(
                f"sharding spec {self} has rank {self.rank}, the shape {tuple(shape)} has rank {len(shape)}"
            )
        return tuple([-(-size // part) for size, part in zip(shape, _parts(self, mesh))])

    def shard_bytes(self, shape: Sequence[int], itemsize: int, mesh: MeshModel) -> int:
        """Bytes held by one device (of the padded shard)."""
        return math.prod(self.shard_shape(shape, mesh)) * itemsize

    def divides(self, shape: Sequence[int], mesh: MeshModel) -> bool:
        """Whether every dimension splits without padding."""
        return all(size % part == 0 for size, part in zip(shape, self.parts(mesh)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # The hash of a string differs between processes: a spec that travels computes its own anew.
        return ShardingSpec, (self.dims, self.partial)

    def __str__(self) -> str:
        dims = ", ".join(_dim_text(dim) for dim in self.dims)
        return f"[{dims}]" + (f"{{partial {','.join(self.partial)}}}" if self.partial else "")

    def __repr__(self) -> str:
        return f"ShardingSpec({self})"


def _dim_text(dim: tuple[str, ...]) -> str:
    if not dim:
        return "-"
    return dim[0] if len(dim) == 1 else f"({','.join(dim)})"


def _axes_of(entry: str | Sequence[str] | None) -> tuple[str, ...]:
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, tuple) and _is_axes(entry):
        return entry
    if not isinstance(entry, Sequence) or not _is_axes(axes := tuple(entry)):
        raise TypeError(f"{entry!r} is no entry of a sharding spec: give None, a mesh axis, or several, major first")
    return axes


def _is_axes(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) for name in value)


@lru_cache(maxsize=1 << 16)
def _parts(spec: ShardingSpec, mesh: MeshModel) -> tuple[int, ...]:
    return tuple([math.prod([mesh.size(axis) for axis in dim]) for dim in spec.dims])


@lru_cache(maxsize=1 << 16)
def _interned(dims: tuple[tuple[str, ...], ...], partial: tuple[str, ...]) -> ShardingSpec:
    return ShardingSpec(dims, partial)
