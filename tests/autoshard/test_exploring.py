"""Exploring: every strategy is listed, the vectors are those of the cost model, alternatives are what forcing costs."""

import itertools
import math
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard import autoshard, explore
from autoshard.costs import (
    MeshModel,
    ShardingSpec,
    communication_resharding_cost_vector,
    memory_resharding_cost_vector,
)
from autoshard.errors import InputError
from autoshard.exploring import Exploration
from autoshard.report import build_report
from autoshard.solver import check_solution

ROWS, WIDTH, HEADS = 64, 32, 8
SIZES = {"x": 4, "y": 2}
IN_BYTES = MeshModel.uniform(SIZES, bytes_per_s=1.0, latency_s=0.0)
PAIR = MeshModel.uniform({"x": 2}, bytes_per_s=1.0, latency_s=0.0)
REL = 1e-6  # the solver's integers


def merged_heads(x: jax.Array, weight: jax.Array) -> jax.Array:
    split = jnp.tanh(x @ weight).reshape(ROWS, HEADS, WIDTH // HEADS)
    return jnp.flip(split, 2).reshape(ROWS, WIDTH) @ weight


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


ARGUMENTS = (array(ROWS, WIDTH), array(WIDTH, WIDTH))


@pytest.fixture(scope="module")
def found() -> Exploration:
    return explore(merged_heads, IN_BYTES, args=ARGUMENTS)


def cheapest(found: Exploration, forced: dict[int, int]) -> float:
    """The optimum by trying everything, node `n` held to choice `forced[n]`."""
    problem = found.problem
    ranges = [[forced[n]] if n in forced else range(size) for n, size in enumerate(problem.choices)]
    best = math.inf
    for choice in itertools.product(*ranges):
        cost = sum(costs[k] for costs, k in zip(problem.costs, choice, strict=True))
        cost += sum(edge.cost[choice[edge.u], choice[edge.v]] for edge in problem.edges)
        best = min(best, float(cost))
    return best


def test_operations_are_the_programs(found: Exploration) -> None:
    arguments = [op for op in found.operations if op.primitive == "argument"]
    assert [op.name for op in arguments] == ["x", "weight"]
    assert [op.primitive for op in found.operations if op.primitive in ("dot_general", "reshape")] == [
        "dot_general",
        "reshape",
        "reshape",
        "dot_general",
    ]
    product = found.find("dot_general")
    assert product.factors == f"b a, a c -> b c; a={WIDTH} (sum), b={ROWS}, c={WIDTH}"
    assert product.place.function == "merged_heads"


def test_exactly_one_strategy_is_chosen_and_operands_join_producers(found: Exploration) -> None:
    by_number = {op.number: op for op in found.operations}
    for op in found.operations:
        assert sum(row.chosen for row in op.strategies) == 1
        assert op.chosen is not None
        for operand in op.operands:
            producer = by_number[operand.producer].chosen
            assert producer is not None
            assert operand.held[0] in producer.results
            assert operand.asked in op.chosen.operands
            assert set(operand.required) <= {spec for row in op.strategies for spec in row.operands}


def test_parts_of_the_choice_add_up_to_its_cost() -> None:
    plain = explore(lambda x, a, b: jnp.tanh(x @ a) @ b, IN_BYTES, args=(ARGUMENTS[0], *[ARGUMENTS[1]] * 2))
    chosen = [row for op in plain.operations for row in op.strategies if row.chosen]
    work = sum(row.cost_seconds for row in chosen)
    moves = [(move, o) for op in plain.operations for o in op.operands for move in o.moves().rows if move.chosen]
    resharding = sum(move.seconds * operand.executions for move, operand in moves)
    assert math.isclose(work + resharding, plain.solution.cost, rel_tol=REL)
    assert math.isclose(work, sum(r.compute_seconds + r.communication_seconds for r in chosen), rel_tol=0.01)


def test_cost_vectors_are_those_of_the_cost_model(found: Exploration) -> None:
    operand = found.find("reshape", 1).operands[0]
    for required in operand.required:
        rows = operand.moves(required).rows
        sources, shape = [row.source for row in rows], operand.shape
        assert tuple(sources) == operand.offered
        seconds = communication_resharding_cost_vector(sources, shape, 4, required, IN_BYTES)
        extra = memory_resharding_cost_vector(sources, shape, 4, required, IN_BYTES)
        np.testing.assert_allclose([row.seconds for row in rows], seconds)
        np.testing.assert_allclose([row.extra_bytes for row in rows], extra)
        assert [row.wire_bytes for row in rows] == [row.seconds for row in rows]


def test_a_merging_reshape_never_takes_a_strided_split(found: Exploration) -> None:
    merge = found.find("reshape", 1)
    taken = {row.operands[0].dims[1:] for row in merge.strategies}
    assert (("x",), ()) in taken and (("x", "y"), ()) in taken
    minor = [(heads, width) for heads, width in taken if width]
    assert all(math.prod(SIZES[axis] for axis in heads) == HEADS for heads, _ in minor)
    required = {row.operands[0] for row in merge.strategies}
    assert ShardingSpec.of(None, None, "y") not in required


def test_alternatives_agree_with_exhaustive_search() -> None:
    small = explore(lambda x, w: jnp.tanh(x @ w), PAIR, args=(array(8, 4), array(4, 8)))
    assert math.isclose(cheapest(small, {}), small.solution.cost, rel_tol=REL)
    product = small.find("dot_general")
    node = small.problem.names.index(f"{product.number}:dot_general")
    for row in small.alternatives(product).rows:
        assert math.isclose(row.cost_seconds, cheapest(small, {node: row.strategy.number}), rel_tol=REL)


def test_the_choice_is_the_cheapest_alternative(found: Exploration) -> None:
    rows = found.alternatives(found.find("dot_general", 1)).rows
    assert rows[0].strategy.chosen and math.isclose(rows[0].cost_seconds, found.solution.cost, rel_tol=REL)
    assert all(row.extra_seconds >= -REL * found.solution.cost for row in rows)
    assert [row.cost_seconds for row in rows] == sorted(row.cost_seconds for row in rows)


def test_it_is_what_planning_does() -> None:
    mesh = jax.make_mesh(tuple(SIZES.values()), tuple(SIZES))
    plan = autoshard(merged_heads, mesh, hardware="tpu-v5e").plan(*ARGUMENTS)
    same = explore(merged_heads, mesh, args=ARGUMENTS, hardware="tpu-v5e")
    assert math.isclose(plan.solver.cost_seconds, same.solution.cost, rel_tol=REL)
    chosen = {op.name: op.chosen.results[0].dims for op in same.operations if op.primitive == "argument" and op.chosen}
    assert chosen == {leaf.name: leaf.spec for leaf in plan.arguments}
    compute = sum(op.chosen.compute_seconds for op in same.operations if op.chosen)
    assert math.isclose(compute, sum(row.compute_seconds for row in build_report(plan).operations), rel_tol=REL)


def test_without_a_choice_all_but_the_choice_is_there() -> None:
    none = explore(merged_heads, IN_BYTES, args=ARGUMENTS, memory_budget=16)
    product = none.find("dot_general")
    assert none.solution.status == "infeasible" and product.chosen is None and len(product.strategies) > 8
    assert "infeasible" in str(none)
    operand = product.operands[0]
    with pytest.raises(InputError, match="x: the solver has no choice, so say which sharding is required"):
        operand.moves()
    assert not any(move.chosen for move in operand.moves(operand.required[0]).rows)


def test_what_is_not_there_is_said(found: Exploration) -> None:
    with pytest.raises(
        InputError, match=r"2 operations are 'reshape', number 2 was asked for; there are .*dot_general"
    ):
        found.find("reshape", 2)
    with pytest.raises(InputError, match="0 operations are 'fft'"):
        found.find("fft")
    assert found.find("reshape", -1).number == found.find("reshape", 1).number


def test_donation_static_arguments_and_keywords_are_understood() -> None:
    def step(state: jax.Array, power: int, *, batch: jax.Array) -> jax.Array:
        return state - batch**power

    args, batch = (array(ROWS, ROWS), 2), array(ROWS, ROWS)
    kept = explore(step, IN_BYTES, args=args, kwargs={"batch": batch}, static_argnums=1)
    given = explore(step, IN_BYTES, args=args, kwargs={"batch": batch}, static_argnums=1, donate_argnums=0)
    assert [op.name for op in kept.operations[:2]] == ["state", "batch"]
    assert check_solution(given.problem, kept.solution.choice).peak_bytes < kept.solution.peak_bytes


def test_it_prints_as_reviewed(golden: Callable[[str, str], None]) -> None:
    small = explore(lambda x, w: jnp.tanh(x @ w), PAIR, args=(array(8, 4), array(4, 8)))
    product = small.find("dot_general")
    shown = [small, product, product.operands[0].moves(), small.alternatives(product)]
    text = "\n\n".join(map(str, shown)) + "\n"
    golden("exploration.txt", re.sub(r"(line |:)[0-9]+ ", r"\1N ", text))  # lines of this file move
    assert all("<table>" in each._repr_html_() for each in shown)


def test_a_planned_function_explores_what_its_plan_chose() -> None:
    """The same options, headroom and choice: what is explored is what runs."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    step = autoshard(lambda a, b: jnp.tanh(a @ b), mesh, in_shardings=(jax.P("x"), None), memory_budget="2MiB")
    shapes = (jax.ShapeDtypeStruct((1024, 512), jnp.float32), jax.ShapeDtypeStruct((512, 256), jnp.float32))
    plan, found = step.plan(*shapes), step.explore(*shapes)
    chosen = [op.chosen for op in found.operations if op.primitive == "argument"]
    assert [row.results[0].dims for row in chosen if row is not None] == [leaf.spec for leaf in plan.arguments]
    assert found.solution.cost == plan.solver.cost_seconds
    assert found.solution.peak_bytes == plan.predicted.peak_memory_bytes


def training_step(weights: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    return jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w["up"]) @ w["down"]) ** 2))(weights)


@pytest.fixture(scope="module", params=["cpu-virtual", "tpu-v5e"])
def training(request: pytest.FixtureRequest) -> Exploration:
    weights = {"up": array(512, 1024), "down": array(1024, 512)}
    mesh = MeshModel.preset(request.param, SIZES)
    return explore(training_step, mesh, args=(weights, array(1024, 512)), memory_budget="9MiB")


def test_the_rows_of_the_peak_add_up_to_it(training: Exploration) -> None:
    peak = training.peak()
    held = check_solution(training.problem, training.solution.choice).peak_bytes
    assert peak.nbytes == pytest.approx(sum(row.nbytes for row in peak.rows))
    assert peak.nbytes <= held
    if training.mesh.platform == "cpu":
        assert peak.nbytes == pytest.approx(held)
    assert {"weights['up']", "weights['down']"} <= {row.value for row in peak.rows if not row.copied_for}
    assert all(row.copied_for != row.value or row.copied_for == "" for row in peak.rows)
    assert str(peak).splitlines()[0] == peak.title


def test_the_least_budget_is_one_that_a_plan_keeps_to(training: Exploration) -> None:
    least = training.least_budget(time_limit_s=10)
    assert least.bound <= least.nbytes <= training.solution.peak_bytes
    assert training.peak(least.choice).nbytes <= training.peak().nbytes


def test_more_memory_never_costs(training: Exploration) -> None:
    price = training.memory_price("1MiB", time_limit_s=10)
    assert price.step_bytes == 2**20
    assert price.saved >= -REL * training.solution.cost
    assert price.lost >= price.lost_at_least - REL * training.solution.cost


def test_what_fills_the_peak_without_a_choice_is_asked_of_the_least_budget() -> None:
    nothing_fits = explore(
        training_step, PAIR, args=({"up": array(64, 64), "down": array(64, 64)}, array(64, 64)), memory_budget="1KiB"
    )
    with pytest.raises(InputError, match=r"pass least_budget\(\).choice"):
        nothing_fits.peak()
    assert nothing_fits.peak(nothing_fits.least_budget().choice).rows
