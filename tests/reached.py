"""Which primitives JAX's public functions reach: every function is traced on sample arguments until some fit."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.cluster.vq
import jax.scipy.fft
import jax.scipy.integrate
import jax.scipy.interpolate
import jax.scipy.linalg
import jax.scipy.ndimage
import jax.scipy.optimize
import jax.scipy.signal
import jax.scipy.sparse.linalg
import jax.scipy.spatial.transform
import jax.scipy.special
import jax.scipy.stats
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.extend import core

from autoshard.jaxprs import opened
from tests.rule_zoo import FAMILIES

MODULES: Mapping[str, ModuleType] = {
    "jax.numpy": jnp,
    "jax.lax": lax,
    "jax.nn": jax.nn,
    "jax.random": jax.random,
    "jax.numpy.fft": jnp.fft,
    "jax.numpy.linalg": jnp.linalg,
    "jax.lax.linalg": lax.linalg,
    "jax.image": jax.image,
    "jax.scipy.cluster.vq": jax.scipy.cluster.vq,
    "jax.scipy.fft": jax.scipy.fft,
    "jax.scipy.integrate": jax.scipy.integrate,
    "jax.scipy.interpolate": jax.scipy.interpolate,
    "jax.scipy.linalg": jax.scipy.linalg,
    "jax.scipy.ndimage": jax.scipy.ndimage,
    "jax.scipy.optimize": jax.scipy.optimize,
    "jax.scipy.signal": jax.scipy.signal,
    "jax.scipy.sparse.linalg": jax.scipy.sparse.linalg,
    "jax.scipy.special": jax.scipy.special,
    **{
        f"jax.scipy.stats.{name}": getattr(jax.scipy.stats, name)
        for name in jax.scipy.stats.__dir__()
        if isinstance(getattr(jax.scipy.stats, name), ModuleType)
    },
}
"""The modules whose public functions are called."""

SIDE_EFFECTS = frozenset({"from_dlpack", "frombuffer", "fromfile", "load", "save", "savez", "set_printoptions"})
"""Functions of files and of the printer."""

_X = np.linspace(0.1, 0.9, 16, dtype=np.float32).reshape(4, 4)
_I = np.arange(4, dtype=np.int32)
_KEY = jax.random.key(0)
_ATOMS: tuple[Any, ...] = (
    _X,
    _X[0],
    _I,
    _X.astype(np.complex64),
    2,
    0.5,
    (4, 4),
    [_X, _X],
    _X > 0.5,
    _KEY,
    lambda x: x,
)


def _attempts() -> Iterator[tuple[Any, ...]]:
    """Arguments to try, the likely ones first."""
    yield from [(_X,), (_X, _X), (_X, _X, _X), (_X[0],), (_I,), (_I, _I), (_KEY, (4, 4)), (_KEY,)]
    for count in (1, 2, 3):
        yield from itertools.product(_ATOMS, repeat=count)


@cache
def reached_by_calls(attempts: int = 24) -> Mapping[str, tuple[str, core.JaxprEqn]]:
    """Every primitive that a public function reaches, with the first function that does and the equation.

    Args:
        attempts: How many argument lists are tried for one function.
    """
    found: dict[str, tuple[str, core.JaxprEqn]] = {}
    for name, fn in public_functions():
        for arguments in itertools.islice(_attempts(), attempts):
            closed = _traced(fn, arguments)
            if closed is not None:
                _collect(closed, name, found)
                break
    for name, fn, arguments in SPECIAL:
        closed = _traced(fn, arguments)
        assert closed is not None, name
        _collect(closed, name, found)
    for case in (case for family in FAMILIES.values() for case in family()):
        _collect(jax.make_jaxpr(case.fn)(*case.args), case.name, found)
    return found


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All public functions of the modules."""
    for prefix, module in MODULES.items():
        for name in sorted(vars(module)):
            value = getattr(module, name)
            if (
                name.startswith("_")
                or name in SIDE_EFFECTS
                or isinstance(value, type | ModuleType)
                or not callable(value)
            ):
                continue
            yield f"{prefix}.{name}", value


