"""Known machines, and meshes on them: every number with its source and date.

Figures are of one JAX device and one way: where a chip is two devices (TPU v3 and v7), each has half of the chip's
arithmetic, memory and links. FLOP/s are dense. `float32` is what XLA does with float32 matrices by default: bfloat16
passes on TPU, TF32 on NVIDIA GPUs since A100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .links import CollectiveFit
from .measured import B200, GB200, GB300, H100
from .mesh import DeviceModel, MeshModel, Platform
from .placement import switch_axes, torus_axes

SOURCES = {
    "assumed": "assumed here, for want of a published figure; 2026-11",
    "cloud-v3": "Google Cloud documentation, TPU v3 (docs.cloud.google.com/tpu/docs/v3), as of 2026-11",
    "cloud-v4": "Google Cloud documentation, TPU v4 (docs.cloud.google.com/tpu/docs/v4), as of 2026-11",
    "cloud-v5e": "Google Cloud documentation, TPU v5e (docs.cloud.google.com/tpu/docs/v5e), as of 2026-11",
    "cloud-v5p": "Google Cloud documentation, TPU v5p (docs.cloud.google.com/tpu/docs/v5p-training), as of 2026-11",
    "cloud-v6e": "Google Cloud documentation, TPU v6e (docs.cloud.google.com/tpu/docs/v6e), as of 2026-11",
    "cloud-7x": "Google Cloud documentation, TPU7x (docs.cloud.google.com/tpu/docs/tpu7x), as of 2026-11",
    "book": "How to Scale Your Model, chapter TPUs (jax-ml/scaling-book at 54e2c43, 2025): practical rates, latencies",
    "book-gpus": "How to Scale Your Model, chapter GPUs (jax-ml/scaling-book at 1a55377, 2025)",
    "xla-oom": "the capacity that XLA's out-of-memory messages name, in public issues up to 2025",
    "jax-memory": "JAX documentation, GPU memory allocation: a process preallocates 75 % by default, as of 2026-11",
    "nvidia": "vendor data sheets as tabulated in stas00/ml-engineering, chapters accelerators and network, 2025",
    "nccl-tests": "NCCL all-reduce bus bandwidth, 8 GPUs, large messages (stas00/ml-engineering, network, 2025)",
    "nccl": "NVIDIA/nccl src/graph/tuning.cc, 2025: base latency of the Simple protocol and of one network hop",
    "xla-table": "XLA's table of measured collectives, in jax-cuda12-pjrt 0.10.2 (2026): fitted latency",
    "amd": "AMD ROCm blog on MI300X xGMI, 2025-03: 64 GB/s a link nominal, 48 GB/s usable",
    "nominal": "nominal: the figures of TPU v5e, because wall times of virtual devices rank nothing; 2026-11",
}


class Figure(float):
    """A number that says where it comes from; `source` is a key of `SOURCES`."""

    __slots__ = ("source",)

    source: str

    def __new__(cls, value: float, source: str) -> Figure:
        """Makes a number with its source."""
        if source not in SOURCES:
            raise ValueError(f"a hardware figure needs a source: {source!r} is none of {', '.join(SOURCES)}")
        figure = super().__new__(cls, value)
        figure.source = source
        return figure


_HOP_LATENCY_S = Figure(1e-6, "book")
_SLICES_LATENCY_S = Figure(1e-4, "assumed")
_HOSTS_LATENCY_S = Figure(3.6e-5, "nccl")  # 8.4 us and two hops of 14 us


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Arithmetic and memory of one JAX device."""

    platform: Platform
    flops_per_s: Mapping[str, Figure]
    memory_bytes: Figure
    usable_memory_bytes: Figure
    memory_bytes_per_s: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusMachine:
    """A TPU generation: chips in a torus, slices of it joined by the data-center network.

    Attributes:
        chip: One device.
        devices_per_chip: JAX devices on a chip; they share its links.
        slices: Shapes of slices, in chips.
        wrap_size: The size at which a dimension wraps around; 0 where all do if every one is a multiple of 4.
        link_bytes_per_s: What one link carries one way.
        hop_latency_s: Seconds per hop.
        network_bytes_per_s: What one chip sends to other slices.
        network_latency_s: Seconds per collective over slices.
    """

    chip: Chip
    devices_per_chip: int = 1
    slices: tuple[tuple[int, ...], ...]
    wrap_size: int
    link_bytes_per_s: Figure
    hop_latency_s: Figure = _HOP_LATENCY_S
    network_bytes_per_s: Figure
    network_latency_s: Figure = _SLICES_LATENCY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchMachine:
    """GPUs joined within a host (or rack) by a switch or a full mesh, between hosts by a network.

    Attributes:
        chip: One device.
        domain: Devices within a host or rack.
        full_mesh: Whether the devices of a host have a cable to each other, instead of a switch.
        egress_bytes_per_s: What one device sends within the host in practice; over one cable for a full mesh.
        latency_s: Seconds per collective within the host.
        network_bytes_per_s: What one device sends to other hosts in practice.
        network_latency_s: Seconds per collective between hosts.
        fits: Laws fitted to collectives measured within a host.
    """

    chip: Chip
    domain: int
    full_mesh: bool = False
    egress_bytes_per_s: Figure
    latency_s: Figure
    network_bytes_per_s: Figure
    network_latency_s: Figure = _HOSTS_LATENCY_S
    fits: tuple[CollectiveFit, ...] = ()


