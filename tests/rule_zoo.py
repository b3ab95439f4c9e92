"""Small programs, at least one for every ruled primitive: what the rules' tests and benchmark run on eight devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.helpers_rules import Case

ROWS = lax.ScatterDimensionNumbers(
    update_window_dims=(0, 1), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,)
)
"""One window of whole rows, placed by its first one."""


def normal(*shape: int, seed: int = 0) -> Any:
    """Standard normal floats."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> Any:
    """Floats in (0.1, 0.9)."""
    return np.random.default_rng(seed).uniform(0.1, 0.9, shape).astype(np.float32)


def integers(*shape: int, low: int = 0, high: int = 16, seed: int = 0, dtype: Any = np.int32) -> Any:
    """Integers in [low, high)."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def small_floats(*shape: int) -> Any:
    """Floats that are small whole numbers, exact in any precision."""
    return integers(*shape, low=-3, high=4).astype(np.float32)


def spd(*shape: int) -> Any:
    """Symmetric positive definite matrices."""
    a = normal(*shape)
    return a @ np.swapaxes(a, -1, -2) + 4 * np.eye(shape[-1], dtype=np.float32)


def bools(*shape: int) -> Any:
    """Random booleans."""
    return integers(*shape, high=2).astype(bool)


def _scaled(a: Any, b: Any, s: Any, t: Any) -> Any:
    numbers = (((2,), (2,)), ((0,), (0,)))
    return lax.scaled_dot(a, b, lhs_scale=s, rhs_scale=t, dimension_numbers=numbers, preferred_element_type=jnp.float32)


def contractions() -> list[Case]:
    """Matrix products in all forms."""
    return [
        Case("dot_mm", "dot_general", jnp.dot, (normal(16, 8), normal(8, 24))),
        Case(
            "dot_batched",
            "dot_general",
            lambda a, b: jnp.einsum("bik,bkj->bij", a, b),
            (normal(8, 8, 16), normal(8, 16, 24)),
        ),
        Case(
            "dot_two_contracted",
            "dot_general",
            lambda a, b: jnp.einsum("bshd,hde->bse", a, b),
            (normal(8, 4, 8, 16), normal(8, 16, 8)),
        ),
        Case("dot_vector", "dot_general", jnp.dot, (normal(16), normal(16))),
        Case("dot_matvec", "dot_general", jnp.dot, (normal(8, 16), normal(16))),
        Case(
            "dot_bf16",
            "dot_general",
            lambda a, b: lax.dot(a, b, preferred_element_type=jnp.float32),
            (normal(16, 8).astype(jnp.bfloat16), normal(8, 16).astype(jnp.bfloat16)),
        ),
        Case(
            "scaled_dot",
            "scaled_dot",
            _scaled,
            tuple(small_floats(*shape) for shape in ((8, 16, 16), (8, 8, 16), (8, 16, 8), (8, 8, 8))),
        ),
        Case("dot_int", "dot_general", lambda a, b: lax.dot(a, b), (integers(16, 8), integers(8, 16))),
    ]


def _larger(a: Any, b: Any) -> Any:
    keep = a[0] >= b[0]
    return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])


def reductions() -> list[Case]:
    """Reductions, arg-reductions, cumulative operations."""
    x = normal(8, 16, 8)
    i = integers(8, 16, 8)
    cases = [
        Case("reduce_sum", "reduce_sum", lambda a: jnp.sum(a, 1), (x,)),
        Case("reduce_sum_all", "reduce_sum", jnp.sum, (x,)),
        Case("reduce_sum_two", "reduce_sum", lambda a: jnp.sum(a, (0, 2)), (x,)),
        Case("reduce_max", "reduce_max", lambda a: jnp.max(a, 1), (x,)),
        Case("reduce_max_all", "reduce_max", jnp.max, (x,)),
        Case("reduce_min", "reduce_min", lambda a: jnp.min(a, (0, 1)), (x,)),
        Case("reduce_prod", "reduce_prod", lambda a: jnp.prod(a, 1), (positive(8, 16, 8),)),
        Case("reduce_and", "reduce_and", lambda a: jnp.all(a, 1), (i > 1,)),
        Case("reduce_or", "reduce_or", lambda a: jnp.any(a, 1), (i > 14,)),
        Case("reduce_xor", "reduce_xor", lambda a: lax.reduce_xor(a, (1,)), (i,)),
        Case("reduce_max_int", "reduce_max", lambda a: jnp.max(a, 1), (i,)),
        Case("reduce", "reduce", lambda a: lax.reduce(a, np.int32(0), lambda p, q: p * 31 + q, (1,)), (i,)),
        Case("reduce_several", "reduce", lambda a, c: lax.reduce((a, c), (0.0, 0), _larger, (1,)), (x, i)),
        Case("argmax", "argmax", lambda a: jnp.argmax(a, 1), (i,)),
        Case("argmax_float", "argmax", lambda a: jnp.argmax(a, 2), (x,)),
        Case("argmax_nan", "argmax", lambda a: jnp.argmax(a, 1), (np.where(i > 13, np.nan, x),)),
        Case("argmin", "argmin", lambda a: jnp.argmin(a, 0), (i,)),
        Case("argmin_bool", "argmin", lambda a: jnp.argmin(a, 1), (i > 8,)),
    ]
    for fold in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp):
        name = fold.__name__
        cases.append(Case(name, name, partial(fold, axis=1), (positive(8, 16, 8),)))
        cases.append(Case(f"{name}_reverse", name, partial(fold, axis=0, reverse=True), (x,)))
    return cases


def shapes() -> list[Case]:
    """Operations that rearrange elements."""
    x = normal(16, 8, 8)
    return [
        Case("reshape_merge", "reshape", lambda a: a.reshape(128, 8), (x,)),
        Case("reshape_merge_all", "reshape", lambda a: a.reshape(-1), (x,)),
        Case("reshape_split", "reshape", lambda a: a.reshape(4, 4, 8, 2, 4), (x,)),
        Case("reshape_split_16", "reshape", lambda a: a.reshape(2, 8, 8, 8), (x,)),
        Case("reshape_regroup", "reshape", lambda a: a.reshape(8, 16, 8), (x,)),
        Case("reshape_heads", "reshape", lambda a: a.reshape(16, 8, 4, 2), (x,)),
        Case("reshape_ones", "reshape", lambda a: a.reshape(16, 1, 8, 8), (x,)),
        Case("reshape_uneven", "reshape", lambda a: a.reshape(6, 4), (normal(4, 6),)),
        Case("squeeze", "squeeze", lambda a: jnp.squeeze(a, 1), (normal(8, 1, 16),)),
        Case("transpose", "transpose", lambda a: a.transpose(2, 0, 1), (x,)),
        Case("broadcast", "broadcast_in_dim", lambda a: jnp.broadcast_to(a[:, None], (8, 16, 8)), (normal(8, 8),)),
        Case("broadcast_leading", "broadcast_in_dim", lambda a: jnp.broadcast_to(a, (16, 8)), (normal(8),)),
        Case("broadcast_scalar", "broadcast_in_dim", lambda a: jnp.broadcast_to(a, (16, 8)), (normal(),)),
        Case("concatenate", "concatenate", lambda a, b: jnp.concatenate([a, b], 1), (x, normal(16, 16, 8))),
        Case("concatenate_same", "concatenate", lambda a, b, c: jnp.concatenate([a, b, c], 0), (x, x, x)),
        Case("pad", "pad", lambda a: jnp.pad(a, ((0, 0), (1, 7), (0, 0))), (x,)),
        Case("pad_negative", "pad", lambda a: lax.pad(a, 0.0, ((-4, 4, 0), (0, 0, 0), (0, 8, 1))), (x,)),
        Case("pad_one", "pad", lambda a: jnp.pad(a, ((1, 0), (0, 0), (0, 0))), (x,)),
        Case("slice", "slice", lambda a: a[:, 2:6], (x,)),
        Case("slice_shift", "slice", lambda a: a[1:], (normal(17, 8),)),
        Case("slice_half", "slice", lambda a: a[:8], (x,)),
        Case("slice_strided", "slice", lambda a: lax.slice(a, (0, 0, 0), (16, 8, 8), (2, 1, 1)), (x,)),
        Case("split", "split", lambda a: jnp.split(a, 2, 1), (x,)),
        Case("split_sizes", "split", lambda a: lax.split(a, (4, 12), 0), (x,)),
        Case("rev", "rev", lambda a: a[::-1], (x,)),
        Case("rev_two", "rev", lambda a: lax.rev(a, (0, 2)), (x,)),
        Case("sort", "sort", lambda a: lax.sort(a, dimension=1), (x,)),
        Case(
            "sort_pairs", "sort", lambda a, b: lax.sort((a, b), dimension=0, num_keys=1), (x, normal(16, 8, 8, seed=1))
        ),
        Case("iota", "iota", lambda: lax.broadcasted_iota(jnp.int32, (16, 8), 0), ()),
        Case("stack", "stack", lambda a, b: jnp.stack([a, b], 1), (x, x + 1)),
        Case("unstack", "unstack", lambda a: jnp.unstack(a, axis=1), (x,)),
        Case("tile_two", "tile", lambda a: jnp.tile(a, (2, 4)), (normal(8, 2),)),
        Case("tile", "tile", lambda a: jnp.tile(a, (1, 2, 1)), (x,)),
    ]


def lookups() -> list[Case]:
    """Gathers, scatters, dynamic slices."""
    table, ids = normal(16, 8), integers(8, 16)
    wild = integers(8, 16, low=-20, high=40)
    x = normal(8, 16, 8)
    along = integers(8, 4, 8)
    start = np.int32(3)
    cases = [
        Case("take", "gather", lambda t, i: jnp.take(t, i, axis=0), (table, ids)),
        Case("take_wild_fill", "gather", lambda t, i: jnp.take(t, i, axis=0, mode="fill"), (table, wild)),
        Case("take_wild_clip", "gather", lambda t, i: jnp.take(t, i, axis=0, mode="clip"), (table, wild)),
        Case("take_int_fill", "gather", lambda t, i: jnp.take(t, i, axis=0, mode="fill"), (integers(16, 8), wild)),
        Case("take_columns", "gather", lambda t, i: jnp.take(t, i, axis=1), (normal(8, 16, 8), integers(8))),
        Case("index_getitem", "gather", lambda t, i: t[i], (table, ids)),
        Case("index_promise", "gather", lambda t, i: t.at[i].get(mode="promise_in_bounds"), (table, ids)),
        Case("index_two", "gather", lambda t, i, j: t[i, j], (x, integers(8, high=8), integers(8, high=16, seed=1))),
        Case(
            "index_two_wild",
            "gather",
            lambda t, i, j: t.at[i, j].get(mode="fill"),
            (x, integers(8, low=-12, high=12), integers(8, high=24, seed=1)),
        ),
        Case("take_along_axis", "gather", lambda a, i: jnp.take_along_axis(a, i, axis=1), (x, along)),
        Case(
            "take_along_axis_loss",
            "gather",
            lambda a, i: jnp.take_along_axis(a, i[..., None], axis=-1),
            (x, integers(8, 16, high=8)),
        ),
        Case(
            "gather_windows",
            "gather",
            lambda a, i: jax.vmap(lambda k: lax.dynamic_slice(a, (k, 0), (4, 8)))(i),
            (table, integers(8, high=12)),
        ),
        Case("gather_vmapped", "gather", lambda a, i: jax.vmap(lambda r, k: r[k])(a, i), (x, integers(8, 4))),
        Case(
            "scatter_set",
            "scatter",
            lambda t, i, u: t.at[i].set(u, unique_indices=True),
            (table, np.arange(8, dtype=np.int32)[::-1] * 2, normal(8, 8, seed=1)),
        ),
        Case(
            "scatter_set_wild",
            "scatter",
            lambda t, i, u: t.at[i].set(u, mode="drop"),
            (table, np.arange(8, dtype=np.int32) * 5 - 9, normal(8, 8, seed=1)),
        ),
        Case(
            "scatter_set_clip",
            "scatter",
            lambda t, i, u: t.at[i].set(u, mode="clip"),
            (table, np.array([3, -40, 99, 5, 6, 7, 8, 9], np.int32), normal(8, 8, seed=1)),
        ),
        Case("scatter_column", "scatter", lambda t, u: t.at[:, 3].set(u), (table, normal(16, seed=1))),
        Case("scatter_rows", "scatter", lambda t, u: t.at[2:5].set(u), (table, normal(3, 8, seed=1))),
        Case("scatter_block", "scatter", lambda t, u: t.at[3:10, 2:7].set(u), (table, normal(7, 5, seed=1))),
        Case(
            "scatter_window_drop",
            "scatter-add",
            lambda t, i, u: lax.scatter_add(t, i, u, ROWS, mode="drop"),
            (table, np.array([13], np.int32), normal(5, 8, seed=1)),
        ),
        Case(
            "scatter_window_clip",
            "scatter-add",
            lambda t, i, u: lax.scatter_add(t, i, u, ROWS, mode="clip"),
            (table, np.array([13], np.int32), normal(5, 8, seed=1)),
        ),
        Case("scatter_add", "scatter-add", lambda t, i, u: t.at[i].add(u), (table, ids, normal(8, 16, 8, seed=1))),
        Case(
            "scatter_add_wild",
            "scatter-add",
            lambda t, i, u: t.at[i].add(u, mode="drop"),
            (table, wild, normal(8, 16, 8, seed=1)),
        ),
        Case(
            "scatter_add_clip",
            "scatter-add",
            lambda t, i, u: t.at[i].add(u, mode="clip"),
            (table, wild, normal(8, 16, 8, seed=1)),
        ),
        Case(
            "scatter_add_two",
            "scatter-add",
            lambda t, i, j, u: t.at[i, j].add(u),
            (x, integers(8, high=8), integers(8, seed=1), normal(8, 8, seed=2)),
        ),
        Case(
            "scatter_add_batched",
            "scatter-add",
            lambda t, i, u: jax.vmap(lambda a, k, v: a.at[k].add(v))(t, i, u),
            (x, integers(8, 4), normal(8, 4, 8)),
        ),
        Case(
            "scatter_add_int",
            "scatter-add",
            lambda t, i, u: t.at[i].add(u),
            (integers(16, 8), ids, integers(8, 16, 8, seed=1)),
        ),
        Case("scatter_sub", "scatter-sub", lambda t, i, u: t.at[i].subtract(u), (table, ids, normal(8, 16, 8, seed=1))),
        Case(
            "scatter_mul", "scatter-mul", lambda t, i, u: t.at[i].multiply(u), (table, ids, positive(8, 16, 8, seed=1))
        ),
        Case("scatter_min", "scatter-min", lambda t, i, u: t.at[i].min(u), (table, ids, normal(8, 16, 8, seed=1))),
        Case("scatter_max", "scatter-max", lambda t, i, u: t.at[i].max(u), (table, ids, normal(8, 16, 8, seed=1))),
        Case(
            "take_along_axis_grad",
            "scatter-add",
            jax.grad(lambda a, i: jnp.sum(jnp.take_along_axis(a, i, axis=1) ** 2)),
            (x, along),
        ),
        Case("dynamic_slice", "dynamic_slice", lambda a, s: lax.dynamic_slice(a, (0, s, 0), (8, 4, 8)), (x, start)),
        Case("dynamic_slice_one", "dynamic_slice", lambda a, k: lax.dynamic_index_in_dim(a, k, 1), (x, jnp.int32(11))),
        Case(
            "dynamic_slice_far",
            "dynamic_slice",
            lambda a, k: lax.dynamic_slice(a, (0, k, 0), (8, 1, 8)),
            (x, jnp.int32(99)),
        ),
        Case(
            "dynamic_update_slice",
            "dynamic_update_slice",
            lambda a, u, s: lax.dynamic_update_slice(a, u, (0, s, 0)),
            (x, normal(8, 4, 8, seed=1), start),
        ),
        Case(
            "dynamic_update_one",
            "dynamic_update_slice",
            lambda a, u, k: lax.dynamic_update_slice_in_dim(a, u, k, 1),
            (x, normal(8, 1, 8, seed=1), jnp.int32(9)),
        ),
    ]
    return cases


def elementwise() -> list[Case]:
    """One or two operations of each arity; the family shares one rule."""
    x, y = normal(8, 16, 4), normal(8, 16, 4, seed=1)
    return [
        Case("add", "add", jnp.add, (x, y)),
        Case("mul_size_one", "mul", lambda a, b: lax.mul_p.bind(a, b), (normal(8, 16), normal(8, 16))),
        Case("exp", "exp", jnp.exp, (x,)),
        Case("select_n", "select_n", lambda c, a, b: lax.select_n(c, a, b), (bools(8, 16, 4), x, y)),
        Case("select_n_scalar", "select_n", lambda c, a, b: lax.select_n(c, a, b), (np.bool_(True), x, y)),
        Case("clamp_scalar", "clamp", lambda a, lo, hi: lax.clamp(lo, a, hi), (x, np.float32(-1), np.float32(1))),
        Case("clamp_full", "clamp", lambda a, lo, hi: lax.clamp(lo, a, hi), (x, y, y + 1)),
        Case("convert", "convert_element_type", lambda a: a.astype(jnp.bfloat16), (x,)),
        Case("bitcast", "bitcast_convert_type", lambda a: lax.bitcast_convert_type(a, jnp.int32), (x,)),
        Case("bitcast_narrow", "bitcast_convert_type", lambda a: lax.bitcast_convert_type(a, jnp.int8), (x,)),
        Case(
            "bitcast_wide",
            "bitcast_convert_type",
            lambda a: lax.bitcast_convert_type(a, jnp.int32),
            (integers(8, 16, 4, dtype=np.int8),),
        ),
        Case(
            "optimization_barrier",
            "optimization_barrier",
            lambda a, b: lax.optimization_barrier((a, b)),
            (x, normal(8, 4)),
        ),
        Case(
            "threefry",
            "threefry2x32",
            lambda a: jax.extend.random.threefry_2x32(jnp.array([1, 2], jnp.uint32), a),
            (integers(16, 8, dtype=np.uint32),),
            exact=True,
        ),
    ]


def convolutions() -> list[Case]:
    """Convolutions forwards and backwards, with groups, strides and dilations."""
    nhwc = ("NHWC", "HWIO", "NHWC")

    def conv(**keywords: Any) -> Callable[[Any, Any], Any]:
        settings = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": nhwc, **keywords}
        return lambda x, k: lax.conv_general_dilated(x, k, **settings)

    def loss(x: Any, k: Any) -> Any:
        return jnp.sum(conv()(x, k) ** 2)

    x, k = normal(4, 8, 16, 8), normal(3, 3, 8, 16)
    return [
        Case("conv_same", "conv_general_dilated", conv(), (x, k)),
        Case("conv_valid", "conv_general_dilated", conv(padding="VALID"), (x, k)),
        Case("conv_one_by_one", "conv_general_dilated", conv(), (x, normal(1, 1, 8, 16))),
        Case(
            "conv_patches",
            "conv_general_dilated",
            conv(window_strides=(4, 4), padding="VALID"),
            (x, normal(4, 4, 8, 16)),
        ),
        Case("conv_stride", "conv_general_dilated", conv(window_strides=(2, 2)), (x, k)),
        Case("conv_stride_wide", "conv_general_dilated", conv(window_strides=(2, 2)), (x, normal(1, 1, 8, 16))),
        Case("conv_dilated", "conv_general_dilated", conv(rhs_dilation=(2, 2)), (x, k)),
        Case("conv_groups", "conv_general_dilated", conv(feature_group_count=4), (x, normal(3, 3, 2, 16))),
        Case("conv_depthwise", "conv_general_dilated", conv(feature_group_count=8), (x, normal(3, 3, 1, 8))),
        Case("conv_batch_groups", "conv_general_dilated", conv(batch_group_count=4), (normal(8, 8, 8, 8), k)),
        Case("conv_transposed", "conv_general_dilated", conv(lhs_dilation=(2, 2), padding=((1, 2), (1, 2))), (x, k)),
        Case("conv_grad_input", "conv_general_dilated", _second(jax.grad(loss, 0)), (x, k)),
        Case("conv_grad_kernel", "conv_general_dilated", _second(jax.grad(loss, 1)), (x, k)),
        Case(
            "conv_one_dimension",
            "conv_general_dilated",
            lambda a, b: lax.conv(a, b, (1,), "SAME"),
            (normal(4, 8, 16), normal(16, 8, 4)),
        ),
    ]


def _second(grad: Callable[..., Any]) -> Callable[..., Any]:
    """Only the backward pass's own convolution: what the forward pass computes is a residual of the function."""

    def only(x: Any, k: Any) -> Any:
        return grad(x, k)

    return only


