"""Random programs: a seed gives a function of a dictionary of parameters and a dictionary of data, and its arguments.

A program is a list of steps drawn from a table of makers. Each step takes values made before and appends new ones, so
that shapes, element types and nesting follow from the seed alone. Loops, branches and rematerialised blocks hold small
programs of their own. Values stay bounded, and what is decided by comparing floats is decided on data, not on results
of rounding, so that the same program gives the same numbers however it is split.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Shape = tuple[int, ...]
Step = Callable[["Frame"], None]

EXTENTS = (2, 4, 6, 8, 12, 16, 24, 32)
LARGEST = 2**15
NARROW = ("bfloat16", "float16")


@dataclass(slots=True)
class Frame:
    """Values of one run of a program: parameters, data, and what the steps made so far."""

    parameters: Mapping[str, Any]
    data: Mapping[str, Any]
    values: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class RandomProgram:
    """A program and its arguments.

    Attributes:
        seed: What it was drawn from.
        steps: What it does, by the names of the makers.
        parameters: Float arrays, in which it can be differentiated.
        data: Float, integer and boolean arrays.
        narrow: Whether it computes in element types of less than 32 bits.
        run: From parameters and data to a list of arrays.
    """

    seed: int
    steps: tuple[str, ...]
    parameters: dict[str, Any]
    data: dict[str, Any]
    narrow: bool
    run: Callable[[Any, Any], list[Any]]

    def loss(self, parameters: Any, data: Any) -> tuple[Any, list[Any]]:
        """A scalar that depends on all results, and the results."""
        results = self.run(parameters, data)
        parts = [jnp.mean(jnp.square(x.astype(jnp.float32))) for x in results if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(parts, jnp.float32(0.0)), results

    def results_and_gradients(self, parameters: Any, data: Any) -> tuple[Any, Any]:
        """Results and gradients: the function that is planned."""
        gradients, results = jax.grad(self.loss, has_aux=True)(parameters, data)
        return results, gradients


class Writer:
    """Draws steps and declares the arguments that they need; shapes are known while a program is written."""

    def __init__(self, rng: random.Random, depth: int = 0) -> None:
        self.rng, self.depth = rng, depth
        self.shapes: list[Shape] = []
        self.steps: list[tuple[str, Step]] = []
        self.arguments: dict[str, tuple[str, Shape, int]] = {}
        self.narrow = False

    def argument(self, kind: str, shape: Shape, bound: int = 0) -> str:
        """Declare an argument: a ``parameter``, or data: ``float``, ``index`` below a bound, ``flag`` or ``mask``."""
        name = f"{kind[0]}{self.depth}_{len(self.arguments)}_{self.rng.randrange(10**6)}"
        self.arguments[name] = (kind, shape, bound)
        return name

    def pick(self, fits: Callable[[Shape], bool] = lambda shape: True) -> int | None:
        """A value made before whose shape fits; the later ones more often."""
        fitting = [i for i, shape in enumerate(self.shapes) if fits(shape)]
        return self.rng.choice(fitting[-4:]) if fitting else None

    def add(self, name: str, shape: Shape, compute: Callable[[Frame], Any]) -> bool:
        """Append a step that makes one value; refuse what is too large."""
        if int(np.prod(shape)) > LARGEST or not all(shape):
            return False
        self.steps.append((name, lambda frame: frame.values.append(compute(frame))))
        self.shapes.append(shape)
        return True

    def inside(self, shape: Shape, length: int) -> Writer:
        """A writer of a body that starts from one value of a shape and has to end with one of the same."""
        body = Writer(self.rng, self.depth + 1)
        body.shapes.append(shape)
        for _ in range(length):
            body.draw(BODY if self.depth < 1 else LEAVES)
        body.finish_as(shape)
        self.arguments |= body.arguments
        self.narrow |= body.narrow
        return body

    def finish_as(self, shape: Shape) -> None:
        """Bring the last value to a shape by way of means and broadcasts."""
        last = self.shapes[-1]
        if last == shape:
            return
        index = len(self.shapes) - 1
        same = self.pick(lambda s: s == shape)
        assert same is not None
        self.add("blend", shape, lambda f: f.values[same] * 0.5 + jnp.tanh(jnp.mean(f.values[index])))

    def draw(self, makers: Sequence[Callable[[Writer], bool]]) -> None:
        """One more step: makers are tried until one fits."""
        for _ in range(20):
            if self.rng.choice(makers)(self):
                return

    def as_function(self) -> Callable[[Frame, Any], Any]:
        """The body as a function of the outer frame, for its arguments, and its first value."""
        steps = tuple(step for _, step in self.steps)

        def body(outer: Frame, first: Any) -> Any:
            frame = Frame(outer.parameters, outer.data, [first])
            for step in steps:
                step(frame)
            return frame.values[-1].astype(first.dtype)

        return body


# Elementwise, shapes and reductions


def unary(w: Writer) -> bool:
    i = w.pick()
    fn = w.rng.choice([jnp.tanh, jnp.sin, jax.nn.gelu, jax.nn.relu, jax.nn.sigmoid, lambda x: jnp.exp(-x * x)])
    return i is not None and w.add("unary", w.shapes[i], lambda f: fn(f.values[i]))


def binary(w: Writer) -> bool:
    i = w.pick()
    if i is None:
        return False
    j = w.pick(lambda s: s == w.shapes[i])
    fn = w.rng.choice([jnp.add, jnp.multiply, jnp.maximum, lambda a, b: a - 0.5 * b])
    return w.add("binary", w.shapes[i], lambda f: fn(f.values[i], f.values[j]))


def scale(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    d = w.rng.randrange(len(w.shapes[i]))
    shape = tuple(n if k == d else 1 for k, n in enumerate(w.shapes[i]))
    name = w.argument("parameter", shape)
    return w.add("scale", w.shapes[i], lambda f: f.values[i] * (1 + f.parameters[name]))


def cast(w: Writer) -> bool:
    i = w.pick()
    dtype = w.rng.choice(NARROW)
    w.narrow = True
    return i is not None and w.add("cast", w.shapes[i], lambda f: f.values[i].astype(dtype))


def masked(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    name = w.argument("mask", w.shapes[i])
    return w.add("masked", w.shapes[i], lambda f: jnp.where(f.data[name], f.values[i], 0))


def causal(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 1)
    return i is not None and w.add("causal", w.shapes[i], lambda f: jnp.tril(f.values[i]))


def reduce(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 1)
    if i is None:
        return False
    d = w.rng.randrange(len(w.shapes[i]))
    fn = w.rng.choice([jnp.mean, jnp.max, jnp.min, jax.nn.logsumexp])
    shape = tuple(n for k, n in enumerate(w.shapes[i]) if k != d)
    return w.add("reduce", shape, lambda f: jnp.tanh(fn(f.values[i], axis=d)))


def centred(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    d = w.rng.randrange(len(w.shapes[i]))

    def normal(f: Frame) -> Any:
        x = f.values[i]
        x = x - jnp.mean(x, axis=d, keepdims=True)
        return x * lax.rsqrt(jnp.mean(x * x, axis=d, keepdims=True) + 0.1)

    return w.add("centred", w.shapes[i], normal)


def softmax(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    d = w.rng.randrange(len(w.shapes[i]))
    return w.add("softmax", w.shapes[i], lambda f: jax.nn.softmax(f.values[i], axis=d))


def running(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    d = w.rng.randrange(len(w.shapes[i]))
    fn = w.rng.choice([jnp.cumsum, lambda x, axis: lax.cummax(x, axis, reverse=True)])
    return w.add("running", w.shapes[i], lambda f: jnp.tanh(fn(f.values[i], axis=d) * 0.2))


def transpose(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 1)
    if i is None:
        return False
    order = list(range(len(w.shapes[i])))
    w.rng.shuffle(order)
    return w.add("transpose", tuple(w.shapes[i][d] for d in order), lambda f: jnp.transpose(f.values[i], order))


def merge(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 1)
    if i is None:
        return False
    s, d = w.shapes[i], w.rng.randrange(len(w.shapes[i]) - 1)
    shape = (*s[:d], s[d] * s[d + 1], *s[d + 2 :])
    return w.add("merge", shape, lambda f: f.values[i].reshape(shape))


def split(w: Writer) -> bool:
    i = w.pick(lambda s: 0 < len(s) < 4 and any(n > 3 for n in s))
    if i is None:
        return False
    s = w.shapes[i]
    d = w.rng.choice([d for d, n in enumerate(s) if n > 3])
    parts = [k for k in range(2, s[d]) if s[d] % k == 0]
    if not parts:
        return False
    k = w.rng.choice(parts)
    shape = (*s[:d], k, s[d] // k, *s[d + 1 :])
    return w.add("split", shape, lambda f: f.values[i].reshape(shape))


def flatten(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 1)
    return i is not None and w.add("flatten", (int(np.prod(w.shapes[i])),), lambda f: f.values[i].reshape(-1))


def rows(w: Writer) -> bool:
    """Pad, slice, flip, roll or concatenate along a dimension."""
    i = w.pick(lambda s: any(n > 3 for n in s))
    if i is None:
        return False
    s = w.shapes[i]
    d = w.rng.choice([d for d, n in enumerate(s) if n > 3])
    n = s[d]

    def along(m: int) -> Shape:
        return (*s[:d], m, *s[d + 1 :])

    def take(x: Any, start: int, stop: int, step: int = 1) -> Any:
        return lax.slice_in_dim(x, start, stop, step, axis=d)

    pads = [(0, 0)] * d + [(2, 2)] + [(0, 0)] * (len(s) - d - 1)
    forms: list[tuple[str, Shape, Callable[[Any], Any]]] = [
        ("pad", along(n + 4), lambda x: jnp.pad(x, pads)),
        ("slice", along(n // 2), lambda x: take(x, n // 4, n // 4 + n // 2)),
        ("every other", along((n + 1) // 2), lambda x: take(x, 0, n, 2)),
        ("flip", s, lambda x: jnp.flip(x, d)),
        ("roll", s, lambda x: jnp.roll(x, 1, d)),
        ("concatenate", along(2 * n), lambda x: jnp.concatenate([x, 0.5 * x], d)),
        ("rotate half", s, lambda x: jnp.concatenate([-take(x, n // 2, n), take(x, 0, n // 2)], d)),
        ("repeat", along(2 * n), lambda x: jnp.repeat(x, 2, d)),
        ("tile", along(2 * n), lambda x: jnp.tile(x, [2 if k == d else 1 for k in range(len(s))])),
    ]
    name, shape, fn = w.rng.choice(forms)
    return w.add(name, shape, lambda f: fn(f.values[i]))


def stack(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) < 3)
    if i is None:
        return False
    j = w.pick(lambda s: s == w.shapes[i])
    d = w.rng.randrange(len(w.shapes[i]) + 1)
    shape = (*w.shapes[i][:d], 2, *w.shapes[i][d:])

    def both(f: Frame) -> Any:
        a, b = f.values[i], f.values[j]
        return jnp.stack([a, b.astype(a.dtype)], d)

    return w.add("stack", shape, both)


# Products and windows


def dense(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    n, m = w.shapes[i][-1], w.rng.choice(EXTENTS)
    name = w.argument("parameter", (n, m))
    return w.add("dense", (*w.shapes[i][:-1], m), lambda f: jnp.tanh(f.values[i] @ f.parameters[name]))


def heads(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) == 2)
    if i is None:
        return False
    h, k = w.rng.choice((2, 4, 8)), w.rng.choice((2, 4))
    name = w.argument("parameter", (w.shapes[i][1], h, k))
    shape = (w.shapes[i][0], h, k)
    return w.add("heads", shape, lambda f: jnp.tanh(jnp.einsum("sd,dhk->shk", f.values[i], f.parameters[name])))


def gram(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 1)
    if i is None:
        return False
    shape = (*w.shapes[i][:-1], w.shapes[i][-2])
    return w.add("gram", shape, lambda f: jnp.tanh(jnp.einsum("...ik,...jk->...ij", f.values[i], f.values[i])))


def attention(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) == 3)
    if i is None:
        return False

    def attend(f: Frame) -> Any:
        x = f.values[i]
        return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", x, x), axis=-1), x)

    return w.add("attention", w.shapes[i], attend)


def convolution(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) == 3 and s[1] > 4)
    if i is None:
        return False
    b, n, c = w.shapes[i]
    name = w.argument("parameter", (3, c, 4))

    def convolve(f: Frame) -> Any:
        x = f.values[i]
        kernel = f.parameters[name].astype(x.dtype)
        return jnp.tanh(lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")))

    return w.add("convolution", (b, n, 4), convolve)


def pooling(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) == 2 and s[0] % 2 == 0)
    if i is None:
        return False
    n, m = w.shapes[i]
    pool = lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 1), (2, 1), "VALID")  # noqa: E731
    return w.add("pooling", (n // 2, m), lambda f: 0.5 * pool(f.values[i].astype(jnp.float32)))


# Look-ups, updates, order


def lookup(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    d = w.rng.randrange(len(w.shapes[i]))
    s = w.shapes[i]
    shape: Shape = w.rng.choice([(8,), (4, 2), (16,)])
    name = w.argument("index", shape, s[d])
    result = (*s[:d], *shape, *s[d + 1 :])
    return w.add("lookup", result, lambda f: jnp.take(f.values[i], f.data[name], axis=d))


def along_axis(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 1)
    if i is None:
        return False
    s = w.shapes[i]
    name = w.argument("index", (*s[:-1], 2), s[-1])
    return w.add("along_axis", (*s[:-1], 2), lambda f: jnp.take_along_axis(f.values[i], f.data[name], axis=-1))


def embedding(w: Writer) -> bool:
    tokens = w.argument("index", (w.rng.choice((4, 8, 16)), w.rng.choice((4, 8))), 32)
    table = w.argument("parameter", (32, w.rng.choice((4, 8, 16))))
    shape = (*w.arguments[tokens][1], w.arguments[table][1][1])
    return w.add("embedding", shape, lambda f: f.parameters[table][f.data[tokens]])


def segments(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 1)
    if i is None:
        return False
    name = w.argument("index", w.shapes[i][:1], 8)
    shape = (8, *w.shapes[i][1:])
    add = lambda f: jax.ops.segment_sum(f.values[i], f.data[name], num_segments=8)  # noqa: E731
    return w.add("segments", shape, lambda f: jnp.tanh(add(f)))


def update(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0 and s[0] > 3)
    if i is None:
        return False
    where = w.rng.choice(["set rows", "add rows", "set block", "slice"])
    name = w.argument("index", (2,), w.shapes[i][0])

    def change(f: Frame) -> Any:
        x, k = f.values[i], f.data[name]
        if where == "set rows":
            return x.at[k[:1]].set(0.25)
        if where == "add rows":
            return x.at[k].add(jnp.ones_like(x[:2]))
        if where == "set block":
            return x.at[1:3].set(0.5)
        return lax.dynamic_update_slice_in_dim(x, 0.5 * x[:2], k[0], axis=0)

    return w.add(f"update: {where}", w.shapes[i], change)


def window(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0 and s[0] > 3)
    if i is None:
        return False
    name = w.argument("index", (1,), w.shapes[i][0])
    size = w.shapes[i][0] // 2
    cut = lambda f: lax.dynamic_slice_in_dim(f.values[i], f.data[name][0], size, axis=0)  # noqa: E731
    return w.add("window", (size, *w.shapes[i][1:]), cut)


def ordered(w: Writer) -> bool:
    """Rows in the order of some data."""
    i = w.pick(lambda s: len(s) > 1)
    if i is None:
        return False
    name = w.argument("float", w.shapes[i][:1])
    return w.add("ordered", w.shapes[i], lambda f: f.values[i][jnp.argsort(f.data[name])])


def sort(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    d = w.rng.randrange(len(w.shapes[i]))
    return w.add("sort", w.shapes[i], lambda f: jnp.sort(f.values[i], axis=d))


def best(w: Writer) -> bool:
    """The largest of some data, and which they are, as one-hot rows."""
    shape = (w.rng.choice((4, 8)), w.rng.choice((8, 16)))
    name = w.argument("float", shape)
    scale = w.argument("parameter", (2,))

    def pick_best(f: Frame) -> Any:
        values, places = lax.top_k(f.data[name], 2)
        hot = jax.nn.one_hot(places, shape[1])
        return jnp.einsum("bk,bkn,k->bn", values, hot, f.parameters[scale]) + jax.nn.one_hot(
            jnp.argmax(f.data[name], axis=-1), shape[1]
        )

    return w.add("best", shape, pick_best)


def spectrum(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 1)
    if i is None:
        return False
    d = w.rng.randrange(len(w.shapes[i]))
    fft = lambda x: jnp.real(jnp.fft.fft(x.astype(jnp.float32), axis=d))  # noqa: E731
    return w.add("spectrum", w.shapes[i], lambda f: jnp.tanh(0.1 * fft(f.values[i])))


def noise(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    seed = w.rng.randrange(100)
    if i is None:
        return False
    keep = lambda f: jax.random.bernoulli(jax.random.key(seed), 0.8, w.shapes[i])  # noqa: E731
    return w.add("noise", w.shapes[i], lambda f: jnp.where(keep(f), f.values[i], 0))


# Regions


def scan(w: Writer) -> bool:
    """A scan over stacked parameters, whose carry is a value; its outputs are stacked."""
    i = w.pick(lambda s: 0 < len(s) < 3)
    if i is None:
        return False
    shape, length = w.shapes[i], w.rng.choice((2, 3, 4, 8))
    body = w.inside(shape, w.rng.choice((1, 2, 3))).as_function()
    name = w.argument("parameter", (length, *shape))
    stacked = w.rng.random() < 0.5 and w.add("scan", (length, *shape), lambda f: run(f)[1])
    reverse = w.rng.random() < 0.3

    def run(f: Frame) -> Any:
        def step(carry: Any, p: Any) -> Any:
            carry = jnp.tanh(body(f, carry) + p.astype(carry.dtype))
            return carry, 0.5 * carry

        return lax.scan(step, f.values[i], f.parameters[name], reverse=reverse)

    return bool(stacked) or w.add("scan", shape, lambda f: run(f)[0])


def scan_rows(w: Writer) -> bool:
    """A scan over the rows of a value."""
    i = w.pick(lambda s: len(s) == 2)
    if i is None:
        return False
    n, m = w.shapes[i]
    body = w.inside((m,), 2).as_function()

    def run(f: Frame) -> Any:
        def step(carry: Any, row: Any) -> Any:
            carry = jnp.tanh(0.5 * carry + body(f, row))
            return carry, carry * row

        return lax.scan(step, jnp.zeros((m,), f.values[i].dtype), f.values[i])[1]

    return w.add("scan rows", (n, m), run)


def repeat(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    body = w.inside(w.shapes[i], 2).as_function()
    run = lambda f: lax.fori_loop(0, 3, lambda k, x: jnp.tanh(body(f, x)), f.values[i])  # noqa: E731
    return w.add("repeat", w.shapes[i], run)


def until(w: Writer) -> bool:
    """A loop that ends when data says so; loops of unknown length have no reverse mode, so it is cut off."""
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    name = w.argument("index", (1,), 5)
    body = w.inside(w.shapes[i], 1).as_function()

    def run(f: Frame) -> Any:
        fixed = Frame(lax.stop_gradient(dict(f.parameters)), f.data, [])
        start = (f.data[name][0], lax.stop_gradient(f.values[i]))
        return lax.while_loop(lambda s: s[0] < 6, lambda s: (s[0] + 1, jnp.tanh(body(fixed, s[1]))), start)[1]

    return w.add("until", w.shapes[i], run)


def branch(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    bodies = [w.inside(w.shapes[i], 2).as_function() for _ in range(w.rng.choice((2, 3)))]
    name = w.argument("index", (1,), len(bodies))

    def run(f: Frame) -> Any:
        branches = [lambda x, body=body: body(f, x) for body in bodies]
        return lax.switch(f.data[name][0], branches, f.values[i])

    return w.add("branch", w.shapes[i], run)


def block(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 0)
    if i is None:
        return False
    body = w.inside(w.shapes[i], 3).as_function()
    return w.add("checkpoint", w.shapes[i], lambda f: jax.checkpoint(lambda x: body(f, x))(f.values[i]))


def mapped(w: Writer) -> bool:
    i = w.pick(lambda s: len(s) > 1)
    if i is None:
        return False
    body = w.inside(w.shapes[i][1:], 2).as_function()
    return w.add("vmap", w.shapes[i], lambda f: jax.vmap(lambda x: body(f, x))(f.values[i]))


Makers = tuple[Callable[[Writer], bool], ...]
LEAVES: Makers = (unary, binary, scale, cast, centred, softmax, dense, dense, masked, running, lookup, rows)
BODY: Makers = (*LEAVES, reduce, transpose, gram, merge, split, update, branch, repeat, scan, block)
PLAIN: Makers = (
    *(unary, binary, scale, cast, masked, causal, reduce, centred, softmax, running, transpose, merge, split, flatten),
    *(rows, rows, rows, stack, dense, dense, dense, heads, gram, attention, convolution, pooling, lookup, along_axis),
    *(embedding, segments, update, update, window, ordered, sort, best, spectrum, noise),
)
REGIONS: Makers = (scan, scan_rows, repeat, until, branch, block, mapped)


def random_program(seed: int, steps: tuple[int, int] = (4, 12)) -> RandomProgram:
    """The program of a seed, with at least and at most so many steps besides those inside of its regions."""
    rng = random.Random(seed)
    w = Writer(rng)
    sources = []
    for _ in range(rng.choice((1, 2, 3))):
        shape = tuple(rng.choice(EXTENTS) for _ in range(rng.choice((1, 2, 2, 3))))
        name = w.argument(rng.choice(("float", "parameter")), shape)
        sources.append(name)
        w.add("source", shape, lambda f, name=name: (f.parameters if name in f.parameters else f.data)[name])
    for _ in range(rng.randint(*steps)):
        w.draw(REGIONS if rng.random() < 0.3 else PLAIN)
    count = len(w.shapes)
    kept = sorted({count - 1, *rng.sample(range(len(sources), count), min(2, count - len(sources)))})
    made = tuple(step for _, step in w.steps)

    def run(parameters: Any, data: Any) -> list[Any]:
        frame = Frame(parameters, data)
        for step in made:
            step(frame)
        return [frame.values[k] for k in kept]

    parameters, data = _arguments(w.arguments, seed)
    return RandomProgram(seed, tuple(name for name, _ in w.steps), parameters, data, w.narrow, run)


def _arguments(declared: Mapping[str, tuple[str, Shape, int]], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    parameters: dict[str, Any] = {"unused": np.zeros((), np.float32)}
    data: dict[str, Any] = {}
    for name, (kind, shape, bound) in declared.items():
        match kind:
            case "parameter":
                parameters[name] = (0.3 * rng.standard_normal(shape)).astype(np.float32)
            case "float":
                data[name] = rng.standard_normal(shape).astype(np.float32)
            case "index":
                data[name] = rng.integers(0, bound, shape).astype(np.int32)
            case "mask":
                data[name] = rng.random(shape) < 0.7
    return parameters, data