def _traced(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> core.ClosedJaxpr | None:
    """The jaxpr of a call; arrays are traced, everything else is static."""
    leaves, tree = jax.tree.flatten(arguments)
    arrays = [k for k, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray | jax.Array)]

    def call(*values: Any) -> Any:
        filled = list(leaves)
        for k, value in zip(arrays, values):
            filled[k] = value
        return [leaf for leaf in jax.tree.leaves(fn(*jax.tree.unflatten(tree, filled))) if isinstance(leaf, jax.Array)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return jax.make_jaxpr(call)(*(leaves[k] for k in arrays))
        except Exception:  # whatever a function says about arguments that it was not made for
            return None


def _collect(closed: core.ClosedJaxpr | core.Jaxpr, name: str, found: dict[str, tuple[str, core.JaxprEqn]]) -> None:
    """Add the primitives of a jaxpr and of those nested in it."""
    jaxpr, _ = opened(closed)
    for eqn in jaxpr.eqns:
        found.setdefault(eqn.primitive.name, (name, eqn))
        for nested in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(nested):
                _collect(nested, name, found)


def _is_jaxpr(x: Any) -> bool:
    return isinstance(x, core.Jaxpr | core.ClosedJaxpr)


def _loop(x: Any) -> Any:
    """Control flow of every kind, with functions of a user's own rules inside."""
    x = lax.fori_loop(0, 3, lambda i, c: c * 2, x)
    x = lax.while_loop(lambda c: jnp.sum(c) < 100, lambda c: c + 1, x)
    x = lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)
    x = lax.switch(2, [jnp.sin, jnp.cos, jnp.tan], x)
    x = lax.map(jnp.exp, x) + lax.associative_scan(jnp.add, x)
    x = lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)
    return jax.checkpoint(jax.nn.relu)(lax.scan(lambda c, y: (c + 1, y * c), 0.0, x)[1])


def _loop_free(x: Any) -> Any:
    """Something with many kinds of derivatives."""
    pooled = lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID")
    return jnp.sort(x) * jnp.cumsum(x, 0) @ jnp.linalg.inv(x + 4 * jnp.eye(4)) + jnp.sum(pooled) + jnp.prod(x)


def _shard_mapped(x: Any) -> Any:
    mesh = jax.sharding.AbstractMesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    return jax.shard_map(lambda v: v * lax.psum(v, "x"), mesh=mesh, in_specs=spec, out_specs=spec)(x)


def _solves(a: Any, b: Any) -> Any:
    x = lax.custom_linear_solve(lambda v: a @ v, b, lambda mv, v: jnp.linalg.solve(a, v), lambda mv, v: v)
    root = lax.custom_root(lambda v: v**2 - b, b, lambda f, v: v, lambda g, y: y / g(jnp.ones_like(y)))
    return x + root


_ONES = np.ones((1, 4, 4, 4), np.float32)

