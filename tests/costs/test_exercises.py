"""Worked exercises (of the book How to Scale Your Model, and derived ones), answered by public functions.

Preset figures are used where the tolerance allows, the exercise's own figures where it asks for them.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from autoshard.costs import (
    CollectiveFit,
    DeviceModel,
    Link,
    MeshAxis,
    MeshModel,
    ShardingSpec,
    all_gather,
    all_reduce,
    all_to_all,
    compute_cost,
    memory_cost,
    reduce_scatter,
)
from autoshard.costs.hardware import UNIT_DEVICE
from autoshard.costs.links import Topology

EXERCISES = {
    exercise["id"]: exercise for exercise in json.loads((Path(__file__).parent / "data" / "exercises.json").read_text())
}

V4, V5E, V5P, V6E = (MeshModel.preset(f"tpu-{name}", {"x": 4}) for name in ("v4", "v5e", "v5p", "v6e"))
H100, B200 = MeshModel.preset("h100-sxm", {"x": 8}), MeshModel.preset("b200-hgx8", {"x": 8})
MIB, DAY_S, YEAR_S = 2**20, 86400, 86400 * 365


def torus(*sizes: int, w: float, a: float = 1e-6, wrap: bool = True, device: DeviceModel = UNIT_DEVICE) -> MeshModel:
    """Axes x, y, z of a torus."""
    return mesh_of("ring" if wrap else "line", sizes, w, a, device)


def switch(size: int, egress: float) -> MeshModel:
    """One axis x over a switch without latency."""
    return mesh_of("switch", (size,), egress, 0.0, UNIT_DEVICE)


def mesh_of(
    topology: Topology, sizes: tuple[int, ...], rate: float, latency_s: float, device: DeviceModel
) -> MeshModel:
    axes = tuple(
        MeshAxis.of(name, size, bytes_per_s=rate, latency_s=latency_s, topology=topology, fabric="ici")
        for name, size in zip("xyz", sizes)
    )
    return MeshModel(axes=axes, device=device)


def device_of(peak: float, memory_rate: float) -> MeshModel:
    """A single device of one precision."""
    device = UNIT_DEVICE.model_copy(update={"peak_flops_per_s": {"float32": peak}, "memory_bytes_per_s": memory_rate})
    return MeshModel(axes=(), device=device)


def arithmetic_s(flops: float, mesh: MeshModel, dtype: str = "bfloat16") -> float:
    return compute_cost(flops, 0.0, dtype, mesh).seconds


def memory_s(nbytes: float, mesh: MeshModel) -> float:
    return compute_cost(0.0, nbytes, "bfloat16", mesh).seconds


def intensity(mesh: MeshModel, dtype: str = "bfloat16") -> float:
    """FLOPs per byte of memory at which arithmetic and memory take equally long."""
    return memory_s(1.0, mesh) / arithmetic_s(1.0, mesh, dtype)


def network_intensity(mesh: MeshModel, dtype: str = "bfloat16") -> float:
    """FLOPs per gathered byte at which arithmetic and an all-gather over all axes take equally long."""
    nbytes = 1e15
    return all_gather(nbytes, mesh.axis_names, mesh).seconds / nbytes / arithmetic_s(1.0, mesh, dtype)


def v5p_torus(axes: int) -> MeshModel:
    return torus(*(16,) * axes, w=90e9, device=V5P.device)


def four_matmuls(batch: int) -> float:
    """Time of int8[batch, 4096] x int8[4096, 16384] on a v5e of 810 GB/s."""
    nbytes = 4096 * 16384 + (4096 + 16384) * batch
    return compute_cost(2.0 * 4096 * 16384 * batch, nbytes, "float32", device_of(394e12, 810e9)).seconds


def node_aware_bandwidth() -> float:
    """Bytes gathered per second over 4 x 32 hosts of 8 H100 behind a spine and leaves."""
    levels = (("spine", 4, 12.8e12 / 256), ("leaf", 32, 400e9 / 8), ("host", 8, 450e9))
    links = tuple(
        Link(topology="switch", size=size, bytes_per_s=rate, latency_s=0.0, fabric=name) for name, size, rate in levels
    )
    mesh = MeshModel(axes=(MeshAxis(name="x", links=links),), device=UNIT_DEVICE, levels_overlap=True)
    return 1e12 / all_gather(1e12, ("x",), mesh).seconds


def latency_bound_bytes() -> float:
    """The largest gathered array of which an 8-way ring of v5e still waits for hops."""
    mesh = torus(8, w=45e9)
    return next(
        nbytes for nbytes in range(1_000, 1_000_000, 1_000) if all_gather(nbytes + 1, ("x",), mesh).latency_s == 0.0
    )


def decode_step_s(read_bytes: float) -> float:
    return memory_s(read_bytes / 8, V5E)


def whole_bytes(*shape: int, itemsize: int) -> int:
    """Bytes of an array of which every device holds a copy."""
    return memory_cost(ShardingSpec.replicated(len(shape)), shape, itemsize, torus(8, w=45e9))


def checkpoint_bytes(tokens: int) -> int:
    """Three bfloat16 activations a layer of LLaMA-2-13B, [tokens, 5120] and twice [tokens, 13824]."""
    return whole_bytes(40, tokens, 5120, itemsize=2) + 2 * whole_bytes(40, tokens, 13824, itemsize=2)


def matmul_flops() -> int:
    """All devices together, of A[B_X, D_Y] W[D_Y, F] on X=4, Y=8, Z=4: Z repeats the work of the others."""
    mesh = torus(4, 8, 4, w=45e9)
    rows, inner = ShardingSpec.of("x", "y").shard_shape((128, 1024), mesh)
    _, columns = ShardingSpec.of("y", None).shard_shape((1024, 4096), mesh)
    return 2 * rows * inner * columns * mesh.num_devices


WIDE = 2 * 1024 * 4096

ANSWERS: dict[str, Callable[[], float]] = {
    # Roofline of one device.
    "roof-v6e-1e12": lambda: arithmetic_s(1e12, V6E),
    "roof-v5e-intensity": lambda: intensity(V5E),
    "roof-int8": lambda: intensity(V5E, "int8") / 2,
    "roof-int8w": lambda: intensity(V5E) / 2,
    "roof-h100-bcrit": lambda: intensity(H100),
    "tpu-q1": lambda: memory_s(2 * 200e9 / 32, V4),
    "tpu-q2-v5p-flops": lambda: 8960 / arithmetic_s(1.0, V5P),
    "tpu-q4-time-B1": lambda: four_matmuls(1),
    "tpu-q4-time-B64": lambda: four_matmuls(64),
    "tpu-q4-time-B256": lambda: four_matmuls(256),
    "tpu-q4-time-B1024": lambda: four_matmuls(1024),
    "tpu-q6-hbm": lambda: memory_s(16e9, V5E),
    "shard-q7-hbm": lambda: memory_s(2 * 2 * 8192 * 32768 / 4, device_of(197e12, 810e9)),
    "at-1chip": lambda: arithmetic_s(4.2e11, V5P),
    "at-years": lambda: arithmetic_s(4.2e11 * 15e12, V5P) / YEAR_S,
    "at-pod": lambda: arithmetic_s(6.3e24 / (8960 * 0.4), V5P) / DAY_S,
    "inf-pq-b4": lambda: memory_s((4 * 819e6 + 30e9) / 16, V5E),
    "inf-pq-b256": lambda: memory_s(256 * 819e6 / 16, V5E) + arithmetic_s(2 * 256 * 30e9 / 16, V5E),
    "inf-13b-mha-b1": lambda: decode_step_s(32.7e9),
    "inf-13b-mha-b8": lambda: decode_step_s(79.6e9),
    "inf-13b-mha-b16": lambda: decode_step_s(133.2e9),
    "inf-13b-mha-b32": lambda: decode_step_s(240.4e9),
    "inf-13b-mha-b64": lambda: decode_step_s(454.8e9),
    "inf-13b-gqa-b16": lambda: decode_step_s(47.44e9),
    "inf-13b-gqa-b32": lambda: decode_step_s(68.88e9),
    "inf-layer": lambda: memory_s(2 * 600e6 / 4, V5E),
    "ai-hbm": lambda: memory_s(2 * 8192 * 28672 / 32, V5E),
    "gpu-int-h100": lambda: intensity(H100),
    "gpu-int-b200": lambda: intensity(B200),
    "gpu-mm512": lambda: arithmetic_s(2 * 512 * 4096 * 8192, B200),
    "gpu-add-big": lambda: memory_s(12 * 2**30, H100),
    "gpu-add-small": lambda: memory_s(12 * 65536, H100),
    "gpu-70b-mem": lambda: math.ceil(700e9 / H100.device.memory_bytes),
    "gpu-70b-time": lambda: arithmetic_s(6.3e24 / (4096 * 0.45), H100) / DAY_S,
    # Bytes that specs hold and collectives send.
    "shard-mem-dev": lambda: memory_cost(ShardingSpec.of(("x", "y"), None), (128, 2048), 1, torus(2, 8, 2, w=45e9)),
    "tf-q1-kv": lambda: whole_bytes(2, 64, 4096, itemsize=1),
    "tf-q2-total": matmul_flops,
    "tr-q2-state": lambda: whole_bytes(13 * 10**9, itemsize=2 + 4 + 4),
    "tr-q2-act": lambda: checkpoint_bytes(16 * 10**6),
    "tr-q3-act": lambda: checkpoint_bytes(3 * 10**6),
    "inf-kv-tok": lambda: whole_bytes(2, 64, 8, 256, itemsize=1),
    "ai-kv32k": lambda: whole_bytes(32768, 162_000, itemsize=1),
    "ai-112": lambda: whole_bytes(32, 8192, 160_000, itemsize=1) + whole_bytes(70 * 10**9, itemsize=1),
    "gpu-70b-8": lambda: memory_cost(ShardingSpec.of("x"), (70 * 10**9,), 2 + 4 + 4, switch(8, 450e9)),
    "shard-q1": lambda: (
        torus(4, 8, 2, w=45e9).num_devices
        * memory_cost(ShardingSpec.of("x", None), (64, 64), 1, torus(4, 8, 2, w=45e9))
        / (64 * 64)
    ),
    "shard-q10-ag": lambda: all_gather(1024**2, ("x",), torus(8, w=45e9)).wire_bytes,
    "nccl-ag": lambda: all_gather(2**30, ("x",), switch(8, 450e9)).wire_bytes / 2.5e-3,
    # Collectives in time.
    "shard-pq2-ring": lambda: all_gather(2 * 2048 * 8192, ("x",), torus(4, w=45e9)).seconds,
    "shard-q2a": lambda: all_gather(2 * 1024 * 4096 / 4, ("x",), torus(4, w=45e9)).seconds,
    "shard-q3": lambda: all_gather(256, ("x",), torus(4, w=45e9)).seconds,
    "shard-q7-ar": lambda: all_reduce(2 * 128 * 8192, ("x", "y"), torus(2, 2, w=45e9, wrap=False)).seconds,
    "shard-q9": lambda: (
        all_gather(WIDE * 4096, ("x",), torus(8, w=45e9)).seconds
        / reduce_scatter(WIDE * 1024, ("x",), torus(8, w=45e9)).seconds
    ),
    "shard-a2a-ratio": lambda: (
        all_to_all(64 * MIB / 8, ("x",), torus(8, w=45e9)).seconds
        / all_gather(64 * MIB, ("x",), torus(8, w=45e9)).seconds
    ),
    "shard-a2a-v4": lambda: all_to_all(64 * MIB / 4, ("x",), torus(4, w=45e9)).seconds,
    "shard-ar-v4": lambda: all_reduce(64 * MIB, ("x",), torus(4, w=45e9)).seconds,
    "shard-a2a-v5p": lambda: all_to_all(64 * MIB / 16, ("x",), torus(16, w=90e9)).seconds,
    "shard-ar-v5p": lambda: all_reduce(64 * MIB, ("x",), torus(16, w=90e9)).seconds,
    "shard-a2a-v6e": lambda: all_to_all(64 * MIB / 16, ("x",), torus(16, w=90e9)).seconds,
    "inf-lat8": latency_bound_bytes,
    "ai-ici": lambda: all_gather(2 * 64 * 8192, ("x",), torus(8, w=45e9)).communication_s,
    "gpu-ag1": lambda: all_gather(2 * 4096 * 65536, ("x",), switch(8, 450e9)).seconds,
    "gpu-a2a": lambda: all_to_all(1e9 / 8, ("x",), switch(8, 450e9)).seconds,
    "gpu-a2a-moe": lambda: all_to_all(1e9 / 8 * 2 / 8, ("x",), switch(8, 450e9)).seconds,
    "gpu-ag-nodeaware": node_aware_bandwidth,
    "nccl-ring-lat": lambda: CollectiveFit(
        kind="all-reduce", base_s=6.6e-6, hop_s=2 * 0.6e-6, bytes_per_s=1.0
    ).latency_s(8),
    # Arithmetic against collectives.
    "tpu-ici-crit": lambda: network_intensity(v5p_torus(1)),
    "tr-dp-crit": lambda: network_intensity(v5p_torus(1)),
    "tr-dp-crit3": lambda: network_intensity(v5p_torus(3)),
    "tr-deepseek2": lambda: 40e6 / network_intensity(v5p_torus(3)),
    "tr-2m-chips": lambda: 2e6 / network_intensity(v5p_torus(3)),
    "tr-tp-70b": lambda: 30_000 / network_intensity(v5p_torus(1)),
    "tr-tp-need8": lambda: 8 * network_intensity(v5p_torus(1)),
    "tr-tp-gemma": lambda: 50_000 / network_intensity(v5p_torus(1)),
    "ai-Y22": lambda: 28_672 / network_intensity(v5p_torus(2)),
    "tr-q3-minbatch": lambda: network_intensity(v5p_torus(3)) * 4096,
    "tr-int8": lambda: network_intensity(v5p_torus(1), "int8"),
    "shard-q4-D": lambda: 2 * network_intensity(v5p_torus(1)),
    "roof-2chip-intensity": lambda: arithmetic_s(1.0, V5E) ** -1 / V5E.axes[0].links[0].bytes_per_s,
    "roof-2chip": lambda: 2 * arithmetic_s(1.0, V5E) ** -1 / V5E.axes[0].links[0].bytes_per_s,
}

OUTSIDE = {
    "counts parameters, FLOPs or tokens of a model, or divides one by the other": (
        "roof-dot roof-batched tf-q1-attn tf-q4-prefill tf-q5 tf-attn-mlp tf-q6 tr-q1-ffw tr-q1-attn tr-q1-total "
        "at-ffw at-vocab at-total at-flop inf-q1 gpu-70b-tok"
    ),
    "balances two axes of a layout in closed form, which is the solver's work": (
        "tr-q3-mixed-max tr-q3-mixed-sum tr-q3-xopt tr-xopt tr-mixed99 tr-2m-mixed at-xopt at-xroot inf-2dws-coef "
        "ai-Y56"
    ),
    "is about serving: batches, queries, evictions": "ai-evict ai-pg ai-qps-bf16 ai-qps-int8",
    "compares utilisation or node counts of finished runs": "tf-q7 tpu-q2-hosts",
    "needs parts that the model has not: vector units, VMEM, PCIe, clocks, single cables of a one-way ring": (
        "tpu-q4-vmem tpu-q6-pcie tpu-vpu shard-q10-a2a gpu-cores gpu-v5p-alus gpu-vec gpu-clock"
    ),
    "counts a 16 GiB or 96 GiB memory as 16e9 or 96e9 bytes": (
        "tpu-q2-hbm tr-q3-hbm tr-dp-max ai-86 ai-7 ai-min-bf16 ai-min-int8"
    ),
    "leaves out the factor (n-1)/n of a switch, or is a product or a ratio of nominal rates": (
        "gpu-ag2-approx gpu-node-bw gpu-dp-node gpu-dp-moe gpu-tp gpu-pp"
    ),
    "is wrong in the source: it prints 81, its own formula 128 (3/4)^2 is 72": "inf-2dws",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_model_answers(name: str) -> None:
    exercise = EXERCISES[name]
    assert ANSWERS[name]() == pytest.approx(exercise["answer"], rel=exercise["rel_tol"] + 1e-12)


def test_every_exercise_is_answered_or_listed_with_a_reason() -> None:
    listed = [name for names in OUTSIDE.values() for name in names.split()]
    assert sorted([*ANSWERS, *listed]) == sorted(EXERCISES)
