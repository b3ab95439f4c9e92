"""The models of Alpa's auto-sharding tests, restated as plain functions: one training step, or a small graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Shapes = Any
"""A tree of `jax.ShapeDtypeStruct`."""

Step = tuple[Callable[..., Any], tuple[Shapes, ...]]
"""A function and the shapes of its arguments; a training step's first argument is its state, which it returns."""


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """A float32 array."""
    return jax.ShapeDtypeStruct(shape, "float32")


def _adam(loss: Callable[..., Any], params: Shapes, batch: Sequence[Shapes]) -> Step:
    """One step of Adam: the state is (parameters, first and second moments, count)."""

    def step(state: Any, *data: Any) -> Any:
        p, m, v, count = state
        g = jax.grad(loss)(p, *data)
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        p = jax.tree.map(lambda a, b, c: a - 0.01 * b / (jnp.sqrt(c) + 1e-8), p, m, v)
        return p, m, v, count + 1

    return step, ((params, params, params, jax.ShapeDtypeStruct((), "int32")), *batch)


def _largest(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The two largest dimensions, the larger one last, if both have at least 4 elements."""
    order = sorted(range(len(shape)), key=lambda d: shape[d])[-2:]
    return (order[0], order[1]) if len(order) == 2 and shape[order[0]] >= 4 else None


def _moments(p: jax.ShapeDtypeStruct) -> Shapes:
    """Adafactor's second moments of one parameter: of rows and columns where it is a matrix, else of its elements."""
    dims = _largest(p.shape)
    if dims is None:
        return {"all": p}
    return {
        name: f32(*(n for d, n in enumerate(p.shape) if d != gone)) for name, gone in zip(("row", "col"), dims[::-1])
    }


def _scaled(g: Any, v: Any, decay: Any) -> tuple[Any, Any]:
    """A gradient over the root of its moments, and the moments updated."""
    square, dims = g * g + 1e-30, _largest(g.shape)
    if dims is None:
        v = {"all": decay * v["all"] + (1 - decay) * square}
        return g * lax.rsqrt(v["all"]), v
    d1, d0 = dims
    row = decay * v["row"] + (1 - decay) * jnp.mean(square, d0)
    col = decay * v["col"] + (1 - decay) * jnp.mean(square, d1)
    rows = lax.rsqrt(row / jnp.mean(row, d1 - (d1 > d0), keepdims=True))
    return g * jnp.expand_dims(rows, d0) * jnp.expand_dims(lax.rsqrt(col), d1), {"row": row, "col": col}


def _root_mean_square(x: Any) -> Any:
    return jnp.sqrt(jnp.mean(x * x))


def _adafactor(loss: Callable[..., Any], params: Shapes, batch: Sequence[Shapes], decayed: float = 0.0) -> Step:
    """One step of Adafactor: clipped updates, relative to the parameters' size; weights of matrices may decay."""
    shapes, tree = jax.tree.flatten(params)

    def updated(p: Any, g: Any, v: Any, decay: Any) -> tuple[Any, Any]:
        u, v = _scaled(g, v, decay)
        u = u / jnp.maximum(1.0, _root_mean_square(u)) * 1e-2 * jnp.maximum(_root_mean_square(p), 1e-3)
        return p - u - (decayed * p if p.ndim > 1 else 0), v

    def step(state: Any, *data: Any) -> Any:
        p, v, count = state
        g = jax.grad(loss)(p, *data)
        decay = 1 - (count + 1.0) ** -0.8
        new = [updated(*leaf, decay) for leaf in zip(jax.tree.leaves(p), jax.tree.leaves(g), v)]
        return jax.tree.unflatten(tree, [p for p, _ in new]), [v for _, v in new], count + 1

    return step, ((params, [_moments(p) for p in shapes], f32()), *batch)


def _momentum(loss: Callable[..., Any], params: Shapes, stats: Shapes, batch: Sequence[Shapes]) -> Step:
    """One step of gradient descent with momentum, and running statistics that the loss updates."""

    def step(state: Any, *data: Any) -> Any:
        p, m, s = state
        g, s = jax.grad(loss, has_aux=True)(p, s, *data)
        m = jax.tree.map(lambda a, b: 0.9 * a + b, m, g)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, m), m, s

    return step, ((params, params, stats), *batch)


