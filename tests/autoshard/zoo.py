"""Small programs that together use every kind of region, nesting and data flow that the front end handles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Program:
    """A function with example arguments."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate: tuple[int, ...] = ()
    differentiable: bool = True

    def __str__(self) -> str:
        return self.name


@dataclass
class _Arrays:
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __call__(self, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
        return jnp.asarray(self.rng.normal(size=shape) * 0.3, dtype)

    def ids(self, *shape: int, below: int) -> jax.Array:
        return jnp.asarray(self.rng.integers(0, below, shape), jnp.int32)


def _mlp_step() -> Program:
    a = _Arrays()

    def step(params: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            h = x
            for w in p["layers"]:
                h = h + jax.nn.relu(h @ w["up"]) @ w["down"]
            return jnp.mean((h - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = {"layers": [{"up": a(16, 64), "down": a(64, 16)} for _ in range(2)]}
    return Program("mlp_step", step, (params, a(32, 16), a(32, 16)), donate=(0,), differentiable=False)


def _attention() -> Program:
    a = _Arrays()
    b, t, d, n, h = 8, 16, 32, 8, 4

    def attention(p: Any, x: Any) -> Any:
        z = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * p["g"]
        q, k, v = (jnp.einsum("btd,dnh->btnh", z, p[name]) for name in "qkv")
        s = jnp.einsum("btnh,bsnh->bnts", q, k) / math.sqrt(h)
        s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -1e30)
        o = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(s, -1), v)
        return x + o.reshape(b, t, n * h) @ p["o"].reshape(n * h, d)

    p = {"g": a(d), "q": a(d, n, h), "k": a(d, n, h), "v": a(d, n, h), "o": a(n, h, d)}
    return Program("attention", attention, (p, a(b, t, d)))


def _scanned_remat() -> Program:
    a = _Arrays()

    def fn(w: Any, x: Any) -> Any:
        @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
        def body(h: Any, wi: Any) -> Any:
            return jax.nn.gelu(h @ wi), jnp.sum(h, -1)

        h, sums = jax.lax.scan(body, x, w)
        return h, sums

    return Program("scanned_remat", fn, (a(3, 16, 16), a(16, 16)))


def _nested_scan() -> Program:
    a = _Arrays()

    def fn(w: Any, x: Any) -> Any:
        scale = jnp.arange(16, dtype=jnp.float32) / 16

        def inner(c: Any, v: Any) -> Any:
            return c * scale + v, c.sum()

        def outer(c: Any, wi: Any) -> Any:
            c, sums = jax.lax.scan(inner, c @ wi, jnp.stack([c, c + 1]))
            return c, sums

        return jax.lax.scan(outer, x, w, reverse=True)

    return Program("nested_scan", fn, (a(2, 16, 16), a(8, 16)))


def _loops_and_branches() -> Program:
    a = _Arrays()

    def fn(x: Any, n: Any) -> Any:
        def body(c: Any) -> Any:
            i, h = c
            h = jax.lax.cond(i % 2 == 0, lambda v: jnp.sin(v) @ v.T, lambda v: v - v.mean(0), h)
            return i + 1, h

        _, h = jax.lax.while_loop(lambda c: c[0] < n, body, (jnp.int32(0), x))
        return jax.lax.switch(n, [lambda v: v, lambda v: v * 2, lambda v: v.T], h)

    return Program("loops_and_branches", fn, (a(16, 16), jnp.int32(3)), differentiable=False)


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return jnp.clip(x, -0.5, 0.5) @ jnp.ones((x.shape[-1], x.shape[-1]))


_clipped.defvjp(lambda x: (_clipped(x), x), lambda x, g: (3.0 * g,))


@jax.custom_jvp
def _doubled(x: Any) -> Any:
    return jnp.sin(x) * 2


_doubled.defjvp(lambda p, t: (_doubled(*p), 5.0 * t[0]))


def _custom_rules() -> Program:
    a = _Arrays()
    return Program("custom_rules", lambda x: _doubled(_clipped(x)).sum(0), (a(16, 8),))


def _lookups() -> Program:
    a = _Arrays()

    def fn(table: Any, ids: Any) -> Any:
        x = table[ids]
        logits = x @ table.T
        target = jnp.take_along_axis(logits, ids[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - target)

    return Program("lookups", jax.value_and_grad(fn), (a(32, 16), a.ids(8, 16, below=32)), differentiable=False)


def _cache_update() -> Program:
    a = _Arrays()

    def fn(cache: Any, x: Any, pos: Any) -> Any:
        k = jax.lax.dynamic_update_slice(cache["k"], x[:, None], (0, pos, 0))
        row = jax.lax.dynamic_slice(k, (0, pos, 0), (k.shape[0], 2, k.shape[2]))
        return {"k": k}, jnp.argmax(jnp.einsum("bd,btd->bt", x, k), -1), row

    return Program("cache_update", fn, ({"k": a(8, 16, 8)}, a(8, 8), jnp.int32(3)), donate=(0,), differentiable=False)


def _rearrange() -> Program:
    a = _Arrays()

    def fn(x: Any) -> Any:
        y = x.reshape(4, 2, 8, 3, 5).transpose(2, 0, 4, 1, 3).reshape(32, 5, 6)
        z = jnp.concatenate([y, jnp.flip(y, 0)], 1)
        z = jnp.pad(z, ((0, 0), (1, 0), (0, 2)))[:, ::2]
        return jnp.cumsum(jnp.sort(z, 1), 0), jnp.argmin(z, -1), z.max((0, 2)), jnp.squeeze(z[:, :1], 1)

    return Program("rearrange", fn, (a(8, 8, 15),))


def _mixed_types() -> Program:
    a = _Arrays()

    def fn(x: Any, s: Any, scale: Any) -> Any:
        y = (x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16)) * scale
        return y + 1, (s.astype(jnp.int8) & 3).sum(-1), jnp.float16(2) * y.astype(jnp.float16), s > 2, None

    return Program("mixed_types", fn, (a(16, 8), a.ids(8, 4, below=9), 2.0), differentiable=False)


def _no_arrays() -> Program:
    return Program("scalars", lambda x, y: (x * y, jnp.arange(8.0) * 2, 3), (2.0, jnp.float32(3)), differentiable=False)


def zoo() -> list[Program]:
    """All programs."""
    makers = (
        _mlp_step, _attention, _scanned_remat, _nested_scan, _loops_and_branches, _custom_rules, _lookups,
        _cache_update, _rearrange, _mixed_types, _no_arrays,
    )  # fmt: skip
    return [make() for make in makers]
