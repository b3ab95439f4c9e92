"""Plan, compile and run a random program on eight devices, and compare it with the unsharded one."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from autoshard import autoshard
from autoshard.costs import MeshModel
from autoshard.graph import ASSUMED_WHILE_TRIPS
from autoshard.hlo import collectives, compile_with_log, involuntary_rematerializations, optimized_hlo
from tests.programs.random_programs import RandomProgram

MESHES = ({"d": 8}, {"x": 4, "y": 2}, {"a": 2, "b": 2, "c": 2})
BYTES_PER_S = (1e9, 1e12)
"""Dear links and cheap ones: with the first most values stay where they are, with the second most work is split."""

EXACT, NARROW = 2e-4, 6e-2
"""Accepted difference relative to the largest element: of 32-bit programs, and of those with narrower types inside."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one program.

    Attributes:
        faults: What is wrong with its values.
        predicted_wire_bytes: Bytes sent per device and call in the plan.
        compiled_wire_bytes: Bytes sent in the compiled program.
        rematerializations: Tensors that XLA replicated for want of a better way.
        plan_seconds: Time to plan.
        compile_seconds: Time to compile.
    """

    faults: tuple[str, ...]
    predicted_wire_bytes: float
    compiled_wire_bytes: float
    rematerializations: int
    plan_seconds: float
    compile_seconds: float


def mesh_of(sizes: dict[str, int]) -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(tuple(sizes.values())), tuple(sizes))


def model_of(sizes: dict[str, int], bytes_per_s: float) -> MeshModel:
    """Equal links without latency between virtual CPU devices."""
    model = MeshModel.uniform(sizes, bytes_per_s=bytes_per_s, latency_s=0.0)
    return model.model_copy(update={"device": model.device.model_copy(update={"platform": "cpu"})})


def some_specs(arrays: dict[str, Any], sizes: dict[str, int], rng: random.Random) -> dict[str, Any]:
    """Shardings that a user fixed: of about a third of the arrays, one dimension over one axis where that divides."""
    specs: dict[str, Any] = {}
    for name, array in arrays.items():
        axis = rng.choice(list(sizes))
        fitting = [d for d, n in enumerate(array.shape) if n % sizes[axis] == 0]
        if not fitting or rng.random() > 1 / 3:
            specs[name] = None
            continue
        d = rng.choice(fitting)
        specs[name] = PartitionSpec(*(axis if k == d else None for k in range(array.ndim)))
    return specs


def run(program: RandomProgram) -> Outcome:
    """Plan, compile and run the results and gradients of a program, and compare them."""
    sizes = MESHES[program.seed % len(MESHES)]
    rng = random.Random(program.seed)
    fixed = tuple(some_specs(arrays, sizes, rng) for arrays in (program.parameters, program.data))
    fn = program.results_and_gradients
    arguments = program.parameters, program.data
    expected = jax.jit(fn)(*arguments)
    model = model_of(sizes, BYTES_PER_S[program.seed % len(BYTES_PER_S)])
    step = autoshard(fn, mesh_of(sizes), in_shardings=fixed, hardware=model)
    begin = time.perf_counter()
    plan = step.plan(*arguments)
    planned = time.perf_counter()
    compiled, log = compile_with_log(step.lower(*arguments))
    done = time.perf_counter()
    actual = compiled(*jax.device_put(arguments, plan.in_shardings))
    text = optimized_hlo(compiled)
    found = collectives(text, sizes, assumed_trips=ASSUMED_WHILE_TRIPS)
    return Outcome(
        faults=differences(expected, actual, NARROW if program.narrow else EXACT),
        predicted_wire_bytes=plan.predicted.wire_bytes,
        compiled_wire_bytes=sum(c.call_wire_bytes for c in found),
        rematerializations=len(involuntary_rematerializations(log, text, sizes)),
        plan_seconds=planned - begin,
        compile_seconds=done - planned,
    )


def differences(expected: Any, actual: Any, tolerance: float) -> tuple[str, ...]:
    """Where two trees of results differ by more than a tolerance, relative to the largest element."""
    if jax.tree.structure(expected) != jax.tree.structure(actual):
        return (f"structure {jax.tree.structure(actual)}, {jax.tree.structure(expected)} expected",)
    found = []
    for (path, want), have in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(actual)):
        if (want.shape, want.dtype, want.weak_type) != (have.shape, have.dtype, have.weak_type):
            found.append(f"{jax.tree_util.keystr(path)}: {have.aval}, {want.aval} expected")
            continue
        wide, other = (np.asarray(x.astype(jnp.float32), np.float64) for x in (want, have))
        distance = np.abs(wide - other).max(initial=0.0) / max(np.abs(wide).max(initial=0.0), 1e-3)
        if not distance <= tolerance:
            found.append(f"{jax.tree_util.keystr(path)}: {want.aval.str_short()} off by {distance:.2g}")
    return tuple(found)
