"""What a caller demands of a plan, seen in the plan and in the compiled program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard import Constraints, Plan, autoshard, hlo
from autoshard.costs import MeshModel
from autoshard.errors import OptionError, PlanMismatchError, SpecError

BYTES = MeshModel.uniform({"data": 4, "model": 2}, bytes_per_s=1e9, latency_s=0.0)
WIDE = {"up": jnp.ones((256, 512)) / 256, "down": jnp.ones((512, 256)) / 512}
STATE = {"params": WIDE, "average": WIDE, "count": jnp.zeros(())}
BATCH = jnp.arange(64.0 * 256).reshape(64, 256) / 1000


def train(state: Any, batch: Any) -> Any:
    """One step on a linear net, its average kept."""
    loss = lambda p: jnp.mean(jnp.tanh(batch @ p["up"]) @ p["down"])  # noqa: E731
    value, slope = jax.value_and_grad(loss)(state["params"])
    params = jax.tree.map(lambda w, g: w - 0.1 * g, state["params"], slope)
    average = jax.tree.map(lambda a, w: 0.9 * a + 0.1 * w, state["average"], params)
    return {"params": params, "average": average, "count": state["count"] + 1}, value


@pytest.fixture
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def planned(mesh: Mesh, **options: Any) -> Plan:
    return autoshard(train, mesh, hardware=BYTES, **options).plan(STATE, BATCH)


def axes_of(plan: Plan, name: str) -> set[str]:
    return {axis for leaf in plan.arguments if leaf.name.startswith(name) for axes in leaf.spec for axis in axes}


def compiled_axes(plan: Plan, mesh: Mesh, **options: Any) -> list[set[str]]:
    """The mesh axes that each argument of the compiled program is split over."""
    step = autoshard(train, mesh, hardware=BYTES, plan=plan, **options)
    args, _ = step.lower(STATE, BATCH).compile().input_shardings
    return [
        {a for dim in s.spec for a in ((dim,) if isinstance(dim, str) else dim or ())} for s in jax.tree.leaves(args)
    ]


def test_free_plans_use_every_axis_for_everything(mesh: Mesh) -> None:
    plan = planned(mesh)
    assert axes_of(plan, "state") == axes_of(plan, "batch") == {"data", "model"}, "else the tests below show nothing"


def test_only_axes(mesh: Mesh) -> None:
    rules = Constraints(only_axes={"batch": "data", "state['average']": ()})
    plan = planned(mesh, constraints=rules)
    assert axes_of(plan, "batch") <= {"data"}
    assert axes_of(plan, "state['average']") == set(), "never split"
    assert axes_of(plan, "state['params']"), "what is not named stays free"
    axes = dict(zip((leaf.name for leaf in plan.arguments), compiled_axes(plan, mesh, constraints=rules)))
    assert axes["batch"] <= {"data"}
    assert axes["state['average']['up']"] == axes["state['average']['down']"] == set()
    np.testing.assert_allclose(autoshard(train, mesh, plan=plan)(STATE, BATCH)[1], train(STATE, BATCH)[1], rtol=1e-5)


def test_reserved_axes(mesh: Mesh) -> None:
    plan = planned(mesh, constraints=Constraints(reserved_axes={"data": ("batch",)}))
    assert "data" in axes_of(plan, "batch")
    assert axes_of(plan, "state") <= {"model"}
    *state, _ = compiled_axes(plan, mesh)
    assert set().union(*state) <= {"model"}


def test_results_are_constrained_too(mesh: Mesh) -> None:
    plan = planned(mesh, constraints=Constraints(only_axes={"result[0]['params']": "model"}))
    split = {axis for leaf in plan.results if "params" in leaf.name for axes in leaf.spec for axis in axes}
    assert split <= {"model"}
    outs = autoshard(train, mesh, hardware=BYTES, plan=plan).lower(STATE, BATCH).compile().output_shardings
    assert "data" not in str(outs[0]["params"]["up"].spec) + str(outs[0]["params"]["down"].spec)


def test_same_as(mesh: Mesh) -> None:
    fixed: Any = ({"params": {"up": P("model", "data"), "down": None}, "average": None, "count": None}, None)
    rules = Constraints(same_as={"state['average']": "state['params']"})
    plan = planned(mesh, in_shardings=fixed, constraints=rules)
    specs = {leaf.name: leaf.spec for leaf in plan.arguments}
    assert specs["state['average']['up']"] == (("model",), ("data",))
    assert specs["state['average']['down']"] == specs["state['params']['down']"]
    free: Any = (
        {"params": {"up": P("model", "data"), "down": None}, "average": {"up": P(), "down": None}, "count": None},
    )
    other = planned(mesh, in_shardings=(*free, None))
    with pytest.raises(
        PlanMismatchError, match=r"same_as: state\['average'\]\['up'\] is not planned as state\['params'\]"
    ):
        planned(mesh, constraints=rules, plan=other)


def test_results_the_same_as_arguments(mesh: Mesh) -> None:
    def split(x: Any) -> Any:
        return x.T @ x, jnp.sin(x)

    square = jax.ShapeDtypeStruct((64, 64), "float32")
    rules = Constraints(same_as={"result[0]": "x", "result[1]": "x"})
    plan = autoshard(split, mesh, in_shardings=P("model", "data"), constraints=rules).plan(square)
    assert plan.results[0].spec == plan.results[1].spec == (("model",), ("data",))


class TestInCode:
    @staticmethod
    def bad(mesh: Mesh) -> Any:
        def fn(x: Any) -> Any:
            inner = jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P(None, "data")))
            return jnp.sin(inner)

        return fn

    def test_kept_or_reopened(self, mesh: Mesh) -> None:
        fixed = {"in_shardings": P("data"), "out_shardings": P("data")}
        x = jnp.arange(64.0 * 64).reshape(64, 64)
        kept = autoshard(self.bad(mesh), mesh, **fixed)
        free = autoshard(self.bad(mesh), mesh, constraints=Constraints(in_code="reopen"), **fixed)
        assert kept.plan(x).predicted.wire_bytes > 0 == free.plan(x).predicted.wire_bytes
        assert "all-to-all" in kept.lower(x).compile().as_text()
        assert "all-to-all" not in free.lower(x).compile().as_text()
        np.testing.assert_allclose(kept(x), free(x))

    def test_shardings_of_a_jit_inside_are_kept_or_reopened(self, mesh: Mesh) -> None:
        by_column = NamedSharding(mesh, P(None, "data"))
        inner = jax.jit(lambda x: (x * 2, 1.0), in_shardings=by_column, out_shardings=(by_column, None))
        fixed = {"in_shardings": P("data"), "out_shardings": P("data")}
        x = jnp.arange(64.0 * 64).reshape(64, 64)
        kept = autoshard(lambda x: jnp.sin(inner(x)[0]), mesh, **fixed)
        free = autoshard(lambda x: jnp.sin(inner(x)[0]), mesh, constraints=Constraints(in_code="reopen"), **fixed)
        held = [d.results[0] for d in kept.plan(x).decisions if d.primitive == "sharding_constraint"]
        assert held == [((), ("data",)), ((), ("data",))]
        assert kept.plan(x).predicted.wire_bytes > 0 == free.plan(x).predicted.wire_bytes
        assert kept.lower(x).compile().as_text().count(" all-to-all(") == 2
        np.testing.assert_allclose(kept(x), free(x))

    @pytest.mark.parametrize(
        "held",
        [
            lambda mesh: lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", "model"))),
            lambda mesh: lambda x: jax.lax.optimization_barrier((x, jnp.cos(x))),
        ],
        ids=["constraint", "barrier"],
    )
    def test_results_under_another_name_take_memory(self, mesh: Mesh, held: Any) -> None:
        """A result that is held to a sharding, or behind a barrier, is written like any other."""
        step = autoshard(lambda x: held(mesh)(jnp.sin(x) + 1), mesh)
        x = jax.ShapeDtypeStruct((1024, 1024), "float32")
        assert step.plan(x).predicted.peak_memory_bytes == pytest.approx(
            hlo.memory(step.lower(x).compile()).total, rel=1e-4
        )

    def test_unconstrained_dimensions_stay_free(self, mesh: Mesh) -> None:
        def fn(x: Any) -> Any:
            return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P(P.UNCONSTRAINED, "model")))

        (held,) = [d for d in autoshard(fn, mesh).plan(BATCH).decisions if d.primitive == "sharding_constraint"]
        assert held.results[0] == (("data",), ("model",)), "the free dimension is split, as that divides the work"


class TestRefusals:
    def test_all_names_at_once(self, mesh: Mesh) -> None:
        rules = Constraints(
            only_axes={"state['parms']": "model", "batch": "dta"},
            reserved_axes={"pipe": "batch"},
            same_as={"a": "state"},
        )
        with pytest.raises(OptionError) as caught:
            planned(mesh, constraints=rules)
        head, *faults = str(caught.value).splitlines()
        assert head == "constraints do not fit the function:"
        assert (
            faults[0].strip().startswith("only_axes: nothing is at \"state['parms']\"; did you mean \"state['params']")
        )
        assert "same_as: nothing is at 'a'" in faults[1]
        assert "only_axes: axis 'dta' is not in the mesh, which has 'data', 'model'" in faults[2]
        assert "reserved_axes: axis 'pipe' is not in the mesh" in faults[3]

    def test_contradictions(self, mesh: Mesh) -> None:
        rules = Constraints(
            only_axes={"batch": "data"}, same_as={"state['params']": "state['average']", "batch": "state['count']"}
        )
        with pytest.raises(
            SpecError, match=r"(?s)same_as: batch has shape \(64, 256\), .*batch is fixed to a split over 'model'"
        ):
            planned(mesh, in_shardings=(None, P("data", "model")), constraints=rules)

    def test_a_plan_that_does_not_keep_to_them(self, mesh: Mesh) -> None:
        plan = planned(mesh)
        with pytest.raises(PlanMismatchError, match=r"contradicts the options(.|\n)*in_shardings: batch is planned as"):
            planned(mesh, plan=plan, constraints=Constraints(only_axes={"batch": ()}))

    def test_unknown_constraints(self) -> None:
        with pytest.raises(ValueError, match="only_axis"):
            Constraints(only_axis={"batch": "data"})  # type: ignore[call-arg]
