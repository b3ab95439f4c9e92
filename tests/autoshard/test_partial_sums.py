"""Sums that stay open through linear operations: fewer collectives, the same values."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from autoshard import autoshard
from autoshard.costs import MeshModel, ShardingSpec
from autoshard.partial_sums import open_values
from autoshard.rules.base import Equation, TensorFacts, left_open, rule_of
from autoshard.strategies import enumerate_strategies
from autoshard.trace import build_graph, trace

ROWS, INNER, COLUMNS = 64, 512, 256
AXES = {"x": 4, "y": 2}


def matrix(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def open_primitives(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The operations whose results may stay open, in program order."""
    graph = build_graph(trace(fn, args, {}))
    return [graph.ops[graph.values[v].producer[0]].primitive for v in sorted(open_values(graph))]


def joined(x: Any, weights: Sequence[Any]) -> Any:
    """The sum of several products whose summed dimension the caller splits."""
    a, b, c = weights
    return jnp.tanh(x @ a + x @ b - x @ c)


def test_sums_that_meet_are_ended_once() -> None:
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES))
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (ROWS, INNER))
    weights = [jax.random.normal(key, (INNER, COLUMNS)) for key in keys[1:]]
    step = autoshard(joined, mesh, in_shardings=(P(None, ("x", "y")), P(("x", "y"))))
    plan = step.plan(x, weights)
    (ended,) = plan.collectives
    assert (ended.kind, ended.axes) == ("reduce-scatter", ("x", "y"))
    assert ended.wire_bytes == ROWS * COLUMNS * 4 * 7 / 8
    found = plan.verify()
    assert found.compiled_wire_bytes == pytest.approx(ended.wire_bytes)
    np.testing.assert_allclose(step(x, weights), joined(x, weights), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, ROWS, COLUMNS), (ROWS, 1, COLUMNS, 1)])
def test_sums_stay_open_through_new_dimensions(shape: tuple[int, ...]) -> None:
    """Rows are split over one axis, the summed dimension over the other."""

    def fn(x: Any, a: Any, b: Any) -> Any:
        return jnp.tanh((x @ a).reshape(shape) + (x @ b).reshape(shape))

    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES))
    args = [jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(ROWS, INNER), *[(INNER, COLUMNS)] * 2])]
    step = autoshard(fn, mesh, in_shardings=(P("x", "y"), P("y"), P("y")))
    plan = step.plan(*args)
    (ended,) = plan.collectives
    assert ended.axes == ("y",) and ended.wire_bytes == ROWS * COLUMNS * 4 / 4 / 2
    assert plan.verify().compiled_wire_bytes == pytest.approx(ended.wire_bytes)
    np.testing.assert_allclose(step(*args), fn(*args), rtol=1e-3, atol=1e-3)


def test_the_gradient_of_queries_keys_and_values_is_reduced_once() -> None:
    """Tensor parallelism over heads: one all-reduce backward where the sums of three are joined."""

    def loss(x: Any, q: Any, k: Any, v: Any) -> Any:
        return (jnp.tanh(x @ q) * jnp.tanh(x @ k) * jnp.tanh(x @ v)).sum()

    mesh = jax.make_mesh((8,), ("x",))
    args = [
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(ROWS, INNER)] + [(INNER, 1024)] * 3)
    ]
    columns = P(None, "x")
    step = autoshard(jax.grad(loss), mesh, in_shardings=(P(), columns, columns, columns), out_shardings=P())
    plan = step.plan(*args)
    (ended,) = [c for c in plan.collectives if c.kind == "all-reduce" and c.wire_bytes > 8]
    assert ended.wire_bytes == 2 * ROWS * INNER * 4 * 7 / 8
    assert plan.verify().wire_bytes_error == pytest.approx(0, abs=0.01)
    np.testing.assert_allclose(step(*args), jax.grad(loss)(*args), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"),
    [
        (lambda x, a, b: x @ a + x @ b, [(8, 8)] * 3, ["dot_general"] * 2),
        (
            lambda x, a, b: -(x @ a).T * 2.0 + (x @ b),
            [(8, 8)] * 3,
            ["dot_general", "transpose", "neg", "mul", "dot_general"],
        ),
        (
            lambda x, a, b: jnp.squeeze((x @ a).reshape(1, 8, 1, 8), 0) + (x @ b).reshape(8, 1, 8),
            [(8, 8)] * 3,
            ["dot_general", "reshape", "squeeze", "dot_general", "reshape"],
        ),
        (lambda x, a, b: (x @ a).reshape(64) + (x @ b).reshape(64), [(8, 8)] * 3, []),
        (lambda x, a: (x @ a).sum(0), [(8, 8)] * 2, ["dot_general"]),
        (lambda x, a: jnp.tanh(x @ a), [(8, 8)] * 2, []),
        (lambda x, a: x @ a + x, [(8, 8)] * 2, []),
        (lambda x, a, b: (x @ a) * (x @ b), [(8, 8)] * 3, []),
        (lambda x, a, b: (x @ a + 1.0) + x @ b, [(8, 8)] * 3, []),
        (lambda x, a, b: (lambda s: (s + x @ b, s))(x @ a), [(8, 8)] * 3, []),
        (lambda x, a, b: (x @ a).max(0) + (x @ b).max(0), [(8, 8)] * 3, []),
    ],
    ids=[
        "joined",
        "through",
        "renamed",
        "reshaped",
        "summed",
        "not linear",
        "with a whole",
        "product",
        "constant",
        "used twice",
        "fold",
    ],
)
def test_only_linear_chains_that_join_stay_open(
    fn: Callable[..., Any], shapes: Sequence[tuple[int, ...]], expected: list[str]
) -> None:
    assert sorted(open_primitives(fn, *(matrix(*shape) for shape in shapes))) == sorted(expected)