def mlp(layers: int, batch: int, width: int, optimizer: Callable[..., Step] = _adam) -> Step:
    """Dense layers with biases, ReLU between them, mean squared error."""
    params = [{"kernel": f32(width, width), "bias": f32(width)} for _ in range(layers)]

    def loss(p: Any, x: Any, y: Any) -> Any:
        for k, layer in enumerate(p):
            x = x @ layer["kernel"] + layer["bias"]
            x = jax.nn.relu(x) if k + 1 < layers else x
        return jnp.mean((x - y) ** 2)

    return optimizer(loss, params, (f32(batch, width), f32(batch, width)))


def mlp_adafactor(layers: int, batch: int, width: int) -> Step:
    """`mlp`, trained by Adafactor."""
    return mlp(layers, batch, width, _adafactor)


def accumulated(layers: int, batch: int, width: int, parts: int, *, loop: bool) -> Step:
    """Linear layers with biases, mean squared error, momentum; gradients of parts of the batch are added up.

    The parts come one after the other in a loop, or in code without one.
    """
    params = [_dense(width, width) for _ in range(layers)]

    def loss(p: Any, x: Any, y: Any) -> Any:
        for layer in p:
            x = _applied(x, layer)
        return jnp.mean((x - y) ** 2)

    def step(state: Any, *data: Any) -> Any:
        p, m = state
        split = [d.reshape(parts, batch // parts, width) for d in data]

        def add(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(p, *part)), None

        if loop:
            total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, p), split)
        else:
            total = jax.grad(loss)(p, *(d[0] for d in split))
            for k in range(1, parts):
                total, _ = add(total, [d[k] for d in split])
        m = jax.tree.map(lambda a, g: 0.9 * a + g / parts, m, total)
        return jax.tree.map(lambda a, b: a - 0.01 * b, p, m), m

    return step, ((params, params), f32(batch, width), f32(batch, width))


def initialiser(layers: int, width: int) -> Step:
    """From a key to the state of a training step with Adam: parameters, moments and count."""

    def init(key: Any) -> Any:
        keys = jax.random.split(key, layers)
        params = [
            {"kernel": jax.random.normal(k, (width, width)) / math.sqrt(width), "bias": jnp.zeros(width)} for k in keys
        ]
        moments = jax.tree.map(jnp.zeros_like, params)
        return params, moments, moments, jnp.zeros((), "int32")

    return init, (jax.eval_shape(lambda: jax.random.key(0)),)


def linear_graph(layers: int, batch: int, width: int, *, bias: bool = False) -> Step:
    """Linear layers, forwards and backwards, and plain gradient descent."""
    params = [{"w": f32(width, width)} | ({"b": f32(width)} if bias else {}) for _ in range(layers)]

    def step(p: Any, x: Any, y: Any) -> Any:
        def half_square(weights: Any) -> Any:
            h = x
            for layer in weights:
                h = h @ layer["w"]
                h = h + layer["b"] if bias else h
            return h

        out, pull = jax.vjp(half_square, p)
        (g,) = pull((out - y) * (2 / (batch * width)))
        return jax.tree.map(jnp.subtract, p, g)

    return step, (params, f32(batch, width), f32(batch, width))


def _layer_norm(x: Any, w: Any) -> Any:
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-12) * w["scale"] + w["bias"]


def _dense(inputs: int, outputs: int) -> Shapes:
    return {"kernel": f32(inputs, outputs), "bias": f32(outputs)}


def _norm(width: int) -> Shapes:
    return {"scale": f32(width), "bias": f32(width)}


