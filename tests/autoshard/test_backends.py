"""What the compilers do differently, against the compilers; the TPU's without a TPU, skipped without libtpu."""

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from autoshard import Plan, autoshard
from autoshard.backends import on_chip_bytes, sent_as
from autoshard.costs import MeshModel
from autoshard.graph import Op
from autoshard.rules.base import Equation, TensorFacts, whole
from autoshard.topology import tpu_mesh
from tests.rule_zoo import normal

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
TPU = MeshModel.preset("tpu-v5e", {"x": 4, "y": 2})
SINGLE = TensorFacts((8, 8), "float32", 4)


def user(primitive: str, **params: Any) -> Op:
    """An operation on two float32 matrices."""
    equation = Equation(primitive, params, (SINGLE, SINGLE), (SINGLE,))
    return Op(equation, whole(equation), (0,), 0, (0, 1), (2,), 1.0, (1.0, 1.0), (0, 0), (0,), "")


def products(precision: str | None) -> Any:
    """Training step of two layers in float32, whose weights are used forward and backward."""

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(jnp.matmul(x, w, precision=precision))
        return (x * x).mean()

    def step(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    return step


@needs_libtpu
@pytest.mark.parametrize("precision", [None, "highest"])
def test_float32_operands_are_sent_to_tpu_contractions_as_priced(precision: str | None) -> None:
    mesh = tpu_mesh("v5e:2x4", {"x": 4, "y": 2})
    weights = [jax.ShapeDtypeStruct((1024, 1024), "float32")] * 2
    batch = jax.ShapeDtypeStruct((4096, 1024), "float32")
    split = P(("x", "y"))
    step = autoshard(products(precision), mesh, donate_argnums=0, in_shardings=(split, split))
    found = step.plan(weights, batch).verify()
    gathered = [row for row in found.rows if row.kind == "all-gather"]
    assert gathered
    for row in gathered:
        assert row.predicted_wire_bytes == pytest.approx(row.compiled_wire_bytes, rel=0.01)


@needs_libtpu
@pytest.mark.parametrize(
    ("sizes", "order", "steps"),
    [
        ({"x": 4, "y": 4}, ("x", "y"), ("x", "y")),
        ({"x": 4, "y": 4}, ("y", "x"), ("y", "x")),
        ({"x": 16}, ("x",), ("x:(1)4", "x:(4)4")),
    ],
    ids=["x,y", "y,x", "one axis"],
)
def test_sums_over_a_whole_slice_are_scattered_as_priced(
    sizes: dict[str, int], order: tuple[str, ...], steps: tuple[str, ...]
) -> None:
    """One reduce-scatter over all of a square slice would be compiled to an all-reduce of twice the bytes."""
    mesh = tpu_mesh("v5e:4x4", sizes)
    rows, inner = 512, 65536
    step = autoshard(jnp.matmul, mesh, in_shardings=(P(None, order), P(order)), out_shardings=P(order))
    plan = step.plan(jax.ShapeDtypeStruct((rows, inner), "bfloat16"), jax.ShapeDtypeStruct((inner, rows), "bfloat16"))
    assert [(c.kind, c.axes) for c in plan.collectives] == [("reduce-scatter", (step,)) for step in steps]
    assert plan.predicted.wire_bytes == 2 * rows * rows * 15 / 16
    found = plan.verify()
    assert {row.kind for row in found.rows} == {"reduce-scatter"}
    assert found.compiled_wire_bytes == pytest.approx(plan.predicted.wire_bytes, rel=0.01)


def test_sums_scattered_part_by_part_of_an_axis_land_where_they_belong() -> None:
    """Planned for a cubic slice, run on virtual devices: three reduce-scatters of two parts each."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    fixed = (P(None, "x"), P("x"))
    step = autoshard(jnp.matmul, mesh, in_shardings=fixed, out_shardings=P("x"), hardware="tpu-v5p")
    a, b = normal(64, 1024), normal(1024, 256)
    assert scattered_over(step.plan(a, b)) == PARTS
    np.testing.assert_allclose(step(a, b), np.asarray(a) @ np.asarray(b), rtol=1e-4, atol=1e-3)


def test_rows_looked_up_in_a_split_table_are_scattered_part_by_part() -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def look_up(table: Any, rows: Any) -> Any:
        return table.at[rows].get(mode="fill", fill_value=7.0)

    step = autoshard(look_up, mesh, in_shardings=(P("x"), P()), out_shardings=P("x"), hardware="tpu-v5p")
    table, rows = jnp.asarray(normal(1 << 14, 128)), jnp.arange(256) * 67  # some are beyond the table
    assert scattered_over(step.plan(table, rows)) == PARTS
    np.testing.assert_array_equal(step(table, rows), look_up(table, rows))


PARTS = [("x:(1)2",), ("x:(2)2",), ("x:(4)2",)]


def scattered_over(plan: Plan) -> list[tuple[str, ...]]:
    return [c.axes for c in plan.collectives if c.kind == "reduce-scatter"]


@pytest.mark.parametrize(
    ("primitive", "precision", "dtype"),
    [
        ("dot_general", None, "bfloat16"),
        ("dot_general", (jax.lax.Precision.DEFAULT,) * 2, "bfloat16"),
        ("dot_general", (jax.lax.Precision.HIGHEST,) * 2, "float32"),
        ("conv_general_dilated", None, "bfloat16"),
        ("add", None, "float32"),
    ],
)
def test_only_contractions_at_default_precision_take_bfloat16(primitive: str, precision: Any, dtype: str) -> None:
    assert sent_as(SINGLE, user(primitive, precision=precision), TPU).dtype == dtype


def test_other_backends_send_float32_as_it_is() -> None:
    cpu = MeshModel.preset("cpu-virtual", {"x": 4, "y": 2})
    assert sent_as(SINGLE, user("dot_general", precision=None), cpu) == SINGLE
    assert on_chip_bytes(cpu) == 0


def test_small_temporaries_of_a_tpu_take_none_of_the_budget() -> None:
    mesh = jax.make_mesh((8,), ("x",))
    weights, batch = jnp.zeros((2, 512, 512)), jnp.zeros((4096, 512))
    step = autoshard(products(None), mesh, donate_argnums=0, hardware="tpu-v5e")
    plan = step.plan(list(weights), batch)
    arguments = sum(leaf.shard_bytes for leaf in plan.arguments)
    assert plan.predicted.peak_memory_bytes == pytest.approx(arguments)
    assert on_chip_bytes(TPU) > 0
    assert on_chip_bytes(MeshModel.preset("tpu-v5p", {"x": 8})) == 0
