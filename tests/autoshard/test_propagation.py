"""What Shardy decides for values, on programs where there is only one way to decide."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.propagation import PropagatedValue, propagated_values

P = PartitionSpec
ROWS, WIDTH, F32 = 64, 128, 4


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))


def values(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[PropagatedValue, ...]:
    return propagated_values(jax.jit(fn, **options).lower(*args))


def test_arguments_results_and_values_have_parts_and_lines(mesh: Mesh) -> None:
    def fn(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ params["w"])

    params = {"w": jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)}
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    shardings = ({"w": NamedSharding(mesh, P(None, "y"))}, NamedSharding(mesh, P("x", None)))
    found = {value.name: value for value in values(fn, params, x, in_shardings=shardings)}
    line = fn.__code__.co_firstlineno + 1
    assert found["params['w']"] == PropagatedValue(
        role="argument", name="params['w']", dtype="f32", shape=(WIDTH, WIDTH), parts=2, nbytes=WIDTH * WIDTH * F32 // 2
    )
    assert found["jit(fn)/tanh"] == PropagatedValue(
        role="value",
        name="jit(fn)/tanh",
        dtype="f32",
        shape=(ROWS, WIDTH),
        parts=8,
        nbytes=ROWS * WIDTH * F32 // 8,
        source=f"{__file__}:{line}",
    )
    assert {value.parts for value in found.values() if value.role == "result"} == {8}


def test_values_inside_loops_are_seen(mesh: Mesh) -> None:
    def fn(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, weights)[0]

    square = jax.ShapeDtypeStruct((ROWS, ROWS), jnp.float32)
    stack = jax.ShapeDtypeStruct((3, ROWS, ROWS), jnp.float32)
    shardings = (NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P()))
    parts = {value.name.split("/")[-1]: value.parts for value in values(fn, square, stack, in_shardings=shardings)}
    assert parts["sin"] == parts["dot_general"] == 4
    assert parts["weights"] == 1


def test_parts_of_axes_and_uneven_shapes_round_up(mesh: Mesh) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x * x, NamedSharding(mesh, P(("x", "y"))))

    (square,) = (value for value in values(fn, jax.ShapeDtypeStruct((9,), jnp.complex64)) if value.role == "value")
    assert (square.parts, square.nbytes, square.dtype) == (8, 2 * 8, "complex<f32>")


def test_insides_of_shard_map_and_constants_are_left_out(mesh: Mesh) -> None:
    def region(x: jax.Array) -> jax.Array:
        return jnp.exp(x) + jnp.zeros((ROWS // 4, WIDTH))

    fn = jax.shard_map(region, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    found = [value for value in values(fn, jnp.ones((ROWS, WIDTH))) if value.role == "value"]
    assert [(value.shape, value.parts) for value in found] == [((ROWS, WIDTH), 4)]


def test_without_a_mesh_there_is_nothing_to_tell() -> None:
    assert values(jnp.sin, 1.0) == ()
