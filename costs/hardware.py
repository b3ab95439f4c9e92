"""Known machines: every number with its source and date."""

from __future__ import annotations

from collections.abc import Mapping

from .mesh import DeviceModel, MeshAxis, MeshModel

UNIT_DEVICE = DeviceModel(
    name="unit",
    platform="gpu",
    peak_flops_per_s={"float32": 1.0},
    memory_bytes=1 << 62,
    usable_memory_bytes=1 << 62,
    memory_bytes_per_s=1.0,
    source="a device of one FLOP and one byte per second, for costs in plain units",
)

_TPU_V5E_PEAKS = {"float32": 197e12, "bfloat16": 197e12, "int8": 394e12}

_VIRTUAL_CPU = DeviceModel(
    name="cpu-virtual",
    platform="cpu",
    peak_flops_per_s=_TPU_V5E_PEAKS,
    memory_bytes=17_179_869_184,
    usable_memory_bytes=16_911_433_728,
    memory_bytes_per_s=819e9,
    source="nominal: the figures of TPU v5e, because wall times of virtual devices rank nothing",
)

PRESET_NAMES = ("cpu-virtual",)


def preset_mesh(name: str, sizes: Mapping[str, int]) -> MeshModel:
    """The mesh of `sizes` on the hardware `name`."""
    if name != "cpu-virtual":
        raise ValueError(f"unknown hardware preset {name!r}: there are {', '.join(PRESET_NAMES)}")
    axes = tuple(MeshAxis.of(axis, size, bytes_per_s=90e9, latency_s=1e-6) for axis, size in sizes.items())
    return MeshModel(axes=axes, device=_VIRTUAL_CPU)
