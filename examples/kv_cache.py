"""Inference: prefill a prompt, then decode token by token with a donated key-value cache.

    python examples/kv_cache.py

Two functions share the cache, so it has to be sharded alike in both: the decode step is planned first, since it runs
for every token, and `in_shardings` and `out_shardings` hand its choice to the prefill.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from comparing import device_mesh, report  # isort: skip  (sets up devices before jax starts)

import jax
import jax.numpy as jnp

from autoshard import autoshard

Params = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Keys and values of shape (batch, positions, heads, head size), and how many positions are filled."""

    keys: jax.Array
    values: jax.Array
    length: jax.Array


BATCH, PROMPT, NEW, HEADS, SIZE, VOCABULARY = 8, 24, 8, 4, 16, 128
WIDTH = HEADS * SIZE


def init() -> tuple[Params, Cache]:
    shapes = {"embedding": (VOCABULARY, WIDTH), "output": (HEADS, SIZE, WIDTH), "head": (WIDTH, VOCABULARY)}
    shapes |= {name: (WIDTH, HEADS, SIZE) for name in ("query", "key", "value")}
    keys = jax.random.split(jax.random.key(0), len(shapes))
    params = {name: jax.random.normal(key, shape) / 8 for key, (name, shape) in zip(keys, shapes.items(), strict=True)}
    room = jnp.zeros((BATCH, PROMPT + NEW, HEADS, SIZE))
    return params, Cache(room, room, jnp.zeros((), jnp.int32))


def extend(params: Params, cache: Cache, tokens: jax.Array) -> tuple[Cache, jax.Array]:
    """Append tokens of shape (batch, count) to the cache; returns the log probabilities of the token after the last."""
    x = params["embedding"][tokens]
    query, key, value = (jnp.einsum("btd,dnh->btnh", x, params[name]) for name in ("query", "key", "value"))
    keys = jax.lax.dynamic_update_slice_in_dim(cache.keys, key, cache.length, axis=1)
    values = jax.lax.dynamic_update_slice_in_dim(cache.values, value, cache.length, axis=1)
    visible = jnp.arange(keys.shape[1]) <= cache.length + jnp.arange(tokens.shape[1])[:, None]
    scores = jnp.einsum("btnh,bsnh->bnts", query, keys) / SIZE**0.5
    weights = jax.nn.softmax(jnp.where(visible, scores, -1e30))
    x = x + jnp.einsum("bnts,bsnh,nhd->btd", weights, values, params["output"])
    logits = jnp.tanh(x[:, -1]) @ params["head"]
    return Cache(keys, values, cache.length + tokens.shape[1]), jax.nn.log_softmax(logits)


def generate(prefill: Callable[..., Any], decode: Callable[..., Any]) -> list[float]:
    """Greedy decoding; returns the mean log probability of every token taken."""
    (params, cache), prompt = init(), jax.random.randint(jax.random.key(1), (BATCH, PROMPT), 0, VOCABULARY)
    cache, scores = prefill(params, cache, prompt)
    taken = []
    for _ in range(NEW):
        tokens = jnp.argmax(scores, axis=-1, keepdims=True)
        taken.append(float(jnp.take_along_axis(scores, tokens, axis=-1).mean()))
        cache, scores = decode(params, cache, tokens)
    return taken


def main() -> int:
    mesh, (params, cache) = device_mesh(), init()
    decode = autoshard(extend, mesh, donate_argnums=1)
    plan = decode.plan(params, cache, jax.ShapeDtypeStruct((BATCH, 1), jnp.int32))
    placed = plan.in_shardings
    prefill = autoshard(
        extend, mesh, in_shardings=(*placed[:2], None), out_shardings=(placed[1], None), donate_argnums=1
    )
    expected = generate(jax.jit(extend), jax.jit(extend, donate_argnums=1))
    return 0 if report("prefill and decode", expected, generate(prefill, decode), plan) else 1


if __name__ == "__main__":
    sys.exit(main())
