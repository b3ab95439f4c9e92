"""How long the emitted functions compile, beside the same functions with their shardings on arguments and results only.

The plain function gets the plan's own shardings, as a person would write them into `jax.jit`. XLA compiles both anew in
every round, in turns; medians are compared. An emitted function is allowed 1.25 times the plain one's time. Both
programs' instructions are counted, too: another program takes another time, whoever wrote its constraints.

    python benchmarks/compile_overhead.py [--topology v5e:2x4] [workload ...]
"""

from __future__ import annotations

import argparse
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
from jax.sharding import Mesh

from autoshard import autoshard
from autoshard.hlo import compile_with_log, optimized_hlo
from autoshard.topology import tpu_mesh
from benchmarks.programs import SMALL, Workload, mesh_4x2

ROUNDS = 3
ALLOWED = 1.25


def compile_seconds(lowered: Any) -> tuple[float, float]:
    """Wall and processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    compile_with_log(lowered)
    return time.perf_counter() - wall, time.process_time() - cpu


def instructions(lowered: Any) -> int:
    """How many a program has once compiled."""
    return sum(" = " in line for line in optimized_hlo(compile_with_log(lowered)[0]).splitlines())


def compare(workload: Workload, mesh: Mesh, hardware: str) -> str:
    step = autoshard(workload.step, mesh, donate_argnums=workload.donate, hardware=hardware)
    plan = step.plan(*workload.args)
    plain = jax.jit(
        workload.step,
        in_shardings=plan.in_shardings,
        out_shardings=plan.out_shardings,
        donate_argnums=workload.donate,
    )
    lowered = plain.lower(*workload.args), step.lower(*workload.args)
    size, our_size = map(instructions, lowered)
    rounds = [[compile_seconds(program) for program in lowered] for _ in range(ROUNDS)]
    (wall, cpu), (our_wall, our_cpu) = (map(statistics.median, zip(*times)) for times in zip(*rounds))
    verdict = "met" if our_cpu <= ALLOWED * cpu else "not met"
    cells = f"{wall:8.2f} {our_wall:8.2f} {our_wall / wall:6.2f} {cpu:9.2f} {our_cpu:8.2f} {our_cpu / cpu:6.2f}"
    cells += f" {our_size / size:13.2f}"
    return f"{workload.name:16} {cells}  {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topology", help="compile for a TPU slice of eight chips, such as v5e:2x4")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SMALL)}; all by default")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(SMALL)
    if unknown:
        parser.error(f"no workload is called {', '.join(sorted(unknown))}: there are {', '.join(SMALL)}")
    mesh = mesh_4x2() if asked.topology is None else tpu_mesh(asked.topology, {"x": 4, "y": 2})
    hardware = "cpu-virtual" if asked.topology is None else f"tpu-{asked.topology.split(':')[0]}"
    head = f"{'wall s':>8} {'ours':>8} {'ratio':>6} {'cpu s':>9} {'ours':>8} {'ratio':>6} {'instructions':>13}"
    print(f"{hardware:16} {head}")
    for name in asked.names or list(SMALL):
        print(compare(SMALL[name](), mesh, hardware), flush=True)


if __name__ == "__main__":
    main()
