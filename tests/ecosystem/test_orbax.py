"""A checkpoint is restored to where another plan, on another mesh, wants it."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard import autoshard
from autoshard.costs import MeshModel

ocp = pytest.importorskip("orbax.checkpoint")


def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w["up"]) @ w["down"]) ** 2))(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda w, m: w - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, loss


def planned(sizes: dict[str, int]) -> Any:
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))
    bytes_only = MeshModel.uniform(sizes, bytes_per_s=1.0, latency_s=0.0)
    return autoshard(step, mesh, hardware=bytes_only)


def test_a_checkpoint_moves_to_another_plan_and_mesh(tmp_path: Path) -> None:
    params = {"up": jnp.ones((64, 128)) / 64, "down": jnp.ones((128, 64)) / 128}
    state = {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params)}
    x = jnp.asarray(np.random.default_rng(0).normal(size=(256, 64)), jnp.float32)
    saved, _ = planned({"x": 4, "y": 2})(state, x)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", saved)

    second = planned({"all": 8})
    shardings = second.plan(state, x).shardings_for(state)
    target = jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), state, shardings)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "state", target)

    for before, after, sharding in zip(*map(jax.tree.leaves, (saved, restored, shardings)), strict=True):
        assert after.sharding == sharding != before.sharding
        np.testing.assert_array_equal(after, before)
    assert any(not s.is_fully_replicated for s in jax.tree.leaves(shardings))
    expected = jax.jit(step)(jax.jit(step)(state, x)[0], x)
    for want, have in zip(*map(jax.tree.leaves, (expected, second(restored, x))), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-6)
