"""Look-ups, updates and orderings, in tables and sequences that are split."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.bugs.case import XY, YX, Case, D, Expect, below, held, normal


def embedding(table: Any, ids: Any) -> Any:
    return 8.0 * jnp.take(table, ids, axis=0)


def large_embedding(table: Any, ids: Any, w: Any) -> Any:
    return jnp.mean(jnp.square(jax.nn.gelu(table[ids] @ w)), axis=(0, 1))


def tied_embedding(table: Any, ids: Any) -> Any:
    return table[ids] @ table.T


def cross_entropy(logits: Any, labels: Any) -> Any:
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def one_hot_targets(model: Any, tokens: Any) -> Any:
    def loss(m: Any) -> Any:
        embedded = jnp.sin(jnp.arange(16 * 8 * 32.0)).reshape(16, 8, 32)
        targets = held(jax.nn.one_hot(tokens, m.shape[1]), D, "d", None, None)
        scores = jax.nn.log_softmax(jnp.einsum("bld,dv->blv", embedded, m))
        return jnp.mean(jnp.sum(targets * scores, axis=-1))

    return jax.value_and_grad(loss)(model)


def written_columns(x: Any, v: Any) -> Any:
    return x.at[:, jnp.array([3, 40])].set(v).at[2:5, 3:9].set(0.0)


def messages_to_nodes(messages: Any, nodes: Any) -> Any:
    return jax.ops.segment_sum(jnp.tanh(messages), nodes, num_segments=128)


def best_of_vocabulary(logits: Any) -> Any:
    values, places = lax.top_k(logits, 4)
    return values, places, jnp.argmax(logits, axis=-1)


def best_of_rows(x: Any) -> Any:
    return tuple(lax.top_k(x, 4))


def cached_decoding(cache: Any, q: Any, k: Any, position: Any) -> Any:
    cache = lax.dynamic_update_slice(cache, k[:, None], (0, position, 0, 0))
    scores = jnp.einsum("bhd,bshd->bhs", q, cache)
    seen = jnp.arange(cache.shape[1]) <= position
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return cache, jnp.einsum("bhs,bshd->bhd", weights, cache)


def experts_by_sorting(t: Any, gate: Any, w: Any) -> Any:
    tokens, chosen, capacity = t.shape[0], 2, 64
    experts = w.shape[0]
    share, ids = lax.top_k(jax.nn.softmax(t @ gate, axis=-1), chosen)
    order = jnp.argsort(ids.reshape(-1), stable=True)
    expert = ids.reshape(-1)[order]
    slot = jnp.arange(tokens * chosen) - jnp.searchsorted(expert, jnp.arange(experts))[expert]
    token = order // chosen
    queue = jnp.zeros((experts, capacity, t.shape[1])).at[expert, slot].set(t[token], mode="drop")
    done = jnp.einsum("ecd,edf->ecf", queue, w).at[expert, slot].get(mode="fill", fill_value=0.0)
    return jnp.zeros_like(t).at[token].add(done * share.reshape(-1)[order][:, None])


def experts_by_products(t: Any, gate: Any, w1: Any, w2: Any) -> Any:
    capacity = 8
    probabilities = jax.nn.softmax(jnp.einsum("gsd,de->gse", t, gate), axis=-1)
    chosen = jax.nn.one_hot(jnp.argmax(probabilities, axis=-1), w1.shape[0])
    place = jnp.cumsum(chosen, axis=1) * chosen - 1.0
    fits = (place >= 0) & (place < capacity)
    dispatch = jax.nn.one_hot(jnp.where(fits, place, -1).astype(jnp.int32), capacity) * fits[..., None]
    combine = dispatch * jnp.max(probabilities, axis=-1)[..., None, None]
    h = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", jnp.einsum("gsec,gsd->egcd", dispatch, t), w1))
    return jnp.einsum("egcd,gsec->gsd", jnp.einsum("egcf,efd->egcd", h, w2), combine)


CASES = (
    Case(
        name="embedding",
        seen="sgl-project/sglang-jax#1083",
        fn=embedding,
        args=lambda: [normal(0, 512, 32), below(512, 1, 16, 16)],
        ins={"table": P("y", None), "ids": P("x", None)},
        outs={0: P("x", None, None)},
        expect=Expect(sent_max=8192, not_gathered=("table",)),
    ),
    Case(
        name="large_embedding",
        seen="meta-pytorch/autoparallel#22",
        fn=large_embedding,
        args=lambda: [normal(0, 64, 256), below(64, 1, 256, 64), 0.05 * normal(2, 256, 256)],
        mesh=D,
        ins={"table": P("d", None)},
        expect=Expect(sent_max=59136, temporaries_max=4 * 2**24 / 8),
        everyday=False,
    ),
    Case(
        name="tied_embedding",
        seen="jax-ml/jax#26946, jax-ml/jax#27808",
        fn=tied_embedding,
        args=lambda: [normal(0, 17, 64), below(17, 1, 8, 4)],
        mesh=D,
        budget=5200,
        expect=Expect(whole=(("table", 0),), argument_parts={"table": 8}, says="17 is not divisible by 8"),
    ),
    Case(
        name="cross_entropy",
        seen="AI-Hypercomputer/maxtext#2242, sgl-project/sglang-jax#1063",
        fn=cross_entropy,
        args=lambda: [normal(0, 16, 16, 512), below(512, 1, 16, 16)],
        ins={"logits": P("x", None, "y"), "labels": P("x", None)},
        expect=Expect(sent_max=1024, not_gathered=("logits",)),
    ),
    Case(
        name="one_hot_targets",
        seen="openxla/xla#10543, jax-ml/jax#20149",
        fn=one_hot_targets,
        args=lambda: [normal(0, 32, 320), below(320, 1, 16, 8)],
        mesh=D,
        ins={"model": P(None, "d"), "tokens": P()},
        expect=Expect(sent_max=107600),
    ),
    Case(
        name="written_columns",
        seen="jax-ml/jax#23052",
        fn=written_columns,
        args=lambda: [normal(0, 256, 64), normal(1, 256, 2)],
        mesh=D,
        ins={"x": P("d", None), "v": P("d", None)},
        outs={0: P("d", None)},
        expect=Expect(sent_max=0),
    ),
    Case(
        name="messages_to_nodes",
        seen="jax-ml/jax#23052, netket/netket#1511",
        fn=messages_to_nodes,
        args=lambda: [normal(0, 4096, 32), below(128, 1, 4096)],
        mesh=D,
        ins={"messages": P("d", None), "nodes": P("d")},
        outs={0: P("d", None)},
        expect=Expect(sent_max=28672, not_gathered=("messages",)),
    ),
    Case(
        name="best_of_vocabulary",
        seen="jax-ml/jax#19271, sgl-project/sglang-jax#1063",
        fn=best_of_vocabulary,
        args=lambda: [normal(0, 8, 1024)],
        ins={"logits": P("x", "y")},
        outs={0: P("x", None), 1: P("x", None), 2: P("x")},
        expect=Expect(sent_max=2600, priced_min=1),
    ),
    Case(
        name="best_of_rows",
        seen="a probe of jax 0.10.2",
        fn=best_of_rows,
        args=lambda: [normal(0, 16, 1024)],
        mesh=D,
        ins={"x": P("d", None)},
        outs={0: P("d", None), 1: P("d", None)},
        expect=Expect(sent_max=0),
    ),
    Case(
        name="cached_decoding",
        seen="google-deepmind/gemma#648, apple/axlearn#972",
        fn=cached_decoding,
        args=lambda: [normal(0, 4, 256, 4, 16), normal(1, 4, 4, 16), normal(2, 4, 4, 16), jnp.int32(17)],
        mesh=YX,
        ins={"cache": P("x", None, "y", None), "q": P("x", "y", None), "k": P("x", "y", None)},
        donate=(0,),
        expect=Expect(sent_max=0, whole=(("cache", 1),), alike=(("cache", "result[0]"),)),
    ),
    Case(
        name="experts_by_sorting",
        seen="vllm-project/tpu-inference#2137, AI-Hypercomputer/maxtext#1712",
        fn=experts_by_sorting,
        args=lambda: [normal(0, 128, 16), normal(1, 16, 8), 0.2 * normal(2, 8, 16, 16)],
        mesh=D,
        ins={"t": P("d", None), "gate": P(None, None), "w": P("d", None, None)},
        outs={0: P("d", None)},
        expect=Expect(priced_min=1),
        everyday=False,
    ),
    Case(
        name="experts_by_products",
        seen="openxla/xla#15048: dispatch by all-to-all",
        fn=experts_by_products,
        args=lambda: [normal(0, 8, 32, 16), normal(1, 16, 8), 0.2 * normal(2, 8, 16, 32), 0.2 * normal(3, 8, 32, 16)],
        mesh=XY,
        ins={"t": P("x", None, None), "gate": P(None, None), "w1": P("x", None, "y"), "w2": P("x", "y", None)},
        outs={0: P("x", None, None)},
        expect=Expect(sent_max=20480, through=("all-to-all",), not_gathered=("w1", "w2")),
        everyday=False,
    ),
)
