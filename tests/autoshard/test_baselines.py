"""What a plan is set beside: full sharding by rule, and the caller's own shardings."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from autoshard import Plan, autoshard, fsdp_sharding, infer_sharding, stacked_sharding
from autoshard.baselines import fully_sharded, scanned_arguments
from autoshard.costs import MeshModel
from autoshard.errors import SpecError
from autoshard.planner import PlanningOptions, fed_back
from autoshard.trace import build_graph, trace

SIZES = {"x": 4, "y": 2}
LAYERS = {"up": jax.ShapeDtypeStruct((64, 16, 32), "float32"), "down": jax.ShapeDtypeStruct((64, 32, 16), "bfloat16")}
STATE = {
    "layers": LAYERS,
    "head": jax.ShapeDtypeStruct((64, 16), "float32"),
    "scale": jax.ShapeDtypeStruct((16,), "float32"),
}
BATCH = jax.ShapeDtypeStruct((32, 16), "float32")


def train_step(state: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
    def loss(state: Any) -> jax.Array:
        down = state["layers"]["down"].astype(jnp.float32)
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w[0]) @ w[1], None), batch, (state["layers"]["up"], down))
        return jnp.mean((x * state["scale"] @ state["head"].T) ** 2)

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - g, state, grads), value


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(jax.sharding.AxisType.Auto,) * 2)


@pytest.fixture(scope="module")
def plan() -> Plan:
    bytes_only = MeshModel.uniform(SIZES, bytes_per_s=1.0, latency_s=0.0)
    return autoshard(train_step, mesh(), hardware=bytes_only, donate_argnums=0).plan(STATE, BATCH)


def test_the_layers_of_what_is_scanned_over_stay_together() -> None:
    program = trace(train_step, (STATE, BATCH), {}, signature_names=("state", "batch"))
    graph = build_graph(program)
    options = PlanningOptions(mesh=MeshModel.uniform(SIZES, bytes_per_s=1.0, latency_s=0.0), ties=fed_back(program))
    names = program.argument_names
    assert {names[i] for i in scanned_arguments(graph)} == {"state['layers']['up']", "state['layers']['down']"}
    every = ("x", "y")
    assert {names[i]: dims for i, dims in fully_sharded(program, graph, options).items()} == {
        "state['head']": (every, ()),
        "state['layers']['down']": ((), (), every),
        "state['layers']['up']": ((), every, ()),
        "state['scale']": ((),),
        "batch": (every, ()),
    }


def test_own_shardings_are_priced_beside_the_plan(plan: Plan) -> None:
    rule = stacked_sharding(fsdp_sharding("x", min_size_to_shard_mb=0), "^layers/")
    shardings, _ = infer_sharding(STATE, mesh(), rule)
    columns = plan.report(against={"by rule": (shardings, P("x")), "the plan's": plan.in_shardings}).baselines
    assert list(columns) == ["replicated", "data parallel", "fully sharded", "by rule", "the plan's"]
    best, whole = plan.predicted, columns["replicated"]
    assert columns["the plan's"].step_seconds == pytest.approx(best.step_seconds, rel=1e-3)
    assert all(column.step_seconds >= best.step_seconds * 0.999 for column in columns.values())
    assert columns["fully sharded"].peak_memory_bytes < columns["data parallel"].peak_memory_bytes
    assert columns["by rule"].peak_memory_bytes < whole.peak_memory_bytes
    assert "by rule" in plan.report(baselines=False, against={"by rule": (shardings, P("x"))}).text(width=100)


def test_own_shardings_have_to_fit(plan: Plan) -> None:
    with pytest.raises(SpecError, match=r"against does not fit:\n.*axis 'z' is not in the mesh"):
        plan.report(against={"wrong": (None, P("z"))})


@pytest.mark.parametrize("sizes", [(1, 8), (8, 1)])
def test_baselines_do_without_axes_of_one_device(sizes: tuple[int, int]) -> None:
    line = jax.make_mesh(sizes, ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    report = autoshard(jnp.matmul, line).plan(BATCH, jax.ShapeDtypeStruct((16, 64), "float32")).report()
    assert {"data parallel", "fully sharded"} <= set(report.baselines)


@pytest.mark.parametrize(
    ("left", "right", "others"),
    [((0, 8), (8, 16), {"data parallel", "fully sharded"}), ((8, 0), (0, 16), set())],
)
def test_empty_arguments_are_not_split_by_baselines(
    left: tuple[int, int], right: tuple[int, int], others: set[str]
) -> None:
    shapes = (jax.ShapeDtypeStruct(left, "float32"), jax.ShapeDtypeStruct(right, "float32"))
    report = autoshard(jnp.matmul, mesh()).plan(*shapes).report()
    assert set(report.baselines) == {"replicated", *others}