def _applied(x: Any, w: Any) -> Any:
    return x @ w["kernel"] + w["bias"]


def _dropped(x: Any, key: Any) -> Any:
    """A tenth of the elements left out; none without a key."""
    if key is None:
        return x
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)


def _bert_shapes(width: int, inner: int) -> Shapes:
    return {
        "qkv": _dense(width, 3 * width),
        "out": _dense(width, width),
        "norm1": _norm(width),
        "up": _dense(width, inner),
        "down": _dense(inner, width),
        "norm2": _norm(width),
    }


def _attended(x: Any, w: Any, mask: Any, keys: Sequence[Any], heads: int) -> Any:
    batch, length, width = x.shape
    parts = _applied(x, w["qkv"]).reshape(batch, length, width, 3)
    q, v, k = (parts[..., i].reshape(batch, length, heads, width // heads) for i in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width / heads)
    scores = scores + jnp.where(mask > 0, 0.0, -1e10)[:, None, None, :]
    chances = _dropped(jax.nn.softmax(scores), keys[0])
    mixed = jnp.einsum("bhqk,bkhd->bqhd", chances, v).reshape(x.shape)
    return _layer_norm(_dropped(_applied(mixed, w["out"]), keys[1]) + x, w["norm1"])


def _bert_layer(x: Any, w: Any, mask: Any, key: Any, heads: int) -> Any:
    keys = (None,) * 3 if key is None else jax.random.split(key, 3)
    a = _attended(x, w, mask, keys, heads)
    f = _applied(jax.nn.gelu(_applied(a, w["up"]), approximate=False), w["down"])
    return _layer_norm(_dropped(f, keys[2]) + a, w["norm2"])


def bert(
    layers: int, batch: int, length: int, width: int, heads: int, *, remat: bool = False, dropout: bool = True
) -> Step:
    """Encoder layers with the norm behind, dropout, mean squared error on the last hidden states, Adam."""
    params = [_bert_shapes(width, 4 * width) for _ in range(layers)]

    def block(x: Any, w: Any, mask: Any, key: Any) -> Any:
        return _bert_layer(x, w, mask, key, heads)

    def loss(p: Any, x: Any, mask: Any, label: Any, key: Any) -> Any:
        for k, w in enumerate(p):
            x = (jax.checkpoint(block) if remat else block)(x, w, mask, jax.random.fold_in(key, k) if dropout else None)
        return jnp.mean((x - label) ** 2)

    hidden = f32(batch, length, width)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return _adam(loss, params, (hidden, jax.ShapeDtypeStruct((batch, length), "int32"), hidden, key))


def bert_language_model(layers: int, batch: int, length: int, width: int, heads: int, vocabulary: int) -> Step:
    """Embeddings, encoder layers, a head tied to the word embedding, masked cross entropy, Adam."""
    params = {
        "word": f32(vocabulary, width),
        "place": f32(length, width),
        "type": f32(2, width),
        "norm": _norm(width),
        "layers": [_bert_shapes(width, 4 * width) for _ in range(layers)],
        "head": _dense(width, width),
        "head_norm": _norm(width),
        "bias": f32(vocabulary),
    }

    def loss(p: Any, words: Any, places: Any, types: Any, mask: Any, labels: Any, key: Any) -> Any:
        x = _layer_norm(p["word"][words] + p["place"][places] + p["type"][types], p["norm"])
        x = _dropped(x, jax.random.fold_in(key, layers))
        for k, w in enumerate(p["layers"]):
            x = _bert_layer(x, w, mask, jax.random.fold_in(key, k), heads)
        x = _layer_norm(jax.nn.gelu(_applied(x, p["head"]), approximate=False), p["head_norm"])
        chances = jax.nn.log_softmax(x @ p["word"].T + p["bias"])
        kept = labels > 0
        losses = -jnp.sum(jax.nn.one_hot(labels, vocabulary) * chances, -1)
        return jnp.sum(kept * losses) / jnp.sum(kept) * 0.1234

    tokens = jax.ShapeDtypeStruct((batch, length), "int32")
    return _adam(loss, params, (*(tokens,) * 5, jax.eval_shape(lambda: jax.random.key(0))))


def _routed(x: Any, w: Any, capacity: int) -> Any:
    """Top-2 gating within groups of tokens, the experts, and their outputs combined."""
    gates = jax.nn.softmax(x @ w["gate"])
    experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, -1), experts)
    second = jax.nn.one_hot(jnp.argmax(gates * (1 - first), -1), experts)
    before = jnp.cumsum(first, 1) - first
    after = jnp.cumsum(second, 1) - second + jnp.sum(first, 1, keepdims=True)
    shares = [jnp.sum(gates * chosen, -1) for chosen in (first, second)]
    total = shares[0] + shares[1]
    combine = jnp.zeros((*gates.shape, capacity))
    for chosen, place, share in zip((first, second), (before, after), shares):
        kept = chosen * (place < capacity)
        slot = jax.nn.one_hot(jnp.sum(place * chosen, -1).astype(jnp.int32), capacity)
        combine = combine + (share / total)[..., None, None] * kept[..., None] * slot[..., None, :]
    dispatched = jnp.einsum("gsec,gsm->egcm", (combine > 0).astype(x.dtype), x)
    out = jnp.einsum("egcf,efm->gecm", jax.nn.relu(jnp.einsum("egcm,emf->egcf", dispatched, w["wi"])), w["wo"])
    return jnp.einsum("gsec,gecm->gsm", combine, out)