def windows() -> list[Case]:
    """Pooling, forwards and backwards."""
    x = normal(4, 8, 16, 8)
    pool = (1, 2, 2, 1)
    wide = (1, 3, 3, 1)
    ones = (1, 1, 1, 1)

    def max_pool(a: Any) -> Any:
        return lax.reduce_window(a, -np.inf, lax.max, pool, pool, "VALID")

    def tangent(a: Any, t: Any) -> Any:
        return jax.jvp(max_pool, (a,), (t,))[1]

    return [
        Case("max_pool", "reduce_window_max", max_pool, (x,)),
        Case(
            "max_pool_same",
            "reduce_window_max",
            lambda a: lax.reduce_window(a, -np.inf, lax.max, wide, ones, "SAME"),
            (x,),
        ),
        Case(
            "min_pool_stride",
            "reduce_window_min",
            lambda a: lax.reduce_window(a, np.inf, lax.min, wide, pool, "SAME"),
            (x,),
        ),
        Case(
            "sum_pool_same", "reduce_window_sum", lambda a: lax.reduce_window(a, 0.0, lax.add, wide, ones, "SAME"), (x,)
        ),
        Case(
            "sum_pool_valid",
            "reduce_window_sum",
            lambda a: lax.reduce_window(a, 0.0, lax.add, wide, ones, "VALID"),
            (x,),
        ),
        Case(
            "window_generic",
            "reduce_window",
            lambda a: lax.reduce_window(a, 1.0, lambda p, q: p * q, wide, ones, "SAME"),
            (positive(4, 8, 16, 8),),
        ),
        Case("max_pool_grad", "select_and_scatter_add", jax.grad(lambda a: jnp.sum(max_pool(a) ** 2)), (x,)),
        Case("max_pool_tangent", "select_and_gather_add", tangent, (x, normal(4, 8, 16, 8, seed=1))),
    ]


