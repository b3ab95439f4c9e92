"""Assertions for tests of sharded functions: same values, these collectives, this much memory.

Each raises an AssertionError that lists all that is wrong, so they work in any test runner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.compiler_log import compile_with_log, involuntary_rematerializations
from autoshard.hlo import collectives, memory, optimized_hlo
from autoshard.tables import nbytes_text

CollectiveKey = str | tuple[str, tuple[str, ...]]
"""A kind of collective, such as `"all-reduce"`, or a kind and the mesh axes it runs over."""


def assert_same_result(
    fn: Callable[..., Any],
    sharded_fn: Callable[..., Any],
    *args: Any,
    rtol: float = 1e-5,
    atol: float = 0.0,
    **kwargs: Any,
) -> None:
    """Assert that two functions give the same results: structure, shapes, dtypes, and values within a tolerance.

    Args:
        fn: The plain function.
        sharded_fn: The same, sharded. It gets copies of the arguments, so it may donate them.
        *args: Arguments for both.
        rtol: Accepted difference relative to the plain result; integers, booleans and keys must be equal.
        atol: Accepted absolute difference, likewise.
        **kwargs: Keyword arguments for both.
    """
    copied_args, copied_kwargs = jax.tree.map(_copied, (args, kwargs))
    expected = fn(*args, **kwargs)
    actual = sharded_fn(*copied_args, **copied_kwargs)
    wanted_tree: Any = jax.tree.structure(expected)
    found_tree: Any = jax.tree.structure(actual)
    if wanted_tree != found_tree:
        raise AssertionError(f"results differ in structure: {wanted_tree} expected, {found_tree} found")
    pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(actual), strict=True)
    faults = [
        f"result{jax.tree_util.keystr(path)}: {fault}"
        for (path, wanted), found in pairs
        if (fault := _difference(wanted, found, rtol, atol))
    ]
    if faults:
        raise AssertionError("\n".join(["results differ:", *faults]))


def assert_collectives(
    compiled: jax.stages.Compiled,
    expected: Mapping[CollectiveKey, int],
    *,
    mesh_axes: Mapping[str, int] | None = None,
    ignore_below_nbytes: int = 0,
) -> None:
    """Assert that a compiled program runs exactly these collectives.

    Args:
        compiled: The program, as `jax.jit(fn).lower(...).compile()` returns it.
        expected: Executions per call, loops multiplied out, by kind or by kind and mesh axes: `{"all-reduce": 2}` or
            `{("all-gather", ("x",)): 12}`. What is not named must not occur. Axes are in mesh order.
        mesh_axes: Axis names and sizes of the mesh, in mesh order; needed where `expected` names axes.
        ignore_below_nbytes: Collectives with smaller results are not looked at: losses, norms, counters.
    """
    by_axes = any(isinstance(key, tuple) for key in expected)
    found: Counter[CollectiveKey] = Counter()
    for collective in collectives(optimized_hlo(compiled), mesh_axes):
        if collective.nbytes >= ignore_below_nbytes:
            found[(collective.kind, collective.axes) if by_axes else collective.kind] += collective.trips
    faults = [
        f"{_written(key)}: {expected.get(key, 0)} expected, {found[key]} found"
        for key in sorted({*expected, *found}, key=str)
        if expected.get(key, 0) != found[key]
    ]
    if faults:
        raise AssertionError("\n".join(["collectives differ, in executions per call:", *faults]))


def assert_no_rematerialization(lowered: jax.stages.Lowered, *, mesh_axes: Mapping[str, int] | None = None) -> None:
    """Assert that XLA compiles a lowered function without replicating a tensor for want of a better way.

    Args:
        lowered: The function, as `jax.jit(fn).lower(...)` returns it.
        mesh_axes: Axis names and sizes of the mesh, in mesh order, to write the shardings as PartitionSpecs.
    """
    compiled, log = compile_with_log(lowered)
    found = involuntary_rematerializations(log, optimized_hlo(compiled), mesh_axes)
    if found:
        raise AssertionError("\n".join(["XLA replicates in full, on every device:", *map(str, found)]))


def assert_memory_below(compiled: jax.stages.Compiled, limit_nbytes: float) -> None:
    """Assert that a compiled program needs at most so much memory on one device.

    Args:
        compiled: The program, as `jax.jit(fn).lower(...).compile()` returns it.
        limit_nbytes: Bytes of arguments, temporaries, and results that do not reuse an argument.
    """
    used = memory(compiled)
    if used.total > limit_nbytes:
        raise AssertionError(
            f"{nbytes_text(used.total)} on each device, {nbytes_text(limit_nbytes)} allowed: "
            f"{nbytes_text(used.arguments)} arguments, {nbytes_text(used.temporaries)} temporaries, "
            f"{nbytes_text(used.outputs)} results of which {nbytes_text(used.aliases)} reuse arguments"
        )


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, jax.Array | np.ndarray) else leaf


def _difference(expected: Any, actual: Any, rtol: float, atol: float) -> str:
    """What is different about two leaves, empty if nothing is."""
    expected, actual = _plain(expected), _plain(actual)
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        return f"{expected.dtype}{expected.shape} expected, {actual.dtype}{actual.shape} found"
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        wrong = expected != actual
        return f"{np.count_nonzero(wrong)} of {expected.size} elements differ" if wrong.any() else ""
    wide = np.complex128 if jnp.issubdtype(expected.dtype, jnp.complexfloating) else np.float64
    expected, actual = expected.astype(wide), actual.astype(wide)
    wrong = ~np.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return ""
    worst = np.nanmax(np.abs(actual - expected)[wrong])
    count = f"{np.count_nonzero(wrong)} of {expected.size} elements differ"
    return f"{count}, by up to {worst:.3g} (rtol={rtol:g}, atol={atol:g})"


def _plain(leaf: Any) -> np.ndarray[Any, Any]:
    """A leaf as a numpy array; random keys as the numbers they hold."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _written(key: CollectiveKey) -> str:
    return key if isinstance(key, str) else f"{key[0]} over {','.join(key[1]) or 'no axes of the mesh'}"
