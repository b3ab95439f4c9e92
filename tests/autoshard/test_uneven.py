"""A user's constraint may split what does not divide: it is kept, followed where XLA pads, priced on padded shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard import autoshard
from autoshard.costs import MeshModel, ShardingSpec, memory_cost
from tests.rule_zoo import normal

P = PartitionSpec


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def held(x: Any, *spec: Any) -> Any:
    return lax.with_sharding_constraint(x, P(*spec))


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: jnp.tanh(held(x, "x")) + 1,
    "fewer than devices": lambda x: jnp.exp(held(x[:3], "x", "y")),
    "reshape and transpose": lambda x: held(x, "x").reshape(1, 10, 16).transpose(2, 0, 1) * 2,
    "product": lambda x: held(x, "x") @ jnp.ones((16, 8)),
    "another axis": lambda x: held(jnp.sin(held(x, "x")), "y", "x"),
    "summed": lambda x: jnp.sum(held(x, "x"), 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_uneven_constraints_are_kept_and_move_what_was_priced(name: str, mesh: Mesh) -> None:
    x = normal(10, 16)
    with jax.set_mesh(mesh):
        step = autoshard(PROGRAMS[name], mesh)
        np.testing.assert_allclose(step(x), jax.jit(PROGRAMS[name])(x), rtol=2e-5, atol=1e-6)
        plan = step.plan(x)
        constraint = next(d for d in plan.decisions if d.primitive == "sharding_constraint")
        assert constraint.results[0][0] == ("x",)
        seen = plan.verify()
    assert seen.compiled_wire_bytes == pytest.approx(seen.predicted_wire_bytes, rel=0.02)


def test_elementwise_operations_follow(mesh: Mesh) -> None:
    """A quarter of the bytes is moved if the comparison comes before."""
    with jax.set_mesh(mesh):
        plan = autoshard(lambda x: held(x, "x") > 0, mesh).plan(normal(10, 16))
    follower = next(d for d in plan.decisions if d.primitive == "gt")
    assert follower.operands[0] == follower.results[0] == (("x",), ())


def test_padded_shards_are_what_is_held() -> None:
    model = MeshModel.preset("cpu-virtual", {"x": 4, "y": 2})
    assert memory_cost(ShardingSpec.of("x", None), (10, 16), 4, model) == 3 * 16 * 4


def test_arguments_and_results_must_divide(mesh: Mesh) -> None:
    step = autoshard(lambda x: x * 2, mesh, in_shardings=NamedSharding(mesh, P("x")))
    with pytest.raises(ValueError, match="extent 10 does not divide into 4 parts"):
        step.plan(normal(10, 16))
