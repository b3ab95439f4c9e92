"""Mesh models: what they say, keep and refuse."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pydantic import ValidationError

from autoshard.costs import (
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
from autoshard.costs.mesh import split_sub_axis, sub_axis_name

Collective = Callable[..., Cost]
NAMES = ("tpu-v5e", "tpu-v7", "h100-sxm", "mi300x", "cpu-virtual")


def test_a_uniform_mesh_says_its_axes() -> None:
    mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
    assert mesh.axis_names == ("x", "y") and mesh.sizes == {"x": 4, "y": 2}
    assert (mesh.size("x"), mesh.num_devices) == (4, 8)


@pytest.mark.parametrize("name", NAMES)
def test_a_mesh_survives_json(name: str) -> None:
    mesh = MeshModel.preset(name, {"data": 4, "model": 4})
    again = MeshModel.model_validate_json(mesh.model_dump_json())
    assert again == mesh and hash(again) == hash(mesh)
    assert again is not mesh


def test_unknown_axes_are_named() -> None:
    mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
    with pytest.raises(ValueError, match="unknown mesh axis 'z': this mesh has axes x, y"):
        mesh.size("z")
    with pytest.raises(ValueError, match=r"mesh axis 'x' of size 4 has no part 'x:\(2\)4'"):
        mesh.size("x:(2)4")


def test_two_axes_of_one_name_are_refused() -> None:
    axis = MeshAxis.of("x", 2, bytes_per_s=1.0, latency_s=0.0)
    device = MeshModel.uniform({"x": 2}, bytes_per_s=1.0, latency_s=0.0).device
    with pytest.raises(ValidationError, match="two mesh axes are called 'x'"):
        MeshModel(axes=(axis, axis), device=device)


def test_mistakes_in_json_are_answered_with_their_place() -> None:
    mesh = MeshModel.uniform({"x": 4}, bytes_per_s=1.0, latency_s=0.0)
    text = mesh.model_dump_json().replace('"latency_s"', '"latency"')
    with pytest.raises(ValidationError, match=r"axes\.0\.links\.0\.latency"):
        MeshModel.model_validate_json(text)
    with pytest.raises(ValidationError, match="bytes_per_s"):
        MeshModel.uniform({"x": 4}, bytes_per_s=0.0, latency_s=0.0)


def test_a_device_lists_float32() -> None:
    device = MeshModel.uniform({"x": 4}, bytes_per_s=1.0, latency_s=0.0).device
    with pytest.raises(ValidationError, match="needs an entry for float32"):
        type(device)(**{**device.model_dump(), "peak_flops_per_s": {"bfloat16": 1.0}})


def test_precisions_fall_back_to_what_the_device_has() -> None:
    device = MeshModel.preset("tpu-v5e", {"x": 4}).device
    assert device.peak("bfloat16") == 197e12 == device.peak("float16") == device.peak("float8_e4m3fn")
    assert device.peak("int8") == 394e12 == device.peak("uint8")
    assert device.peak("float64") == device.peak("float32") / 2
    assert device.peak("int32") == device.peak("float32")


def test_only_virtual_cpus_widen_floats_on_the_wire() -> None:
    assert MeshModel.preset("cpu-virtual", {"x": 2}).wire_scale("bfloat16") == 2.0
    assert MeshModel.preset("cpu-virtual", {"x": 2}).wire_scale("float8_e5m2") == 2.0
    assert MeshModel.preset("cpu-virtual", {"x": 2}).wire_scale("float4_e2m1fn") == 2.0
    assert MeshModel.preset("cpu-virtual", {"x": 2}).wire_scale("int4") == 1.0
    assert MeshModel.preset("cpu-virtual", {"x": 2}).wire_scale("float32") == 1.0
    assert MeshModel.preset("tpu-v5e", {"x": 2}).wire_scale("bfloat16") == 1.0


def test_names_of_parts_of_axes_read_back() -> None:
    assert split_sub_axis(sub_axis_name("x", 2, 4)) == ("x", 2, 4)
    assert split_sub_axis("x") is None


def test_a_changed_copy_forgets_the_old_axes() -> None:
    mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
    assert (mesh.num_devices, mesh.sizes, hash(mesh)) == (8, {"x": 4, "y": 2}, hash(mesh))
    smaller = mesh.model_copy(update={"axes": mesh.axes[:1]})
    assert (smaller.num_devices, smaller.sizes, smaller.axis_names) == (4, {"x": 4}, ("x",))
    assert hash(smaller) == hash(MeshModel.uniform({"x": 4}, bytes_per_s=1.0, latency_s=0.0))


def test_a_part_of_a_ring_shares_its_wires() -> None:
    ring = Link(topology="ring", size=16, bytes_per_s=8.0, latency_s=1.0)
    neighbours, strided = ring.part(size=4, stride=1), ring.part(size=4, stride=4)
    assert (neighbours.topology, neighbours.bytes_per_s, neighbours.latency_s) == ("line", 8.0, 1.0)
    assert (strided.topology, strided.bytes_per_s, strided.latency_s) == ("ring", 2.0, 4.0)
    assert ring.part(size=16, stride=1) == ring


def test_a_part_of_an_axis_runs_over_its_own_links() -> None:
    axis = MeshAxis(
        name="x",
        links=(
            Link(topology="switch", size=4, bytes_per_s=1.0, latency_s=0.0, fabric="between"),
            Link(topology="switch", size=8, bytes_per_s=9.0, latency_s=0.0, fabric="within"),
        ),
    )
    mesh = MeshModel(axes=(axis,), device=MeshModel.uniform({"x": 2}, bytes_per_s=1.0, latency_s=0.0).device)
    assert [(link.size, link.fabric) for link in mesh.links("x:(1)8")] == [(4, "between"), (2, "within")]
    assert [(link.size, link.fabric) for link in mesh.links("x:(4)8")] == [(8, "within")]
    assert [(link.size, link.fabric) for link in mesh.links("x:(8)2")] == [(2, "within")]


def test_a_part_across_links_runs_at_the_slowest() -> None:
    """3 of 12 devices, every fourth, on hosts of 6: the boundary falls inside a host."""
    mesh = MeshModel.preset("h100-sxm", {"x": 12})
    between, within = mesh.links("x")
    assert (between.size, within.size) == (2, 6)
    (part,) = mesh.links("x:(1)3")
    assert (part.size, part.fabric, part.bytes_per_s) == (3, between.fabric, between.bytes_per_s)
    assert part.latency_s == between.latency_s + within.latency_s
    (minor,) = mesh.links("x:(3)4")
    assert (minor.size, minor.fabric) == (4, between.fabric)
    assert [(link.size, link.fabric) for link in mesh.links("x:(4)3")] == [(3, "host")]


@given(
    preset=st.sampled_from(["tpu-v5e", "tpu-v4", "h100-sxm", "cpu-virtual"]),
    cut=st.sampled_from([("x", (2, 4)), ("x", (4, 2)), ("x", (2, 2, 2)), ("y", (2, 2))]),
    kind=st.sampled_from([all_gather, all_reduce, reduce_scatter, all_to_all, collective_permute]),
    nbytes=st.floats(1, 1e9),
    with_other=st.booleans(),
)
def test_all_parts_of_an_axis_cost_what_the_axis_does(
    preset: str, cut: tuple[str, tuple[int, ...]], kind: Collective, nbytes: float, with_other: bool
) -> None:
    axis, sizes = cut
    whole = MeshModel.preset(preset, {"x": 8, "y": 4})
    mesh = whole.cut({axis: sizes})
    parts = [name for name in mesh.axis_names if name not in whole.axis_names]
    others = [name for name in whole.axis_names if name != axis] if with_other else []
    assert kind(nbytes, [*reversed(parts), *others], mesh) == kind(nbytes, [*others, axis], whole)
    assert mesh.joined(parts) == (axis,) and mesh.num_devices == whole.num_devices and mesh.whole == whole


def test_parts_that_do_not_make_up_their_axis_are_refused() -> None:
    mesh = MeshModel.uniform({"x": 8}, bytes_per_s=1.0, latency_s=0.0)
    for parts in ({"x": (2, 2)}, {"x": (8, 1)}, {"y": (2, 2)}):
        with pytest.raises(ValueError, match=r"mesh axis '.' of size (8|None) is not made up of parts"):
            mesh.cut(parts)
