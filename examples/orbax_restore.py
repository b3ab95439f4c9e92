"""Save a checkpoint under one plan and mesh, restore it under another, and train on.

    python examples/orbax_restore.py

`plan.shardings_for(state)` says where the new plan wants every array; orbax reads each device's part straight to it.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from comparing import device_mesh, regression, report  # isort: skip  (sets up devices before jax starts)

import jax
import optax
import orbax.checkpoint as ocp
from optax_optimizers import init, make_train_step

from autoshard import autoshard

OPTIMIZER = optax.adam(1e-2)
STEP = make_train_step(OPTIMIZER)


def train(step: Any, state: Any, steps: int) -> tuple[Any, list[float]]:
    losses, batch = [], regression(32, 8)
    for _ in range(steps):
        *state, loss = step(*state, *batch)
        losses.append(float(loss))
    return state, losses


def restore(path: Path, like: Any, shardings: Any) -> Any:
    """The checkpoint with every array where `shardings` says."""
    target = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), like, shardings
    )
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, target)


def main() -> int:
    state = [init(), OPTIMIZER.init(init())]
    _, expected = train(jax.jit(STEP), state, 6)

    first = autoshard(STEP, device_mesh())
    half, before = train(first, state, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, half)

        second = autoshard(STEP, jax.make_mesh((8,), ("all",), axis_types=(jax.sharding.AxisType.Auto,)))
        plan = second.plan(*state, *regression(32, 8))
        restored = restore(path, half, plan.shardings_for(state))
    _, after = train(second, restored, 3)
    return 0 if report("restored on another mesh", expected, before + after, plan) else 1


if __name__ == "__main__":
    sys.exit(main())
