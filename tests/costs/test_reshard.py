"""The resharding planner: published cases, an exhaustive search beside it, and what must hold for all of it."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from autoshard.costs import (
    MeshModel,
    ReshardingPlan,
    ShardingSpec,
    all_gather,
    all_to_all,
    collective_permute,
    communication_resharding_cost_vector,
    memory_cost,
    memory_resharding_cost_vector,
    plan_resharding,
    reshard_table,
)
from tests.costs.specs import all_specs, best_ranks, fewest_bytes, published_pairs, unit_mesh

MESH = unit_mesh(x=4, y=2)


def test_two_all_to_alls_instead_of_full_rematerialization() -> None:
    source, target = ShardingSpec.of("y", None, "x"), ShardingSpec.of(None, ("x", "y"), None)
    move = plan_resharding(source, target, (16, 16, 16), 4, MESH)
    shard_bytes = 16 * 16 * 16 * 4 // 8
    assert [step.kind for step in move.steps] == ["all-to-all", "all-to-all"]
    assert move.wire_bytes == shard_bytes * 1 / 2 + shard_bytes * 3 / 4
    assert move.extra_bytes == 0
    assert move.constraints[-1] == target and len(move.constraints) == 2


def test_plans_of_a_matrix_read(golden: Callable[[str, str], None]) -> None:
    """Every plan of f32[16,16] on the 4x2 mesh: the steps, with the specs that are constraints, and the bytes."""
    specs = all_specs(("x", "y"), 2)
    lines = [_line(plan_resharding(a, b, (16, 16), 4, MESH)) for a in specs for b in specs if a != b]
    golden("reshard_4x2.txt", "\n".join(lines) + "\n")


def _line(plan: ReshardingPlan) -> str:
    steps = [f"{step.kind} {','.join(step.axes)} {step.spec}" for step in plan.steps]
    return f"{plan.source} -> {plan.target}: {'; '.join(steps)} = {plan.wire_bytes:.0f} B"


class TestPublishedReshape:
    """openxla/xla#12392: f16[32,16,1000,256] split [2,4,1,1] over (x=2, y=4), reshaped to [512,1000,256]."""

    mesh = unit_mesh(x=2, y=4)
    shape = (32, 16, 1000, 256)
    held = ShardingSpec.of("x", "y", None, None)

    def test_required_on_x_only(self) -> None:
        """The merged dimension split by x alone asks the operand to be split by x on its major dimension."""
        required = ShardingSpec.of("x", None, None, None)
        assert memory_cost(required, self.shape, 2, self.mesh) == 131_072_000
        assert communication_resharding_cost_vector([self.held], self.shape, 2, required, self.mesh) == [98_304_000]
        assert memory_resharding_cost_vector([self.held], self.shape, 2, required, self.mesh) == [98_304_000]
        assert communication_resharding_cost_vector([required], self.shape, 2, required, self.mesh) == [0]

    def test_a_merge_of_two_split_dimensions_is_never_free(self) -> None:
        """Both split dimensions merged ask for blocks that are whole in the merged one: all axes on the major one."""
        for order in (("x", "y"), ("y", "x")):
            required = ShardingSpec.of(order, None, None, None)
            assert plan_resharding(self.held, required, self.shape, 2, self.mesh).seconds > 0


def test_no_pair_costs_more_than_the_best_known() -> None:
    planned = [plan_resharding(s, t, (16, 16, 16), 4, MESH).wire_bytes for s, t, _, _ in published_pairs()]
    best = [nbytes for _, _, nbytes, _ in published_pairs()]
    assert len(best) == 342
    assert all(np.array(planned) <= best)


@pytest.mark.parametrize(
    ("sizes", "rank"),
    [({"x": 4}, 3), ({"x": 2, "y": 2}, 3), ({"x": 3, "y": 2}, 2), ({"x": 4, "y": 4}, 2), ({"x": 2, "y": 2, "z": 2}, 2)],
)
def test_an_exhaustive_walk_finds_nothing_cheaper(sizes: dict[str, int], rank: int) -> None:
    mesh, shape = unit_mesh(**sizes), (144,) * rank
    specs = all_specs(tuple(sizes), rank)
    table = reshard_table(specs, specs, shape, 1, mesh)
    for i, source in enumerate(specs):
        best = fewest_bytes(source.dims, tuple(sizes.items()), math.prod(shape))
        assert table.wire_bytes[i] == pytest.approx([float(best[target.dims]) for target in specs])