def _mixture_shapes(width: int, experts: int) -> Shapes:
    return {
        "qkv": _dense(width, 3 * width),
        "out": _dense(width, width),
        "norm1": _norm(width),
        "gate": f32(width, experts),
        "wi": f32(experts, width, 4 * width),
        "wo": f32(experts, 4 * width, width),
        "norm2": _norm(width),
    }


def _mixture_layer(x: Any, w: Any, mask: Any, heads: int, group: int, capacity: int) -> Any:
    a = _attended(x, w, mask, (None, None), heads)
    routed = _routed(a.reshape(-1, group, x.shape[-1]), w, capacity).reshape(x.shape)
    return _layer_norm(routed + a, w["norm2"])


def mixture(batch: int, length: int, width: int, heads: int, group: int, experts: int, capacity: int) -> Step:
    """Attention, then a mixture of experts, mean squared error, Adam."""
    params = _mixture_shapes(width, experts)

    def loss(p: Any, x: Any, mask: Any, label: Any) -> Any:
        return jnp.mean((_mixture_layer(x, p, mask, heads, group, capacity) - label) ** 2)

    hidden = f32(batch, length, width)
    return _adam(loss, params, (hidden, jax.ShapeDtypeStruct((batch, length), "int32"), hidden))


def mixture_language_model(
    batch: int, length: int, width: int, heads: int, group: int, experts: int, capacity: int, vocabulary: int
) -> Step:
    """Embeddings, a block with a mixture of experts, a dense one, a tied head, masked cross entropy, Adafactor."""
    params = {
        "word": f32(vocabulary, width),
        "place": f32(length, width),
        "norm": _norm(width),
        "mixture": _mixture_shapes(width, experts),
        "dense": _bert_shapes(width, 4 * width),
        "bias": f32(vocabulary),
    }

    def loss(p: Any, words: Any, places: Any, mask: Any, labels: Any) -> Any:
        x = _layer_norm(p["word"][words] + p["place"][places], p["norm"])
        x = _bert_layer(_mixture_layer(x, p["mixture"], mask, heads, group, capacity), p["dense"], mask, None, heads)
        chances = jax.nn.log_softmax(x @ p["word"].T + p["bias"])
        kept = labels > 0
        losses = -jnp.sum(jax.nn.one_hot(labels, vocabulary) * chances, -1)
        return jnp.sum(kept * losses) / jnp.sum(kept)

    tokens = jax.ShapeDtypeStruct((batch, length), "int32")
    return _adafactor(loss, params, (tokens,) * 4, decayed=1e-4)


