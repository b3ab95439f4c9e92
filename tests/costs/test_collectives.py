"""Collectives: closed forms per topology, and the laws that all of them obey."""

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.costs import (
    CollectiveFit,
    Cost,
    Link,
    MeshAxis,
    MeshModel,
    all_gather,
    all_reduce,
    all_to_all,
    collective_permute,
    reduce_scatter,
)
from autoshard.costs.hardware import UNIT_DEVICE
from autoshard.costs.links import Topology

Collective = Callable[[float, Sequence[str], MeshModel], Cost]
COLLECTIVES: tuple[Collective, ...] = (all_gather, all_reduce, reduce_scatter, all_to_all, collective_permute)

W, A = 2.0**30, 2.0**-20


def mesh_of(*links: Link, overlap: bool = False) -> MeshModel:
    """Every link is an axis: x, y, z."""
    axes = tuple(MeshAxis(name=name, links=(link,)) for name, link in zip("xyz", links))
    return MeshModel(axes=axes, device=UNIT_DEVICE, levels_overlap=overlap)


def link(topology: Topology, size: int, *, fabric: str = "network", rate: float = W, latency_s: float = A) -> Link:
    return Link(topology=topology, size=size, bytes_per_s=rate, latency_s=latency_s, fabric=fabric)


topologies = st.sampled_from(("switch", "ring", "line", "full"))
links = st.builds(link, topologies, st.integers(1, 9), latency_s=st.sampled_from((0.0, A)))
meshes = st.lists(links, min_size=1, max_size=3).map(lambda found: mesh_of(*_one_kind(found)))


def _one_kind(found: list[Link]) -> list[Link]:
    """The links of one fabric are of one kind: rings and lines, or the first one's."""
    torus = ("ring", "line")
    kind = found[0].topology
    return [
        one
        if (one.topology in torus) == (kind in torus) and (kind in torus or one.topology == kind)
        else one.model_copy(update={"topology": kind})
        for one in found
    ]


def test_wire_bytes_are_the_ring_formulas() -> None:
    mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
    for axes, n in ((("x",), 4), (("y",), 2), (("x", "y"), 8)):
        assert all_gather(800.0, axes, mesh).wire_bytes == 800 * (n - 1) / n
        assert reduce_scatter(800.0, axes, mesh).wire_bytes == 800 * (n - 1) / n
        assert all_reduce(800.0, axes, mesh).wire_bytes == 2 * 800 * (n - 1) / n
        assert all_to_all(800.0, axes, mesh).wire_bytes == 800 * (n - 1) / n
        assert collective_permute(800.0, axes, mesh).wire_bytes == 800


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_on_a_uniform_mesh_seconds_are_latency_and_bytes(collective: Collective) -> None:
    mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=8.0, latency_s=3.0)
    cost = collective(640.0, ("x", "y"), mesh)
    assert cost.latency_s == 3.0
    assert cost.seconds == 3.0 + cost.wire_bytes / 8.0


def test_wider_wires_carry_more() -> None:
    mesh = MeshModel.uniform({"x": 4}, bytes_per_s=1.0, latency_s=0.0)
    assert all_gather(64.0, ("x",), mesh, wire_scale=2.0) == all_gather(128.0, ("x",), mesh)


@pytest.mark.parametrize("size", [2, 4, 16])
def test_even_rings_gather_at_both_links_whatever_their_size(size: int) -> None:
    mesh = mesh_of(link("ring", size))
    nbytes = 2.0**30
    assert all_gather(nbytes, ("x",), mesh).seconds == pytest.approx(nbytes / (2 * W))
    assert all_to_all(nbytes / size, ("x",), mesh).seconds == pytest.approx(nbytes / (8 * W))


def test_small_messages_are_bound_by_hops() -> None:
    assert all_gather(1.0, ("x",), mesh_of(link("ring", 8))).seconds == 4 * A
    assert all_gather(1.0, ("x",), mesh_of(link("line", 8))).seconds == 7 * A
    assert all_reduce(1.0, ("x",), mesh_of(link("ring", 8))).seconds == 8 * A
    assert collective_permute(1.0, ("x",), mesh_of(link("ring", 8))).seconds == 4 * A


def test_a_line_takes_about_twice_as_long_as_a_ring() -> None:
    nbytes, size = 2.0**30, 8
    line, ring = mesh_of(link("line", size)), mesh_of(link("ring", size))
    assert all_gather(nbytes, ("x",), line).seconds == pytest.approx(nbytes * (size - 1) / size / W)
    assert all_gather(nbytes, ("x",), line).seconds / all_gather(nbytes, ("x",), ring).seconds == 2 * (size - 1) / size
    assert all_to_all(nbytes, ("x",), line).seconds == 2 * all_to_all(nbytes, ("x",), ring).seconds


def test_torus_axes_add_their_rates() -> None:
    mesh, nbytes = mesh_of(link("ring", 16), link("ring", 16)), 2.0**30
    assert all_gather(nbytes, ("x", "y"), mesh).seconds == pytest.approx(nbytes / (4 * W))


