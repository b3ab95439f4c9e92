"""Layers and steps of training: attention, loops, rematerialised blocks, optimizers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.bugs.case import XY, YX, Case, D, Expect, below, held, normal
from tests.bugs.moves import convolve


def accumulated_gradients(w: Any, x: Any) -> Any:
    def add(total: Any, rows: Any) -> tuple[Any, None]:
        return total + jax.grad(lambda w: jnp.mean(jnp.square(rows @ w)))(w), None

    return lax.scan(add, jnp.zeros_like(w), x.reshape(4, 8, 64))[0] / 4.0


def split_weights(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.gelu(x @ w1) @ w2


def low_rank_backward(v: Any, u: Any, x: Any, t: Any) -> Any:
    return jax.grad(lambda vu: jnp.mean(jnp.square((x @ vu[0]) @ vu[1] - t)))((v, u))


def grouped_queries(h: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    batch, length, _ = h.shape
    q = jnp.einsum("bsd,dhk->bshk", h, wq).reshape(batch, length, 2, 4, 16)
    k, v = (jnp.einsum("bsd,dgk->bsgk", h, w) for w in (wk, wv))
    weights = jax.nn.softmax(jnp.einsum("bqgrk,bsgk->bgrqs", q, k) / 4.0, axis=-1)
    mixed = jnp.einsum("bgrqs,bsgk->bqgrk", weights, v).reshape(batch, length, 8, 16)
    return jnp.einsum("bshk,hkd->bsd", mixed, wo)


def one_key_head(h: Any, wq: Any, wk: Any, wv: Any) -> Any:
    q, k, v = (jnp.einsum("bsd,ndh->bsnh", h, w) for w in (wq, wk, wv))
    return jnp.einsum("bnqs,bsmh->bqnh", jax.nn.softmax(jnp.einsum("bqnh,bsmh->bnqs", q, k), axis=-1), v)


def mask_in_loop(q: Any, k: Any, v: Any, width: Any) -> Any:
    i = jnp.arange(q.shape[1])
    near = (i[:, None] >= i[None, :]) & (i[:, None] - i[None, :] < width)

    def layer(h: Any, _: None) -> tuple[Any, None]:
        scores = jnp.where(near, jnp.einsum("bqd,bkd->bqk", h, k) / 4.0, -1e30)
        return h + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, axis=-1), v), None

    return lax.scan(layer, q, None, length=2)[0]


def sequence_split_blocks(h: Any, w1: Any, w2: Any) -> Any:
    @jax.checkpoint
    def block(h: Any, w1: Any, w2: Any) -> Any:
        normed = h * lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + 1e-6)
        up = jax.nn.gelu(held(normed, XY, "x", None, None) @ w1)
        return h + held(up @ w2, XY, "x", "y", None)

    def loss(w1: Any, w2: Any) -> Any:
        return jnp.mean(jnp.square(block(block(h, w1, w2), w1, w2)))

    return jax.grad(loss, argnums=(0, 1))(w1, w2)


def batch_norm_step(params: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        h = convolve(x, p["kernel"], stride=2)
        h = (h - jnp.mean(h, axis=(0, 1, 2))) * lax.rsqrt(jnp.var(h, axis=(0, 1, 2)) + 1e-5)
        h = jax.nn.relu(h * p["gain"] + p["bias"])
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        scores = jax.nn.log_softmax(jnp.mean(h, axis=(1, 2)) @ p["head"])
        return -jnp.mean(scores[jnp.arange(x.shape[0]), y])

    value, gradient = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)


def stacked_layers(w1: Any, w2: Any, h: Any) -> Any:
    @jax.checkpoint
    def layer(h: Any, weights: Any) -> tuple[Any, None]:
        return h + jnp.tanh(h @ weights[0]) @ weights[1], None

    def loss(w1: Any, w2: Any) -> Any:
        return jnp.mean(jnp.square(lax.scan(layer, h, (w1, w2))[0]))

    return jax.grad(loss, argnums=(0, 1))(w1, w2)


def many_small_layers(w: Any, h: Any) -> Any:
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, w)[0]


def odd_parameters(params: Any, x: Any) -> Any:
    h = jnp.mean(params["table"][x], axis=1) * params["norm"]["scale"] * params["temperature"]
    filters = jnp.pad(params["filters"].reshape(-1), (0, 43))
    h = jax.nn.gelu(h @ params["mlp"]["up"]) @ params["mlp"]["down"] + filters
    return h @ params["head"]


def adam_step(params: Any, state: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        return jnp.mean(jnp.square(jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] - y))

    value, gradient = jax.value_and_grad(loss)(params)
    count = state["count"] + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], gradient)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["nu"], gradient)
    rate = 1e-2 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, mu, nu)
    return params, {"count": count, "mu": mu, "nu": nu}, value


def adam_arguments() -> list[Any]:
    params = {"w1": 0.1 * normal(0, 64, 256), "b1": jnp.zeros(256), "w2": 0.1 * normal(1, 256, 16)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    return [params, {"count": jnp.float32(0), "mu": zeros, "nu": zeros}, normal(2, 128, 64), normal(3, 128, 16)]


def refreshed_factors(g: Any, factors: Any, flag: Any) -> Any:
    def refresh(q: Any) -> Any:
        a = jnp.einsum("lij,ljk,lmk->lim", q[0], g, g)
        b = jnp.einsum("lij,lki,lkm->ljm", q[1], g, g)

        def step(factor: Any, change: Any) -> Any:
            largest = jnp.max(jnp.abs(change), axis=(1, 2), keepdims=True)
            return factor - 0.1 * jnp.triu(change / largest) @ factor

        return [step(q[0], a), step(q[1], b)]

    new = [held(q, XY, None, None, "y") for q in lax.cond(flag, refresh, lambda q: q, factors)]
    left = jnp.einsum("lia,lij,ljk,lmk->lam", new[0], new[0], g, new[1])
    return jnp.einsum("lam,lmb->lab", left, new[1]), new


def orthogonalised(m: Any) -> Any:
    x = m / (jnp.linalg.norm(m, axis=(-2, -1), keepdims=True) + 1e-7)
    for _ in range(5):
        a = jnp.einsum("lij,lkj->lik", x, x)
        b = -4.775 * a + 2.0315 * jnp.einsum("lij,ljk->lik", a, a)
        x = 3.4445 * x + jnp.einsum("lij,ljk->lik", b, x)
    return x


def donated_state(s: Any, t: Any) -> Any:
    return held(s + 1.0, {"x": 8}, "x"), 2.0 * t


def dropout_gradient(key: Any, x: Any, w: Any) -> Any:
    first, second = jax.random.split(key)

    @jax.checkpoint
    def block(w: Any) -> Any:
        h = jnp.tanh(x @ w)
        return jnp.where(jax.random.bernoulli(first, 0.9, h.shape), h / 0.9, 0.0)

    gradient = jax.grad(lambda w: jnp.mean(jnp.square(block(w))))(w)
    return gradient, jax.random.normal(second, (256, 64))


def batched_loops(y: Any, rate: Any) -> Any:
    def solve(y: Any, r: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < 10.0, lambda s: (s[0] * (1.0 + r) + 0.01, s[1] + 1), (y, 0))

    return jax.vmap(solve)(y, rate)


def wide_pair(h: Any, w1: Any, w2: Any) -> Any:
    return h + jax.nn.gelu(h @ w1) @ w2


def deep_network(params: Any, h: Any) -> Any:
    for p in params:
        normed = h * lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + 1e-6) * p["gain"]
        h = h + jax.nn.gelu(normed @ p["up"]) @ p["down"]
    return h


def deep_arguments() -> list[Any]:
    layers = [
        {"gain": jnp.ones(32), "up": 0.1 * normal(k, 32, 128), "down": 0.1 * normal(50 + k, 128, 32)} for k in range(24)
    ]
    return [layers, normal(999, 64, 32)]


def odd_arguments() -> list[Any]:
    params = {
        "table": 0.1 * normal(0, 5025, 64),
        "norm": {"scale": jnp.ones(64)},
        "temperature": jnp.float32(0.5),
        "filters": normal(1, 3, 7),
        "mlp": {"up": 0.1 * normal(2, 64, 256), "down": 0.1 * normal(3, 256, 64)},
        "head": 0.1 * normal(4, 64, 1000),
    }
    return [params, below(5025, 5, 16, 8)]


def batch_norm_arguments() -> list[Any]:
    params = {"kernel": 0.2 * normal(0, 3, 3, 4, 16), "gain": jnp.ones(16), "bias": jnp.zeros(16)}
    return [{**params, "head": normal(1, 16, 10)}, normal(2, 32, 16, 16, 4), below(10, 3, 32)]


SPLIT = {"w1": P(None, "d"), "b1": P(), "w2": P("d", None)}

CASES = (
    Case(
        name="accumulated_gradients",
        seen="openxla/xla#13306, apple/axlearn#993",
        fn=accumulated_gradients,
        args=lambda: [normal(0, 64, 16), normal(1, 32, 64)],
        ins={"w": P(None, None), "x": P("x", None)},
        outs={0: P(None, None)},
        expect=Expect(sent_max=26112, flops_share_max=0.26),
        open="on these links a gather of the rows (6,144 bytes) and the whole product on every device (0.2 us of 6.3) "
        "take a quarter of the time of gradients that are split and reduced (26,112 bytes)",
    ),
    Case(
        name="split_weights",
        seen="pytorch/xla#6778, young-geng/EasyLM#42",
        fn=split_weights,
        args=lambda: [normal(0, 1024, 64), 0.1 * normal(1, 64, 128), 0.1 * normal(2, 128, 64)],
        mesh=D,
        ins={"x": P("d", None), "w1": P("d", None), "w2": P("d", None)},
        outs={0: P("d", None)},
        expect=Expect(sent_max=57344, not_gathered=("x",)),
    ),
    Case(
        name="low_rank_backward",
        seen="goodfire-ai/spd: the backward pass in another sharding",
        fn=low_rank_backward,
        args=lambda: [0.1 * normal(0, 64, 32), 0.1 * normal(1, 32, 64), normal(2, 512, 64), normal(3, 512, 64)],
        ins={"v": P("x", "y"), "u": P("y", "x"), "x": P("x", None), "t": P("x", None)},
        outs={0: P("x", "y"), 1: P("y", "x")},
        expect=Expect(sent_max=51200, not_gathered=("x", "t")),
    ),
    Case(
        name="grouped_queries",
        seen="vllm-project/tpu-inference#1429, google-deepmind/gemma#648",
        fn=grouped_queries,
        args=lambda: [
            normal(0, 4, 32, 64),
            0.1 * normal(1, 64, 8, 16),
            0.1 * normal(2, 64, 2, 16),
            0.1 * normal(3, 64, 2, 16),
            0.1 * normal(4, 8, 16, 64),
        ],
        mesh=YX,
        ins={"h": P("x", None, None), "wq": P(None, "y", None), "wo": P("y", None, None)},
        outs={0: P("x", None, None)},
        expect=Expect(sent_max=24576, whole=(("wk", 1), ("wv", 1))),
    ),
    Case(
        name="one_key_head",
        seen="keras-team/keras-hub#1613",
        fn=one_key_head,
        args=lambda: [normal(0, 4, 16, 64), *(0.1 * normal(k, n, 64, 32) for k, n in ((1, 8), (2, 1), (3, 1)))],
        mesh={"data": 2, "model": 4},
        ins={"h": P("data", None, None)},
        everyday=False,
        expect=Expect(whole=(("wk", 0), ("wv", 0))),
    ),
    Case(
        name="mask_in_loop",
        seen="AI-Hypercomputer/maxtext#4191, apple/axlearn#1301",
        fn=mask_in_loop,
        args=lambda: [*(normal(k, 2, 256, 32) for k in range(3)), jnp.int32(64)],
        mesh={"s": 8},
        ins={"q": P(None, "s", None), "k": P(None, "s", None), "v": P(None, "s", None), "width": P()},
        outs={0: P(None, "s", None)},
        expect=Expect(sent_max=116480, temporaries_max=2 * 2 * 256 * 256 * 4),
    ),
    Case(
        name="sequence_split_blocks",
        seen="jax-ml/jax#25010, openxla/xla#19163",
        fn=sequence_split_blocks,
        args=lambda: [normal(0, 8, 32, 64), 0.1 * normal(1, 64, 128), 0.1 * normal(2, 128, 64)],
        ins={"h": P("x", "y", None), "w1": P(None, "y"), "w2": P("y", None)},
        expect=Expect(sent_max=376832),
        everyday=False,
    ),
    Case(
        name="batch_norm_step",
        seen="alpa-projects/alpa#701, jax-ml/jax#11364",
        fn=batch_norm_step,
        args=batch_norm_arguments,
        mesh=D,
        ins={"params": P(), "x": P("d"), "y": P("d")},
        expect=Expect(sent_max=6600, without=("all-to-all",)),
        everyday=False,
    ),
    Case(
        name="stacked_layers",
        seen="pytorch/xla#8883, stanford-crfm/levanter#73",
        fn=stacked_layers,
        args=lambda: [0.1 * normal(0, 6, 64, 128), 0.1 * normal(1, 6, 128, 64), normal(2, 256, 64)],
        ins={"w1": P(None, "x", "y"), "w2": P(None, "y", "x"), "h": P("x", None)},
        outs={0: P(None, "x", "y"), 1: P(None, "y", "x")},
        everyday=False,
        expect=Expect(sent_max=786432, priced_min=6, whole=(("w1", 0), ("w2", 0)), result_parts={0: 8, 1: 8}),
    ),
    Case(
        name="many_small_layers",
        seen="google-research/big_vision: the largest dimension is that of the layers",
        fn=many_small_layers,
        args=lambda: [0.3 * normal(0, 64, 16, 16), normal(1, 64, 16)],
        mesh=D,
        ins={"h": P("d", None)},
        outs={0: P("d", None)},
        expect=Expect(sent_max=57344, whole=(("w", 0),), temporaries_max=8192),
    ),
    Case(
        name="odd_parameters",
        seen="google-research/big_vision: a table of odd extent, small leaves, scalars",
        fn=odd_parameters,
        args=odd_arguments,
        mesh=D,
        ins={"x": P("d", None)},
        budget=300_000,
        expect=Expect(whole=(("params['table']", 0),), argument_share_max=0.14),
    ),
    Case(
        name="adam_step",
        seen="google-deepmind/optax#548, google/flax#5172",
        fn=adam_step,
        args=adam_arguments,
        mesh=D,
        ins={"params": SPLIT, "x": P("d", None), "y": P("d", None)},
        outs={0: SPLIT},
        expect=Expect(
            sent_max=51100,
            alike=tuple((f"state['{m}']['{w}']", f"params['{w}']") for m in ("mu", "nu") for w in ("w1", "b1", "w2"))
            + tuple((f"state['{m}']['{w}']", f"result[1]['{m}']['{w}']") for m in ("mu", "nu") for w in ("w1", "b1")),
        ),
    ),
    Case(
        name="refreshed_factors",
        seen="evanatyourservice/psgd_jax: preconditioners refreshed in a cond",
        fn=refreshed_factors,
        args=lambda: [
            normal(0, 3, 64, 32),
            [jnp.tile(jnp.eye(n)[None], (3, 1, 1)) for n in (64, 32)],
            jnp.bool_(True),
        ],
        ins={"g": P(None, "x", "y"), "factors": [P(None, "x", None)] * 2, "flag": P()},
        outs={0: P(None, "x", "y")},
        expect=Expect(sent_max=122922),
        everyday=False,
    ),
    Case(
        name="orthogonalised",
        seen="goodfire-ai/spd#978, google-deepmind/optax#1660",
        fn=orthogonalised,
        args=lambda: [normal(0, 8, 64, 64)],
        ins={"m": P(None, "x", "y")},
        outs={0: P(None, "x", "y")},
        expect=Expect(sent_max=40960),
    ),
    Case(
        name="donated_state",
        seen="jax-ml/jax#25346, jax-ml/jax#9675",
        fn=donated_state,
        args=lambda: [normal(0, 64), normal(1, 64)],
        mesh={"x": 8},
        outs={1: P("x")},
        donate=(0,),
        expect=Expect(alike=(("s", "result[0]"),)),
    ),
    Case(
        name="dropout_gradient",
        seen="jax-ml/jax#17982, jax-ml/jax#13631",
        fn=dropout_gradient,
        args=lambda: [jax.random.PRNGKey(3), normal(0, 256, 32), normal(1, 32, 32)],
        mesh=D,
        ins={"key": P(), "x": P("d", None), "w": P()},
        outs={1: P("d", None)},
        expect=Expect(sent_max=7168),
        everyday=False,
    ),
    Case(
        name="batched_loops",
        seen="jax-ml/jax#20968, patrick-kidger/diffrax#407",
        fn=batched_loops,
        args=lambda: [0.1 + 0.5 * jnp.abs(jnp.sin(normal(0, 64))), 0.05 + 0.4 * jnp.abs(jnp.sin(normal(1, 64)))],
        mesh=D,
        ins={"y": P("d"), "rate": P("d")},
        outs={0: P("d"), 1: P("d")},
        expect=Expect(sent_max=64, priced_min=1, says="while"),
    ),
    Case(
        name="wide_pair",
        seen="meta-pytorch/autoparallel#320",
        fn=wide_pair,
        args=lambda: [normal(0, 4, 64, 64), 0.1 * normal(1, 64, 512), 0.05 * normal(2, 512, 64)],
        ins={"h": P("x", None, None)},
        outs={0: P("x", None, None)},
        budget=330_000,
        expect=Expect(sent_max=16384, flops_share_max=0.126),
    ),
    Case(
        name="deep_network",
        seen="meta-pytorch/autoparallel#513, openxla/xla#7248",
        fn=deep_network,
        args=deep_arguments,
        ins={"h": P("x", None)},
        expect=Expect(alike=tuple((f"params[{k}]['up']", "params[0]['up']") for k in (1, 12, 23))),
        everyday=False,
    ),
)
