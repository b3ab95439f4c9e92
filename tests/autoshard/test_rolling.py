"""Calls that permute rows along one dimension are one operation, which sends no more than what crosses a border."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from autoshard import autoshard
from autoshard.costs import MeshModel
from autoshard.hlo import collectives
from autoshard.rolling import rolled

SIZES = {"x": 4, "y": 2}
ROWS, COLUMNS = 32, 6
ROW_BYTES = 4 * COLUMNS


def planned(fn: Callable[..., Any], spec: P) -> Any:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), tuple(SIZES))
    model = MeshModel.uniform(SIZES, bytes_per_s=1e9, latency_s=0.0)
    return autoshard(fn, mesh, in_shardings=(spec,), out_shardings=spec, hardware=model)


def call_of(fn: Callable[..., Any], *args: Any) -> Any:
    (eqn,) = jax.make_jaxpr(jax.jit(fn))(*args).jaxpr.eqns
    return eqn


@pytest.mark.parametrize("shift", [1, -1, 3, 8, -17, 32])
def test_what_crosses_a_border_is_sent(shift: int) -> None:
    x = jnp.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)
    step = planned(lambda x: jnp.roll(x, shift, axis=0), P(("x", "y"), None))
    np.testing.assert_array_equal(step(x), jnp.roll(x, shift, axis=0))
    shard = ROWS // 8
    crossing = min(abs(shift) % ROWS, shard) if shift % shard else shard * bool(shift % ROWS)
    sent = sum(c.call_wire_bytes for c in collectives(step.lower(x).compile().as_text(), SIZES))
    assert sent == step.plan(x).predicted.wire_bytes
    assert sent <= shard * ROW_BYTES if shift % shard == 0 else sent == pytest.approx(crossing * ROW_BYTES, rel=1.0)


def test_its_gradient_is_sent_back() -> None:
    x = jnp.sin(jnp.arange(float(ROWS * COLUMNS))).reshape(ROWS, COLUMNS)

    def energy(x: Any) -> Any:
        return jnp.sum(jnp.square(jnp.roll(x, 1, axis=0) * x))

    step = planned(lambda x: jax.grad(energy)(x), P(("x", "y"), None))
    np.testing.assert_allclose(step(x), jax.grad(energy)(x), rtol=1e-5, atol=1e-6)
    assert step.plan(x).predicted.wire_bytes == 2 * ROW_BYTES


def test_dimensions_that_are_not_split_are_rolled_in_place() -> None:
    x = jnp.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)
    step = planned(lambda x: jnp.roll(x, 2, axis=1), P(("x", "y"), None))
    np.testing.assert_array_equal(step(x), jnp.roll(x, 2, axis=1))
    assert step.plan(x).collectives == ()


def test_segments_are_those_of_the_rows() -> None:
    known = rolled(call_of(lambda x: jnp.concatenate([x[5:], x[:5]]), jnp.ones((8, 2))))
    assert known is not None and known.params["dimension"] == 0
    assert [(s.source, s.target, s.count) for s in known.params["segments"]] == [(5, 0, 3), (0, 3, 5)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.roll(x, (1, 1), axis=(0, 1)),  # along two dimensions
        lambda x: jnp.pad(x[1:], ((0, 1), (0, 0))),  # a row is lost
        lambda x: jnp.concatenate([x[:4], x[:4]]),  # rows are doubled
        lambda x: x + jnp.flip(x, 0),  # rows are summed
        lambda x: jnp.flip(x, 0) + 1.0,
        lambda x: jnp.tanh(jnp.flip(x, 0)),
        lambda x: x.T,
    ],
)
def test_what_is_no_permutation_is_left_alone(fn: Callable[[Any], Any]) -> None:
    assert rolled(call_of(fn, jnp.ones((8, 8)))) is None
