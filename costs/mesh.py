"""Mesh models: named axes made of links, and the device at every point of the mesh."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, groupby
from numbers import Integral
from operator import mul
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from .links import TORUS, Frozen, Link, Topology, cut_links

Platform = Literal["cpu", "tpu", "gpu"]

# Precisions a device may not list, and what its vector or matrix unit does instead. Each chain ends in float32,
# which every device lists; the factor is the slow-down. Integers other than int8 and predicates run on the vector unit
# at its 32-bit rate; float64 has half the lanes (it is emulated on TPU, slower still).
_PRECISION_FALLBACK: dict[str, tuple[str, float]] = {
    "bfloat16": ("float32", 1.0),
    "float16": ("bfloat16", 1.0),
    "float8": ("bfloat16", 1.0),
    "int8": ("bfloat16", 1.0),
    "float64": ("float32", 2.0),
}

_SHORT_DTYPE = re.compile(r"(bf|f|fp|tf|s|i|u|c)[0-9]+\w*")

_SUB_AXIS = re.compile(r"(?P<axis>.+):\((?P<major>[0-9]+)\)(?P<size>[0-9]+)")


def sub_axis_name(axis: str, major: int, size: int) -> str:
    """The name of a part of a mesh axis, as Shardy writes it: `x:(2)4` is the part of size 4 below a part of size 2."""
    return f"{axis}:({major}){size}"


def split_sub_axis(name: str) -> tuple[str, int, int] | None:
    """Axis, size of what is major, and size of a part of an axis; None for a whole axis."""
    match = _SUB_AXIS.fullmatch(name)
    return (match["axis"], int(match["major"]), int(match["size"])) if match else None


def axis_parts(axis: str, parts: Sequence[int]) -> dict[str, int]:
    """Names and sizes of the parts of an axis, major first; a single part is the axis itself."""
    if len(parts) == 1:
        return {axis: parts[0]}
    majors = accumulate(parts[:-1], mul, initial=1)
    return {sub_axis_name(axis, major, size): size for major, size in zip(majors, parts)}


def joined_axes(axes: Iterable[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Axes in which parts that follow each other are one: a larger part, or the whole axis.

    Args:
        axes: Axes, or parts of them such as `x:(2)4`, major first.
        sizes: Sizes of the whole axes.

    Example:
        >>> joined_axes(["x:(1)2", "x:(2)4", "y"], {"x": 8, "y": 2})
        ('x', 'y')
    """
    joined: list[tuple[str, int, int]] = []
    for name in axes:
        part = split_sub_axis(name) if name not in sizes else None
        axis, major, size = part or (name, 1, sizes.get(name, 1))
        if part and joined and joined[-1][0] == axis and joined[-1][1] * joined[-1][2] == major:
            major, size = joined[-1][1], joined.pop()[2] * size
        joined.append((axis, major, size))
    return tuple(
        axis if size == sizes.get(axis, size) else sub_axis_name(axis, major, size) for axis, major, size in joined
    )


