"""The programs that benchmarks plan: training steps and a decoding step in plain JAX, with layouts that people write.

Each is a function of a size to a `Workload`; `SMALL` compiles in seconds on a laptop, `MEDIUM` is eight times as large.
Layouts are PartitionSpecs of the arguments over the axes ``x`` and ``y``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

Tree = Any
ALL = ("x", "y")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A step and what it is called with.

    Attributes:
        name: Its name.
        step: The function.
        args: Its arguments as shapes.
        donate: Positions of arguments that are given back.
        layouts: Name of a hand-written layout to the shardings of the arguments.
    """

    name: str
    step: Callable[..., Any]
    args: tuple[Tree, ...]
    donate: tuple[int, ...]
    layouts: Mapping[str, tuple[Tree, ...]]


def mesh_4x2() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ALL)


def array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def trained(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of Adam: from a state of parameters and moments and a batch to the next state and the loss."""

    def step(state: Tree, *batch: Any) -> tuple[Tree, Any]:
        value, gradient = jax.value_and_grad(loss)(state["params"], *batch)
        count = state["count"] + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradient)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["second"], gradient)
        rate = 1e-3 * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
        moved = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), state["params"], first, second)
        return {"params": moved, "first": first, "second": second, "count": count}, value

    return step


def state_of(params: Tree) -> Tree:
    return {"params": params, "first": params, "second": params, "count": array()}


def state_specs(specs: Tree) -> Tree:
    return {"params": specs, "first": specs, "second": specs, "count": P()}


def largest_split(params: Tree, axes: Any, parts: int, first: int = 0) -> Tree:
    """Every parameter split along its largest dimension that divides, from dimension ``first`` on."""

    def spec(leaf: Any) -> P:
        fitting = [d for d in range(first, len(leaf.shape)) if leaf.shape[d] % parts == 0]
        if not fitting:
            return P()
        d = max(fitting, key=lambda d: leaf.shape[d])
        return P(*(axes if k == d else None for k in range(len(leaf.shape))))

    return jax.tree.map(spec, params)


def training_layouts(params: Tree, tensor: Tree, batch: int, stacked: int = 0) -> dict[str, tuple[Tree, ...]]:
    """Data parallel, fully sharded, and tensor parallel over ``y``, for a step with so many batch arguments."""
    whole = jax.tree.map(lambda leaf: P(), params)
    rows = (P(ALL),) * batch
    return {
        "data parallel": (state_specs(whole), *rows),
        "fully sharded": (state_specs(largest_split(params, ALL, 8, stacked)), *rows),
        "tensor parallel": (state_specs(tensor), *((P("x"),) * batch)),
    }


def mlp(scale: int = 1) -> Workload:
    """Two residual blocks of a perceptron."""
    width, hidden, batch = 256 * scale, 1024 * scale, 512
    params = [{"up": array(width, hidden), "down": array(hidden, width)} for _ in range(2)]

    def loss(params: Tree, x: Any, y: Any) -> Any:
        for p in params:
            x = x + jax.nn.relu(x @ p["up"]) @ p["down"]
        return jnp.mean(jnp.square(x - y))

    return Workload(
        name="mlp",
        step=trained(loss),
        args=(state_of(params), array(batch, width), array(batch, width)),
        donate=(0,),
        layouts=training_layouts(params, [{"up": P(None, "y"), "down": P("y", None)}] * 2, batch=2),
    )


def attention(x: Any, p: Tree) -> Any:
    """Causal attention; parameters are kept in float32 and used in the type of the activations."""
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[name].astype(x.dtype)) for name in ("q", "k", "v"))
    scores = jnp.einsum("bqhk,bthk->bhqt", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    past = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(past, scores, -1e30), axis=-1).astype(x.dtype)
    return jnp.einsum("bqhk,hkd->bqd", jnp.einsum("bhqt,bthk->bqhk", weights, v), p["out"].astype(x.dtype))


def normalised(x: Any, gain: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6) * gain).astype(x.dtype)


def transformer_block(x: Any, p: Tree) -> Any:
    x = x + attention(normalised(x, p["norm 1"]), p)
    h = normalised(x, p["norm 2"])
    return x + jax.nn.gelu(h @ p["up"].astype(x.dtype)) @ p["down"].astype(x.dtype)


def gpt(name: str, scale: int, scanned: bool) -> Workload:
    """A small language model with rematerialised blocks, its layers in a scan or one after another."""
    layers, width, heads, vocabulary, length, batch = 4, 128 * scale, 8, 4096, 128, 16
    layer = {name: array(width, heads, width // heads) for name in ("q", "k", "v")}
    layer |= {
        "out": array(heads, width // heads, width),
        "up": array(width, 4 * width),
        "down": array(4 * width, width),
    }
    layer |= {"norm 1": array(width), "norm 2": array(width)}
    split = {name: P(None, "y", None) for name in ("q", "k", "v")}
    split |= {"out": P("y", None, None), "up": P(None, "y"), "down": P("y", None), "norm 1": P(None), "norm 2": P(None)}
    if scanned:
        stack: Tree = jax.tree.map(lambda a: array(layers, *a.shape), layer)
        tensor: Tree = {name: P(None, *spec) for name, spec in split.items()}
    else:
        stack, tensor = [layer] * layers, [split] * layers
    params = {"embedding": array(vocabulary, width), "layers": stack, "norm": array(width)}

    def loss(params: Tree, tokens: Any) -> Any:
        block = jax.checkpoint(transformer_block)
        x = params["embedding"][tokens[:, :-1]].astype(jnp.bfloat16)
        if scanned:
            x, _ = lax.scan(lambda x, p: (block(x, p), None), x, params["layers"])
        else:
            for p in params["layers"]:
                x = block(x, p)
        logits = normalised(x, params["norm"]) @ params["embedding"].T.astype(x.dtype)
        logits = logits.astype(jnp.float32)
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

    tensor = {"embedding": P("y", None), "layers": tensor, "norm": P(None)}
    layouts = training_layouts(params, tensor, batch=1)
    if scanned:  # what is scanned over stays whole
        whole = largest_split(params, ALL, 8) | {"layers": largest_split(stack, ALL, 8, first=1)}
        layouts["fully sharded"] = (state_specs(whole), P(ALL))
    return Workload(
        name=name,
        step=trained(loss),
        args=(state_of(params), array(batch, length + 1, dtype="int32")),
        donate=(0,),
        layouts=layouts,
    )


def moe(scale: int = 1) -> Workload:
    """A mixture of experts: tokens go to one of eight, by products with one-hot masks, up to a capacity."""
    experts, width, hidden, groups, tokens = 8, 128 * scale, 256 * scale, 8, 128
    capacity = 2 * tokens // experts
    params = {"gate": array(width, experts), "up": array(experts, width, hidden), "down": array(experts, hidden, width)}

    def loss(params: Tree, x: Any, y: Any) -> Any:
        probabilities = jax.nn.softmax(jnp.einsum("gsd,de->gse", x, params["gate"]), axis=-1)
        chosen = jax.nn.one_hot(jnp.argmax(probabilities, axis=-1), experts)
        place = jnp.cumsum(chosen, axis=1) * chosen - 1.0
        dispatch = jax.nn.one_hot(jnp.where(place < capacity, place, -1.0).astype(jnp.int32), capacity)
        combine = dispatch * jnp.max(probabilities, axis=-1)[..., None, None]
        sent = jnp.einsum("gsec,gsd->egcd", dispatch, x)
        h = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", sent, params["up"]))
        back = jnp.einsum("egcf,efd->egcd", h, params["down"])
        return jnp.mean(jnp.square(x + jnp.einsum("egcd,gsec->gsd", back, combine) - y))

    layouts = training_layouts(params, {"gate": P(), "up": P(None, None, "y"), "down": P(None, "y", None)}, batch=2)
    by_expert = {"gate": P(), "up": P(ALL), "down": P(ALL)}
    layouts["expert parallel"] = (state_specs(by_expert), P(ALL), P(ALL))
    rows = array(groups, tokens, width)
    return Workload(name="moe", step=trained(loss), args=(state_of(params), rows, rows), donate=(0,), layouts=layouts)


def decode(scale: int = 1) -> Workload:
    """One token for each of sixteen sequences: attention over a cache that is donated and given back."""
    layers, width, heads, batch, length = 4, 128 * scale, 8, 16, 512
    weights = {name: array(layers, width, heads, width // heads, dtype="bfloat16") for name in ("q", "k", "v")}
    weights["out"] = array(layers, heads, width // heads, width, dtype="bfloat16")
    cache = {name: array(layers, batch, length, heads, width // heads, dtype="bfloat16") for name in ("k", "v")}

    def step(cache: Tree, weights: Tree, x: Any, position: Any) -> tuple[Tree, Any]:
        def layer(x: Any, both: tuple[Tree, Tree]) -> tuple[Any, Tree]:
            p, past = both
            q, k, v = (jnp.einsum("bd,dhk->bhk", x, p[name]) for name in ("q", "k", "v"))
            past = {
                name: lax.dynamic_update_slice_in_dim(past[name], new[:, None], position, axis=1)
                for name, new in (("k", k), ("v", v))
            }
            scores = jnp.einsum("bhk,bthk->bht", q, past["k"]).astype(jnp.float32)
            seen = jnp.arange(length) <= position
            mixed = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1).astype(x.dtype)
            return x + jnp.einsum("bhk,hkd->bd", jnp.einsum("bht,bthk->bhk", mixed, past["v"]), p["out"]), past

        x, cache = lax.scan(layer, x, (weights, cache))
        return cache, x

    def layout(batch_axes: Any, head_axes: Any) -> tuple[Tree, ...]:
        split = {name: P(None, None, head_axes, None) for name in ("q", "k", "v")} | {"out": P(None, head_axes)}
        kept = {name: P(None, batch_axes, None, head_axes, None) for name in ("k", "v")}
        return kept, split, P(batch_axes, None), P()

    return Workload(
        name="decode",
        step=step,
        args=(cache, weights, array(batch, width, dtype="bfloat16"), array(dtype="int32")),
        donate=(0,),
        layouts={
            "data parallel": layout(ALL, None),
            "tensor parallel": layout("x", "y"),
            "all heads": layout(None, ALL),
        },
    )


def _sized(scale: int) -> dict[str, Callable[[], Workload]]:
    return {
        "mlp": lambda: mlp(scale),
        "gpt_scan": lambda: gpt("gpt_scan", scale, scanned=True),
        "gpt_unrolled": lambda: gpt("gpt_unrolled", scale, scanned=False),
        "moe": lambda: moe(scale),
        "decode": lambda: decode(scale),
    }


SMALL, MEDIUM = _sized(1), _sized(8)