def searches() -> list[Case]:
    """The best k."""
    x, ties = normal(8, 16, 8), integers(8, 16, 8, high=4).astype(np.float32)
    return [
        Case("top_k", "top_k", lambda a: lax.top_k(a, 3), (x,)),
        Case("top_k_ties", "top_k", lambda a: lax.top_k(a, 2), (ties,)),
        Case("top_k_first", "top_k", lambda a: lax.top_k(a, 4, axis=0), (x,)),
        Case("top_1", "top_k", lambda a: lax.top_k(a, 1), (x.astype(jnp.bfloat16),)),
        Case("approx_top_k", "approx_top_k", lambda a: lax.approx_max_k(a, 3), (x,)),
    ]


def _pivoted(a: Any, c: Any) -> Any:
    return jax.scipy.linalg.qr_multiply(a, c, pivoting=True)


def transforms() -> list[Case]:
    """Fourier transforms and linear algebra."""
    a, x = spd(4, 8, 8), normal(4, 8, 8)
    stack = normal(2, 4, 8, 8)
    diagonal = positive(4, 8)
    lower = np.tril(x) + 4 * np.eye(8, dtype=np.float32)
    return [
        Case("fft", "fft", jnp.fft.fft, (normal(8, 4, 16),)),
        Case("rfft", "fft", jnp.fft.rfft, (normal(8, 4, 16),)),
        Case("irfft", "fft", jnp.fft.irfft, (normal(8, 9).astype(np.complex64),)),
        Case("cholesky", "cholesky", lax.linalg.cholesky, (a,)),
        Case("eigh", "eigh", lambda m: lax.linalg.eigh(m), (a,)),
        Case("eig", "eig", lambda m: lax.linalg.eig(m), (a,)),
        Case("svd", "svd", lambda m: lax.linalg.svd(m, full_matrices=False), (x,)),
        Case("svd_values", "svd", lambda m: lax.linalg.svd(m, compute_uv=False), (stack,)),
        Case("qr", "qr", lambda m: lax.linalg.qr(m, full_matrices=False), (x,)),
        Case("geqrf", "geqrf", lambda m: jnp.linalg.qr(m, mode="raw"), (x,)),
        Case("geqp3", "geqp3", _pivoted, (x, normal(4, 8, 8, seed=1))),
        Case("ormqr", "ormqr", lambda m, t, c: lax.linalg.ormqr(m, t, c), (x, diagonal, normal(4, 8, 8, seed=1))),
        Case("householder", "householder_product", lambda m, t: lax.linalg.householder_product(m, t), (x, diagonal)),
        Case("lu", "lu", lambda m: lax.linalg.lu(m), (stack,)),
        Case(
            "lu_pivots",
            "lu_pivots_to_permutation",
            lambda p: lax.linalg.lu_pivots_to_permutation(p, 8),
            (np.tile(np.arange(4, dtype=np.int32) + 2, (8, 1)),),
        ),
        Case(
            "triangular_solve",
            "triangular_solve",
            lambda m, r: lax.linalg.triangular_solve(m, r, left_side=True, lower=True),
            (lower, normal(4, 8, 16)),
        ),
        Case(
            "triangular_solve_right",
            "triangular_solve",
            lambda m, r: lax.linalg.triangular_solve(m, r, lower=True),
            (lower, normal(4, 16, 8)),
        ),
        Case("hessenberg", "hessenberg", lambda m: lax.linalg.hessenberg(m), (x,)),
        Case("schur", "schur", lambda m: lax.linalg.schur(m), (a,)),
        Case("tridiagonal", "tridiagonal", lambda m: lax.linalg.tridiagonal(m), (a,)),
        Case(
            "tridiagonal_solve",
            "tridiagonal_solve",
            lax.linalg.tridiagonal_solve,
            (diagonal, diagonal + 4, diagonal, normal(4, 8, 8)),
        ),
        Case(
            "symmetric_product",
            "symmetric_product",
            lambda m, c: lax.linalg.symmetric_product(m, c, alpha=2.0, beta=0.5),
            (x, a),
        ),
    ]