def axis_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Names and sizes of mesh axes as plain numbers, all at least 1."""
    if not isinstance(sizes, Mapping):
        raise TypeError(f"the sizes of a mesh map axis names to numbers, such as {{'x': 4, 'y': 2}}; got {sizes!r}")
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < 1:
            raise ValueError(f"mesh axis {name!r} has size {size!r}: sizes are whole numbers of at least 1")
    return {name: int(size) for name, size in sizes.items()}


class MeshAxis(Frozen):
    """A named axis of a mesh: the product of its links, major first."""

    name: str = Field(min_length=1)
    links: tuple[Link, ...] = Field(min_length=1)

    @field_validator("links", mode="before")
    @classmethod
    def _links_from_json(cls, links: object) -> object:
        return tuple(links) if isinstance(links, list) else links

    @staticmethod
    def of(
        name: str,
        size: int,
        *,
        bytes_per_s: float,
        latency_s: float,
        topology: Topology = "switch",
        fabric: str = "network",
    ) -> MeshAxis:
        """An axis that is a single link."""
        link = Link(topology=topology, size=size, bytes_per_s=bytes_per_s, latency_s=latency_s, fabric=fabric)
        return MeshAxis(name=name, links=(link,))

    @property
    def size(self) -> int:
        """Number of devices along the axis."""
        return math.prod(link.size for link in self.links)


class DeviceModel(Frozen):
    """One device: arithmetic, memory and the bandwidth between them.

    Attributes:
        name: Name of the hardware.
        platform: The backend that compiles for it.
        peak_flops_per_s: Peak rate by precision (`float32`, `bfloat16`, `float16`, `float8`, `int8`, ...).
        memory_bytes: Capacity.
        usable_memory_bytes: What a program gets of it.
        memory_bytes_per_s: Memory bandwidth.
        source: Where the figures come from, with date.
    """

    name: str
    platform: Platform
    peak_flops_per_s: dict[str, Annotated[float, Field(gt=0)]]
    memory_bytes: int = Field(gt=0)
    usable_memory_bytes: int = Field(gt=0)
    memory_bytes_per_s: float = Field(gt=0)
    source: str = Field(min_length=1)

    @field_validator("peak_flops_per_s")
    @classmethod
    def _float32_is_listed(cls, peaks: dict[str, float]) -> dict[str, float]:
        if "float32" not in peaks:
            raise ValueError("peak_flops_per_s needs an entry for float32, the precision all others fall back to")
        return dict(sorted(peaks.items()))

    @model_validator(mode="after")
    def _usable_memory_is_there(self) -> DeviceModel:
        if self.usable_memory_bytes > self.memory_bytes:
            raise ValueError(
                f"usable_memory_bytes={self.usable_memory_bytes} is more than memory_bytes={self.memory_bytes}"
            )
        return self

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s for operands of `dtype`, by the nearest precision that the device lists.

        Args:
            dtype: Name as numpy spells it.

        Raises:
            ValueError: It is a short name, such as `bf16`.
        """
        precision, factor = _precision(dtype), 1.0
        while precision not in self.peak_flops_per_s:
            precision, slower = _PRECISION_FALLBACK.get(precision, ("float32", 1.0))
            factor *= slower
        return self.peak_flops_per_s[precision] / factor


@lru_cache
def _precision(dtype: str) -> str:
    if _SHORT_DTYPE.fullmatch(dtype):
        raise ValueError(f"{dtype!r} is a short name of a dtype: give numpy's, such as 'bfloat16', 'float32' or 'int8'")
    if dtype.startswith("float8"):
        return "float8"
    if dtype in ("uint8", "int4", "uint4"):
        return "int8"
    return dtype


