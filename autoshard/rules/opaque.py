"""Operations that leave no choice, each with the reason: calls to the host, `shard_map`s of the user's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from autoshard.costs import ShardingSpec
from autoshard.rules.base import Equation, InnerCollective, OpRule, rule_for, whole

REPLICATED = {
    "debug_callback": "the callback expects whole arrays",
    "debug_print": "the callback expects whole arrays",
    "io_callback": "the callback expects whole arrays",
    "pure_callback": "the callback expects whole arrays",
    "rng_bit_generator": "one stream of random bits: a part of it cannot be made alone",
    "rng_uniform": "the backend's own generator has a state that devices do not share",
    "after_all": "a token",
    "create_token": "a token",
    "platform_index": "a number that is known once the program is compiled",
}
"""Primitives that need whole operands, and why."""


@rule_for(*REPLICATED)
def replicated(equation: Equation) -> OpRule:
    """Everything whole."""
    return whole(equation, ruled=True, reason=REPLICATED[equation.primitive])


@rule_for("shard_map")
def shard_map(equation: Equation) -> OpRule:
    """A per-shard region of the user's: its shardings are given, its collectives are counted as they stand."""
    tensors = (*equation.operands, *equation.results)
    given = (*equation.params["in_specs"], *equation.params["out_specs"])
    fixed = tuple(_closed(spec, len(tensor.shape)) for spec, tensor in zip(given, tensors))
    rule = whole(equation, ruled=True, reason="its shardings are given by the program itself")
    return replace(rule, fixed=fixed, inner=tuple(_collectives(equation.params["jaxpr"], 1.0)))


def _closed(spec: Iterable[Any], rank: int) -> ShardingSpec:
    entries = tuple(spec)
    return ShardingSpec.of(*entries, *(None,) * (rank - len(entries)))


COLLECTIVES = {
    "all_gather": ("all-gather", "axis_name", True),
    "all_gather_invariant": ("all-gather", "axis_name", True),
    "all_to_all": ("all-to-all", "axis_name", False),
    "pmax": ("all-reduce", "axes", False),
    "pmin": ("all-reduce", "axes", False),
    "ppermute": ("permute", "axis_name", False),
    "psum": ("all-reduce", "axes", False),
    "psum_invariant": ("all-reduce", "axes", False),
    "reduce_scatter": ("reduce-scatter", "axis_name", False),
}
"""JAX's collectives: kind, the parameter that names the axes, whether the bytes are those of the result."""


def _collectives(jaxpr: Any, trips: float) -> Iterator[InnerCollective]:
    """All collectives of a jaxpr and of those nested in it; a scan's as often as it runs, a branch's all."""
    for eqn in jaxpr.eqns:
        inside = trips * eqn.params.get("length", 1)
        for nested in _nested(eqn.params.values()):
            yield from _collectives(nested, inside)
        if eqn.primitive.name not in COLLECTIVES:
            continue
        kind, parameter, counts_result = COLLECTIVES[eqn.primitive.name]
        names = eqn.params[parameter]
        axes = tuple(a for a in ((names,) if isinstance(names, str) else names) if isinstance(a, str))
        avals = [v.aval for v in (eqn.outvars if counts_result else eqn.invars)]
        nbytes = float(sum(aval.size * aval.dtype.itemsize for aval in avals))
        yield InnerCollective(kind, axes, nbytes, trips)


def _nested(params: Iterable[Any]) -> Iterator[Any]:
    """The jaxprs among parameters, closed or not, alone or in tuples."""
    for value in params:
        for item in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(item, "jaxpr", item)
            if getattr(jaxpr, "eqns", None) is not None:
                yield jaxpr
