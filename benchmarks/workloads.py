"""Our plans and hand-written layouts of the same programs, at several memory budgets, as predicted and as compiled.

A hand-written layout fixes the arguments. "as written" is `jax.jit` with these shardings on arguments and results and
nothing inside; "planned inside" is the best plan that keeps to them. Ours is free, within budgets that are shares of
the arguments' size. With ``--topology v5e:2x4`` everything is compiled by the TPU compiler, without a TPU.

    python benchmarks/workloads.py [--medium] [--topology v5e:2x4] [workload ...]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard import autoshard
from autoshard.errors import PlanningError
from autoshard.hlo import collectives, compile_with_log, memory, optimized_hlo
from autoshard.topology import tpu_mesh
from benchmarks.programs import MEDIUM, SMALL, Workload, mesh_4x2

MIB = 2**20
SHARES = (1.0, 0.5, 0.25, 0.18)
"""Budgets, as shares of the size of all arguments."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A compiled program, and what was predicted of it.

    Attributes:
        name: What was compiled.
        predicted_bytes: Bytes sent, as planned; None where nothing was planned.
        sent_bytes: Bytes sent, as compiled.
        predicted_memory_bytes: Peak memory, as planned.
        memory_bytes: Memory, as compiled.
        step_s: Time of a call, as planned.
        plan_s: Time to plan.
        compile_s: Time to compile.
    """

    name: str
    predicted_bytes: float | None = None
    sent_bytes: float
    predicted_memory_bytes: float | None = None
    memory_bytes: float
    step_s: float | None = None
    plan_s: float | None = None
    compile_s: float

    def __str__(self) -> str:
        def cell(value: float | None, unit: float, width: int, digits: int = 2) -> str:
            return f"{'' if value is None else f'{value / unit:,.{digits}f}':>{width}}"

        return (
            f"  {self.name:32} {cell(self.predicted_bytes, MIB, 9)} {cell(self.sent_bytes, MIB, 9)} "
            f"{cell(self.predicted_memory_bytes, MIB, 8, 1)} {cell(self.memory_bytes, MIB, 8, 1)} "
            f"{cell(self.step_s, 1e-3, 8)} {cell(self.plan_s, 1, 7, 1)} {cell(self.compile_s, 1, 9, 1)}"
        )


HEADER = (
    f"  {'':32} {'MiB sent':>19} {'MiB held':>17} {'step ms':>8} {'plan s':>7} {'compile s':>9}\n"
    f"  {'':32} {'predicted':>9} {'compiled':>9} {'predict.':>8} {'compiled':>8}"
)


def measured(name: str, lowered: Any, sizes: dict[str, int], **predicted: Any) -> Measured:
    begin = time.perf_counter()
    compiled, _ = compile_with_log(lowered)
    elapsed = time.perf_counter() - begin
    sent = sum(c.call_wire_bytes for c in collectives(optimized_hlo(compiled), sizes))
    return Measured(name=name, sent_bytes=sent, memory_bytes=memory(compiled).total, compile_s=elapsed, **predicted)


def planned(name: str, workload: Workload, mesh: Mesh, hardware: str, **options: Any) -> Measured:
    step = autoshard(workload.step, mesh, donate_argnums=workload.donate, hardware=hardware, **options)
    begin = time.perf_counter()
    plan = step.plan(*workload.args)
    elapsed = time.perf_counter() - begin
    predicted = plan.predicted
    return measured(
        name,
        step.lower(*workload.args),
        dict(mesh.shape),
        predicted_bytes=predicted.wire_bytes,
        predicted_memory_bytes=predicted.peak_memory_bytes,
        step_s=predicted.step_seconds,
        plan_s=elapsed,
    )


def as_written(name: str, workload: Workload, mesh: Mesh, layout: tuple[Any, ...]) -> Measured:
    """The program under `jax.jit`, with a layout on its arguments, and on its results where they are fed back."""

    def place(spec: Any) -> Any:
        return NamedSharding(mesh, spec)

    placed = jax.tree.map(place, layout, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    outs = (placed[0], None)  # every workload gives its first argument back as its first result
    jitted = jax.jit(workload.step, in_shardings=placed, out_shardings=outs, donate_argnums=workload.donate)
    return measured(name, jitted.lower(*workload.args), dict(mesh.shape))


def rows(workload: Workload, mesh: Mesh, hardware: str) -> Iterator[Measured | str]:
    for name, layout in workload.layouts.items():
        yield as_written(f"{name}, as written", workload, mesh, layout)
        yield planned(f"{name}, planned inside", workload, mesh, hardware, in_shardings=layout)
    yield planned("ours, no limit", workload, mesh, hardware)
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(workload.args))
    for share in SHARES:
        name = f"ours, within {share * whole / MIB:,.1f} MiB"
        try:
            yield planned(name, workload, mesh, hardware, memory_budget=share * whole)
        except PlanningError as error:
            yield f"  {name:32} {str(error).splitlines()[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--medium", action="store_true", help="eight times as wide")
    parser.add_argument("--topology", help="compile for a TPU slice of eight chips, such as v5e:2x4")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SMALL)}; all by default")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(SMALL)
    if unknown:
        parser.error(f"no workload is called {', '.join(sorted(unknown))}: there are {', '.join(SMALL)}")
    chosen = MEDIUM if asked.medium else SMALL
    mesh = mesh_4x2() if asked.topology is None else tpu_mesh(asked.topology, {"x": 4, "y": 2})
    hardware = "cpu-virtual" if asked.topology is None else f"tpu-{asked.topology.split(':')[0]}"
    for name in asked.names or list(chosen):
        workload = chosen[name]()
        print(f"{name} on {dict(mesh.shape)}, {hardware}\n{HEADER}")
        for row in rows(workload, mesh, hardware):
            print(row, flush=True)


if __name__ == "__main__":
    main()