class MeshModel(Frozen):
    """A device mesh as the cost model sees it.

    Example:
        >>> mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
        >>> mesh.num_devices, mesh.size("x")
        (8, 4)

    Attributes:
        axes: The named axes, major first.
        device: The device at every point.
        levels_overlap: Whether a collective over several fabrics runs them in a pipeline (the slowest one counts, as
            NCCL's rings do) or one after the other (their times add, as XLA does over DCN).
        parts: Axes that shardings use in parts: name to the sizes of the parts, major first. Their parts stand among
            the axes, named such as `x:(2)4`; parts that follow each other cost together what the whole does.
    """

    axes: tuple[MeshAxis, ...]
    device: DeviceModel
    levels_overlap: bool = False
    parts: dict[str, tuple[int, ...]] = Field(default_factory=dict)

    @field_validator("axes", mode="before")
    @classmethod
    def _axes_from_json(cls, axes: object) -> object:
        return tuple(axes) if isinstance(axes, list) else axes

    @model_validator(mode="after")
    def _parts_make_up_axes(self) -> MeshModel:
        for name, parts in self.parts.items():
            size = self.whole_sizes.get(name)
            if math.prod(parts) != size or min(parts, default=1) < 2:
                raise ValueError(f"mesh axis {name!r} of size {size} is not made up of parts {parts}")
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> MeshModel:
        names = [axis.name for axis in self.axes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two mesh axes are called {twice[0]!r}: every axis needs its own name")
        return self

    @model_validator(mode="after")
    def _fabrics_are_of_one_kind(self) -> MeshModel:
        kinds: dict[str, str] = {}
        for link in (link for axis in self.axes for link in axis.links):
            kind = "torus" if link.topology in TORUS else link.topology
            if kinds.setdefault(link.fabric, kind) != kind:
                raise ValueError(
                    f"links of fabric {link.fabric!r} are of kinds {kinds[link.fabric]} and {kind}: one fabric's links "
                    "share the work of a collective, so another kind needs a fabric of its own"
                )
        return self

    @staticmethod
    def uniform(sizes: Mapping[str, int], *, bytes_per_s: float, latency_s: float) -> MeshModel:
        """A mesh where every axis is the same switch: seconds are `latency_s + wire bytes / bytes_per_s`.

        With `bytes_per_s=1.0, latency_s=0.0` all costs are plain bytes.

        Args:
            sizes: Size of each axis, major first.
            bytes_per_s: What one device sends in all.
            latency_s: Seconds per collective.
        """
        from .hardware import UNIT_DEVICE

        axes = tuple(
            MeshAxis.of(name, size, bytes_per_s=bytes_per_s, latency_s=latency_s)
            for name, size in axis_sizes(sizes).items()
        )
        return MeshModel(axes=axes, device=UNIT_DEVICE)

    @staticmethod
    def preset(name: str, sizes: Mapping[str, int], *, slices: int | None = None) -> MeshModel:
        """The mesh of `sizes` on known hardware, laid out as JAX does it.

        Args:
            name: One of `autoshard.costs.PRESET_NAMES`.
            sizes: Size of each axis, major first.
            slices: Number of TPU slices that the data-center network joins; by default as few as the machine allows.

        Raises:
            ValueError: The name is unknown, a size is not positive, or the devices do not make so many slices.
        """
        from .hardware import preset_mesh

        return preset_mesh(name, axis_sizes(sizes), slices)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes, and of the parts of those that are used in parts, major first."""
        return tuple(self.sizes)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of each axis, or of each of its parts where it is used in parts."""
        return {
            name: size
            for axis in self.axes
            for name, size in axis_parts(axis.name, self.parts.get(axis.name, (axis.size,))).items()
        }

    @cached_property
    def whole_sizes(self) -> dict[str, int]:
        """Size of each axis as a whole."""
        return {axis.name: axis.size for axis in self.axes}

    def cut(self, parts: Mapping[str, tuple[int, ...]]) -> MeshModel:
        """The same mesh with axes that are used in parts.

        Args:
            parts: Axis to the sizes of its parts, major first; other axes are used whole.

        Example:
            >>> MeshModel.uniform({"x": 8, "y": 2}, bytes_per_s=1.0, latency_s=0.0).cut({"x": (2, 4)}).sizes
            {'x:(1)2': 2, 'x:(2)4': 4, 'y': 2}
        """
        return _cut(self, tuple(sorted(parts.items())))

    @property
    def whole(self) -> MeshModel:
        """The same mesh with all axes used as a whole."""
        return self.cut({}) if self.parts else self

    def joined(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Axes in the order of the mesh, parts that follow each other as one: how the caller knows them."""
        return joined_axes(sorted(axes, key=self.place), self.whole_sizes)

    def size(self, name: str) -> int:
        """Size of the axis `name`, or of a part of it such as `x:(2)4`."""
        size = self.sizes.get(name)
        return self._sub_axis(name)[2] if size is None else size

    def _sub_axis(self, name: str) -> tuple[str, int, int]:
        """The axis that `name` is, or is a part of, the product of what is major of it, and its size."""
        whole = self.whole_sizes.get(name)
        axis, major, size = split_sub_axis(name) or (name, 1, 1) if whole is None else (name, 1, whole)
        if axis not in self.whole_sizes:
            raise ValueError(f"unknown mesh axis {name!r}: this mesh has axes {', '.join(self.axis_names)}")
        if major * size == 0 or self.whole_sizes[axis] % (major * size):
            raise ValueError(f"mesh axis {axis!r} of size {self.whole_sizes[axis]} has no part {name!r}")
        return axis, major, size

    def part_name(self, name: str, major: int, size: int) -> str:
        """The name of a part of an axis, or of a part of a part, below a part of size `major`."""
        axis, before, _ = self._sub_axis(name)
        return sub_axis_name(axis, before * major, size)

    def place(self, name: str) -> tuple[int, int]:
        """Where an axis, or a part of it, stands in the mesh: sorts axes and parts of them major first."""
        axis, major, _ = self._sub_axis(name)
        return tuple(self.whole_sizes).index(axis), major

    def links(self, name: str) -> tuple[Link, ...]:
        """The links along an axis, or along a part of it, major first."""
        axis, major, size = self._sub_axis(name)
        whole = self.axes[tuple(self.whole_sizes).index(axis)].links
        return whole if axis == name else tuple(cut_links(whole, major, major * size))

    @cached_property
    def num_devices(self) -> int:
        """Number of devices."""
        return math.prod(self.whole_sizes.values())

    @property
    def platform(self) -> Platform:
        """The backend that compiles for this mesh."""
        return self.device.platform

    def scatter_steps(self, axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The axes of the reduce-scatters, one after the other, that one over several axes runs as.

        It is one, but for TPUs: their compiler makes an all-reduce of one over all of a square or cubic slice, in
        whatever order its axes are listed (libtpu 0.0.52: v5e 4x4 and 16x16, v5p 2x2x2 and 4x4x4, but not v5e 2x4 and
        4x8). One for each axis, or for each part of a single axis that lies along another dimension of the slice, sends
        as much in all.

        Args:
            axes: The axes that it runs over, major first.
        """
        split = [axis for axis in axes if self.size(axis) > 1]
        together = self.joined(split)
        whole = all(axis.size == 1 or axis.name in together for axis in self.axes)
        links = {link.size for axis in self.axes for link in axis.links if link.size > 1}
        square = math.isqrt(self.num_devices) ** 2 == self.num_devices
        if self.device.platform != "tpu" or not split or not whole or not (square or len(links) == 1):
            return (tuple(axes),)
        if len(together) == 1:
            return tuple((part,) for part in self._parts_by_link(together[0]))
        return tuple(tuple(parts) for _, parts in groupby(split, key=lambda axis: self.place(axis)[0]))

    def _parts_by_link(self, name: str) -> list[str]:
        """The parts of an axis that lie along one link each, major first."""
        sizes = [link.size for link in self.links(name) if link.size > 1]
        return list(axis_parts(name, sizes))

    def wire_scale(self, dtype: str) -> float:
        """Bytes on the wire per byte of the tensor: the CPU backend sends narrow floats as float16 or float32.

        So bfloat16 and float8 take twice their width, and so does float4, counted as one byte.
        """
        widened = _precision(dtype) in ("bfloat16", "float8") or dtype.startswith("float4")
        return 2.0 if widened and self.device.platform == "cpu" else 1.0

    def __copy__(self) -> Self:
        # model_copy(update=...) starts from a copy: it must not bring along what was remembered of the old axes.
        copied = super().__copy__()
        for name in ("axis_names", "sizes", "whole_sizes", "num_devices", "_hash"):
            vars(copied).pop(name, None)
        return copied

    @cached_property
    def _hash(self) -> int:
        return hash((self.axes, self.device.name, self.levels_overlap, tuple(self.parts.items())))

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=256)
def _cut(mesh: MeshModel, parts: tuple[tuple[str, tuple[int, ...]], ...]) -> MeshModel:
    return MeshModel(axes=mesh.axes, device=mesh.device, levels_overlap=mesh.levels_overlap, parts=dict(parts))
