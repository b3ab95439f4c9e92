"""Five hundred random programs, planned, compiled and run on eight devices: do results and gradients stay the same?

Programs nest loops, branches and rematerialised blocks, reshape, look up, update, sort and convert types; a third of
the arguments come in shardings that the caller fixed; mesh and speed of links change from one to the next. Prints what
is wrong, if anything is, then the mix of operations, the size of the programs, and how exact the predictions were.

    python benchmarks/random_programs.py [first] [last]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax

from autoshard.trace import build_graph, trace
from tests.programs.outcomes import Outcome, run
from tests.programs.random_programs import RandomProgram, random_program

SHARE, FREE_BYTES = 0.05, 64
"""A prediction is exact if it is off by no more than this share of the compiled bytes, or by a few scalars."""


def operations(program: RandomProgram) -> list[str]:
    """The primitives of a program and its gradient, boundaries of regions included, dead code left out."""
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (program.parameters, program.data))
    graph = build_graph(trace(program.results_and_gradients, shapes, {}))
    return [op.primitive for op in graph.ops if op.operands]


def attempts(first: int, last: int) -> Iterator[tuple[RandomProgram, Outcome | str]]:
    for seed in range(first, last):
        program = random_program(seed)
        try:
            yield program, run(program)
        except Exception as error:  # one program must not end the others
            yield program, f"{type(error).__name__}: {error}"
        jax.clear_caches()


def is_exact(outcome: Outcome) -> bool:
    difference = abs(outcome.predicted_wire_bytes - outcome.compiled_wire_bytes)
    return difference <= FREE_BYTES + SHARE * outcome.compiled_wire_bytes


def summary(done: list[Outcome], mix: Counter[str], sizes: list[int], failed: int, seconds: float) -> Iterator[str]:
    total = len(done) + failed
    yield f"{total} programs in {seconds:.0f} s: {failed} failed"
    yield f"operations a program: median {statistics.median(sizes):.0f}, {min(sizes)} to {max(sizes)}"
    counts: Any = mix.most_common()
    yield f"{len(counts)} kinds of operations: " + ", ".join(f"{name} {count}" for name, count in counts)
    for what, values in (
        ("plan", [o.plan_seconds for o in done]),
        ("compile", [o.compile_seconds for o in done]),
    ):
        if not values:
            return
        yield f"seconds to {what}: median {statistics.median(values):.2f}, longest {max(values):.1f}"
    exact = sum(map(is_exact, done))
    yield f"bytes sent as predicted (within {SHARE:.0%} or {FREE_BYTES} bytes): {exact} of {len(done)}"
    more = sum(o.compiled_wire_bytes > o.predicted_wire_bytes and not is_exact(o) for o in done)
    yield f"more than predicted: {more}; replicated for want of a better way: {sum(o.rematerializations for o in done)}"


def main() -> None:
    first, last = (int(a) for a in (sys.argv[1:] if len(sys.argv) == 3 else ("0", "500")))
    begin = time.perf_counter()
    done: list[Outcome] = []
    mix: Counter[str] = Counter()
    sizes: list[int] = []
    failed = 0
    for program, outcome in attempts(first, last):
        found = operations(program)
        mix.update(found)
        sizes.append(len(found))
        if isinstance(outcome, str) or outcome.faults:
            failed += 1
            print(f"seed {program.seed} {program.steps}: {outcome}", flush=True)
        else:
            done.append(outcome)
        if not isinstance(outcome, str) and not is_exact(outcome):
            sent = f"{outcome.predicted_wire_bytes:,.0f} predicted, {outcome.compiled_wire_bytes:,.0f} compiled"
            print(f"seed {program.seed}: {sent}", flush=True)
    print("\n".join(summary(done, mix, sizes, failed, time.perf_counter() - begin)))


if __name__ == "__main__":
    main()
