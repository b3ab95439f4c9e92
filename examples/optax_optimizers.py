"""Train one plain-pytree model with optax's kinds of state: moments, masks, factored moments, accumulation, schedules.

    python examples/optax_optimizers.py

Nothing says where optimizer state goes. It is fed back from step to step, so it keeps one sharding, the best for the
step; what belongs to a parameter usually follows it.
"""

import sys
from collections.abc import Callable
from typing import Any

from comparing import device_mesh, regression, report  # isort: skip  (sets up devices before jax starts)

import jax
import jax.numpy as jnp
import optax

from autoshard import autoshard

Params = dict[str, jax.Array]


def matrices_only(params: Params) -> dict[str, bool]:
    """Weight decay is for matrices, not for biases."""
    return {name: value.ndim > 1 for name, value in params.items()}


OPTIMIZERS = {
    "adam": optax.adam(1e-2),
    "adamw, decay masked, warmup and cosine": optax.adamw(
        optax.warmup_cosine_decay_schedule(1e-3, 1e-2, warmup_steps=2, decay_steps=10),
        weight_decay=0.1,
        mask=matrices_only,
    ),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=32),
    "adam, gradients of two steps accumulated": optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2),
}


def init() -> Params:
    up, down = jax.random.split(jax.random.key(0))
    return {
        "up": jax.random.normal(up, (32, 256)) / 6,
        "bias": jnp.zeros(256),
        "down": jax.random.normal(down, (256, 8)) / 16,
    }


def make_train_step(optimizer: Any) -> Callable[..., Any]:
    """One step of `optimizer`; its arguments are parameters, its state and a batch."""

    def train_step(params: Params, state: Any, x: jax.Array, y: jax.Array) -> tuple[Params, Any, jax.Array]:
        def loss_of(params: Params) -> jax.Array:
            hidden = jax.nn.gelu(x @ params["up"] + params["bias"])
            return jnp.mean((hidden @ params["down"] - y) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    return train_step


def train(step: Callable[..., Any], state: Any, steps: int = 5) -> list[float]:
    params, (x, y) = init(), regression(32, 8)
    losses = []
    for _ in range(steps):
        params, state, loss = step(params, state, x, y)
        losses.append(float(loss))
    return losses


def compare(name: str, optimizer: Any) -> bool:
    """Train with and without autoshard."""
    step = make_train_step(optimizer)
    sharded = autoshard(step, device_mesh(), donate_argnums=(0, 1))
    expected = train(jax.jit(step), optimizer.init(init()))
    plan = sharded.plan(init(), optimizer.init(init()), *regression(32, 8))
    return report(name, expected, train(sharded, optimizer.init(init())), plan)


def main() -> int:
    return 0 if all([compare(name, optimizer) for name, optimizer in OPTIMIZERS.items()]) else 1


if __name__ == "__main__":
    sys.exit(main())
