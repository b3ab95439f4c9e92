"""Train with optimizers that hold lists of square matrices per parameter: PSGD-Kron, Shampoo and Muon.

    python examples/preconditioners.py

Kron and Shampoo are written out plainly below; Muon is optax's. Each is planned freely, and Kron also with its
arguments placed by the rule that trainers use by hand: `fsdp_sharding`, which splits preconditioners along their second
to last dimension.
"""

import sys
from typing import Any, NamedTuple

from comparing import device_mesh, regression, report  # isort: skip  (sets up devices before jax starts)

import jax
import jax.numpy as jnp
import optax
from optax.contrib import muon
from optax_optimizers import init, make_train_step, train

from autoshard import autoshard, fsdp_sharding, infer_sharding
from autoshard.inferring import ShardingRule

EVERY = 2  # steps between two refreshes of the preconditioners


class KronState(NamedTuple):
    """Per parameter a list of factors: a triangular matrix for each dimension."""

    steps_done: jax.Array
    factors: list[list[jax.Array]]


class ShampooState(NamedTuple):
    """Per parameter and dimension the sum of the gradient's outer products, and its inverse root."""

    steps_done: jax.Array
    sums: list[list[jax.Array]]
    roots: list[list[jax.Array]]


def along(factor: jax.Array, tensor: jax.Array, dim: int) -> jax.Array:
    """The product of a square matrix with one dimension of a tensor."""
    return jnp.moveaxis(jnp.tensordot(factor, tensor, axes=(1, dim)), 0, dim)


def applied(factors: list[jax.Array], tensor: jax.Array) -> jax.Array:
    """The product with every dimension's matrix."""
    for dim, factor in enumerate(factors):
        tensor = along(factor, tensor, dim)
    return tensor


def outer(tensor: jax.Array, dim: int) -> jax.Array:
    """The tensor times itself, summed over all dimensions but one."""
    flat = jnp.moveaxis(tensor, dim, 0).reshape(tensor.shape[dim], -1)
    return flat @ flat.T


def identities(params: Any) -> list[list[jax.Array]]:
    return [[jnp.eye(extent) for extent in leaf.shape] for leaf in jax.tree.leaves(params)]


def whitened(factors: list[jax.Array], grad: jax.Array) -> list[jax.Array]:
    """One step of the factors towards those that make the gradient's moments the identity."""
    white = applied(factors, grad)
    refreshed = []
    for dim, factor in enumerate(factors):
        moments = outer(white, dim)
        slope = moments / jnp.max(jnp.abs(moments)) - jnp.eye(len(factor)) / len(factor)
        refreshed.append(factor - 0.1 * jnp.triu(slope) @ factor)
    return refreshed


def kron(rate: float) -> optax.GradientTransformation:
    """PSGD with Kronecker-factored preconditioners, refreshed every second step."""

    def update(grads: Any, state: KronState, params: Any = None) -> tuple[Any, KronState]:
        leaves, tree = jax.tree.flatten(grads)
        factors = jax.lax.cond(
            state.steps_done % EVERY == 0,
            lambda factors: [whitened(of, grad) for of, grad in zip(factors, leaves, strict=True)],
            lambda factors: factors,
            state.factors,
        )
        steps = [
            -rate * applied([factor.T for factor in of], applied(of, grad))
            for of, grad in zip(factors, leaves, strict=True)
        ]
        return jax.tree.unflatten(tree, steps), KronState(state.steps_done + 1, factors)

    return optax.GradientTransformation(lambda params: KronState(jnp.zeros((), int), identities(params)), update)


def inverse_root(matrix: jax.Array, order: int) -> jax.Array:
    values, vectors = jnp.linalg.eigh(matrix + 1e-4 * jnp.eye(len(matrix)))
    root: jax.Array = (vectors * jnp.maximum(values, 1e-4) ** (-1 / order)) @ vectors.T
    return root


def shampoo(rate: float) -> optax.GradientTransformation:
    """Shampoo: the inverse roots are taken anew every second step."""

    def update(grads: Any, state: ShampooState, params: Any = None) -> tuple[Any, ShampooState]:
        leaves, tree = jax.tree.flatten(grads)
        sums = [
            [total + outer(grad, dim) for dim, total in enumerate(of)]
            for of, grad in zip(state.sums, leaves, strict=True)
        ]
        roots = jax.lax.cond(
            state.steps_done % EVERY == 0,
            lambda: [[inverse_root(total, 2 * len(of)) for total in of] for of in sums],
            lambda: state.roots,
        )
        steps = [-rate * applied(of, grad) for of, grad in zip(roots, leaves, strict=True)]
        return jax.tree.unflatten(tree, steps), ShampooState(state.steps_done + 1, sums, roots)

    def start(params: Any) -> ShampooState:
        zeros = [[0 * factor for factor in of] for of in identities(params)]
        return ShampooState(jnp.zeros((), int), zeros, identities(params))

    return optax.GradientTransformation(start, update)


OPTIMIZERS = {"PSGD-Kron": kron(0.02), "Shampoo": shampoo(0.05), "Muon": muon(0.02)}


def compare(name: str, optimizer: Any, rule: ShardingRule | None = None) -> bool:
    """Train unsharded and sharded; `rule` places parameters and state, or they are planned too."""
    mesh, params, step = device_mesh(), init(), make_train_step(optimizer)
    state = optimizer.init(params)
    shardings = None if rule is None else (*infer_sharding((params, state), mesh, rule)[0], None, None)
    sharded = autoshard(step, mesh, in_shardings=shardings)
    plan = sharded.plan(params, state, *regression(32, 8))
    return report(name, train(jax.jit(step), state), train(sharded, state), plan)


def main() -> int:
    agree = [compare(name, optimizer) for name, optimizer in OPTIMIZERS.items()]
    rule = fsdp_sharding("data", min_size_to_shard_mb=0.01)
    agree.append(compare("PSGD-Kron, placed by fsdp_sharding", OPTIMIZERS["PSGD-Kron"], rule))
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