def _tpu(source: str, bfloat16: float, memory: float, rate: float, usable: Figure | None, **others: float) -> Chip:
    """Chip of a TPU; float32 matrices are multiplied in bfloat16 unless the precision is raised."""
    peaks = {"bfloat16": bfloat16, "float32": bfloat16, **others}
    return Chip(
        platform="tpu",
        flops_per_s={dtype: Figure(peak, source) for dtype, peak in peaks.items()},
        memory_bytes=Figure(memory, source),
        usable_memory_bytes=usable if usable is not None else Figure(memory * 0.97, "assumed"),
        memory_bytes_per_s=Figure(rate, source),
    )


def _gpu(memory: float, rate: float, **peaks: float) -> Chip:
    return Chip(
        platform="gpu",
        flops_per_s={dtype: Figure(peak, "nvidia") for dtype, peak in peaks.items()},
        memory_bytes=Figure(memory, "nvidia"),
        usable_memory_bytes=Figure(memory * 0.75, "jax-memory"),
        memory_bytes_per_s=Figure(rate, "nvidia"),
    )


def _slices(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(size) for size in shape.split("x")) for shape in text.split())


_CUBES = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 4x4x16 8x16x16 12x16x16 16x16x16"
_SQUARES = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_GIB = 1 << 30

MACHINES: dict[str, TorusMachine | SwitchMachine] = {
    "tpu-v3": TorusMachine(
        chip=_tpu("cloud-v3", 61.5e12, 16 * _GIB, 450e9, None),
        devices_per_chip=2,
        slices=_slices("2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32"),
        wrap_size=32,
        link_bytes_per_s=Figure(82e9, "cloud-v3"),  # 340 TB/s of all-reduce over 1024 chips of 4 links
        network_bytes_per_s=Figure(3.125e9, "assumed"),
    ),
    "tpu-v4": TorusMachine(
        chip=_tpu("cloud-v4", 275e12, 32 * _GIB, 1228e9, Figure(33_017_561_088, "xla-oom"), int8=275e12),
        slices=_slices(_CUBES),
        wrap_size=0,
        link_bytes_per_s=Figure(45e9, "book"),
        network_bytes_per_s=Figure(6.25e9, "assumed"),  # 25 GB/s a host of 4, as on v5p
    ),
    "tpu-v5e": TorusMachine(
        chip=_tpu("cloud-v5e", 197e12, 16 * _GIB, 819e9, Figure(16_911_433_728, "assumed"), int8=394e12),
        slices=_slices(_SQUARES),
        wrap_size=16,
        link_bytes_per_s=Figure(45e9, "book"),
        network_bytes_per_s=Figure(3.125e9, "book"),
    ),
    "tpu-v5p": TorusMachine(
        chip=_tpu("cloud-v5p", 459e12, 96 * _GIB, 2765e9, Figure(102_800_042_229, "xla-oom"), int8=918e12),
        slices=_slices(f"{_CUBES} 16x16x24 16x20x28"),
        wrap_size=0,
        link_bytes_per_s=Figure(90e9, "book"),
        network_bytes_per_s=Figure(6.25e9, "book"),
    ),
    "tpu-v6e": TorusMachine(
        chip=_tpu("cloud-v6e", 918e12, 32 * _GIB, 1638e9, Figure(33_554_432_000, "xla-oom"), int8=1836e12),
        slices=_slices(_SQUARES),
        wrap_size=16,
        link_bytes_per_s=Figure(90e9, "book"),
        network_bytes_per_s=Figure(12.5e9, "cloud-7x"),
    ),
    "tpu-v7": TorusMachine(
        chip=_tpu("cloud-7x", 1153.5e12, 96 * _GIB, 3690e9, None, float8=2307e12),
        devices_per_chip=2,
        slices=_slices(_CUBES),
        wrap_size=0,
        link_bytes_per_s=Figure(90e9, "assumed"),  # nine tenths of the 100 GB/s published, as on v5p and v6e
        network_bytes_per_s=Figure(12.5e9, "cloud-7x"),
    ),
    "v100-sxm2": SwitchMachine(
        chip=_gpu(32e9, 900e9, float16=125e12, float32=15.7e12),
        domain=8,
        egress_bytes_per_s=Figure(122e9, "nccl-tests"),
        latency_s=Figure(2e-5, "nccl"),
        network_bytes_per_s=Figure(6.25e9, "nvidia"),
    ),
    "a100-40-sxm": SwitchMachine(
        chip=_gpu(40e9, 1555e9, bfloat16=312e12, float16=312e12, float32=156e12, int8=624e12),
        domain=8,
        egress_bytes_per_s=Figure(232e9, "nccl-tests"),
        latency_s=Figure(2e-5, "nccl"),
        network_bytes_per_s=Figure(24e9, "nccl-tests"),
    ),
    "a100-80-sxm": SwitchMachine(
        chip=_gpu(80e9, 2039e9, bfloat16=312e12, float16=312e12, float32=156e12, int8=624e12),
        domain=8,
        egress_bytes_per_s=Figure(232e9, "nccl-tests"),
        latency_s=Figure(2e-5, "nccl"),
        network_bytes_per_s=Figure(24e9, "nccl-tests"),
    ),
    "h100-sxm": SwitchMachine(
        chip=_gpu(80e9, 3350e9, bfloat16=989e12, float16=989e12, float32=494.5e12, int8=1979e12, float8=1979e12),
        domain=8,
        egress_bytes_per_s=Figure(370e9, "nccl-tests"),
        latency_s=Figure(2.5e-5, "xla-table"),
        network_bytes_per_s=Figure(46.9e9, "nccl-tests"),  # 375 GB/s a host of 8
        fits=H100,
    ),
    "h200-sxm": SwitchMachine(
        chip=_gpu(141e9, 4800e9, bfloat16=989e12, float16=989e12, float32=494.5e12, int8=1979e12, float8=1979e12),
        domain=8,
        egress_bytes_per_s=Figure(370e9, "nccl-tests"),
        latency_s=Figure(2.5e-5, "xla-table"),
        network_bytes_per_s=Figure(46.9e9, "nccl-tests"),
        fits=H100,  # the same switch and links
    ),
    "b200-hgx8": SwitchMachine(
        chip=_gpu(180e9, 8000e9, bfloat16=2250e12, float16=2250e12, float32=1125e12, int8=4500e12, float8=4500e12),
        domain=8,
        egress_bytes_per_s=Figure(700e9, "nccl-tests"),
        latency_s=Figure(3.7e-5, "xla-table"),
        network_bytes_per_s=Figure(47.7e9, "nccl-tests"),  # 381.8 GB/s a host of 8
        fits=B200,
    ),
    "gb200-nvl72": SwitchMachine(
        chip=_gpu(186e9, 8000e9, bfloat16=2500e12, float16=2500e12, float32=1250e12, int8=5000e12, float8=5000e12),
        domain=72,
        egress_bytes_per_s=Figure(680e9, "nccl-tests"),
        latency_s=Figure(3e-5, "xla-table"),
        network_bytes_per_s=Figure(50e9, "nvidia"),
        fits=GB200,
    ),
    "gb300-nvl72": SwitchMachine(
        chip=_gpu(288e9, 8000e9, bfloat16=2500e12, float16=2500e12, float32=1250e12, float8=5000e12),
        domain=72,
        egress_bytes_per_s=Figure(680e9, "nccl-tests"),
        latency_s=Figure(3e-5, "xla-table"),
        network_bytes_per_s=Figure(100e9, "assumed"),  # 800 Gb/s a GPU
        fits=GB300,
    ),
    "mi300x": SwitchMachine(
        chip=_gpu(192e9, 5300e9, bfloat16=1307e12, float16=1307e12, float32=653.7e12, int8=2600e12, float8=2610e12),
        domain=8,
        full_mesh=True,
        egress_bytes_per_s=Figure(48e9, "amd"),
        latency_s=Figure(3e-5, "assumed"),
        network_bytes_per_s=Figure(50e9, "assumed"),
    ),
    "cpu-virtual": SwitchMachine(
        chip=Chip(
            platform="cpu",
            flops_per_s={
                d: Figure(p, "nominal") for d, p in (("float32", 197e12), ("bfloat16", 197e12), ("int8", 394e12))
            },
            memory_bytes=Figure(16 * _GIB, "nominal"),
            usable_memory_bytes=Figure(16_911_433_728, "nominal"),
            memory_bytes_per_s=Figure(819e9, "nominal"),
        ),
        domain=1 << 30,
        egress_bytes_per_s=Figure(90e9, "nominal"),
        latency_s=Figure(1e-6, "nominal"),
        network_bytes_per_s=Figure(90e9, "nominal"),
    ),
}

