"""Train an equinox model, whose leaves include its activation function.

    python examples/equinox_mlp.py

`filter_autoshard` stands where `equinox.filter_jit` stood.
"""

import sys
from collections.abc import Callable
from typing import Any

from comparing import device_mesh, regression, report  # isort: skip  (sets up devices before jax starts)

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from autoshard import filter_autoshard

OPTIMIZER = optax.adam(1e-2)


def train_step(model: eqx.nn.MLP, state: Any, x: jax.Array, y: jax.Array) -> tuple[eqx.nn.MLP, Any, jax.Array]:
    loss, grads = eqx.filter_value_and_grad(lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2))(model)
    updates, state = OPTIMIZER.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state, loss


def init() -> tuple[eqx.nn.MLP, Any]:
    model = eqx.nn.MLP(32, 8, width_size=256, depth=2, key=jax.random.key(0))
    return model, OPTIMIZER.init(eqx.filter(model, eqx.is_inexact_array))


def train(step: Callable[..., Any], steps: int = 5) -> list[float]:
    (model, state), (x, y) = init(), regression(32, 8)
    losses = []
    for _ in range(steps):
        model, state, loss = step(model, state, x, y)
        losses.append(float(loss))
    return losses


def main() -> int:
    sharded = filter_autoshard(train_step, device_mesh(), donate_argnums=(0, 1))
    plan = sharded.plan(*init(), *regression(32, 8))
    return 0 if report("equinox", train(eqx.filter_jit(train_step)), train(sharded), plan) else 1


if __name__ == "__main__":
    sys.exit(main())
