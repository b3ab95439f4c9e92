"""What a warm call costs: a planned function beside the same function under `jax.jit`, 200 leaves on eight devices.

Both have the plan's shardings and their arguments in place. Rounds are interleaved, so that what else the machine does
falls on both. The median round is allowed 1.05 times the plain call, or 20 us more, whichever is larger.

    python benchmarks/dispatch.py
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from autoshard import autoshard

LEAVES, ROUNDS, CALLS = 200, 9, 60
RATIO, EXTRA_S = 1.05, 20e-6


def step(state: Any, x: Any) -> Any:
    """A step that touches every leaf: what is timed is the way in and out, not the work."""
    return jax.tree.map(lambda leaf: leaf + x, state)


def seconds_per_call(call: Callable[..., Any], *args: Any) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        result = call(*args)
    elapsed = time.perf_counter() - begin
    jax.block_until_ready(result)
    return elapsed / CALLS


def main() -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))
    state = {f"leaf {k}": jnp.ones((8, 16)) for k in range(LEAVES)}
    x = jnp.float32(1)
    planned = autoshard(step, mesh)
    plan = planned.plan(state, x)
    plain = jax.jit(step, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
    state, x = jax.device_put((state, x), plan.in_shardings)
    for call in (plain, planned):
        seconds_per_call(call, state, x)
    rounds = [(seconds_per_call(plain, state, x), seconds_per_call(planned, state, x)) for _ in range(ROUNDS)]
    jitted, ours = (statistics.median(times) for times in zip(*rounds))
    allowed = max(RATIO * jitted, jitted + EXTRA_S)
    print(f"{LEAVES} leaves, {ROUNDS} interleaved rounds of {CALLS} calls, medians")
    print(f"jax.jit    {1e6 * jitted:8.1f} us a call")
    print(f"autoshard  {1e6 * ours:8.1f} us a call, {ours / jitted:.3f} x, {1e6 * (ours - jitted):+.1f} us")
    print(f"allowed    {1e6 * allowed:8.1f} us: {'met' if ours <= allowed else 'not met'}")


if __name__ == "__main__":
    main()
