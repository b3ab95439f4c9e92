"""Fine-tune low-rank factors beside a frozen base.

    python examples/lora.py

The base is an argument that is neither trained nor fed back; gradients and optimizer state exist for the factors alone.
"""

import sys
from collections.abc import Callable
from typing import Any

from comparing import device_mesh, regression, report  # isort: skip  (sets up devices before jax starts)

import jax
import jax.numpy as jnp
import optax

from autoshard import autoshard

RANK = 4
OPTIMIZER = optax.adam(1e-2)

Params = dict[str, Any]


def init_base() -> Params:
    up, down = jax.random.split(jax.random.key(0))
    return {"up": jax.random.normal(up, (32, 1024)) / 6, "down": jax.random.normal(down, (1024, 8)) / 32}


def init_factors(base: Params) -> Params:
    """Per matrix a pair of factors whose product is zero at the start."""
    keys = jax.random.split(jax.random.key(1), len(base))
    return {
        name: {"a": jax.random.normal(key, (matrix.shape[0], RANK)) / 4, "b": jnp.zeros((RANK, matrix.shape[1]))}
        for key, (name, matrix) in zip(keys, base.items(), strict=True)
    }


def adapted(x: jax.Array, matrix: jax.Array, factors: Params) -> jax.Array:
    """The product with `matrix + a b`, without that sum ever being made."""
    change: jax.Array = (x @ factors["a"]) @ factors["b"]
    return x @ matrix + change


def train_step(factors: Params, state: Any, base: Params, x: jax.Array, y: jax.Array) -> tuple[Params, Any, jax.Array]:
    def loss_of(factors: Params) -> jax.Array:
        hidden = jax.nn.gelu(adapted(x, base["up"], factors["up"]))
        return jnp.mean((adapted(hidden, base["down"], factors["down"]) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(factors)
    updates, state = OPTIMIZER.update(grads, state)
    return optax.apply_updates(factors, updates), state, loss


def train(step: Callable[..., Any], base: Params, steps: int = 5) -> list[float]:
    factors, (x, y) = init_factors(base), regression(32, 8)
    state, losses = OPTIMIZER.init(factors), []
    for _ in range(steps):
        factors, state, loss = step(factors, state, base, x, y)
        losses.append(float(loss))
    return losses


def main() -> int:
    base = init_base()
    factors = init_factors(base)
    sharded = autoshard(train_step, device_mesh(), donate_argnums=(0, 1))
    plan = sharded.plan(factors, OPTIMIZER.init(factors), base, *regression(32, 8))
    return 0 if report("LoRA", train(jax.jit(train_step), base), train(sharded, base), plan) else 1


if __name__ == "__main__":
    sys.exit(main())