def test_no_chip_takes_in_more_than_its_links_carry() -> None:
    mesh, nbytes = mesh_of(link("line", 2), link("line", 2)), 2.0**30
    assert all_gather(nbytes, ("x", "y"), mesh).seconds == pytest.approx(nbytes * 3 / 4 / (2 * W))


def test_a_full_mesh_has_a_cable_to_every_other_device() -> None:
    nbytes = 2.0**30
    for size in (2, 4, 8):
        mesh = mesh_of(link("full", size, latency_s=0.0))
        assert all_gather(nbytes, ("x",), mesh).seconds == pytest.approx(nbytes / size / W)


def test_levels_of_a_hierarchy_add_or_overlap() -> None:
    hosts = link("switch", 4, fabric="between", rate=W / 8, latency_s=0.0)
    inside = link("switch", 8, fabric="within", rate=W, latency_s=0.0)
    nbytes = 2.0**30
    between_s, within_s = nbytes / 8 * 3 / 4 / (W / 8), nbytes * 7 / 8 / W
    axes = ("x", "y")
    assert all_gather(nbytes, axes, mesh_of(hosts, inside)).seconds == pytest.approx(between_s + within_s)
    overlapped = mesh_of(hosts, inside, overlap=True)
    assert all_gather(nbytes, axes, overlapped).seconds == pytest.approx(max(between_s, within_s))
    assert all_gather(nbytes, axes, overlapped).wire_bytes == nbytes * 31 / 32
    exchange = all_to_all(nbytes, axes, mesh_of(hosts, inside))
    assert exchange.seconds == pytest.approx(nbytes * 3 / 4 / (W / 8) + nbytes * 7 / 8 / W)


def test_measurements_take_the_place_of_formulas() -> None:
    fit = CollectiveFit(kind="all-gather", base_s=1.0, hop_s=0.5, bytes_per_s=10.0, small_group_ratio=2.0, fill_s=0.1)
    measured = link("switch", 4).model_copy(update={"fits": (fit,)})
    mesh = mesh_of(measured)
    sent_bytes = 400.0 * 3 / 4
    expected = 1.0 + 0.5 * 3 + sent_bytes * (1 + 2.0 / 4) / 10.0 + 2 * math.sqrt(0.1 * sent_bytes / 10.0)
    assert all_gather(400.0, ("x",), mesh).seconds == pytest.approx(expected) == fit.seconds(4, sent_bytes)
    assert all_reduce(400.0, ("x",), mesh) == all_reduce(400.0, ("x",), mesh_of(link("switch", 4)))


@given(meshes, st.sampled_from(COLLECTIVES), st.floats(0, 1e12), st.floats(0, 1e12))
def test_more_bytes_never_cost_less(mesh: MeshModel, collective: Collective, a: float, b: float) -> None:
    less, more = (collective(nbytes, mesh.axis_names, mesh) for nbytes in sorted((a, b)))
    assert 0 <= less.seconds <= more.seconds * (1 + 1e-12)
    assert 0 <= less.wire_bytes <= more.wire_bytes


@given(meshes, st.sampled_from(COLLECTIVES), st.floats(0, 1e12))
def test_an_axis_of_size_1_is_free(mesh: MeshModel, collective: Collective, nbytes: float) -> None:
    lone = MeshAxis.of("lone", 1, bytes_per_s=1.0, latency_s=1.0)
    wider = mesh.model_copy(update={"axes": (*mesh.axes, lone)})
    assert collective(nbytes, ("lone",), wider) == Cost()
    assert collective(nbytes, (*mesh.axis_names, "lone"), wider) == collective(nbytes, mesh.axis_names, mesh)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.booleans(), st.floats(0, 1e12))
def test_an_all_reduce_on_rings_is_a_scatter_and_a_gather(sizes: list[int], wrap: bool, nbytes: float) -> None:
    mesh = mesh_of(*(link("ring" if wrap else "line", size) for size in sizes))
    both = reduce_scatter(nbytes, mesh.axis_names, mesh) + all_gather(nbytes, mesh.axis_names, mesh)
    whole = all_reduce(nbytes, mesh.axis_names, mesh)
    assert whole.seconds == pytest.approx(both.seconds) and whole.wire_bytes == pytest.approx(both.wire_bytes)


@given(st.permutations(["x", "y", "z"]), st.sampled_from(COLLECTIVES), topologies, st.floats(1, 1e12))
def test_the_order_of_equal_axes_does_not_matter(
    order: list[str], collective: Collective, topology: Topology, nbytes: float
) -> None:
    mesh = mesh_of(*(link(topology, 4) for _ in range(3)))
    assert collective(nbytes, order, mesh) == collective(nbytes, ("x", "y", "z"), mesh)
    assert collective(nbytes, order[:2], mesh) == collective(nbytes, ("x", "y"), mesh)
