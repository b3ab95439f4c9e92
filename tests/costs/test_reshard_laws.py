"""Laws of resharding costs, on meshes of many kinds."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autoshard.costs import MeshAxis, MeshModel, ShardingSpec, plan_resharding, reshard_table
from autoshard.costs.hardware import UNIT_DEVICE
from autoshard.costs.links import Topology
from tests.costs.specs import all_specs

NAMES = ("x", "y", "z")
RANK = 3
EVEN = 48 * 7


def mesh_of(sizes: tuple[int, ...], topology: Topology, latency_s: float, rates: tuple[float, ...]) -> MeshModel:
    axes = tuple(
        MeshAxis.of(name, size, bytes_per_s=rate, latency_s=latency_s, topology=topology, fabric="ici")
        for name, size, rate in zip(NAMES, sizes, rates)
    )
    return MeshModel(axes=axes, device=UNIT_DEVICE)


# A dozen meshes in all: the tables of a mesh are searched once, whatever hypothesis then asks of them.
meshes = st.sampled_from(
    [
        mesh_of(sizes, topology, latency_s, rates)
        for sizes in ((4,), (4, 2), (2, 2, 2), (3, 2))
        for topology, latency_s, rates in (
            ("switch", 0.0, (1.0, 1.0, 1.0)),
            ("switch", 1e-5, (1e9, 1e8, 1e9)),
            ("ring", 1e-6, (1e9, 1e9, 1e9)),
        )
    ]
)
specs = st.integers(0, 10**6)
even_shapes = st.lists(st.sampled_from((EVEN, 2 * EVEN)), min_size=RANK, max_size=RANK).map(tuple)
shapes = even_shapes | st.lists(st.integers(1, 40), min_size=RANK, max_size=RANK).map(tuple)


def spec_of(number: int, mesh: MeshModel) -> ShardingSpec:
    every = all_specs(mesh.axis_names, RANK)
    return every[number % len(every)]


def seconds(source: ShardingSpec, target: ShardingSpec, shape: tuple[int, ...], mesh: MeshModel) -> float:
    return plan_resharding(source, target, shape, 4, mesh).seconds


@given(meshes, specs, shapes)
def test_staying_is_free(mesh: MeshModel, number: int, shape: tuple[int, ...]) -> None:
    spec = spec_of(number, mesh)
    plan = plan_resharding(spec, spec, shape, 4, mesh)
    assert (plan.steps, plan.constraints, plan.seconds, plan.wire_bytes, plan.extra_bytes) == ((), (), 0, 0, 0)


@given(meshes, specs, specs, shapes)
def test_costs_are_finite_and_never_negative(mesh: MeshModel, a: int, b: int, shape: tuple[int, ...]) -> None:
    plan = plan_resharding(spec_of(a, mesh), spec_of(b, mesh), shape, 4, mesh)
    assert 0 <= plan.seconds < math.inf
    assert 0 <= plan.wire_bytes < math.inf and 0 <= plan.extra_bytes < math.inf


@given(meshes, specs, specs, specs, shapes)
def test_a_detour_is_never_cheaper(mesh: MeshModel, a: int, b: int, c: int, shape: tuple[int, ...]) -> None:
    start, stop, end = (spec_of(number, mesh) for number in (a, b, c))
    direct = seconds(start, end, shape, mesh)
    assert direct <= (seconds(start, stop, shape, mesh) + seconds(stop, end, shape, mesh)) * (1 + 1e-8)


@given(meshes, specs, specs, even_shapes, st.integers(1, 8), st.integers(1, 8))
def test_more_bytes_never_cost_less(
    mesh: MeshModel, a: int, b: int, shape: tuple[int, ...], itemsize: int, more: int
) -> None:
    source, target = spec_of(a, mesh), spec_of(b, mesh)
    small = plan_resharding(source, target, shape, itemsize, mesh).seconds
    large = plan_resharding(source, target, shape, itemsize + more, mesh).seconds
    assert small <= large * (1 + 1e-8)


@given(meshes, specs, specs, shapes)
def test_no_shard_on_the_way_is_larger_than_was_said(mesh: MeshModel, a: int, b: int, shape: tuple[int, ...]) -> None:
    source, target = spec_of(a, mesh), spec_of(b, mesh)
    plan = plan_resharding(source, target, shape, 4, mesh)
    held = source.shard_bytes(shape, 4, mesh)
    assert held + plan.extra_bytes >= max(held, target.shard_bytes(shape, 4, mesh))
    on_the_way = [step.spec.shard_bytes(shape, 4, mesh) for step in plan.steps]
    assert held + plan.extra_bytes == max([held, *on_the_way])


@given(meshes, specs, specs, even_shapes, st.integers(0, RANK - 1))
def test_an_axis_of_size_1_changes_nothing(mesh: MeshModel, a: int, b: int, shape: tuple[int, ...], place: int) -> None:
    source, target = spec_of(a, mesh), spec_of(b, mesh)
    wider = MeshModel(axes=(MeshAxis.of("one", 1, bytes_per_s=1.0, latency_s=1.0), *mesh.axes), device=mesh.device)
    marked = ShardingSpec.of(*(("one", *dim) if i == place else dim for i, dim in enumerate(source.dims)))
    assert plan_resharding(source, target, shape, 4, mesh).seconds == seconds(marked, target, shape, wider)


@given(meshes, specs, specs, even_shapes, st.permutations(NAMES))
def test_equal_axes_can_be_renamed(mesh: MeshModel, a: int, b: int, shape: tuple[int, ...], order: list[str]) -> None:
    new = dict(zip(NAMES, order))
    assume(all(mesh.links(axis) == mesh.links(new[axis]) for axis in mesh.axis_names if new[axis] in mesh.sizes))
    assume({new[axis] for axis in mesh.axis_names} == set(mesh.axis_names))
    source, target = spec_of(a, mesh), spec_of(b, mesh)
    renamed = (ShardingSpec.of(*([new[axis] for axis in dim] for dim in spec.dims)) for spec in (source, target))
    assert seconds(source, target, shape, mesh) == pytest.approx(seconds(*renamed, shape, mesh), rel=1e-9)


@given(meshes, specs, specs, even_shapes, st.permutations(range(RANK)))
def test_dimensions_can_be_transposed(
    mesh: MeshModel, a: int, b: int, shape: tuple[int, ...], order: list[int]
) -> None:
    source, target = spec_of(a, mesh), spec_of(b, mesh)
    turned = [ShardingSpec.of(*(spec.dims[i] for i in order)) for spec in (source, target)]
    turned_shape = tuple(shape[i] for i in order)
    assert seconds(source, target, shape, mesh) == pytest.approx(seconds(*turned, turned_shape, mesh), rel=1e-9)


@given(meshes, specs, specs, shapes)
def test_plans_do_not_depend_on_what_was_asked_before(mesh: MeshModel, a: int, b: int, shape: tuple[int, ...]) -> None:
    """A table searched for one pair alone, and one searched for all sources at once, walk the same way."""
    source, target = spec_of(a, mesh), spec_of(b, mesh)
    twin = MeshModel.model_validate_json(mesh.model_dump_json())
    every = all_specs(mesh.axis_names, RANK)
    table = reshard_table(every, every, shape, 4, mesh)
    plan = plan_resharding(source, target, shape, 4, twin)
    assert plan == plan_resharding(source, target, shape, 4, mesh)
    assert plan.seconds == table.seconds[every.index(source), every.index(target)]
