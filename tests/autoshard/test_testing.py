"""The assertions that users put into their own tests: when they hold, when they fail, and what they say then."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.testing import (
    assert_collectives,
    assert_memory_below,
    assert_no_rematerialization,
    assert_same_result,
)

P = PartitionSpec
MESH_AXES = {"x": 4, "y": 2}
ROWS, WIDTH, F32 = 64, 128, 4


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), tuple(MESH_AXES))


@pytest.fixture(scope="module")
def compiled(mesh: Mesh) -> jax.stages.Compiled:
    """A matmul whose partial sums are added over y, and a mean added over everything."""

    def fn(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        product = a @ b
        return product, jnp.mean(product)

    shardings = (NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P("y", None)))
    out = (NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P()))
    operands = (jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32), jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32))
    return jax.jit(fn, in_shardings=shardings, out_shardings=out).lower(*operands).compile()


class TestSameResult:
    def test_a_sharded_function_agrees_and_may_donate(self, mesh: Mesh) -> None:
        def fn(state: dict[str, jax.Array], x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
            return {"w": state["w"] + x.sum()}, x @ state["w"]

        sharding = NamedSharding(mesh, P("x", "y"))
        sharded = jax.jit(fn, in_shardings=({"w": sharding}, None), donate_argnums=0)
        state = {"w": jnp.ones((8, 8))}
        assert_same_result(fn, sharded, state, jnp.ones((8, 8)))
        assert not state["w"].is_deleted()

    def test_every_leaf_that_differs_is_listed(self) -> None:
        def plain(x: jax.Array) -> dict[str, jax.Array]:
            return {"a": x, "b": x.astype(int), "c": x, "d": x}

        def wrong(x: jax.Array) -> dict[str, jax.Array]:
            return {"a": x.at[0].add(0.5), "b": x.astype(int).at[1].add(1), "c": x[:2], "d": x * (1 + 1e-7)}

        with pytest.raises(AssertionError) as caught:
            assert_same_result(plain, wrong, jnp.arange(1.0, 5.0))
        assert str(caught.value).splitlines() == [
            "results differ:",
            "result['a']: 1 of 4 elements differ, by up to 0.5 (rtol=1e-05, atol=0)",
            "result['b']: 1 of 4 elements differ",
            "result['c']: float32(4,) expected, float32(2,) found",
        ]

    def test_tolerances_are_the_callers(self) -> None:
        x = jnp.arange(1.0, 5.0)
        assert_same_result(jnp.sin, lambda x: jnp.sin(x) * 1.01, x, rtol=0.02)
        assert_same_result(jnp.sin, lambda x: jnp.sin(x) + 0.01, x, atol=0.02)
        with pytest.raises(AssertionError, match=r"4 of 4 elements differ"):
            assert_same_result(jnp.sin, lambda x: jnp.sin(x) * 1.01, x)

    def test_structure_and_dtype_matter(self) -> None:
        with pytest.raises(AssertionError, match=r"results differ in structure: .* expected, .* found"):
            assert_same_result(lambda x: (x, x), lambda x: [x, x], 1.0)
        with pytest.raises(AssertionError, match=r"result: float32\(\) expected, bfloat16\(\) found"):
            assert_same_result(jnp.float32, jnp.bfloat16, 1.0)

    def test_equal_infinities_nans_and_keys_are_equal(self) -> None:
        assert_same_result(jnp.log, jax.jit(jnp.log), jnp.array([-1.0, 0.0, 1.0]))
        assert_same_result(jax.random.split, jax.jit(jax.random.split), jax.random.key(0))
        with pytest.raises(AssertionError, match="elements differ"):
            assert_same_result(jax.random.key, lambda seed: jax.random.key(seed + 1), 0)


class TestCollectives:
    def test_by_kind(self, compiled: jax.stages.Compiled) -> None:
        assert_collectives(compiled, {"all-reduce": 2})
        assert_collectives(compiled, {"all-reduce": 1}, ignore_below_nbytes=1024)

    def test_by_kind_and_axes(self, compiled: jax.stages.Compiled) -> None:
        assert_collectives(compiled, {("all-reduce", ("y",)): 1}, mesh_axes=MESH_AXES, ignore_below_nbytes=1024)

    def test_all_differences_are_listed(self, compiled: jax.stages.Compiled) -> None:
        with pytest.raises(AssertionError) as caught:
            assert_collectives(compiled, {("all-gather", ("x",)): 3}, mesh_axes=MESH_AXES, ignore_below_nbytes=1024)
        assert str(caught.value).splitlines() == [
            "collectives differ, in executions per call:",
            "all-gather over x: 3 expected, 0 found",
            "all-reduce over y: 0 expected, 1 found",
        ]


class TestRematerialization:
    def moving(self, mesh: Mesh, *specs: P) -> jax.stages.Lowered:
        def fn(x: jax.Array) -> jax.Array:
            for spec in specs:
                x = jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, spec))
            return jnp.cos(x)

        return jax.jit(fn).lower(jax.ShapeDtypeStruct((16, 16, 16), jnp.float32))

    def test_a_way_with_steps_is_fine(self, mesh: Mesh) -> None:
        assert_no_rematerialization(
            self.moving(mesh, P("y", None, "x"), P("y", "x", None), P(None, ("x", "y"), None)), mesh_axes=MESH_AXES
        )

    def test_a_jump_is_told_with_line_and_specs(self, mesh: Mesh) -> None:
        jump = self.moving(mesh, P("y", None, "x"), P(None, ("x", "y"), None))
        with pytest.raises(AssertionError, match=r"(?s)XLA replicates.*test_testing.py:\d+: P\('y', None, 'x'\)"):
            assert_no_rematerialization(jump, mesh_axes=MESH_AXES)


class TestMemory:
    def test_what_fits_and_what_does_not(self) -> None:
        x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
        compiled = jax.jit(jnp.sin).lower(x).compile()
        assert_memory_below(compiled, 2 * 1024 * 1024 * F32 + 1024)
        with pytest.raises(AssertionError, match=r"8\.0 MiB on each device, 7\.0 MiB allowed: 4\.0 MiB arguments, "):
            assert_memory_below(compiled, 7 * 2**20)
