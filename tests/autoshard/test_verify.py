"""Plans compared with compiled programs: agreement, every kind of disagreement, and how it is told."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.hlo import MemoryUsage, memory, optimized_hlo
from autoshard.verify import (
    PredictedCollective,
    Verification,
    compare,
    unhonoured_outputs,
    verify_lowered,
)

P = PartitionSpec
X, Y = 4, 2
MESH_AXES = {"x": X, "y": Y}
ROWS, WIDTH, LAYERS, F32 = 64, 128, 3, 4
GATHERED = 1 + [line.endswith("# here") for line in Path(__file__).read_text().splitlines()].index(True)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(X, Y), tuple(MESH_AXES))


@pytest.fixture(scope="module")
def lowered(mesh: Mesh) -> jax.stages.Lowered:
    """Layers whose weights are split over their columns and gathered for use."""
    on_x, by_column = NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P(None, None, "y"))

    def fn(x: jax.Array, weights: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            for spec in (P(None, "y"), P(None, None)):
                w = jax.lax.with_sharding_constraint(w, NamedSharding(mesh, spec))  # here
            return jax.lax.with_sharding_constraint(jnp.tanh(x @ w), on_x), None

        return jax.lax.scan(layer, x, weights)[0]

    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    weights = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    return jax.jit(fn, in_shardings=(on_x, by_column), out_shardings=on_x).lower(x, weights)


def gathers(**changes: Any) -> PredictedCollective:
    """The plan for it: one layer's weights gathered over y per trip."""
    plan: dict[str, Any] = {
        "kind": "all-gather",
        "axes": ("y",),
        "wire_bytes": WIDTH * WIDTH * F32 * (Y - 1) / Y,
        "trips": LAYERS,
        "source": f"{__file__}:{GATHERED}:16 (layer)",
    }
    return PredictedCollective(**{**plan, **changes})


def checked(lowered: jax.stages.Lowered, *predicted: PredictedCollective, **options: Any) -> Verification:
    return compare(predicted, optimized_hlo(lowered.compile()), MESH_AXES, **options)


def test_what_is_planned_is_what_runs(lowered: jax.stages.Lowered) -> None:
    compiled = memory(lowered.compile())
    found = verify_lowered([gathers()], lowered, MESH_AXES, predicted_peak_memory_bytes=compiled.total)
    assert found.ok, str(found)
    assert found.wire_bytes_error == 0
    assert found.memory_error == 0
    (row,) = found.rows
    assert (row.kind, row.axes, row.predicted_executions, row.compiled_executions) == ("all-gather", ("y",), 3, 3)
    assert found.compiled_wire_bytes == LAYERS * WIDTH * WIDTH * F32 / 2
    assert found.compiled_flops == LAYERS * 2 * (ROWS // X) * WIDTH * WIDTH


def test_lines_are_compared_whatever_stands_behind_them(lowered: jax.stages.Lowered) -> None:
    found = checked(lowered, gathers())
    (row,) = found.sources
    assert row.predicted_wire_bytes == row.compiled_wire_bytes == found.compiled_wire_bytes
    assert row.source == f"{__file__}:{GATHERED}"


def test_wrong_bytes_are_told_with_their_size(lowered: jax.stages.Lowered) -> None:
    found = checked(lowered, gathers(trips=1))
    assert not found.ok
    assert found.wire_bytes_error == pytest.approx(1 / LAYERS - 1)
    assert found.problems == ("bytes sent are off by -66.7 %",)
    assert checked(lowered, gathers(trips=1), wire_tolerance=0.7).ok


def test_other_axes_and_kinds_are_unplanned_and_missing(lowered: jax.stages.Lowered) -> None:
    found = checked(lowered, gathers(axes=("x",)))
    assert [(row.kind, row.axes) for row in found.unplanned] == [("all-gather", ("y",))]
    assert [(row.kind, row.axes) for row in found.missing] == [("all-gather", ("x",))]
    assert found.wire_bytes_error == 0
    assert found.problems == (
        "unplanned: all-gather over y: 0 B planned, 96.0 KiB compiled",
        "missing: all-gather over x: 96.0 KiB planned, 0 B compiled",
    )


def test_negligible_collectives_do_not_matter(lowered: jax.stages.Lowered) -> None:
    loss = PredictedCollective(kind="all-reduce", axes=("x", "y"), wire_bytes=7.0)
    found = checked(lowered, gathers(), loss)
    assert found.ok
    assert len(found.rows) == 2


def test_order_of_axes_and_short_names_do_not_matter(mesh: Mesh) -> None:
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    before, after = (NamedSharding(mesh, P(axes, None)) for axes in (("x", "y"), ("y", "x")))
    lowered = jax.jit(jnp.sin, in_shardings=before, out_shardings=after).lower(x)
    move = PredictedCollective(kind="permute", axes=("y", "x"), wire_bytes=ROWS * WIDTH * F32 / (X * Y))
    assert checked(lowered, move).ok


def test_nothing_planned_and_something_compiled_is_infinitely_wrong(lowered: jax.stages.Lowered) -> None:
    nothing = checked(lowered)
    assert nothing.wire_bytes_error == -1
    program = optimized_hlo(jax.jit(jnp.sin).lower(1.0).compile())
    too_much = compare([gathers()], program, MESH_AXES)
    assert too_much.wire_bytes_error == float("inf")
    assert json.loads(too_much.to_json())["wire_bytes_error"] is None


@pytest.mark.parametrize(("predicted", "ok"), [(1000, True), (1300, False), (700, False), (None, True)])
def test_peak_memory_is_compared_where_it_is_planned(
    lowered: jax.stages.Lowered, predicted: float | None, ok: bool
) -> None:
    """In MiB; of a program four thousand times as small it does not matter."""
    for unit, matters in ((2**20, True), (2**8, False)):
        used = MemoryUsage(arguments=500 * unit, outputs=300 * unit, aliases=200 * unit, temporaries=400 * unit)
        peak = None if predicted is None else predicted * unit
        found = checked(lowered, gathers(), compiled_memory=used, predicted_peak_memory_bytes=peak)
        assert found.memory_error == (None if predicted is None else (predicted - 1000) / 1000)
        assert found.ok == (ok or not matters)


def test_full_rematerializations_fail_the_plan(mesh: Mesh) -> None:
    cube = jax.ShapeDtypeStruct((16, 16, 16), jnp.float32)

    def fn(x: jax.Array) -> jax.Array:
        for spec in (P("y", None, "x"), P(None, ("x", "y"), None)):
            x = jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, spec))
        return jnp.cos(x)

    found = verify_lowered([], jax.jit(fn).lower(cube), MESH_AXES)
    (message,) = found.rematerializations
    assert not found.ok
    assert f"full rematerialization: {message}" in found.problems
    assert message.source.startswith(f"{__file__}:")


