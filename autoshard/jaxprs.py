"""What differs between the jaxprs of the JAX versions that we support, in one place."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

T = TypeVar("T")


def opened(jaxpr: core.ClosedJaxpr | core.Jaxpr) -> tuple[core.Jaxpr, Sequence[Any]]:
    """A jaxpr and the values of its constants; up to JAX 0.11 only closed jaxprs have some, later all are one class."""
    if isinstance(jaxpr, core.ClosedJaxpr):
        return jaxpr.jaxpr, jaxpr.consts
    return jaxpr, ()


def scan_operands(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants and how many are carried; the rest is scanned over."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # from JAX 0.11 on
    return len(list(consts)), len(list(carry))


def called(params: Mapping[str, Any], parameter: str) -> core.ClosedJaxpr | core.Jaxpr:
    """The jaxpr of a call; what `eval_jaxpr` evaluates is its ``jaxpr`` up to JAX 0.11, its ``call_jaxpr`` later."""
    jaxpr: core.ClosedJaxpr | core.Jaxpr = params[parameter] if parameter in params else params["call_jaxpr"]
    return jaxpr


def solver_arguments(eqn: core.JaxprEqn, args: Sequence[T]) -> list[T]:
    """What the solver of a `custom_linear_solve` gets of its arguments: constants of its own, right-hand sides."""
    lengths = eqn.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    return [*args[start : start + lengths.solve], *args[sum(lengths) :]]


def primitives(jaxpr: core.ClosedJaxpr | core.Jaxpr) -> set[str]:
    """Names of all primitives in a jaxpr and in those that its equations hold."""
    return {eqn.primitive.name for eqn in equations(jaxpr)}


def equations(jaxpr: core.ClosedJaxpr | core.Jaxpr, closed_to: Container[str] = ()) -> Iterator[Any]:
    """All equations of a jaxpr and of those that its equations hold, except inside of the primitives named."""
    for eqn in opened(jaxpr)[0].eqns:
        yield eqn
        if eqn.primitive.name in closed_to:
            continue
        for held in jax.tree.leaves(tuple(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(held):
                yield from equations(held, closed_to)


def _is_jaxpr(node: Any) -> bool:
    return isinstance(node, core.ClosedJaxpr | core.Jaxpr)


def without_dead_code(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The jaxpr without equations that neither a result nor an effect depends on: XLA drops them, so they cost nothing.

    Inputs stay, used or not.
    """
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return core.ClosedJaxpr(jaxpr, closed.consts)
