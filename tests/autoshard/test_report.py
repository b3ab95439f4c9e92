"""The report: its parts add up to the totals, nothing is lost in grouping, and it reads as reviewed."""

import html.parser
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard import Plan, autoshard
from autoshard.costs import MeshModel
from autoshard.patterns import pattern_text
from autoshard.plan import PLAN_VERSION, Leaf, OpCost, PlannedCollective, Route, SolverSummary, Totals
from autoshard.render import render_html, render_text, seconds_text
from autoshard.report import Report, build_report, place_of

SIZES = {"x": 4, "y": 2}
WIDTH, LAYERS, BATCH = 64, 3, 32
US = 1e-6
KIB = 2**10
MODEL, STEP = "/home/me/gpt/model.py", "/home/me/gpt/train.py"


def trained(params: dict[str, jax.Array], batch: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    def loss(params: dict[str, jax.Array]) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, params["layers"])
        return jnp.mean((x @ params["head"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def plan_of(fn: Callable[..., Any], *shapes: Any, **options: Any) -> Plan:
    mesh = jax.make_mesh(tuple(SIZES.values()), tuple(SIZES))
    prices = MeshModel.uniform(SIZES, bytes_per_s=1.0, latency_s=0.0)  # splitting pays, small as these programs are
    return autoshard(fn, mesh, hardware=prices, **options).plan(*shapes)


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.fixture(scope="module")
def trained_plan() -> Plan:
    params = {"layers": array(LAYERS, WIDTH, WIDTH), "head": array(WIDTH, WIDTH)}
    return plan_of(trained, params, array(BATCH, WIDTH), donate_argnums=0)


@pytest.fixture(scope="module", params=["trained", "two matmuls", "nothing to do"])
def plan(request: pytest.FixtureRequest, trained_plan: Plan) -> Plan:
    if request.param == "trained":
        return trained_plan
    if request.param == "two matmuls":
        shapes = (array(BATCH, WIDTH), array(WIDTH, WIDTH), array(WIDTH, WIDTH))
        return plan_of(lambda x, a, b: jnp.sort(x @ a, axis=0) @ b, *shapes)
    return plan_of(lambda x: x, array(BATCH))


@pytest.fixture
def told() -> Plan:
    """A plan with one of everything, written by hand: a report of it does not change with the planner."""
    dot = f"{MODEL}:10:8 (block)"
    loss = f"{MODEL}:21:4 (loss.<locals>.<lambda>)"
    update = f"{STEP}:7:11 (train_step.<locals>.<lambda>)"

    def cost(primitive: str, source: str, spec: Any, compute: float, communication: float, trips: float = 1) -> OpCost:
        return OpCost(
            name=f"{primitive} at {source}", primitive=primitive, source=source, spec=spec, trips=trips,
            compute_seconds=compute * US, communication_seconds=communication * US,
        )  # fmt: skip

    def moved(kind: str, axes: Any, kib: float, us: float, trips: float, value: str, source: str, role: Any) -> Any:
        return PlannedCollective(
            kind=kind, axes=axes, wire_bytes=kib * KIB, seconds=us * US, trips=trips, value=value, source=source,
            role=role,
        )  # fmt: skip

    def leaf(name: str, shape: Any, spec: Any, kib: float, donated: bool = True, route: Route | None = None) -> Leaf:
        return Leaf(
            name=name, shape=shape, dtype="float32", spec=spec, shard_bytes=kib * KIB, donated=donated, route=route
        )

    rows, columns = (("x",), ()), ((), ("x", "y"))
    leaves = [
        *(leaf(f"state['{part}']['layers'][{n}].w", (64, 64), rows, 4) for part in ("mu", "nu") for n in range(3)),
        *(leaf(f"state['params']['layers'][{n}].w", (64, 64), columns, 2) for n in range(3)),
        leaf("state['params'].bias", (64,), ((),), 0.25),
        leaf("state['mu'].bias", (64,), ((),), 0.25),
        leaf("state['nu'].bias", (64,), ((),), 0.25),
    ]
    batch = leaf("batch", (512, 64), (("x", "y"), ()), 16, donated=False)
    results = [leaf("result[0]" + item.name[5:], item.shape, item.spec, 1, False) for item in leaves]
    results += [leaf("result[1]['loss']", (), (), 4 / KIB, False), leaf("result[1]['out']", (512, 64), rows, 32, False)]
    return Plan(
        version=PLAN_VERSION,
        function="train_step",
        fingerprint="",
        mesh=MeshModel.uniform(SIZES, bytes_per_s=1e9, latency_s=0.0),
        memory_budget_bytes=100 * KIB,
        arguments=(*leaves, batch),
        results=tuple(results),
        decisions=(),
        collectives=(
            moved("all-gather", ("x",), 12, 4, 3, "state['params']['layers'][0].w", dot, "resharding"),
            moved("all-gather", ("x",), 12, 4, 3, f"tanh at {loss}", dot, "resharding"),
            moved("all-to-all", ("y",), 2, 1, 1, f"sub at {update}", update, "resharding"),
            moved("all-reduce", ("x", "y"), 8, 5, 3, f"dot_general at {dot}", dot, "reduction"),
        ),
        costs=(
            cost("dot_general", dot, (("x", "y"), ()), 20, 15, trips=3),
            cost("dot_general", dot, (("x", "y"), ()), 20, 0, trips=3),
            cost("scan_xs", loss, ((), ("x", "y")), 3, 0, trips=3),
            cost("sub", update, rows, 6, 0),
            cost("argument", "", (), 0, 0),
        ),
        predicted=Totals(
            compute_seconds=49 * US, reduction_seconds=15 * US, resharding_seconds=25 * US,
            wire_bytes=(36 + 36 + 2 + 24) * KIB, peak_memory_bytes=80 * KIB, flops=3.2e6,
        ),
        solver=SolverSummary(
            status="feasible", cost_seconds=89 * US, bound_seconds=85 * US, gap=4 / 89,
            seconds={"build": 0.4, "ilp": 60.0}, message="stopped at the time limit",
        ),
        unruled=(f"fancy_op (replicated) at {loss}",),
        notes=("while loops are taken to run 16 times",),
    )  # fmt: skip


@pytest.fixture
def baselines() -> dict[str, Totals]:
    whole = Totals(
        compute_seconds=400 * US, reduction_seconds=0.0, resharding_seconds=0.0, wire_bytes=0.0,
        peak_memory_bytes=640 * KIB, flops=25.6e6,
    )  # fmt: skip
    split = whole.model_copy(update={"compute_seconds": 60 * US, "reduction_seconds": 90 * US, "flops": 3.2e6})
    return {"replicated": whole, "data parallel": split}


def close(actual: float, expected: float) -> bool:
    return math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-15)


def test_parts_add_up_to_the_totals(plan: Plan) -> None:
    report, totals = build_report(plan), plan.predicted
    assert close(sum(row.compute_seconds for row in report.operations), totals.compute_seconds)
    assert close(sum(row.reduction_seconds for row in report.operations), totals.reduction_seconds)
    assert close(sum(row.seconds for row in report.reshardings), totals.resharding_seconds)
    assert close(sum(row.seconds for row in report.functions), totals.step_seconds)
    assert close(sum(row.seconds for row in report.collectives), totals.communication_seconds)
    assert close(sum(row.wire_bytes for row in report.collectives), totals.wire_bytes)
    moved = [row.wire_bytes for row in report.collectives if row.role == "resharding"]
    assert close(sum(row.wire_bytes for row in report.reshardings), sum(moved))


def test_the_trained_plan_has_something_of_every_kind(trained_plan: Plan) -> None:
    report = build_report(trained_plan)
    assert report.operations and report.reshardings and report.collectives and len(report.functions) > 1
    assert max(row.executions for row in report.operations) >= LAYERS
    assert any(row.reduction_seconds for row in report.operations)


def test_every_leaf_is_told_once_with_its_sharding(plan: Plan) -> None:
    report = build_report(plan)
    for leaves, groups in ((plan.arguments, report.arguments), (plan.results, report.results)):
        assert sorted(path for group in groups for path in group.paths) == sorted(leaf.name for leaf in leaves)
        assert close(sum(g.shard_bytes for g in groups), sum(leaf.shard_bytes for leaf in leaves))
    specs = {leaf.name: leaf.spec for leaf in plan.arguments}
    for group in report.arguments:
        assert len({specs[path] for path in group.paths if any(specs[path])}) <= 1


def test_it_is_json_that_comes_back_equal(told: Plan, baselines: dict[str, Totals]) -> None:
    report = build_report(told, baselines=baselines)
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_equal_operations_of_a_line_are_one_row(told: Plan) -> None:
    first, *others = build_report(told).operations
    assert (first.operation, first.place.line, first.place.function) == ("dot_general", 10, "block")
    assert (first.operations, first.executions) == (2, 6)
    assert close(first.compute_seconds, 40 * US) and close(first.reduction_seconds, 15 * US)
    assert [row.operation for row in others] == ["sub", "slice per iteration"]


def test_a_move_says_what_and_for_whom(told: Plan) -> None:
    value, argument, update = build_report(told).reshardings
    assert (pattern_text(argument.arguments), argument.made_at) == ("state['params']['layers'][0].w", None)
    assert value.made_at is not None
    assert (value.value, value.made_at.function, value.needed_at.function) == ("tanh", "loss", "block")
    assert close(value.wire_bytes, 3 * 12 * KIB) and close(value.seconds, 3 * 4 * US)
    assert update.made_at == update.needed_at == place_of(f"{STEP}:7 (train_step)")


def test_moves_of_arguments_that_differ_in_nothing_else_are_one_row(told: Plan) -> None:
    first, *others = told.collectives
    again = first.model_copy(update={"value": "state['params']['layers'][1].w", "wire_bytes": 20.0 * KIB})
    row = build_report(told.model_copy(update={"collectives": (first, again, *others)})).reshardings[0]
    assert (pattern_text(row.arguments), row.executions) == ("state['params']['layers'][0-1].w", 6)
    assert close(row.wire_bytes, 3 * (12 + 20) * KIB)


def test_results_are_told_as_the_argument_they_are_fed_back_to(told: Plan) -> None:
    state, loss, out = build_report(told).results
    assert (state.argument, len(state.paths), state.pattern) == ("state", 12, (("result[0]",),))
    assert (loss.argument, out.argument, out.sharding) == ("", "", "[x, -]")


def test_the_text_is_as_reviewed(told: Plan, baselines: dict[str, Totals], golden: Callable[[str, str], None]) -> None:
    golden("report.txt", render_text(build_report(told, baselines=baselines), width=100) + "\n")


def test_the_html_is_as_reviewed(told: Plan, baselines: dict[str, Totals], golden: Callable[[str, str], None]) -> None:
    page = render_html(build_report(told, baselines=baselines))
    golden("report.html", page.replace("<details", "\n<details").replace("<tr>", "\n<tr>") + "\n")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_wider_than_asked_for(plan: Plan, told: Plan, width: int) -> None:
    lines = [line for each in (plan, told) for line in build_report(each).text(width=width).splitlines()]
    assert not [line for line in lines if len(line) > width]


def test_a_budget_that_a_baseline_breaks_is_marked(told: Plan, baselines: dict[str, Totals]) -> None:
    line = next(t for t in str(build_report(told, baselines=baselines)).splitlines() if "peak memory  " in t)
    assert line.split("  ")[-1] == "640.0 KiB !" and line.count("!") == 2
    free = told.model_copy(update={"memory_budget_bytes": None})
    assert "!" not in str(build_report(free, baselines=baselines)) and "no budget" in str(build_report(free))


def test_a_fallback_is_called_one(told: Plan) -> None:
    solver = told.solver.model_copy(update={"status": "replicated", "message": "no plan (out of time)"})
    text = str(build_report(told.model_copy(update={"solver": solver})))
    assert "fallback: no plan (out of time)" in text and ", bound " not in text


def test_a_fallback_without_a_bound_comes_back_from_json(tmp_path: Path) -> None:
    shapes = (array(BATCH, WIDTH), array(WIDTH, WIDTH))
    fallback = plan_of(lambda x, w: x @ w, *shapes, memory_budget=64, on_failure="replicate")
    assert fallback.solver.status == "replicated" and math.isinf(fallback.solver.gap)
    fallback.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").model_dump() == fallback.model_dump()
    report = build_report(fallback)
    assert Report.model_validate_json(report.model_dump_json()) == report
    assert f"fallback: {fallback.solver.message}"[:50] in str(report)
    assert "budget 64 B (exceeded)" in str(report)


class Tags(html.parser.HTMLParser):
    """Raises where a closing tag does not belong to the innermost open one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_html_is_well_formed_and_hides_nothing_of_the_program_in_tags(told: Plan) -> None:
    named = told.model_copy(update={"function": "<script>alert(1)</script>"})
    page = Tags()
    page.feed(named._repr_html_())
    assert not page.open
    assert any("<script>" in text for text in page.text) and "<script>" not in named._repr_html_()


def test_a_plan_reports_with_its_baselines(trained_plan: Plan) -> None:
    report = trained_plan.report()
    assert list(report.baselines) == ["replicated", "data parallel", "fully sharded"]
    held = [totals.peak_memory_bytes for totals in report.baselines.values()]
    assert held[2] < held[1] < held[0]
    assert report.baselines["replicated"].wire_bytes == 0
    assert report.baselines["replicated"].flops > 4 * report.totals.flops
    assert trained_plan.report(baselines=False).baselines == {}
    assert len(repr(report)) < 100


def test_a_place_without_line_is_empty() -> None:
    assert place_of("").line == place_of("somewhere").line == 0
    assert place_of("/a b/c.py:3:1 (f.<locals>.<genexpr>)").function == "f"
    assert place_of("/a/c.py:3").function == place_of("/a/c.py:3:1 (<module>)").function == ""


def test_times_keep_three_digits() -> None:
    texts = [seconds_text(s) for s in (9.994e-6, 9.996e-6, 99.96e-6, 999.4e-6, 999.6e-6, 0.9996, 12345.0)]
    assert texts == ["9.99 us", "10.0 us", "100 us", "999 us", "1.00 ms", "1.00 s", "12,345 s"]