@pytest.mark.parametrize("cut", [(2, 2), (2, 3), (3, 2)])
def test_a_walk_over_parts_of_axes_finds_nothing_cheaper(cut: tuple[int, int]) -> None:
    """Of two axes one is twice or thrice the other: the search cuts the larger one where that helps."""
    mesh, shape = unit_mesh(x=cut[0] * cut[1], y=2), (144, 144)
    specs = all_specs(("x", "y"), 2)
    table = reshard_table(specs, specs, shape, 1, mesh)
    parts = (("x0", cut[0]), ("x1", cut[1]), ("y", 2))
    walks = [fewest_bytes(_cut(source), parts, math.prod(shape)) for source in specs]
    assert (table.wire_bytes <= [[float(walk[_cut(target)]) for target in specs] for walk in walks]).all()


def test_parts_of_axes_are_worth_it() -> None:
    specs = all_specs(("x", "y"), 2)
    table = reshard_table(specs, specs, (16, 16), 1, MESH)
    walks = [fewest_bytes(source.dims, (("x", 4), ("y", 2)), 16 * 16) for source in specs]
    whole = np.array([[float(walk[target.dims]) for target in specs] for walk in walks])
    assert (table.wire_bytes <= whole).all() and (table.wire_bytes < whole).any()
    swap = plan_resharding(ShardingSpec.of("x", "y"), ShardingSpec.of("y", "x"), (16, 16), 1, MESH)
    assert swap.constraints == (ShardingSpec.of("y", "x"),)
    assert sorted(step.kind for step in swap.steps) == ["all-to-all", "permute"]


@pytest.mark.parametrize("shape", [(16, 16), (4096, 4096)])
def test_ties_in_time_go_to_fewer_bytes_then_to_fewer_steps(shape: tuple[int, int]) -> None:
    """On a torus small messages take as long as their hops, whatever their bytes, so that many ways tie in time."""
    mesh = MeshModel.preset("tpu-v5e", {"x": 4, "y": 4})
    specs = all_specs(("x", "y"), 2)
    for source in specs:
        ranks = best_ranks(source, shape, mesh)
        for target in specs:
            plan = plan_resharding(source, target, shape, 4, mesh)
            seconds, wire_bytes, steps = ranks[target]
            assert plan.seconds == pytest.approx(seconds, rel=1e-9)
            assert (plan.wire_bytes, len(plan.steps)) == (wire_bytes, steps)


def _cut(spec: ShardingSpec) -> tuple[tuple[str, ...], ...]:
    parts = {"x": ("x0", "x1")}
    return tuple(tuple(part for axis in dim for part in parts.get(axis, (axis,))) for dim in spec.dims)


MESHES = {
    "uniform": unit_mesh(x=4, y=2),
    "latency": MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1e9, latency_s=1e-5),
    "torus": MeshModel.preset("tpu-v5e", {"x": 4, "y": 2}),
    "hosts": MeshModel.preset("h100-sxm", {"x": 4, "y": 4}),
    "slices": MeshModel.preset("tpu-v5p", {"x": 2, "y": 4}, slices=2),
    "virtual": MeshModel.preset("cpu-virtual", {"x": 2, "y": 2, "z": 2}),
}
SHAPES = {"even": (64, 64, 64), "uneven": (12, 10, 16), "with one": (1, 48, 64), "tiny": (2, 3, 4), "empty": (0, 8, 8)}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_plans_add_up_and_agree_with_tables(mesh: MeshModel, shape: tuple[int, ...]) -> None:
    specs = all_specs(mesh.axis_names, 3)[::5]
    table = reshard_table(specs, specs, shape, 4, mesh, wire_scale=2.0)
    for i, source in enumerate(specs):
        for j, target in enumerate(specs):
            plan = plan_resharding(source, target, shape, 4, mesh, wire_scale=2.0)
            assert (plan.seconds, plan.wire_bytes, plan.extra_bytes) == (
                table.seconds[i, j],
                table.wire_bytes[i, j],
                table.extra_bytes[i, j],
            )
            assert sum(step.seconds for step in plan.steps) == pytest.approx(plan.seconds)
            assert sum(step.wire_bytes for step in plan.steps) == pytest.approx(plan.wire_bytes)
            assert bool(plan.steps) == (source != target)
            if plan.steps:
                assert plan.steps[-1].spec == plan.constraints[-1] == target
            assert set(plan.constraints) <= {step.spec for step in plan.steps}
            assert all(axis in mesh.sizes for spec in plan.constraints for axis in spec.axes)


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_steps_are_what_they_say(mesh: MeshModel) -> None:
    """Every step, taken by hand: which axes leave which dimension, which arrive, and what that costs."""
    shape, itemsize = (64, 64, 64), 2
    specs = all_specs(mesh.axis_names, 3)[::4]
    for source in specs:
        for target in specs:
            spec = source
            for step in plan_resharding(source, target, shape, itemsize, mesh).steps:
                held, after = (one.shard_bytes(shape, itemsize, mesh) for one in (spec, step.spec))
                moved = math.prod(mesh.size(axis) for axis in step.axes)
                touched = {i for i in range(3) if spec.parts(mesh)[i] != step.spec.parts(mesh)[i]}
                if step.kind == "slice":
                    assert (after * moved, step.seconds, touched) == (held, 0, set(step.dims))
                elif step.kind == "all-gather":
                    assert (after, touched) == (held * moved, set(step.dims))
                    assert step.seconds == all_gather(after, step.axes, mesh).seconds
                elif step.kind == "all-to-all":
                    assert (after, touched) == (held, set(step.dims)) and len(step.dims) == 2
                    assert step.seconds == all_to_all(held, step.axes, mesh).seconds
                else:
                    assert (step.kind, touched) == ("permute", set())
                    assert step.seconds == collective_permute(held, step.axes, mesh).seconds
                spec = step.spec


