"""Train a flax linen model whose parameters are boxed with partitioning metadata.

    python examples/flax_linen.py

The first layer names mesh axes (`nn.with_partitioning`), the second logical ones (`nn.with_logical_partitioning`). With
`infer_sharding` the annotations are honoured as fixed, on the optimizer's moments too; what they leave open is planned.
"""

import sys
from collections.abc import Callable
from typing import Any

from comparing import device_mesh, regression, report  # isort: skip  (sets up devices before jax starts)

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from autoshard import autoshard, infer_sharding

OPTIMIZER = optax.adam(1e-2)
LOGICAL_AXES = (("hidden", "model"), ("output", None))


class Network(nn.Module):
    """Two annotated layers."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.initializers.lecun_normal()
        x = nn.Dense(256, kernel_init=nn.with_partitioning(init, (None, "model")))(x)
        return nn.Dense(8, kernel_init=nn.with_logical_partitioning(init, ("hidden", "output")))(nn.gelu(x))


MODEL = Network()


def init() -> TrainState:
    params = MODEL.init(jax.random.key(0), jnp.ones((1, 32)))["params"]
    state: TrainState = TrainState.create(apply_fn=MODEL.apply, params=params, tx=OPTIMIZER)
    return state


def train_step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss_of(params: Any) -> jax.Array:
        return jnp.mean((state.apply_fn({"params": params}, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def train(step: Callable[..., Any], state: TrainState, steps: int = 5) -> list[float]:
    x, y = regression(32, 8)
    losses = []
    for _ in range(steps):
        state, loss = step(state, x, y)
        losses.append(float(loss))
    return losses


def main() -> int:
    mesh, state = device_mesh(), init()
    annotated, _ = infer_sharding(state, mesh, logical_axes=LOGICAL_AXES, undecided="free")
    sharded = autoshard(train_step, mesh, in_shardings=(annotated, None, None), donate_argnums=0)
    plan = sharded.plan(state, *regression(32, 8))
    print({leaf.name: leaf.spec for leaf in plan.arguments if "kernel" in leaf.name})
    return 0 if report("flax linen", train(jax.jit(train_step), init()), train(sharded, init()), plan) else 1


if __name__ == "__main__":
    sys.exit(main())
