"""Calls that only put rows into other places, such as `jnp.roll` and its transpose, seen as one operation.

Inside, they are slices, joins, parts and pads whose extents no mesh divides, so that each by itself would need its
operand whole. Together they are a permutation of the rows along one dimension: what crosses a border is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend import core
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from autoshard.jaxprs import opened
from autoshard.rules.base import Segment

ROLL = core.Primitive("roll")
"""Stands for such a call; its parameters are the dimension and the segments that move along it."""

Rows = NDArray[np.int64]
CALLS = frozenset({"jit", "pjit"})


def rolled(eqn: core.JaxprEqn) -> Any:  # a JaxprEqn or None; its type is incomplete
    """The equation with `ROLL` for its primitive, if it is a call that permutes rows along one dimension.

    None if it does anything else, or if the caller fixed shardings of it.
    """
    if eqn.primitive.name not in CALLS or len(eqn.invars) != 1 or len(eqn.outvars) != 1:
        return None
    if any(isinstance(s, NamedSharding) for s in (*eqn.params["in_shardings"], *eqn.params["out_shardings"])):
        return None
    jaxpr, _ = opened(eqn.params["jaxpr"])
    before, after = (tuple(getattr(v.aval, "shape", ())) for v in (jaxpr.invars[0], jaxpr.outvars[0]))
    touched = {d for inner in jaxpr.eqns for d in _touched(inner)}
    if len(touched) != 1 or -1 in touched or jaxpr.constvars or before != after:
        return None
    (dimension,) = touched
    rows = _permutation(jaxpr, dimension, before[dimension])
    if rows is None:
        return None
    known: core.JaxprEqn = eqn.replace(primitive=ROLL, params={"dimension": dimension, "segments": _segments(rows)})
    return known


def _touched(eqn: core.JaxprEqn) -> set[int]:
    """Dimensions along which an equation moves rows; -1 if it does anything else."""
    p = eqn.params
    shape = getattr(eqn.invars[0].aval, "shape", ()) if eqn.invars else ()
    match eqn.primitive.name:
        case "slice":
            steps = p["strides"] or (1,) * len(shape)
            cuts = zip(p["start_indices"], p["limit_indices"], steps, shape)
            return {d for d, (start, limit, step, n) in enumerate(cuts) if (start, limit, step) != (0, n, 1)}
        case "pad":
            filled = isinstance(eqn.invars[1], core.Literal) and not eqn.invars[1].val
            plain = all(low >= 0 and high >= 0 and inside == 0 for low, high, inside in p["padding_config"])
            return {d for d, c in enumerate(p["padding_config"]) if any(c)} if filled and plain else {-1}
        case "concatenate":
            return {p["dimension"]}
        case "split":
            return {p["axis"]}
        case "rev":
            return set(p["dimensions"])
        case "add" | "add_any":
            return {-1} if any(isinstance(v, core.Literal) for v in eqn.invars) else set()
    return {-1}


def _permutation(jaxpr: core.Jaxpr, dimension: int, extent: int) -> Rows | None:
    """Which row of the operand each row of the result is; None if rows are lost, doubled or summed."""
    labels = np.arange(1, extent + 1)
    others = np.random.default_rng(0).integers(1, 2**40, extent)  # a sum of two rows is no other row
    rows = _moved(jaxpr, dimension, labels) - 1
    kept = np.array_equal(np.sort(rows), labels - 1)
    return rows if kept and np.array_equal(_moved(jaxpr, dimension, others), others[rows]) else None


def _moved(jaxpr: core.Jaxpr, dimension: int, labels: Rows) -> Rows:
    """What the labels of rows become."""
    env: dict[Any, Rows] = {jaxpr.invars[0]: labels}
    for eqn in jaxpr.eqns:
        arrays = [env[v] for v in eqn.invars if not isinstance(v, core.Literal)]
        env.update(zip(eqn.outvars, _applied(eqn.primitive.name, eqn.params, dimension, arrays)))
    return env[jaxpr.outvars[0]]


def _applied(name: str, p: Mapping[str, Any], d: int, arrays: Sequence[Rows]) -> list[Rows]:
    """One of the operations that `_touched` knows, on the labels of the rows along the dimension."""
    x = arrays[0]
    match name:
        case "slice":
            step = p["strides"][d] if p["strides"] else 1
            return [x[p["start_indices"][d] : p["limit_indices"][d] : step]]
        case "pad":
            low, high, _ = p["padding_config"][d]
            return [np.pad(x, (int(low), int(high)))]
        case "concatenate":
            return [np.concatenate(arrays)]
        case "split":
            return list(np.split(x, np.cumsum(p["sizes"])[:-1]))
        case "rev":
            return [x[::-1]]
    return [arrays[0] + arrays[1]]


def _segments(rows: Rows) -> tuple[Segment, ...]:
    """Stretches of rows that stay together."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    starts, stops = [0, *cuts.tolist()], [*cuts.tolist(), len(rows)]
    return tuple(Segment(0, 0, j - i, source=int(rows[i]), target=i) for i, j in zip(starts, stops))
