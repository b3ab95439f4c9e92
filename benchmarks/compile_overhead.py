"""How long the emitted functions compile, beside the same functions with their shardings on arguments and results only.

The plain function gets the plan's own shardings, as a person would write them into `jax.jit`. XLA compiles both anew in
every round, in turns; medians are compared. An emitted function is allowed 1.25 times the plain one's time.

    python benchmarks/compile_overhead.py [workload ...]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax

from autoshard import autoshard
from autoshard.hlo import compile_with_log
from benchmarks.programs import SMALL, Workload, mesh_4x2

ROUNDS = 3
ALLOWED = 1.25


def compile_seconds(lowered: Any) -> tuple[float, float]:
    """Wall and processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    compile_with_log(lowered)
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(workload: Workload) -> str:
    mesh = mesh_4x2()
    step = autoshard(workload.step, mesh, donate_argnums=workload.donate)
    plan = step.plan(*workload.args)
    plain = jax.jit(
        workload.step,
        in_shardings=plan.in_shardings,
        out_shardings=plan.out_shardings,
        donate_argnums=workload.donate,
    )
    lowered = plain.lower(*workload.args), step.lower(*workload.args)
    rounds = [[compile_seconds(program) for program in lowered] for _ in range(ROUNDS)]
    (wall, cpu), (our_wall, our_cpu) = (map(statistics.median, zip(*times)) for times in zip(*rounds))
    verdict = "met" if our_cpu <= ALLOWED * cpu else "not met"
    cells = f"{wall:8.2f} {our_wall:8.2f} {our_wall / wall:6.2f} {cpu:9.2f} {our_cpu:8.2f} {our_cpu / cpu:6.2f}"
    return f"{workload.name:16} {cells}  {verdict}"


def main() -> None:
    names = sys.argv[1:] or list(SMALL)
    print(f"{'':16} {'wall s':>8} {'ours':>8} {'ratio':>6} {'cpu s':>9} {'ours':>8} {'ratio':>6}")
    for name in names:
        print(compare(SMALL[name]()), flush=True)


if __name__ == "__main__":
    main()