ALIASES = {"b200": "b200-hgx8", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72"}

PRESET_NAMES: tuple[str, ...] = (*MACHINES, *ALIASES)
"""Names that `MeshModel.preset` knows."""

UNIT_DEVICE = DeviceModel(
    name="unit",
    platform="gpu",
    peak_flops_per_s={"float32": 1.0},
    memory_bytes=1 << 62,
    usable_memory_bytes=1 << 62,
    memory_bytes_per_s=1.0,
    source="a device of one FLOP and one byte per second, for costs in plain units",
)


def preset_mesh(name: str, sizes: Mapping[str, int], slices: int | None = None) -> MeshModel:
    """The mesh of `sizes` on a known machine.

    Args:
        name: One of `PRESET_NAMES`.
        sizes: Size of each mesh axis, major first.
        slices: Number of TPU slices that the data-center network joins; by default as few as the machine allows.
    """
    machine = MACHINES.get(ALIASES.get(name, name))
    if machine is None:
        raise ValueError(f"unknown hardware preset {name!r}: there are {', '.join(PRESET_NAMES)}")
    device = _device(ALIASES.get(name, name), machine.chip)
    if isinstance(machine, SwitchMachine):
        if slices is not None:
            raise ValueError(f"slices are a matter of TPUs, {name} has none: leave slices out")
        axes = switch_axes(
            sizes,
            domain=machine.domain,
            topology="full" if machine.full_mesh else "switch",
            inside=(machine.egress_bytes_per_s, machine.latency_s),
            outside=(machine.network_bytes_per_s, machine.network_latency_s),
            fits=machine.fits,
        )
        return MeshModel(axes=axes, device=device, levels_overlap=True)
    axes = torus_axes(
        sizes,
        shapes=machine.slices,
        wrap_size=machine.wrap_size,
        devices_per_chip=machine.devices_per_chip,
        slices=slices,
        inside=(machine.link_bytes_per_s, machine.hop_latency_s),
        outside=(machine.network_bytes_per_s, machine.network_latency_s),
    )
    return MeshModel(axes=axes, device=device)


def _device(name: str, chip: Chip) -> DeviceModel:
    figures = [*chip.flops_per_s.values(), chip.memory_bytes, chip.usable_memory_bytes, chip.memory_bytes_per_s]
    return DeviceModel(
        name=name,
        platform=chip.platform,
        peak_flops_per_s={dtype: float(peak) for dtype, peak in chip.flops_per_s.items()},
        memory_bytes=int(chip.memory_bytes),
        usable_memory_bytes=int(chip.usable_memory_bytes),
        memory_bytes_per_s=float(chip.memory_bytes_per_s),
        source="; ".join(dict.fromkeys(SOURCES[figure.source] for figure in figures)),
    )
