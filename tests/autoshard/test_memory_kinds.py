"""State in host memory, and values narrower than a byte or two: kept, and counted at their size."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard import autoshard
from autoshard.errors import PlanMismatchError

X = jnp.arange(64.0 * 16).reshape(64, 16) / 1000


@pytest.fixture(params=[jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=str)
def mesh(request: pytest.FixtureRequest) -> Mesh:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(request.param,) * 2)


def update(state: Any, x: Any) -> Any:
    state = jax.device_put(state, jax.memory.Space.Device)
    return state + x.T @ x, x.sum()


class TestHostMemory:
    def test_state_stays_in_host_memory(self, mesh: Mesh) -> None:
        host = NamedSharding(mesh, P("x"), memory_kind="pinned_host")
        step = autoshard(update, mesh, in_shardings=(host, None), donate_argnums=0)
        state = jax.device_put(jnp.zeros((16, 16)), host)
        plan = step.plan(state, X)
        assert plan.in_shardings[0] == NamedSharding(mesh, P("x", None), memory_kind="pinned_host")
        for _ in range(2):
            state, _ = step(state, X)
            assert (state.sharding.memory_kind, state.sharding.spec) == ("pinned_host", P("x", None))
        np.testing.assert_allclose(state, 2 * X.T @ X, rtol=1e-5)
        assert any("pinned_host is copied to the devices" in note for note in plan.notes)
        assert step.plan(state, X) is plan, "one signature, one plan"

    def test_arguments_stay_where_they_are(self, mesh: Mesh) -> None:
        host = jax.device_put(jnp.zeros((16, 16)), NamedSharding(mesh, P(), memory_kind="pinned_host"))
        step = autoshard(update, mesh)
        assert step.plan(host, X).in_shardings[0].memory_kind == "pinned_host"
        assert step.plan(jnp.zeros((16, 16)), X).in_shardings[0].memory_kind == "device"
        np.testing.assert_allclose(step(host, X)[0], X.T @ X, rtol=1e-5)
        np.testing.assert_allclose(step(jnp.zeros((16, 16)), X)[0], X.T @ X, rtol=1e-5)

    def test_results_go_to_host_memory(self, mesh: Mesh) -> None:
        out = NamedSharding(mesh, P("x"), memory_kind="pinned_host")
        step = autoshard(update, mesh, out_shardings=(out, None))
        assert step(jnp.zeros((16, 16)), X)[0].sharding == NamedSharding(mesh, P("x", None), memory_kind="pinned_host")

    def test_results_that_the_function_puts_there_stay(self, mesh: Mesh) -> None:
        step = autoshard(lambda x: jax.device_put(x @ x.T, jax.memory.Space.Host), mesh)
        out = step(X)
        assert out.sharding.memory_kind == "pinned_host"
        np.testing.assert_allclose(out, X @ X.T, rtol=1e-5)

    def test_a_plan_for_other_memory_is_refused(self, mesh: Mesh) -> None:
        host = NamedSharding(mesh, P("x"), memory_kind="pinned_host")
        plan = autoshard(update, mesh, in_shardings=(P("x"), None)).plan(jnp.zeros((16, 16)), X)
        with pytest.raises(PlanMismatchError, match="memory: state is planned in device, wanted in pinned_host"):
            autoshard(update, mesh, in_shardings=(host, None), plan=plan).plan(jnp.zeros((16, 16)), X)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int4", "float4_e2m1fn"])
def test_narrow_types(dtype: str) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    w = (jnp.arange(64 * 64).reshape(64, 64) % 2).astype(dtype)

    def fn(w: Any, x: Any) -> Any:
        y = x @ w.astype(jnp.float32)
        return (y > 0).astype(w.dtype), jnp.transpose(w)

    step = autoshard(fn, mesh, in_shardings=(P("x", "y"), None), out_shardings=(P("x"), P("x")))
    x = jnp.ones((16, 64))
    plan = step.plan(w, x)
    checked = plan.verify()
    assert checked.rows
    assert sum(row.predicted_wire_bytes for row in checked.rows) == sum(row.compiled_wire_bytes for row in checked.rows)
    assert (plan.arguments[0].dtype, plan.arguments[0].shard_bytes) == (dtype, w.size // 8)
    assert any(dtype in note and "a byte an element" in note for note in plan.notes) == (
        dtype in ("int4", "uint4", "float4_e2m1fn")
    )
    for out, expected in zip(step(w, x), fn(w, x)):
        assert out.dtype == w.dtype
        np.testing.assert_array_equal(out.astype("float32"), expected.astype("float32"))
