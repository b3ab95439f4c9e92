"""Where arrays belong: trees matched by path, states made in place, batches from host arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard import Plan, autoshard
from autoshard.errors import InputError, SpecError


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    """Parameters, their average and a counter."""

    params: Any
    average: Any
    step: Any


def train(state: State, tokens: Any) -> tuple[State, Any]:
    loss = jnp.mean((tokens @ state.params["up"]) @ state.params["down"])
    return State(state.params, state.average, state.step + 1), loss


def state_of(shape: tuple[int, int] = (64, 128)) -> State:
    params = {"up": jax.ShapeDtypeStruct(shape, "float32"), "down": jax.ShapeDtypeStruct(shape[::-1], "float32")}
    return State(params, params, jax.ShapeDtypeStruct((), "int32"))


FIXED = (State({"up": P("x", "y"), "down": P("y", "x")}, {"up": P("x"), "down": P(None, "x")}, P()), P("x"))
TOKENS = jax.ShapeDtypeStruct((16, 64), "float32")


@pytest.fixture(params=["auto", "explicit"])
def plan(request: pytest.FixtureRequest) -> Plan:
    kind = jax.sharding.AxisType.Auto if request.param == "auto" else jax.sharding.AxisType.Explicit
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)
    return autoshard(train, mesh, in_shardings=FIXED).plan(state_of(), TOKENS)


class TestShardingsFor:
    def test_an_argument_whole(self, plan: Plan) -> None:
        assert plan.shardings_for(state_of()) == plan.in_shardings[0]
        assert plan.shardings_for((state_of(), TOKENS)) == plan.in_shardings

    def test_a_checkpoint_of_plain_dictionaries(self, plan: Plan) -> None:
        found = plan.shardings_for(dataclasses.asdict(state_of()))
        assert found == {
            "params": plan.in_shardings[0].params,
            "average": plan.in_shardings[0].average,
            "step": plan.in_shardings[0].step,
        }

    def test_a_few_leaves(self, plan: Plan) -> None:
        found = plan.shardings_for({"average": {"down": jnp.zeros((128, 64))}})
        assert found["average"]["down"].spec == P(None, "x")

    def test_paths(self, plan: Plan) -> None:
        for path, expected in (
            ("state", plan.in_shardings[0]),
            ("state.params", plan.in_shardings[0].params),
            ("state.average['down']", plan.in_shardings[0].average["down"]),
            ("result", plan.out_shardings),
            ("result[0].step", plan.out_shardings[0].step),
        ):
            assert plan.shardings_for(path) == expected, path

    def test_restored_arrays_go_where_they_belong(self, plan: Plan) -> None:
        restored = jax.tree.map(lambda s: np.ones(s.shape, s.dtype), state_of())
        placed = jax.device_put(restored, plan.shardings_for(restored))
        assert placed.params["up"].sharding == plan.in_shardings[0].params["up"]

    def test_what_is_ambiguous_or_missing_is_said(self, plan: Plan) -> None:
        with pytest.raises(
            InputError,
            match=r"several places with different shardings: state.params, state.average; say which, as in "
            r"plan.shardings_for\('state.params'\), or give the whole argument",
        ):
            plan.shardings_for(state_of().params)
        with pytest.raises(
            InputError, match=r"is \[up\] of float32\[3, 4\]; the plan has .*\['up'\] float32\[64, 128\]"
        ):
            plan.shardings_for({"up": jnp.ones((3, 4))})
        with pytest.raises(
            InputError, match=r"nothing at \"state.parms\['up'\]\"; did you mean \"state.params\['up'\]\""
        ):
            plan.shardings_for("state.parms['up']")

    def test_a_loaded_plan_asks_for_devices(self, plan: Plan, tmp_path: Any) -> None:
        plan.save(tmp_path / "plan.json")
        with pytest.raises(Exception, match="a loaded plan knows no devices: give it to autoshard"):
            Plan.load(tmp_path / "plan.json").shardings_for(state_of())


class TestInit:
    def test_the_state_is_never_whole_on_one_device(self, plan: Plan) -> None:
        def init(key: Any, width: int) -> State:
            up = jax.random.normal(key, (64, width))
            params = {"up": up, "down": up.T / 8}
            return State(params, jax.tree.map(jnp.zeros_like, params), jnp.int32(0))

        state = plan.init(init, jax.random.key(0), 128)
        assert jax.tree.map(lambda a: a.sharding, state) == plan.in_shardings[0]
        up = state.params["up"]
        assert {shard.data.nbytes for shard in up.addressable_shards} == {up.nbytes // 8}
        np.testing.assert_allclose(up, init(jax.random.key(0), 128).params["up"], rtol=1e-6)

    def test_memory_of_the_compiled_program(self) -> None:
        mesh = jax.make_mesh((8,), ("x",))
        whole = jax.ShapeDtypeStruct((2048, 1024), "float32")
        plan = autoshard(lambda w: w * 2, mesh, in_shardings=P("x")).plan(whole)

        def init(key: Any) -> Any:
            w = jax.random.normal(key, whole.shape)
            return w / jnp.linalg.norm(w)

        from autoshard.placing import initialise

        jitted, dynamic = initialise(init, (jax.random.key(0),), plan.shardings_for)
        memory = jitted.lower(*dynamic).compile().memory_analysis()
        nbytes = 2048 * 1024 * 4
        assert memory.output_size_in_bytes < 1.1 * nbytes / 8
        assert memory.temp_size_in_bytes < nbytes, "random bits of one part, not of the whole"

    def test_a_state_that_the_plan_does_not_know(self, plan: Plan) -> None:
        with pytest.raises(InputError, match="no argument or result of the plan is"):
            plan.init(lambda key: {"other": jax.random.normal(key, (8, 8))}, jax.random.key(0))


class TestGlobalArrays:
    def test_one_process_gives_the_whole(self, plan: Plan) -> None:
        tokens = np.arange(16 * 64, dtype=np.float32).reshape(16, 64)
        array = plan.global_arrays(tokens)
        assert array.sharding == plan.in_shardings[1]
        np.testing.assert_array_equal(array, tokens)

    def test_parts_that_do_not_fit(self, plan: Plan) -> None:
        assert plan.global_arrays(np.ones((16, 64), np.float32), at="tokens").shape == (16, 64)
        with pytest.raises(
            SpecError, match=r"\(4, 64\) is given; it is \(16, 64\) in all, \(16, 64\) of it on this host"
        ):
            plan.global_arrays(np.ones((4, 64), np.float32), at="tokens")


def test_shardings_are_of_the_callers_mesh(plan: Plan) -> None:
    mesh: Mesh = plan.in_shardings[1].mesh
    assert plan.shardings_for(TOKENS) == NamedSharding(mesh, P("x", None))
