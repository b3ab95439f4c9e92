"""Train a flax nnx model, with dropout and batch statistics, by the same step as on one device.

    python examples/flax_nnx.py

`nnx_autoshard` stands where `nnx.jit` stood: the model and the optimizer are updated in place.
"""

import sys
from collections.abc import Callable
from typing import Any

from comparing import device_mesh, regression, report  # isort: skip  (sets up devices before jax starts)

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from autoshard import nnx_autoshard


class Network(nnx.Module):
    """Two layers with dropout and batch normalisation in between."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(32, 256, rngs=rngs)
        self.norm = nnx.BatchNorm(256, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.down = nnx.Linear(256, 8, rngs=rngs)

    def __call__(self, x: jax.Array) -> Any:
        return self.down(self.dropout(jax.nn.gelu(self.norm(self.up(x)))))


def train_step(model: Network, optimizer: nnx.Optimizer[Network], x: jax.Array, y: jax.Array) -> Any:
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def init() -> tuple[Network, nnx.Optimizer[Network]]:
    model = Network(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def train(step: Callable[..., jax.Array], steps: int = 5) -> list[float]:
    (model, optimizer), (x, y) = init(), regression(32, 8)
    return [float(step(model, optimizer, x, y)) for _ in range(steps)]


def main() -> int:
    sharded = nnx_autoshard(train_step, device_mesh(), donate_argnums=(0, 1))
    plan = sharded.plan(*init(), *regression(32, 8))
    return 0 if report("flax nnx", train(nnx.jit(train_step)), train(sharded), plan) else 1


if __name__ == "__main__":
    sys.exit(main())
