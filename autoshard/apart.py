"""Operations that are planned in several pieces: a transform over several dimensions is one over each, in turn.

Taken apart, a dimension may be split until its own turn comes. Where nothing moves in between, the pieces are put
together again when the function is emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core


def pieces(eqn: core.JaxprEqn) -> core.ClosedJaxpr | None:
    """The jaxpr that an equation is planned as; None if it is planned as it stands.

    The same for the same equation; all of its equations have the source line of the one given.
    """
    if eqn.primitive.name != "fft" or len(eqn.params["fft_lengths"]) < 2:
        return None
    aval: Any = eqn.invars[0].aval
    closed = jax.make_jaxpr(lambda x: _one_by_one(eqn, x))(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    equations = [piece.replace(source_info=eqn.source_info) for piece in closed.jaxpr.eqns]
    return core.ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)


def _one_by_one(eqn: core.JaxprEqn, x: Any) -> Any:
    """A transform dimension by dimension, the last one first; of an inverse with real results that comes last."""
    kind, lengths = eqn.params["fft_type"], eqn.params["fft_lengths"]
    last = len(lengths) - 1
    for d in _order(kind, last + 1):
        real = kind in (jax.lax.FftType.RFFT, jax.lax.FftType.IRFFT)
        forward = kind in (jax.lax.FftType.RFFT, jax.lax.FftType.FFT)
        plain = jax.lax.FftType.FFT if forward else jax.lax.FftType.IFFT
        moved = jnp.moveaxis(x, d - len(lengths), -1)
        done = eqn.primitive.bind(moved, fft_type=kind if real and d == last else plain, fft_lengths=(lengths[d],))
        x = jnp.moveaxis(done, -1, d - len(lengths))
    return x


def _order(kind: Any, count: int) -> Sequence[int]:
    backwards = range(count - 1, -1, -1)
    return (*backwards[1:], backwards[0]) if kind == jax.lax.FftType.IRFFT else backwards
