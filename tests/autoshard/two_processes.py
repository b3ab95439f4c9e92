"""Two processes with four devices each that run one program together.

python -m tests.autoshard.two_processes NUMBER PORT           trains the example
python -m tests.autoshard.two_processes NUMBER PORT FACTOR    multiplies: a program unlike the other process's
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from autoshard import autoshard
from tests.helpers import ROOT

SIZES = {"layers": 2, "width": 32, "heads": 4, "hidden": 64, "context": 16, "batch": 16}
STEPS = 3
PROCESSES = 2
QUICK_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def run_two(*factors: str) -> list[subprocess.CompletedProcess[str]]:
    """Both processes, ended; with a factor for each they disagree."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    env = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count=4 {QUICK_COMPILE}"}
    command = [sys.executable, "-m", "tests.autoshard.two_processes"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [
        subprocess.Popen([*command, str(number), port, *factors[number : number + 1]], cwd=ROOT, env=env, **pipes)
        for number in range(PROCESSES)
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in running]
    finally:
        for process in running:
            process.kill()
    return [subprocess.CompletedProcess(p.args, p.returncode, *output) for p, output in zip(running, outputs)]


def main() -> None:
    number, port, *factor = int(sys.argv[1]), *sys.argv[2:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", PROCESSES, number)
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    if factor:
        autoshard(lambda x: x * float(factor[0]), mesh)(np.ones(8, np.float32))
    else:
        print(json.dumps(train_together(mesh, number)))


def train_together(mesh: Mesh, number: int) -> dict[str, Any]:
    """What this process saw of the training."""
    from examples.train_gpt import Config, batches, init, make_train_step

    config = Config(**SIZES, dtype=np.float32)
    state = jax.eval_shape(lambda: init(config))
    tokens = jax.ShapeDtypeStruct((config.batch, config.context + 1), "int32")
    spans_both = jax.tree.map(lambda leaf: P("x") if leaf.ndim and leaf.shape[0] % 4 == 0 else None, state)
    step = autoshard(make_train_step(config), mesh, donate_argnums=0, in_shardings=(spans_both, None))
    plan = step.plan(state, tokens)
    state = plan.init(init, config)
    rows = config.batch // PROCESSES
    losses = []
    for batch in batches(config, STEPS):
        own = batch[number * rows : (number + 1) * rows]  # each process has read its half
        state, loss = step(state, plan.global_arrays(own, at="tokens"))
        losses.append(float(loss))
    parts = [shard.data.shape for shard in state["params"]["embedding"].addressable_shards]
    return {"losses": losses, "fingerprint": plan.fingerprint, "parts": parts}


if __name__ == "__main__":
    main()
