"""Transforms over several dimensions: taken apart where a dimension is split, and one operation where none is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard import autoshard
from autoshard.costs import MeshModel

SIZES = {"d": 8}


def lengths_of_transforms(jaxpr: Any) -> list[tuple[int, ...]]:
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "fft":
            found.append(eqn.params["fft_lengths"])
        for inner in jax.tree.leaves(eqn.params, is_leaf=lambda x: isinstance(x, core.Jaxpr | core.ClosedJaxpr)):
            if isinstance(inner, core.Jaxpr | core.ClosedJaxpr):
                found += lengths_of_transforms(inner.jaxpr if isinstance(inner, core.ClosedJaxpr) else inner)
    return found


def planned(fn: Callable[[Any], Any], spec: P) -> Any:
    mesh = Mesh(np.array(jax.devices()[:8]), tuple(SIZES))
    model = MeshModel.uniform(SIZES, bytes_per_s=1e9, latency_s=0.0)
    return autoshard(fn, mesh, in_shardings=(spec,), hardware=model)


def cube(complex_values: bool) -> Any:
    rng = np.random.default_rng(0)
    real, imaginary = (rng.standard_normal((16, 8, 10)).astype(np.float32) for _ in range(2))
    return jnp.asarray(real + 1j * imaginary if complex_values else real)


@pytest.mark.parametrize("fn", [jnp.fft.fftn, jnp.fft.ifftn, jnp.fft.rfftn, jnp.fft.irfftn], ids=lambda fn: fn.__name__)
def test_a_split_dimension_moves_once(fn: Callable[[Any], Any]) -> None:
    x = cube(fn is not jnp.fft.rfftn)
    step = planned(fn, P("d", None, None))
    np.testing.assert_allclose(step(x), fn(x), rtol=1e-4, atol=1e-4 * float(jnp.abs(fn(x)).max()))
    assert [c.kind for c in step.plan(x).collectives] == ["all-to-all"]
    assert [len(n) for n in lengths_of_transforms(step.trace(x).jaxpr.jaxpr)] == [1, 1, 1]


def test_transforms_of_a_split_batch_stay_one_operation() -> None:
    x = cube(complex_values=True)
    step = planned(jnp.fft.fft2, P("d", None, None))
    np.testing.assert_allclose(step(x), jnp.fft.fft2(x), rtol=1e-4, atol=1e-3)
    assert step.plan(x).collectives == ()
    assert lengths_of_transforms(step.trace(x).jaxpr.jaxpr) == [(8, 10)]


def test_gradients_go_through_the_pieces() -> None:
    x = cube(complex_values=False)

    def energy(x: Any) -> Any:
        return jnp.sum(jnp.abs(jnp.fft.rfftn(x)) ** 2 * 0.01)

    step = planned(energy, P("d", None, None))
    np.testing.assert_allclose(jax.grad(step)(x), jax.grad(energy)(x), rtol=1e-3, atol=1e-2)


def test_transforms_between_gathers_are_given_the_layout_that_they_need() -> None:
    """XLA's CPU backend refuses a column-major FFT, and makes one where what follows is gathered along columns."""
    mesh = Mesh(np.array(jax.devices()[:8]), tuple(SIZES))

    def held(x: Any, *spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def transformed(x: Any) -> Any:
        return held(held(jnp.fft.fft(held(x * 2)), None, "d") * 2)

    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 32)).astype(np.complex64))
    step = autoshard(transformed, mesh, in_shardings=(P(None, "d"),))
    np.testing.assert_allclose(step(x), 4 * np.fft.fft(x), rtol=1e-4, atol=1e-3)
