"""Parts of mesh axes: heads that do not fill a tensor axis, batches that do not fill a data axis.

Links of 1 GB/s without latency between devices of 1 TFLOP/s, so that small programs are worth splitting.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from autoshard import Constraints, Plan, autoshard
from autoshard.errors import PlanMismatchError
from autoshard.hlo import collectives
from autoshard.parts import useful_parts
from autoshard.planner import PlanningOptions, make_plan
from autoshard.trace import Program, build_graph, trace
from tests.autoshard.random_plans import Lab
from tests.autoshard.zoo import Program as Zooed
from tests.bugs.case import devices, model, normal

P = PartitionSpec
SIZES = {"tensor": 8}
PARTS = {"tensor": (2, 4)}


def attention(x: Any, w: Mapping[str, Any], kv_heads: int = 2, head: int = 16) -> Any:
    """Attention whose query heads share key-value heads, from flat weights and back."""
    batch, length, _ = x.shape
    group = w["q"].shape[1] // head // kv_heads
    q = (x @ w["q"]).reshape(batch, length, kv_heads, group, head)
    k, v = ((x @ w[name]).reshape(batch, length, kv_heads, head) for name in ("k", "v"))
    weights = jax.nn.softmax(jnp.einsum("bqgrk,bsgk->bgrqs", q, k) / 4.0, axis=-1)
    return jnp.einsum("bgrqs,bsgk->bqgrk", weights, v).reshape(batch, length, -1) @ w["o"]


def weights(width: int = 64, heads: int = 8, kv_heads: int = 2, head: int = 16) -> dict[str, Any]:
    shapes = {"q": (width, heads * head), "k": (width, kv_heads * head), "v": (width, kv_heads * head)}
    shapes["o"] = (heads * head, width)
    return {name: 0.1 * normal(k, *shape) for k, (name, shape) in enumerate(shapes.items())}


X = normal(9, 2, 32, 64)
SPLIT = (P(), {"q": P(None, "tensor"), "k": None, "v": None, "o": P("tensor", None)})


def planned(fn: Callable[..., Any], sizes: Mapping[str, int] = SIZES, **options: Any) -> Any:
    options = {"in_shardings": SPLIT, "hardware": model(sizes), **options}
    return autoshard(fn, devices(sizes), **options)


def assert_same(expected: Any, actual: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4), expected, actual)


def assert_carried_out(fn: Callable[..., Any], step: Any, *args: Any) -> Plan:
    """Equal values, and what is sent is what was planned."""
    expected = jax.jit(fn)(*args)
    plan: Plan = step.plan(*args)
    checked = plan.verify()
    assert checked.compiled_wire_bytes == plan.predicted.wire_bytes
    assert not (checked.unplanned or checked.missing or checked.rematerializations or checked.unhonoured)
    assert_same(expected, step(*jax.tree.map(jnp.array, args)))
    return plan


def training_step(x: Any, w: Any) -> Any:
    loss, grads = jax.value_and_grad(lambda w: jnp.mean(jnp.square(x + attention(x, w))))(w)
    return jax.tree.map(lambda a, g: a - 0.1 * g, w, grads), loss


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [({"data": 2, "tensor": 4}, {"tensor": (2, 2)}), (SIZES, PARTS)],
    ids=str,
)
def test_two_key_value_heads_train_on_a_tensor_axis_of_four_and_of_eight(sizes: Any, parts: Any) -> None:
    ins = (P("data") if "data" in sizes else P(), SPLIT[1])
    plan = assert_carried_out(training_step, planned(training_step, sizes, in_shardings=ins), X, weights())
    whole = planned(training_step, sizes, in_shardings=ins, axis_parts=False).plan(X, weights())
    assert plan.axis_parts == parts and whole.axis_parts == {}
    assert plan.predicted.step_seconds < whole.predicted.step_seconds
    assert all(axis in sizes for leaf in (*plan.arguments, *plan.results) for dim in leaf.spec for axis in dim)


def test_one_key_value_head_and_a_batch_smaller_than_the_data_axis() -> None:
    sizes = {"data": 4, "tensor": 2}
    fn = lambda x, w: attention(x, w, kv_heads=1)  # noqa: E731
    plan = assert_carried_out(fn, planned(fn, sizes, out_shardings=P()), X, weights(kv_heads=1))
    assert plan.axis_parts == {"data": (2, 2)}
    assert any("data:(1)2" in d.results[0][0] for d in plan.decisions if d.results and len(d.results[0]) == 3)


def layers(x: Any, w: Any) -> Any:
    return lax.scan(jax.checkpoint(lambda h, _: (h + attention(h, w), None)), x, None, length=3)[0]


def trained_layers(x: Any, w: Any) -> Any:
    return jax.grad(lambda w: jnp.sum(jnp.square(layers(x, w))))(w)


def constrained(x: Any, w: Any) -> Any:
    held = lax.with_sharding_constraint(x, NamedSharding(devices(SIZES), P(None, "tensor", None)))
    return attention(held, w)


def with_region(x: Any, w: Any) -> Any:
    spec = P(None, "tensor")
    mean = jax.shard_map(
        lambda shard: shard - lax.pmean(shard, "tensor"), mesh=devices(SIZES), in_specs=spec, out_specs=spec
    )
    return attention(mean(x), w)


@pytest.mark.parametrize(
    "fn",
    [trained_layers, constrained, with_region],
)
def test_in_loops_and_beside_the_users_own_shardings(fn: Callable[..., Any]) -> None:
    plan = assert_carried_out(fn, planned(fn), X, weights())
    assert plan.axis_parts == PARTS


def test_reported_over_the_axes_of_the_user() -> None:
    plan = planned(attention).plan(X, weights())
    text = str(plan.report(baselines=False))
    assert "axis tensor is used in parts, major first: tensor:(1)2, tensor:(2)4" in text
    assert "[-, tensor:(1)2, tensor:(2)4, -, -]" in text and "(tensor=8)" in text
    assert plan.mesh.sizes == SIZES
    assert {axis for c in plan.collectives for axis in c.axes} <= {"tensor", "tensor:(1)2", "tensor:(2)4"}


def test_under_transformations_and_in_a_mesh_context(caplog: pytest.LogCaptureFixture) -> None:
    w = weights()
    step, expected = planned(attention), jax.jit(attention)(X, w)
    gradient = jax.jit(jax.grad(lambda w: attention(X, w).sum()))(w)
    assert step.plan(X, w).axis_parts == PARTS
    assert_same(expected, jax.jit(step)(X, w))
    assert_same(gradient, jax.jit(jax.grad(lambda w: step(X, w).sum()))(w))
    assert_same(jnp.stack([expected, expected]), jax.vmap(step, in_axes=(0, None))(jnp.stack([X, X]), w))
    with jax.set_mesh(devices(SIZES)):
        assert_same(expected, step(X, w))
        assert_same(expected, autoshard(attention, in_shardings=SPLIT, hardware=model(SIZES))(X, w))
    assert step.plan(X, w).axis_parts == PARTS and not caplog.records
    assert_same(gradient, jax.grad(lambda w: step(X, w).sum())(w))
    assert "differentiated outside of jit" in caplog.text and step.plan(X, w).axis_parts == {}


def test_inside_of_a_planned_function_axes_are_whole() -> None:
    inner = planned(attention)
    w = weights()
    inner(X, w)
    outer = planned(lambda x, w: jnp.tanh(inner(x, w)))
    assert_same(jnp.tanh(jax.jit(attention)(X, w)), outer(X, w))
    assert outer.plan(X, w).axis_parts == {}
    assert inner.plan(X, w).axis_parts == PARTS


def test_donated_arguments_share_their_memory() -> None:
    step = planned(lambda x, w: (x + attention(x, w), w), donate_argnums=0)
    x = jax.device_put(np.array(X), NamedSharding(devices(SIZES), P()))
    w = jax.device_put(weights(), step.plan(X, weights()).in_shardings[1])
    out, _ = step(x, w)
    assert step.plan(X, w).axis_parts == PARTS and x.is_deleted()
    assert_same(X + jax.jit(attention)(X, weights()), out)


def test_a_plan_with_parts_is_saved_and_loaded(tmp_path: Path) -> None:
    plan = planned(attention).plan(X, weights())
    path = tmp_path / "plan.json"
    plan.save(path)
    assert Plan.load(path) == plan
    loaded = planned(attention, plan=path)
    assert loaded.plan(X, weights()).axis_parts == PARTS
    assert_same(jax.jit(attention)(X, weights()), loaded(X, weights()))
    with pytest.raises(PlanMismatchError, match="axis_parts: the plan uses axis 'tensor' in parts"):
        planned(attention, plan=path, axis_parts=False).plan(X, weights())
    whole = planned(attention, axis_parts=False).plan(X, weights())
    assert whole.fingerprint != plan.fingerprint


def test_where_nothing_is_to_gain_the_plan_is_the_same() -> None:
    fn = lambda x, w: attention(x, w, kv_heads=8)  # noqa: E731
    step, whole = (planned(fn, axis_parts=parts) for parts in (True, False))
    plan, other = (s.plan(X, weights(kv_heads=8)) for s in (step, whole))
    assert plan.model_copy(update={"solver": other.solver}) == other


def test_explicit_and_reserved_axes_are_used_whole_and_those_of_callbacks() -> None:
    explicit = autoshard(attention, jax.make_mesh((8,), tuple(SIZES)), in_shardings=SPLIT, hardware=model(SIZES))
    assert explicit.plan(X, weights()).axis_parts == {}
    rules = Constraints(reserved_axes={"tensor": ("w",)})
    assert planned(attention, in_shardings=None, constraints=rules).plan(X, weights()).axis_parts == {}

    def told(x: Any, w: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda x: np.asarray(x), shape, attention(x, w))

    assert planned(told).plan(X, weights()).axis_parts == {}


def program(kv_heads: int, group: int, batch: int) -> Program:
    head = 4
    w = {"q": (16, kv_heads * group * head), "k": (16, kv_heads * head), "v": (16, kv_heads * head)}
    w["o"] = (kv_heads * group * head, 16)
    shapes = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in w.items()}
    return trace(
        lambda x, w: attention(x, w, kv_heads, head),
        (jax.ShapeDtypeStruct((batch, 8, 16), "float32"), shapes),
        {},
        signature_names=("x", "w"),
        jit_options={},
    )


@settings(max_examples=8, deadline=None)
@given(
    kv_heads=st.sampled_from([1, 2, 3, 6]),
    group=st.sampled_from([1, 2, 4]),
    batch=st.sampled_from([1, 2, 6]),
    sizes=st.sampled_from([{"x": 4}, {"x": 2, "y": 4}, {"x": 8}, {"x": 6}]),
)
def test_a_plan_with_parts_is_never_dearer(kv_heads: int, group: int, batch: int, sizes: dict[str, int]) -> None:
    traced = program(kv_heads, group, batch)
    fixed = {1: ((), tuple(sizes)[-1:])} if group * kv_heads * 4 % list(sizes.values())[-1] == 0 else {}
    whole = PlanningOptions(mesh=model(sizes), fixed_arguments=fixed)
    costs = [
        make_plan(traced, options).solver.cost_seconds
        for options in (PlanningOptions(mesh=model(sizes), fixed_arguments=fixed, cut_axes=frozenset(sizes)), whole)
    ]
    assert costs[0] <= costs[1]


def test_arbitrary_plans_over_parts_compute_the_same_and_move_what_they_say() -> None:
    lab = Lab(Zooed("heads", attention, (X, weights())), devices(SIZES), model(SIZES).cut(PARTS))
    expected = jax.tree.leaves(jax.jit(attention)(X, weights()))
    for plan, (compiled, actual) in lab.plans(2, seed=7):
        assert any("tensor:(1)2" in axes for d in plan.decisions for dims in d.results for axes in dims)
        assert_same(expected, list(actual))
        assert sum(c.call_wire_bytes for c in collectives(compiled.as_text(), SIZES)) <= plan.predicted.wire_bytes


@given(sizes=st.sampled_from([{"x": 8}, {"x": 2, "y": 12}, {"x": 4, "y": 4, "z": 4}, {"x": 16, "y": 3}]))
@settings(max_examples=4, deadline=None)
def test_few_axes_and_parts_that_make_up_each(sizes: dict[str, int]) -> None:
    mesh = model(sizes)
    graph = build_graph(program(2, 6, 6))
    for parts in useful_parts(graph, mesh, frozenset(sizes)):
        cut = mesh.cut(parts)
        assert cut.num_devices == mesh.num_devices
        assert len(sizes) < len(cut.sizes) <= 3
    assert useful_parts(graph, mesh, frozenset()) == []


def test_sums_scattered_along_links_that_are_no_parts_of_the_cut() -> None:
    """On a cube of 2x2x2 chips a sum is scattered link by link, over groups that no axis of the cut mesh names."""
    fn = lambda x, w: attention(x, w, head=128)  # noqa: E731
    w = weights(width=1024, head=128)
    x = normal(9, 1, 128, 1024)
    step = planned(fn, hardware="tpu-v5p", out_shardings=P(None, "tensor"))
    plan = assert_carried_out(fn, step, x, w)
    assert plan.axis_parts == PARTS
    assert [c.axes for c in plan.collectives if c.kind == "reduce-scatter"] == [
        ("tensor:(1)2",),
        ("tensor:(2)2",),
        ("tensor:(4)2",),
    ]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_the_tpu_compiler_does_as_planned() -> None:
    shapes = {name: jax.ShapeDtypeStruct((8 * w.shape[0], 8 * w.shape[1]), "bfloat16") for name, w in weights().items()}
    x = jax.ShapeDtypeStruct((2, 256, 512), "bfloat16")
    fn = lambda x, w: attention(x, w, head=128)  # noqa: E731
    sizes = {"data": 2, "tensor": 4}
    plan = planned(fn, sizes, in_shardings=(P("data"), SPLIT[1]), hardware="tpu-v5e").plan(x, shapes)
    assert plan.axis_parts == {"tensor": (2, 2)}
    checked = plan.verify(topology="v5e:2x4")
    assert checked.compiled_wire_bytes == pytest.approx(plan.predicted.wire_bytes, rel=0.01)
    assert not (checked.unplanned or checked.missing or checked.rematerializations)
