"""Values that have to get from one sharding to another, and values that need not move at all."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.bugs.case import XY, YX, Case, D, Expect, held, normal


def two_axes_at_once(a: Any, b: Any, c: Any) -> Any:
    return c + held(a + b, XY, None, ("x", "y"), None)


def two_dimensions_into_one(f: Any) -> Any:
    return 2.0 * held(jnp.tanh(f), XY, None, ("x", "y"), None, None)


def tiles_to_columns(z: Any) -> Any:
    return jnp.real(z * jnp.conj(z)) + 1.0


def features_within_batches(h: Any, weights: Any) -> Any:
    def layer(h: Any, w: Any) -> tuple[Any, None]:
        h = held(h, XY, ("x", "y"), None, None)
        return h + 0.1 * held(jnp.tanh(h @ w), XY, None, None, "y"), None

    return lax.scan(layer, h, weights)[0]


def convolve(x: Any, kernel: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def batch_to_channels(image: Any, first: Any, second: Any) -> Any:
    return convolve(jax.nn.relu(convolve(image, first)), second)


def expert_weights(w: Any, t: Any) -> Any:
    return jnp.einsum("led,ltd->lte", held(w, XY, "x", None, None), t)


def padded_vector(v: Any, u: Any) -> Any:
    border = jnp.pad(jnp.full((80,), 0.5), 8)
    return u * (jnp.pad(v, 8) + border)


def blend(p: Any, q: Any, r: Any, s: Any) -> Any:
    weight = jnp.broadcast_to(s, p.shape)
    return p + weight * (q - p), r * weight.reshape(r.shape)


def merged_dimensions(t: Any, w: Any) -> Any:
    return jax.nn.relu(t).reshape(-1, *t.shape[2:]) @ w


def clashing_contraction(a: Any, b: Any) -> Any:
    return b @ a


def order_of_axes(a: Any, b: Any) -> Any:
    return a + b, jnp.sin(a), jnp.cos(a)


def batch_below_mesh(h: Any, w: Any) -> Any:
    z = jax.nn.relu(jnp.einsum("bsd,df->bsf", h, w))
    return z.sum(axis=1), z[:, :5]


def sum_of_replicated(x: Any) -> Any:
    return jnp.sum(jnp.exp(jnp.sin(x)) * jnp.cos(x))


def constraint_under_vmap(a: Any, b: Any) -> Any:
    def one(v: Any) -> Any:
        return 2.0 * jnp.cumsum(held(jnp.sin(v), XY, "y"))

    return jax.vmap(one, spmd_axis_name="x")(a), jax.vmap(one)(b)


def made_inside(seed: Any) -> Any:
    w = 0.02 * jax.random.normal(jax.random.PRNGKey(seed), (1024, 128))
    return jnp.zeros((1024, 64)), jnp.arange(8192).reshape(1024, 8), w


def running_total(mask: Any) -> Any:
    return jnp.cumsum(mask, axis=-1) - 1


def stencil_gradient(u: Any) -> Any:
    def energy(u: Any) -> Any:
        laplacian = jnp.roll(u, 1, axis=0) + jnp.roll(u, -1, axis=0) - 2.0 * u
        return 0.5 * jnp.sum(jnp.square(laplacian))

    return jax.grad(energy)(u)


def joined_pieces(a: Any, b: Any, c: Any) -> Any:
    return 1.0 * jnp.concatenate([a, b, c])


def spectrum(x: Any) -> Any:
    return jnp.abs(jnp.fft.fftn(x.astype(jnp.complex64)))


def bits(*shape: int) -> Any:
    return (normal(0, *shape) > 0).astype(jnp.int32)


ROWS, TILES, BOTH = P("x", None), P("y", None, "x"), P(("x", "y"), None)

CASES = (
    Case(
        name="two_axes_at_once",
        seen="jax-ml/jax#21562, openxla/xla#15207",
        fn=two_axes_at_once,
        args=lambda: [normal(k, 16, 16, 16) for k in range(3)],
        ins={"a": TILES, "b": TILES, "c": P(None, ("x", "y"), None)},
        outs={0: P(None, ("x", "y"), None)},
        expect=Expect(sent_max=2560),
    ),
    Case(
        name="two_dimensions_into_one",
        seen="jax-ml/jax#21562, as a solver's output meets it",
        fn=two_dimensions_into_one,
        args=lambda: [normal(0, 4, 16, 16, 16)],
        ins={"f": P(None, None, "x", "y")},
        outs={0: P(None, ("x", "y"), None, None)},
        expect=Expect(sent_max=10240, without=("all-gather",)),
    ),
    Case(
        name="tiles_to_columns",
        seen="jackmcarthur/lorrax",
        fn=tiles_to_columns,
        args=lambda: [normal(0, 4, 32, 64) + 1j * normal(1, 4, 32, 64)],
        ins={"z": P(None, "x", "y")},
        outs={0: P(None, None, ("x", "y"))},
        expect=Expect(sent_max=7680, temporaries_max=0.6 * 4 * 32 * 64 * 8),
    ),
    Case(
        name="features_within_batches",
        seen="Physical-Intelligence/openpi#193",
        fn=features_within_batches,
        args=lambda: [normal(0, 16, 8, 32), 0.1 * normal(1, 4, 32, 32)],
        ins={"h": P(("x", "y"), None, None), "weights": P(None, None, None)},
        outs={0: P(("x", "y"), None, None)},
        expect=Expect(sent_max=36864, priced_min=4.0),
    ),
    Case(
        name="batch_to_channels",
        seen="alpa-projects/alpa#701",
        fn=batch_to_channels,
        args=lambda: [normal(0, 16, 8, 8, 8), normal(1, 3, 3, 8, 16), normal(2, 3, 3, 16, 8)],
        ins={"image": P(("x", "y")), "first": P(), "second": P(None, None, "y", None)},
        outs={0: P("x", None, None, None)},
        expect=Expect(sent_max=6400),
    ),
    Case(
        name="expert_weights",
        seen="marin-community/marin: stacked experts over a reversed pair of axes",
        fn=expert_weights,
        args=lambda: [normal(0, 8, 16, 64), normal(1, 8, 4, 64)],
        ins={"w": P(None, None, ("y", "x")), "t": P("x", None, None)},
        outs={0: P("x", None, None)},
        expect=Expect(sent_max=7168),
    ),
    Case(
        name="padded_vector",
        seen="EnzymeAD/Enzyme-JAX#822",
        fn=padded_vector,
        args=lambda: [normal(0, 80), normal(1, 96)],
        ins={"v": P("x"), "u": P("y")},
        outs={0: P("y")},
        expect=Expect(sent_max=224),
    ),
    Case(
        name="blend",
        seen="openxla/xla#17913",
        fn=blend,
        args=lambda: [normal(0, 16, 4, 16), normal(1, 16, 4, 16), normal(2, 64, 16), jnp.float32(0.3)],
        ins={"p": P("x", None, "y"), "q": P("x", None, "y"), "r": BOTH, "s": P()},
        outs={0: P("x", None, "y"), 1: BOTH},
        expect=Expect(sent_max=0),
    ),
    Case(
        name="merged_dimensions",
        seen="openxla/xla#12392",
        fn=merged_dimensions,
        args=lambda: [normal(0, 8, 16, 10, 32), normal(1, 32, 16)],
        mesh=YX,
        ins={"t": P("x", "y", None, None), "w": P(None, None)},
        outs={0: P("x", None, None)},
        expect=Expect(sent_max=46080, priced_min=1),
    ),
    Case(
        name="clashing_contraction",
        seen="openxla/xla#4062",
        fn=clashing_contraction,
        args=lambda: [normal(0, 128, 64), normal(1, 256, 128)],
        ins={"a": ROWS, "b": P(None, "y")},
        expect=Expect(sent_max=28672, flops_share_max=0.126),
    ),
    Case(
        name="order_of_axes",
        seen="pytorch/xla#5264, pytorch/xla#5305",
        fn=order_of_axes,
        args=lambda: [normal(0, 64, 32), normal(1, 64, 32)],
        ins={"a": BOTH, "b": P(("y", "x"), None)},
        outs={0: BOTH, 1: ROWS, 2: P("y", None)},
        expect=Expect(sent_max=6144, priced_min=1),
    ),
    Case(
        name="batch_below_mesh",
        seen="meta-pytorch/autoparallel#22, LargeWorldModel/LWM#39",
        fn=batch_below_mesh,
        args=lambda: [normal(0, 4, 6, 16), normal(1, 16, 10)],
    ),
    Case(
        name="sum_of_replicated",
        seen="openxla/xla#5963",
        fn=sum_of_replicated,
        args=lambda: [normal(0, 1024, 256)],
        mesh=D,
        ins={"x": P()},
        outs={0: P()},
        expect=Expect(sent_max=64, priced_min=4),
    ),
    Case(
        name="constraint_under_vmap",
        seen="jax-ml/jax#15886, jax-ml/jax#17874",
        fn=constraint_under_vmap,
        args=lambda: [normal(0, 16, 32), normal(1, 16, 32)],
        ins={"a": ROWS, "b": ROWS},
        expect=Expect(result_axes=((0, 0, "x"), (1, 0, "x"))),
    ),
    Case(
        name="made_inside",
        seen="jax-ml/jax#18263, jax-ml/jax#14075",
        fn=made_inside,
        args=lambda: [jnp.int32(0)],
        mesh=D,
        ins={"seed": P()},
        expect=Expect(sent_max=0, result_parts={0: 8, 1: 8, 2: 8}),
    ),
    Case(
        name="running_total",
        seen="jax-ml/jax#21403",
        fn=running_total,
        args=lambda: [bits(8, 512)],
        ins={"mask": P("x", "y")},
        outs={0: P("x", "y")},
        expect=Expect(sent_max=4096, priced_min=1),
    ),
    Case(
        name="stencil_gradient",
        seen="jax-ml/jax#15773, jax-ml/jax#39301",
        fn=stencil_gradient,
        args=lambda: [normal(0, 64, 32)],
        mesh=D,
        ins={"u": P("d", None)},
        outs={0: P("d", None)},
        expect=Expect(sent_max=1100),
    ),
    Case(
        name="joined_pieces",
        seen="jax-ml/jax#24576, jax-ml/jax#19106",
        fn=joined_pieces,
        args=lambda: [normal(0, 4, 16), normal(1, 12, 16), normal(2, 8, 16)],
        ins={"a": ROWS, "b": ROWS, "c": P(None, None)},
        outs={0: ROWS},
        expect=Expect(sent_max=480, priced_min=1),
    ),
    Case(
        name="spectrum",
        seen="DifferentiableUniverseInitiative/JaxPM#8, jax-ml/jax#16909",
        fn=spectrum,
        args=lambda: [normal(0, 32, 32, 32)],
        mesh=D,
        ins={"x": P("d", None, None)},
        expect=Expect(sent_max=28672),
    ),
)