def draws() -> list[Case]:
    """Random bits and keys: equal bit by bit, however they are split."""
    key = jax.random.key(7)
    keys = jax.random.split(key, 8)
    return [
        Case("random_bits", "random_bits", lambda k: jax.random.bits(k, (16, 8)), (key,), exact=True),
        Case("random_bits_keys", "random_bits", jax.vmap(lambda k: jax.random.bits(k, (16,))), (keys,), exact=True),
        Case("random_bits_8", "random_bits", lambda k: jax.random.bits(k, (16, 8), jnp.uint8), (key,), exact=True),
        Case(
            "random_bits_rbg",
            "random_bits",
            lambda k: jax.random.bits(k, (16, 8)),
            (jax.random.key(3, impl="rbg"),),
            exact=True,
        ),
        Case("random_split", "random_split", lambda k: jax.random.split(k, (8, 4)), (key,), exact=True),
        Case("random_split_keys", "random_split", jax.vmap(lambda k: jax.random.split(k, 4)), (keys,), exact=True),
        Case("random_seed", "random_seed", jax.vmap(jax.random.key), (integers(8),), exact=True),
        Case("random_fold_in", "random_fold_in", jax.vmap(jax.random.fold_in), (keys, integers(8)), exact=True),
        Case(
            "random_fold_in_one",
            "random_fold_in",
            jax.vmap(jax.random.fold_in, (None, 0)),
            (key, integers(8)),
            exact=True,
        ),
        Case(
            "random_wrap",
            "random_wrap",
            lambda d: jax.random.wrap_key_data(d),
            (integers(8, 2, dtype=np.uint32),),
            exact=True,
        ),
        Case("random_unwrap", "random_unwrap", jax.random.key_data, (keys,), exact=True),
        Case("random_clone", "random_clone", jax.random.clone, (keys,), exact=True),
        Case("random_gamma", "random_gamma", lambda k: jax.random.gamma(k, 2.0, (8,)), (key,)),
        Case("random_gamma_keys", "random_gamma", jax.vmap(lambda k: jax.random.gamma(k, 2.0, (4,))), (keys,)),
    ]