def test_uneven_dimensions_are_split_anew_only_from_whole() -> None:
    """10 rows in 2 parts pad to 10, in 4 parts to 12: XLA would move far more than the shards on the way."""
    mesh = unit_mesh(x=2, y=2)
    plan = plan_resharding(ShardingSpec.of("x", None), ShardingSpec.of(("x", "y"), None), (10, 8), 4, mesh)
    assert [str(step.spec) for step in plan.steps][-1] == "[(x,y), -]"
    assert ShardingSpec.of(None, None) in plan.constraints or ShardingSpec.of(None, "x") in plan.constraints
    fine = plan_resharding(ShardingSpec.of("x", None), ShardingSpec.of(("x", "y"), None), (12, 8), 4, mesh)
    assert [step.kind for step in fine.steps] == ["slice"]


def test_uneven_gathers_count_the_padding() -> None:
    mesh = unit_mesh(x=4)
    plan = plan_resharding(ShardingSpec.of("x", None), ShardingSpec.of(None, None), (10, 8), 4, mesh)
    padded_rows = 4 * math.ceil(10 / 4)
    assert plan.wire_bytes == padded_rows * 8 * 4 * 3 / 4


def test_axes_that_cut_no_dimension_evenly_still_have_plans() -> None:
    table = reshard_table(specs := all_specs(("x", "y"), 3), specs, (3, 5, 7), 4, MESH)
    assert np.isfinite(table.seconds).all()


def test_a_target_may_name_axes_of_size_1() -> None:
    mesh = unit_mesh(x=4, one=1)
    plan = plan_resharding(ShardingSpec.of("x", None), ShardingSpec.of(None, ("x", "one")), (8, 8), 4, mesh)
    assert plan.constraints == (ShardingSpec.of(None, ("x", "one")),)
    assert plan_resharding(ShardingSpec.of("one"), ShardingSpec.of(None), (8,), 4, mesh).steps == ()


def test_scalars_have_one_spec() -> None:
    assert plan_resharding(ShardingSpec.of(), ShardingSpec.of(), (), 4, MESH).seconds == 0
    assert reshard_table([ShardingSpec.of()], [ShardingSpec.of()], (), 4, MESH).seconds.shape == (1, 1)


def test_mistakes_are_named() -> None:
    spec = ShardingSpec.of("x", None)
    with pytest.raises(ValueError, match=r"\[x, -\] has rank 2, but the tensor has shape \(4, 4, 4\)"):
        plan_resharding(spec, spec, (4, 4, 4), 4, MESH)
    with pytest.raises(ValueError, match="unknown mesh axis 'w': this mesh has axes x, y"):
        plan_resharding(ShardingSpec.of("w", None), spec, (4, 4), 4, MESH)
    with pytest.raises(ValueError, match=r"'x:\(1\)2' is a part of an axis"):
        plan_resharding(ShardingSpec.of("x:(1)2", None), spec, (4, 4), 4, MESH)
