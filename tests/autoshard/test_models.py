"""Sizes that divide by nothing: they plan, run, and compute what the unsharded function computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard import autoshard

HEADS, KV_HEADS, HEAD_WIDTH, WIDTH = 8, 2, 8, 32


def mesh_of(*sizes: int) -> Mesh:
    names = ("data", "model", "pipe")[: len(sizes)]
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def weights(vocabulary: int) -> dict[str, Any]:
    shapes = {
        "embedding": (vocabulary, WIDTH),
        "query": (WIDTH, HEADS, HEAD_WIDTH),
        "key": (WIDTH, KV_HEADS, HEAD_WIDTH),
        "value": (WIDTH, KV_HEADS, HEAD_WIDTH),
        "output": (HEADS, HEAD_WIDTH, WIDTH),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {name: jax.random.normal(key, shape) / 8 for key, (name, shape) in zip(keys, shapes.items())}


def loss_of(params: dict[str, Any], tokens: Any) -> Any:
    """Next-token loss of one layer of grouped-query attention; embedding and unembedding are one table."""
    x = params["embedding"][tokens[:, :-1]]
    q = jnp.einsum("btd,dhk->bthk", x, params["query"])
    k, v = (jnp.einsum("btd,dgk->btgk", x, params[name]) for name in ("key", "value"))
    k, v = (jnp.repeat(a, HEADS // KV_HEADS, axis=2) for a in (k, v))
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / HEAD_WIDTH**0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(jnp.where(causal, scores, -1e30)), v)
    x = x + jnp.einsum("bthk,hkd->btd", mixed, params["output"])
    logits = jnp.einsum("btd,vd->btv", x, params["embedding"])
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def train_step(params: dict[str, Any], tokens: Any) -> Any:
    loss, slope = jax.value_and_grad(loss_of)(params, tokens)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, slope), loss


@pytest.mark.parametrize(
    ("fn", "sizes", "vocabulary", "batch"),
    [
        (train_step, (8,), 50257, 1),  # two key-value heads, a vocabulary and a batch that eight devices do not divide
        (loss_of, (1, 8), 257, 8),  # an axis of one device
        (loss_of, (1,), 257, 3),  # a mesh of one device
    ],
)
def test_values_are_those_of_the_unsharded_function(
    fn: Any, sizes: tuple[int, ...], vocabulary: int, batch: int
) -> None:
    params = weights(vocabulary)
    tokens = jax.random.randint(jax.random.key(1), (batch, 17), 0, vocabulary)
    step = autoshard(fn, mesh_of(*sizes))
    assert np.prod(sizes) > 1 or step.plan(params, tokens).collectives == (), "one device moves nothing"
    found, expected = jax.tree.leaves(step(params, tokens)), jax.tree.leaves(jax.jit(fn)(params, tokens))
    for leaf, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-6)


class TestAxesOfOneDevice:
    def test_shardings_over_them_are_accepted(self) -> None:
        mesh = mesh_of(1, 8)

        def fn(w: Any, x: Any) -> Any:
            return jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P("data", None))) * 2

        step = autoshard(fn, mesh, in_shardings=(P("data", "model"), P("data")), out_shardings=P(("data", "model")))
        w, x = jnp.ones((16, 16)), jnp.ones((8, 16))
        np.testing.assert_allclose(step(w, x), fn(w, x))
        assert step.plan(w, x).out_shardings.is_equivalent_to(NamedSharding(mesh, P("model")), 2)