def test_sums_end_before_they_leave_a_loop() -> None:
    def fn(x: Any, weights: Any) -> Any:
        return jax.lax.scan(lambda c, w: (c, c @ w), x, weights)[1].sum(0)

    assert open_primitives(fn, matrix(8, 8), matrix(4, 8, 8)) == []


MICROBATCHES = 4


def accumulated(weights: Any, batch: Any) -> tuple[Any, Any]:
    """A training step whose gradients are added up over microbatches, from an accumulator that is not zero."""

    def loss(weights: Any, x: Any) -> Any:
        return ((jnp.tanh(x @ weights["up"]) @ weights["down"]) ** 2).mean()

    def micro(total: Any, x: Any) -> tuple[Any, Any]:
        value, gradient = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(jnp.add, total, gradient), value

    parts = batch.reshape(MICROBATCHES, -1, batch.shape[-1])
    total, losses = jax.lax.scan(micro, jax.tree.map(lambda w: 1e-3 * w, weights), parts)
    return jax.tree.map(lambda w, g: w - 0.1 * g / MICROBATCHES, weights, total), losses.mean()


@pytest.mark.parametrize("sizes", [{"x": 4, "y": 2}, {"x": 8}])
def test_accumulated_gradients_are_reduced_after_the_loop(sizes: dict[str, int]) -> None:
    keys = jax.random.split(jax.random.key(1), 3)
    shapes = {"up": (256, 512), "down": (512, 256)}
    weights = {name: 0.05 * jax.random.normal(key, shapes[name]) for name, key in zip(shapes, keys)}
    batch = jax.random.normal(keys[2], (8192, 256))
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes))
    step = autoshard(accumulated, mesh, hardware="tpu-v5e", in_shardings=(None, P(tuple(sizes))))
    plan = step.plan(weights, batch)
    reductions = [c for c in plan.collectives if c.role == "reduction" and c.wire_bytes > 100]
    assert len(reductions) == len(shapes)
    assert all(c.trips == 1 for c in reductions)
    found = plan.verify()
    assert found.compiled_wire_bytes == pytest.approx(plan.predicted.wire_bytes, rel=0.01)
    expected = accumulated(weights, batch)
    for ours, theirs in zip(jax.tree.leaves(step(weights, batch)), jax.tree.leaves(expected)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_carry_that_is_read_elsewhere_is_not_left_open() -> None:
    def running(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda total, row: ((total + row @ w), total.max()), jnp.zeros((8, 8)), x)

    def replaced(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda total, row: (jnp.tanh(total + row @ w), None), jnp.zeros((8, 8)), x)

    assert open_primitives(running, matrix(4, 8, 8), matrix(8, 8)) == []
    assert open_primitives(replaced, matrix(4, 8, 8), matrix(8, 8)) == []


SUM = Equation("add", {}, (TensorFacts((8, 16), "float32", 4),) * 2, (TensorFacts((8, 16), "float32", 4),))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([{"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}]), st.booleans())
def test_operands_of_a_join_are_open_over_the_same_axes(sizes: dict[str, int], leaves: bool) -> None:
    mesh = MeshModel.uniform(sizes, bytes_per_s=1.0, latency_s=0.0)
    found = enumerate_strategies(left_open(rule_of(SUM), (0, 1), leaves), SUM.operands, SUM.results, (True,) * 3, mesh)
    assert found.strategies[0].operands == (ShardingSpec.replicated(2),) * 2
    assert any(s.operands[0].partial for s in found.strategies)
    for strategy in found.strategies:
        first, second = strategy.operands
        (result,) = strategy.results
        assert first == second
        assert set(result.partial) <= set(first.partial)
        assert leaves or not result.partial
        ended = {axis for c in strategy.collectives for axis in c.axes}
        assert ended == set(first.partial) - set(result.partial)