SPECIAL: tuple[tuple[str, Callable[..., Any], tuple[Any, ...]], ...] = (
    ("control flow", _loop, (_X,)),
    ("custom solves", _solves, (_X + 4 * np.eye(4, dtype=np.float32), _X[0])),
    ("gradients", jax.grad(lambda x: jnp.sum(_loop_free(x))), (_X,)),
    ("jax.debug.print", lambda x: jax.debug.print("{}", x), (_X,)),
    ("jax.debug.callback", lambda x: jax.debug.callback(lambda v: None, x), (_X,)),
    ("jax.pure_callback", lambda x: jax.pure_callback(np.sin, x, x), (_X,)),
    ("jax.experimental.io_callback", lambda x: io_callback(lambda v: v, x, x), (_X,)),
    ("jax.image.resize", lambda x: jax.image.resize(x, (8, 8), "cubic"), (_X,)),
    (
        "jax.image.scale_and_translate",
        lambda x, s: jax.image.scale_and_translate(x, (8, 8), (0, 1), s, s, "linear"),
        (_X, _X[0, :2]),
    ),
    (
        "jax.lax.conv_general_dilated_local",
        lambda x, k: lax.conv_general_dilated_local(x, k, (1, 1), "SAME", (1, 1)),
        (_ONES, np.ones((4, 4, 4, 4), np.float32)),
    ),
    (
        "jax.lax.conv_general_dilated_patches",
        lambda x: lax.conv_general_dilated_patches(x, (2, 2), (1, 1), "SAME"),
        (_ONES,),
    ),
    ("jax.lax.conv_transpose", lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), (_ONES, _ONES)),
    ("jax.lax.empty", lambda: lax.empty((4, 4), jnp.float32), ()),
    ("jax.lax.reduce_precision", lambda x: lax.reduce_precision(x, 8, 7), (_X,)),
    ("jax.lax.reduce_xor", lambda x: lax.reduce_xor(x, (0,)), (_I,)),
    ("jax.lax.rng_uniform", lambda x: lax.rng_uniform(x[0, 0], x[0, 1], (4, 4)), (_X,)),
    ("jax.lax.optimization_barrier", lax.optimization_barrier, (_X,)),
    ("jax.lax.stop_gradient", jax.grad(lambda x: jnp.sum(lax.stop_gradient(x) * x)), (_X,)),
    ("jax.nn.dot_product_attention", lambda q: jax.nn.dot_product_attention(q, q, q, is_causal=True), (_ONES,)),
    ("jax.nn.log_softmax gradient", jax.grad(lambda x: jnp.sum(jax.nn.log_softmax(x) ** 2)), (_X,)),
    ("jax.numpy.bincount", lambda i: jnp.bincount(i, length=4), (_I,)),
    ("jax.numpy.choose", lambda i, x: jnp.choose(i, [x, x], mode="clip"), (_I, _X[0])),
    ("jax.numpy.cross", jnp.cross, (_X[:, :3], _X[:, :3])),
    ("jax.numpy.fill_diagonal", lambda x: jnp.fill_diagonal(x, 1.0, inplace=False), (_X,)),
    ("jax.numpy.insert", lambda x: jnp.insert(x, 1, 2.0), (_X,)),
    ("jax.numpy.interp", jnp.interp, (_X[0], _X[1], _X[2])),
    ("jax.numpy.nonzero", lambda x: jnp.nonzero(x, size=4), (_X,)),
    ("jax.numpy.piecewise", lambda x: jnp.piecewise(x, [x < 0, x >= 0], [-1, 1]), (_X,)),
    ("jax.numpy.polyfit", lambda x: jnp.polyfit(x[0], x[1], 2), (_X,)),
    ("jax.numpy.put_along_axis", lambda x, i: jnp.put_along_axis(x, i[None], 1.0, 0, inplace=False), (_X, _I)),
    ("jax.numpy.ravel_multi_index", lambda i: jnp.ravel_multi_index((i, i), (4, 4), mode="clip"), (_I,)),
    ("jax.numpy.unique", lambda i: jnp.unique(i, size=4), (_I,)),
    ("jax.numpy.unpackbits", jnp.unpackbits, (_I.astype(np.uint8),)),
    ("jax.random.ball", lambda k: jax.random.ball(k, 3), (_KEY,)),
    ("jax.random.beta", lambda k: jax.random.beta(k, 2.0, 3.0, (4,)), (_KEY,)),
    ("jax.random.binomial", lambda k: jax.random.binomial(k, 5, 0.3, (4,)), (_KEY,)),
    ("jax.random.categorical", jax.random.categorical, (_KEY, _X)),
    ("jax.random.choice", jax.random.choice, (_KEY, _X[0])),
    ("jax.random.dirichlet", jax.random.dirichlet, (_KEY, _X[0])),
    ("jax.random.fold_in", lambda k, i: jax.random.fold_in(k, i[0]), (_KEY, _I)),
    ("jax.random.gamma", jax.random.gamma, (_KEY, _X)),
    ("jax.random.gamma gradient", jax.grad(lambda a, k: jnp.sum(jax.random.gamma(k, a))), (_X, _KEY)),
    ("jax.random.multivariate_normal", lambda k, x: jax.random.multivariate_normal(k, x[0], x), (_KEY, _X)),
    ("jax.random.orthogonal", lambda k: jax.random.orthogonal(k, 4), (_KEY,)),
    ("jax.random.permutation", jax.random.permutation, (_KEY, _X)),
    ("jax.random.poisson", jax.random.poisson, (_KEY, _X)),
    ("jax.random.randint", lambda k: jax.random.randint(k, (4,), 0, 9), (_KEY,)),
    ("jax.random.truncated_normal", lambda k: jax.random.truncated_normal(k, -1.0, 1.0, (4,)), (_KEY,)),
    ("jax.random.wrap_key_data", jax.random.wrap_key_data, (np.zeros(2, np.uint32),)),
    ("jax.scipy.linalg.cho_solve", lambda a, b: jax.scipy.linalg.cho_solve((a, True), b), (_X, _X)),
    (
        "jax.scipy.linalg.eigh_tridiagonal",
        lambda d: jax.scipy.linalg.eigh_tridiagonal(d, d[1:], eigvals_only=True),
        (_X[0],),
    ),
    ("jax.scipy.linalg.lu_solve", lambda a, b: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(a), b), (_X, _X)),
    ("jax.scipy.ndimage.map_coordinates", lambda x: jax.scipy.ndimage.map_coordinates(x, [x, x], 1), (_X,)),
    (
        "jax.scipy.optimize.minimize",
        lambda x: jax.scipy.optimize.minimize(lambda v: jnp.sum(v**2), x, method="BFGS").x,
        (_X[0],),
    ),
    ("jax.scipy.sparse.linalg.cg", lambda a, b: jax.scipy.sparse.linalg.cg(lambda v: a @ v, b), (_X, _X[0])),
    ("jax.scipy.sparse.linalg.gmres", lambda a, b: jax.scipy.sparse.linalg.gmres(lambda v: a @ v, b), (_X, _X[0])),
    ("jax.scipy.special.bessel_jn", lambda x: jax.scipy.special.bessel_jn(x, v=2), (_X[0],)),
    ("jax.scipy.special.hyp2f1", jax.scipy.special.hyp2f1, (_X, _X, _X, _X)),
    ("jax.shard_map", _shard_mapped, (_X,)),
)
"""Functions whose arguments are too special to be guessed."""
