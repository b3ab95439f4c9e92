"""Plans that name parts of axes: on meshes with axes of several sizes they save what no other way does."""

import subprocess
import sys

import pytest

from autoshard.costs import MeshModel, ReshardingPlan, ShardingSpec, plan_resharding, refined_axes, refined_spec
from tests.costs.specs import all_specs, unit_mesh
from tests.helpers import ROOT

MESH = unit_mesh(x=6, y=4)
SHAPE = (48, 48)


def plan_pair(
    source: ShardingSpec, target: ShardingSpec, shape: tuple[int, ...] = SHAPE, mesh: MeshModel = MESH
) -> tuple[ReshardingPlan, ReshardingPlan]:
    """The plan over whole axes, and the one that may cut them."""
    return (
        plan_resharding(source, target, shape, 4, mesh),
        plan_resharding(source, target, shape, 4, mesh, sub_axes=True),
    )


def test_cutting_axes_never_costs_more_and_sometimes_less() -> None:
    specs = all_specs(("x", "y"), 2)
    pairs = [plan_pair(source, target) for source in specs for target in specs]
    assert all(cut.seconds <= whole.seconds for whole, cut in pairs)
    assert sum(cut.seconds < whole.seconds for whole, cut in pairs) >= 10


def test_a_plan_that_cuts_axes_adds_up() -> None:
    specs = all_specs(("x", "y"), 2)
    for source in specs:
        for target in specs:
            _, plan = plan_pair(source, target)
            assert plan.seconds == pytest.approx(sum(step.seconds for step in plan.steps))
            assert plan.wire_bytes == pytest.approx(sum(step.wire_bytes for step in plan.steps))
            assert plan.constraints[-1:] == ((target,) if source != target else ())
            held = [spec.shard_bytes(SHAPE, 4, MESH) for spec in (source, *(step.spec for step in plan.steps))]
            assert plan.extra_bytes == max(held) - held[0]


def test_axes_of_one_size_need_no_cutting() -> None:
    mesh = unit_mesh(x=4, y=4)
    specs = all_specs(("x", "y"), 2)
    for source in specs:
        for target in specs:
            whole, cut = plan_pair(source, target, mesh=mesh)
            assert whole == cut


def test_uneven_dimensions_are_not_cut() -> None:
    for source in all_specs(("x", "y"), 2)[::3]:
        for target in all_specs(("x", "y"), 2)[::3]:
            whole, cut = plan_pair(source, target, shape=(35, 33))
            assert cut.seconds <= whole.seconds


def test_refined_axes_are_cut_where_specs_cut_them() -> None:
    sizes = {"x": 8, "y": 4, "z": 2}
    specs = [ShardingSpec.of("x:(1)2", "y"), ShardingSpec.of(("z", "x:(4)2"), None)]
    axes = refined_axes(specs, sizes)
    assert axes == {"x:(1)2": 2, "x:(2)2": 2, "x:(4)2": 2, "y": 4, "z": 2}
    assert refined_spec(specs[1], axes, sizes) == ShardingSpec.of(("z", "x:(4)2"), None)
    assert refined_spec(ShardingSpec.of("x", "y"), axes, sizes).dims == (("x:(1)2", "x:(2)2", "x:(4)2"), ("y",))
    assert refined_spec(ShardingSpec.of("x:(2)4"), axes, sizes).dims == (("x:(2)2", "x:(4)2"),)
    assert refined_axes([ShardingSpec.of("x", "y")], sizes) == sizes


COMPILED = """
import random, sys
sys.path.insert(0, {root!r})
from autoshard.costs import plan_resharding
from tests.costs.compiled import compile_chains, jax_mesh, Chain
from tests.costs.specs import all_specs, unit_mesh
sizes, shape = {{"x": 6, "y": 4}}, (48, 48)
mesh, specs = unit_mesh(**sizes), all_specs(("x", "y"), 2)
plans = [plan_resharding(s, t, shape, 4, mesh, sub_axes=True) for s in specs for t in specs]
cut = [plan for plan in plans if any(":" in axis for spec in plan.constraints for axis in spec.axes)]
chosen = random.Random(0).sample(cut, 6)
outcome = compile_chains([Chain(plan.source, plan.constraints, shape) for plan in chosen], jax_mesh(sizes))
print(sum(plan.wire_bytes for plan in chosen), outcome.total_wire_bytes, outcome.rematerializations)
"""


def test_xla_does_what_a_plan_that_cuts_axes_says() -> None:
    """On 24 devices, whose mesh is cut for the constraints in between."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED.format(root=str(ROOT))],
        env={"XLA_FLAGS": "--xla_force_host_platform_device_count=24", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    planned, moved, rematerializations = map(float, done.stdout.split())
    assert planned > 0 and moved <= planned * 1.05 and rematerializations == 0