def ragged() -> list[Case]:
    """Products of groups of rows with a matrix each."""
    rows, matrices = normal(16, 8), normal(4, 8, 8, seed=1)

    def gradient(which: int) -> Callable[..., Any]:
        return jax.grad(lambda a, b, n: jnp.sum(lax.ragged_dot(a, b, n) ** 2), which)

    return [
        Case("ragged_dot", "ragged_dot_general", lax.ragged_dot, (rows, matrices, np.array([3, 5, 0, 8], np.int32))),
        Case(
            "ragged_dot_short", "ragged_dot_general", lax.ragged_dot, (rows, matrices, np.array([1, 2, 7, 1], np.int32))
        ),
        Case(
            "ragged_dot_contracted",
            "ragged_dot_general",
            _ragged_contraction,
            (rows, normal(16, 8, seed=2), np.array([3, 5, 0, 8], np.int32)),
        ),
        Case("ragged_dot_grad", "ragged_dot_general", gradient(1), (rows, matrices, np.array([3, 5, 0, 8], np.int32))),
    ]


def _ragged_contraction(a: Any, b: Any, sizes: Any) -> Any:
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    return lax.ragged_dot_general(a, b, sizes, numbers)


FAMILIES: dict[str, Callable[[], list[Case]]] = {
    "contractions": contractions,
    "convolutions": convolutions,
    "draws": draws,
    "elementwise": elementwise,
    "lookups": lookups,
    "ragged": ragged,
    "reductions": reductions,
    "searches": searches,
    "shapes": shapes,
    "transforms": transforms,
    "windows": windows,
}
