"""How fast resharding is planned: repeated pairs, new pairs on a large mesh, whole tables.

python benchmarks/planner_speed.py
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from autoshard.costs import MeshModel, ShardingSpec, plan_resharding, reshard_table
from tests.costs.specs import all_specs

CALLS = 1_000_000
NEW_PAIRS = 1_000
LARGE_MESHES = (
    {"x": 2, "y": 2, "z": 2, "w": 2},
    {"x": 16, "y": 8, "z": 4, "w": 2},
    {"x": 8, "y": 4, "z": 8, "w": 4},
)
TABLES = (
    ({"x": 16, "y": 16}, 4),
    ({"x": 4, "y": 2}, 4),
    ({"x": 2, "y": 2, "z": 2}, 5),
    ({"x": 8, "y": 4, "z": 2}, 4),
)


def main() -> None:
    """Prints one line per measurement."""
    _repeated_calls()
    for sizes in LARGE_MESHES:
        _new_pairs(sizes)
    for sizes, rank in TABLES:
        _tables(sizes, rank)


def _repeated_calls() -> None:
    mesh = MeshModel.preset("tpu-v5e", {"x": 4, "y": 2})
    specs = all_specs(("x", "y"), 3)
    pairs = [(source, target) for source in specs for target in specs]
    for source, target in pairs:
        plan_resharding(source, target, (64, 64, 64), 2, mesh)
    start = time.perf_counter()
    for _ in range(CALLS // len(pairs) + 1):
        for source, target in pairs:
            plan_resharding(source, target, (64, 64, 64), 2, mesh)
    calls = (CALLS // len(pairs) + 1) * len(pairs)
    print(f"{calls} calls on {len(pairs)} repeated pairs: {time.perf_counter() - start:.2f} s")


def _new_pairs(sizes: dict[str, int]) -> None:
    mesh = MeshModel.uniform(sizes, bytes_per_s=1e9, latency_s=1e-6)
    specs = all_specs(tuple(sizes), 4)
    pick = random.Random(0)
    pairs = dict.fromkeys((pick.choice(specs), pick.choice(specs)) for _ in range(2 * NEW_PAIRS))
    times = []
    for source, target in list(pairs)[:NEW_PAIRS]:
        start = time.perf_counter()
        plan_resharding(source, target, (4096, 4096, 4096, 4096), 2, mesh)
        times.append(time.perf_counter() - start)
    print(
        f"{NEW_PAIRS} new pairs of rank 4 on {sizes}: median {statistics.median(times) * 1e3:.2f} ms, "
        f"the first {times[0] * 1e3:.0f} ms, 99 of 100 under {sorted(times)[-NEW_PAIRS // 100] * 1e3:.1f} ms, "
        f"in all {sum(times):.1f} s"
    )


def _tables(sizes: dict[str, int], rank: int) -> None:
    mesh = MeshModel.preset("cpu-virtual", sizes)
    specs = all_specs(tuple(sizes), rank)
    times = [_table_s(specs, (size,) * rank, mesh) for size in (1024, 2048, 4096, 4096)]
    uneven_s = _table_s(specs, (12, *(1024,) * (rank - 1)), mesh)
    print(
        f"table of all {len(specs)} specs of rank {rank} on {sizes}: first {times[0] * 1e3:.1f} ms, another size "
        f"{times[2] * 1e3:.1f} ms, an uneven shape {uneven_s * 1e3:.1f} ms, again {times[3] * 1e6:.0f} us"
    )


def _table_s(specs: tuple[ShardingSpec, ...], shape: tuple[int, ...], mesh: MeshModel) -> float:
    start = time.perf_counter()
    reshard_table(specs, specs, shape, 2, mesh)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