def _convolved(x: Any, kernel: Any, stride: int, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def _batch_norm(x: Any, w: Any, running: Any) -> tuple[Any, Any]:
    mean, square = jnp.mean(x, (0, 1, 2)), jnp.mean(x**2, (0, 1, 2))
    variance = square - mean**2
    running = {"mean": 0.9 * running["mean"] + 0.1 * mean, "var": 0.9 * running["var"] + 0.1 * variance}
    return (x - mean) * lax.rsqrt(variance + 1e-5) * w["scale"] + w["bias"], running


def convnet(layers: int, batch: int, image: int, channels: int) -> Step:
    """Blocks of convolution of stride 2, batch norm, ReLU and pooling; momentum."""
    params = [{"kernel": f32(3, 3, channels, channels), "norm": _norm(channels)} for _ in range(layers)]
    stats = [{"mean": f32(channels), "var": f32(channels)} for _ in range(layers)]
    rest = image // 2**layers

    def loss(p: Any, s: Any, x: Any, y: Any) -> Any:
        updated = []
        for w, running in zip(p, s):
            x, running = _batch_norm(_convolved(x, w["kernel"], 2), w["norm"], running)
            x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")
            updated.append(running)
        return jnp.mean((x - y) ** 2), updated

    return _momentum(loss, params, stats, (f32(batch, image, image, channels), f32(batch, rest, rest, channels)))


def depthwise(batch: int, image: int, channels: int) -> Step:
    """A convolution to eight times the channels, one within each channel, one back, ReLU, batch norm; momentum."""
    wide = 8 * channels
    params = {"in": f32(3, 3, channels, wide), "own": f32(3, 3, 1, wide), "out": f32(3, 3, wide, channels)}
    params["norm"] = _norm(channels)
    stats = {"mean": f32(channels), "var": f32(channels)}

    def loss(p: Any, s: Any, x: Any, y: Any) -> Any:
        x = _convolved(_convolved(x, p["in"], 1), p["own"], 1, groups=wide)
        x, s = _batch_norm(jax.nn.relu(_convolved(x, p["out"], 1)), p["norm"], s)
        return jnp.mean((x - y) ** 2), s

    data = f32(batch, image, image, channels)
    return _momentum(loss, params, stats, (data, data))


def column_gather() -> Step:
    """A dense layer, half of its columns by an array of indices, another dense layer; gradient descent."""

    def step(p: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            h = x @ weights[0]
            return jnp.mean((h[:, jnp.arange(16)] @ weights[1] - y) ** 2)

        return jax.tree.map(lambda a, b: a - 0.01 * b, p, jax.grad(loss)(p))

    return step, ([f32(32, 32), f32(16, 16)], f32(256, 32), f32(256, 16))


def attention(batch: int, length: int, width: int, heads: int) -> Step:
    """Multi-head self-attention, forwards only."""
    depth = width // heads
    params = {name: {"w": f32(width, heads, depth), "b": f32(heads, depth)} for name in "qkv"}
    params["o"] = {"w": f32(heads, depth, width), "b": f32(width)}

    def forward(p: Any, x: Any, mask: Any) -> Any:
        q, k, v = (jnp.einsum("btd,dnh->btnh", x, p[name]["w"]) + p[name]["b"] for name in "qkv")
        scores = jnp.einsum("bqnh,bknh->bnqk", q, k) / math.sqrt(depth)
        scores = scores + jnp.where(mask > 0, 0.0, -1e10)[:, None, None, :]
        mixed = jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores), v)
        return jnp.einsum("bqnh,nhd->bqd", mixed, p["o"]["w"]) + p["o"]["b"]

    return forward, (params, f32(batch, length, width), jax.ShapeDtypeStruct((batch, length), "int32"))
