"""Sums that have not been taken yet: where they may end, and what that costs."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.costs import MeshModel, ShardingSpec, all_reduce, plan_resharding, reduce_scatter, reshard_table
from tests.costs.specs import all_specs, unit_mesh

MESH = unit_mesh(x=4, y=2)
SHAPE, ITEMSIZE = (16, 16), 4
NBYTES = math.prod(SHAPE) * ITEMSIZE


def plan_seconds(source: ShardingSpec, target: ShardingSpec, mesh: MeshModel = MESH) -> float:
    return plan_resharding(source, target, SHAPE, ITEMSIZE, mesh).seconds


def test_a_sum_ends_in_an_all_reduce() -> None:
    plan = plan_resharding(
        ShardingSpec.of("x", None, partial=("y",)), ShardingSpec.of("x", None), SHAPE, ITEMSIZE, MESH
    )
    assert [(step.kind, step.axes) for step in plan.steps] == [("all-reduce", ("y",))]
    assert plan.seconds == all_reduce(NBYTES / 4, ("y",), MESH).seconds
    assert plan.extra_bytes == 0


def test_a_sum_ends_in_a_reduce_scatter() -> None:
    plan = plan_resharding(ShardingSpec.of("x", None, partial=("y",)), ShardingSpec.of("x", "y"), SHAPE, ITEMSIZE, MESH)
    assert [(step.kind, step.axes, step.dims) for step in plan.steps] == [("reduce-scatter", ("y",), (1,))]
    assert plan.wire_bytes == NBYTES / 4 * 1 / 2
    assert plan.constraints == (ShardingSpec.of("x", "y"),)


def test_one_sum_may_be_scattered_and_another_all_reduced() -> None:
    plan = plan_resharding(ShardingSpec.of(None, None, partial=("x", "y")), ShardingSpec.of("x", None), SHAPE, 4, MESH)
    assert [(step.kind, step.axes) for step in plan.steps] == [("reduce-scatter", ("x",)), ("all-reduce", ("y",))]
    scattered = reduce_scatter(NBYTES, ("x",), MESH).seconds
    assert plan.seconds == scattered + all_reduce(NBYTES / 4, ("y",), MESH).seconds


def test_a_sum_may_stay_open() -> None:
    open_sum = ShardingSpec.of("x", None, partial=("y",))
    assert plan_resharding(open_sum, open_sum, SHAPE, ITEMSIZE, MESH).steps == ()
    both = ShardingSpec.of(None, None, partial=("x", "y"))
    plan = plan_resharding(both, ShardingSpec.of("x", None, partial=("y",)), SHAPE, ITEMSIZE, MESH)
    assert [(step.kind, step.axes) for step in plan.steps] == [("reduce-scatter", ("x",))]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (ShardingSpec.of("x", None), ShardingSpec.of("x", None, partial=("y",))),
        (ShardingSpec.of(None, None, partial=("x",)), ShardingSpec.of(None, None, partial=("y",))),
        (ShardingSpec.of("x", None, partial=("y",)), ShardingSpec.of(None, "x", partial=("y",))),
    ],
)
def test_nothing_becomes_a_sum_or_moves_as_one(source: ShardingSpec, target: ShardingSpec) -> None:
    plan = plan_resharding(source, target, SHAPE, ITEMSIZE, MESH)
    assert not plan.possible and math.isinf(plan.seconds) and plan.steps == ()


def test_tables_agree_with_plans() -> None:
    every = all_specs(("x", "y"), 2)
    open_sums = [
        ShardingSpec.of(*spec.dims, partial=partial)
        for spec in every
        for partial in (("x",), ("y",), ("x", "y"))
        if not set(partial) & set(spec.axes)
    ]
    specs = [*every, *open_sums]
    table = reshard_table(specs, specs, SHAPE, ITEMSIZE, MESH)
    for i, source in enumerate(specs):
        for j, target in enumerate(specs):
            plan = plan_resharding(source, target, SHAPE, ITEMSIZE, MESH)
            assert (plan.seconds, plan.wire_bytes, plan.extra_bytes) == (
                table.seconds[i, j],
                table.wire_bytes[i, j],
                table.extra_bytes[i, j],
            )
    possible = [[set(target.partial) <= set(source.partial) for target in every] for source in open_sums]
    assert np.isfinite(table.seconds[len(every) :, : len(every)])[np.array(possible)].all()


def test_every_order_of_reductions_is_tried() -> None:
    """Against a plain walk over all ways to take two sums, one axis or both at a time, scattered or not."""
    mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1e6, latency_s=1e-4)
    source = ShardingSpec.of(None, None, partial=("x", "y"))
    for target in all_specs(("x", "y"), 2):
        assert plan_seconds(source, target, mesh) == pytest.approx(_walked(source, target, mesh), rel=1e-9)


def _walked(spec: ShardingSpec, target: ShardingSpec, mesh: MeshModel) -> float:
    if not spec.partial:
        return plan_seconds(spec, target, mesh)
    held = spec.shard_bytes(SHAPE, ITEMSIZE, mesh)
    ways = []
    for axes in {(axis,) for axis in spec.partial} | {spec.partial}:
        left = tuple(axis for axis in spec.partial if axis not in axes)
        summed = ShardingSpec.of(*spec.dims, partial=left)
        ways.append(all_reduce(held, axes, mesh).seconds + _walked(summed, target, mesh))
        for order in permutations(axes):
            for i in range(2):
                dims = [(*dim, *order) if i == j else dim for j, dim in enumerate(spec.dims)]
                scattered = ShardingSpec.of(*dims, partial=left)
                ways.append(reduce_scatter(held, axes, mesh).seconds + _walked(scattered, target, mesh))
    return min(ways)


def test_a_detour_before_the_sum_is_never_cheaper() -> None:
    source = ShardingSpec.of(None, None, partial=("y",))
    for stop in all_specs(("x", "y"), 2):
        for target in all_specs(("x", "y"), 2):
            assert plan_seconds(source, target) <= plan_seconds(source, stop) + plan_seconds(stop, target)


def test_on_tpu_sums_are_scattered_axis_by_axis() -> None:
    """One reduce-scatter for each axis, the major one first: as many bytes as one over both, which would not run."""
    mesh = MeshModel.preset("tpu-v5e", {"x": 4, "y": 4})
    for order in (("x", "y"), ("y", "x")):
        target = ShardingSpec.of(order, None)
        plan = plan_resharding(ShardingSpec.of(None, None, partial=("x", "y")), target, (4096, 512), ITEMSIZE, mesh)
        assert [(step.kind, step.axes) for step in plan.steps] == [("reduce-scatter", (axis,)) for axis in order]
        assert plan.wire_bytes == 4096 * 512 * ITEMSIZE * 15 / 16


def test_on_tpu_sums_over_a_square_or_cubic_slice_are_scattered_axis_by_axis() -> None:
    """One collective over all of it would be compiled to an all-reduce."""
    for name, sizes, axes, steps in [
        ("tpu-v5e", {"x": 4, "y": 4}, ("x", "y"), ("x", "y")),
        ("tpu-v5e", {"x": 4, "y": 4}, ("y", "x"), ("y", "x")),
        ("tpu-v5e", {"x": 4, "y": 2}, ("x", "y"), None),
        ("tpu-v5e", {"x": 8, "y": 4}, ("x", "y"), None),
        ("tpu-v5e", {"x": 4, "y": 4}, ("x",), None),
        ("tpu-v5e", {"x": 2, "y": 2, "z": 4}, ("x", "y"), None),
        ("tpu-v5e", {"x": 2, "y": 2, "z": 4}, ("z", "x", "y"), ("z", "x", "y")),
        ("tpu-v5e", {"x": 16}, ("x",), ("x:(1)4", "x:(4)4")),
        ("tpu-v5e", {"x": 1, "y": 256}, ("x", "y"), ("y:(1)16", "y:(16)16")),
        ("tpu-v5e", {"x": 8}, ("x",), None),
        ("tpu-v5p", {"x": 2, "y": 2, "z": 2}, ("x", "y", "z"), ("x", "y", "z")),
        ("tpu-v5p", {"x": 4, "y": 2}, ("y", "x"), ("y", "x")),
        ("cpu-virtual", {"x": 4, "y": 4}, ("x", "y"), None),
        ("cpu-virtual", {"x": 16}, ("x",), None),
    ]:
        expected = (axes,) if steps is None else tuple((step,) for step in steps)
        assert MeshModel.preset(name, sizes).scatter_steps(axes) == expected, (name, sizes, axes)


@given(
    sizes=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3), chip=st.sampled_from(["tpu-v5e", "tpu-v5p"])
)
def test_scattering_step_by_step_sends_as_much_as_at_once(sizes: list[int], chip: str) -> None:
    mesh = MeshModel.preset(chip, dict(zip("xyz", sizes)))
    left, sent = 1e6, 0.0
    for step in mesh.scatter_steps(mesh.axis_names):
        sent += reduce_scatter(left, step, mesh).wire_bytes
        left /= math.prod(map(mesh.size, step))
    assert left == pytest.approx(1e6 / mesh.num_devices)
    assert sent == pytest.approx(reduce_scatter(1e6, mesh.axis_names, mesh).wire_bytes)