def test_a_result_that_is_not_split_as_asked_is_told(mesh: Mesh) -> None:
    split, other = NamedSharding(mesh, P("x")), NamedSharding(mesh, P("y"))
    lowered = jax.jit(lambda x: {"a": x, "b": x}, in_shardings=split, out_shardings=split).lower(jnp.zeros(8))
    asked = {"a": split, "b": other}
    found = unhonoured_outputs(lowered, lowered.compile(), asked)
    assert [(one.path, one.expected, one.compiled) for one in found] == [("result['b']", str(P("y")), str(P("x")))]
    assert unhonoured_outputs(lowered, lowered.compile(), {"a": split, "b": None}) == ()
    assert not verify_lowered([], lowered, MESH_AXES, out_shardings=asked).ok


def test_loops_of_unknown_length_are_noted(mesh: Mesh) -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: x[0, 0] < 10.0, lambda x: jnp.sin(x @ w), x)

    square = jax.ShapeDtypeStruct((ROWS, ROWS), jnp.float32)
    shardings = (NamedSharding(mesh, P("y", "x")), NamedSharding(mesh, P("x", None)))
    lowered = jax.jit(fn, in_shardings=shardings).lower(square, square)
    found = verify_lowered([], lowered, MESH_AXES)
    often = verify_lowered([], lowered, MESH_AXES, assumed_trips=10)
    assert found.unknown_trips > 0
    assert often.compiled_wire_bytes > 9 * found.compiled_wire_bytes
    assert often.compiled_flops == 10 * found.compiled_flops
    assert "run in loops whose trips are not known but assumed" in str(found)


def test_the_text_says_all_at_a_glance(lowered: jax.stages.Lowered) -> None:
    used = MemoryUsage(arguments=2**20, outputs=2**19, aliases=0, temporaries=2**19)
    plan = gathers(axes=("x",), trips=6, source="model.py:3")
    found = checked(lowered, plan, compiled_memory=used, predicted_peak_memory_bytes=2**21)
    line = found.sources[1].source
    width = len(line)
    assert str(found) == "\n".join(
        [
            "NOT as planned: sent per device and call 192.0 KiB planned, 96.0 KiB compiled (+100.0 %); "
            "peak memory 2.0 MiB planned, 2.0 MiB compiled (+0.0 %)",
            "",
            "collective  axes  planned  compiled  planned bytes  compiled bytes",
            "all-gather     x        6         0      192.0 KiB             0 B",
            "all-gather     y        0         3            0 B        96.0 KiB",
            "",
            f"{'source'.ljust(width)}  planned bytes  compiled bytes",
            f"{'model.py:3'.ljust(width)}      192.0 KiB             0 B",
            f"{line}            0 B        96.0 KiB",
            "",
            "- bytes sent are off by +100.0 %",
            "- unplanned: all-gather over y: 0 B planned, 96.0 KiB compiled",
            "- missing: all-gather over x: 192.0 KiB planned, 0 B compiled",
        ]
    )


def test_json_holds_verdict_totals_and_rows(lowered: jax.stages.Lowered) -> None:
    found = checked(lowered, gathers())
    data = json.loads(found.to_json())
    assert data["ok"] is True
    assert data["compiled_wire_bytes"] == found.compiled_wire_bytes
    assert data["rows"][0]["axes"] == ["y"]


def test_notebooks_show_tables(lowered: jax.stages.Lowered) -> None:
    found = checked(lowered, gathers(axes=("<x>",)))
    page = found._repr_html_()
    assert page.count("<table>") == 2
    assert "&lt;x&gt;" in page
    assert "<x>" not in page
