"""Presets: every machine, every number with a source, axes on the links that JAX gives them."""

import math
import random
from collections.abc import Iterator

import pytest

from autoshard.costs import PRESET_NAMES, MeshAxis, MeshModel
from autoshard.costs.hardware import ALIASES, MACHINES, SOURCES, Figure, SwitchMachine, TorusMachine
from autoshard.costs.placement import wraps

TORUS = [name for name, machine in MACHINES.items() if isinstance(machine, TorusMachine)]
SWITCH = [name for name, machine in MACHINES.items() if isinstance(machine, SwitchMachine)]

WRAP_RULES = [
    ("tpu-v5e", (2, 4), (False, False)),
    ("tpu-v5e", (4, 4), (False, False)),
    ("tpu-v5e", (4, 8), (False, False)),
    ("tpu-v5e", (8, 8), (False, False)),
    ("tpu-v5e", (8, 16), (False, True)),
    ("tpu-v5e", (16, 16), (True, True)),
    ("tpu-v6e", (8, 16), (False, True)),
    ("tpu-v6e", (16, 16), (True, True)),
    ("tpu-v4", (2, 2, 1), (False, False, False)),
    ("tpu-v4", (2, 2, 4), (False, False, False)),
    ("tpu-v4", (2, 4, 4), (False, False, False)),
    ("tpu-v4", (4, 4, 4), (True, True, True)),
    ("tpu-v4", (4, 4, 8), (True, True, True)),
    ("tpu-v4", (8, 8, 8), (True, True, True)),
    ("tpu-v5p", (2, 4, 4), (False, False, False)),
    ("tpu-v5p", (4, 4, 4), (True, True, True)),
    ("tpu-v5p", (8, 16, 16), (True, True, True)),
    ("tpu-v5p", (16, 20, 28), (True, True, True)),
    ("tpu-v7", (2, 2, 1), (False, False, False)),
    ("tpu-v7", (4, 4, 8), (True, True, True)),
    ("tpu-v3", (16, 16), (False, False)),
    ("tpu-v3", (16, 32), (False, True)),
    ("tpu-v3", (32, 32), (True, True)),
]


def links(mesh: MeshModel, axis: str) -> list[tuple[str, int]]:
    return [(link.topology, link.size) for link in mesh.links(axis)]


def figures(value: object) -> Iterator[Figure]:
    """All figures inside a machine."""
    if isinstance(value, Figure):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from figures(inner)
    elif isinstance(value, MACHINE_PARTS):
        for name in value.__dataclass_fields__:
            yield from figures(getattr(value, name))


MACHINE_PARTS = (TorusMachine, SwitchMachine, type(MACHINES["tpu-v5e"].chip))


def test_there_are_the_16_machines() -> None:
    assert len(MACHINES) == 16 == len(TORUS) + len(SWITCH)
    assert (len(TORUS), len(SWITCH)) == (6, 10)
    assert set(PRESET_NAMES) == {*MACHINES, *ALIASES}


@pytest.mark.parametrize("name", MACHINES)
def test_every_number_says_where_it_comes_from(name: str) -> None:
    found = list(figures(MACHINES[name]))
    assert len(found) >= 7
    assert all(figure > 0 and figure.source in SOURCES for figure in found)
    assert MeshModel.preset(name, {"x": 4, "y": 2}).device.source


def test_a_number_without_source_does_not_construct() -> None:
    with pytest.raises(ValueError, match="a hardware figure needs a source: 'hearsay'"):
        Figure(1.0, "hearsay")


def test_sources_have_a_date() -> None:
    assert all("202" in text for text in SOURCES.values())


@pytest.mark.parametrize("name", PRESET_NAMES)
@pytest.mark.parametrize("sizes", [{"x": 1}, {"x": 8}, {"data": 16, "model": 8}, {"pod": 2, "data": 16, "model": 16}])
def test_presets_have_the_axes_asked_for(name: str, sizes: dict[str, int]) -> None:
    mesh = MeshModel.preset(name, sizes)
    assert mesh.sizes == sizes
    assert 0 < mesh.device.usable_memory_bytes <= mesh.device.memory_bytes


@pytest.mark.parametrize("name", MACHINES)
def test_links_make_up_every_axis_whatever_the_sizes(name: str) -> None:
    pick = random.Random(name)
    for _ in range(60):
        sizes = {axis: pick.choice((1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 32, 64)) for axis in "abcd"[: pick.randint(1, 4)]}
        mesh = MeshModel.preset(name, sizes)
        assert mesh.sizes == sizes
        for axis, size in sizes.items():
            for factor in (factor for factor in range(1, size + 1) if size % factor == 0):
                for major, part in ((1, factor), (factor, size // factor)):
                    links_of_part = mesh.links(f"{axis}:({major}){part}")
                    assert math.prod(link.size for link in links_of_part) == part, (sizes, axis, major, part)


@pytest.mark.parametrize(("name", "shape", "expected"), WRAP_RULES)
def test_dimensions_of_slices_wrap(name: str, shape: tuple[int, ...], expected: tuple[bool, ...]) -> None:
    machine = MACHINES[name]
    assert isinstance(machine, TorusMachine)
    assert wraps(shape, machine.wrap_size) == expected


def test_axes_lie_on_whole_dimensions() -> None:
    pod = MeshModel.preset("tpu-v5e", {"data": 16, "model": 16})
    assert links(pod, "data") == links(pod, "model") == [("ring", 16)]
    cube = MeshModel.preset("tpu-v5p", {"data": 16, "model": 4})
    assert links(cube, "data") == [("ring", 4), ("ring", 4)] and links(cube, "model") == [("ring", 4)]
    half = MeshModel.preset("tpu-v5e", {"data": 8, "model": 16})
    assert links(half, "data") == [("line", 8)] and links(half, "model") == [("ring", 16)]


def test_an_axis_may_get_a_part_of_a_dimension() -> None:
    pod = MeshModel.preset("tpu-v5e", {"data": 16, "fsdp": 4, "model": 4})
    assert links(pod, "data") == [("ring", 16)]
    assert links(pod, "fsdp") == [("ring", 4)] and links(pod, "model") == [("line", 4)]
    assert pod.links("fsdp")[0].bytes_per_s == pod.links("model")[0].bytes_per_s / 4


def test_more_chips_than_a_pod_has_are_several_slices() -> None:
    two = MeshModel.preset("tpu-v5e", {"pod": 2, "data": 16, "model": 16})
    assert links(two, "pod") == [("switch", 2)] and two.links("pod")[0].fabric == "dcn"
    assert links(two, "data") == links(two, "model") == [("ring", 16)]
    asked = MeshModel.preset("tpu-v5e", {"data": 8, "model": 16}, slices=2)
    assert [(link.fabric, link.size) for link in asked.links("data")] == [("dcn", 2), ("ici", 4)]


def test_devices_of_one_chip_share_its_links() -> None:
    mesh = MeshModel.preset("tpu-v7", {"x": 4, "y": 8})
    machine = MACHINES["tpu-v7"]
    assert isinstance(machine, TorusMachine)
    assert {link.fabric for link in mesh.links("y")} == {"ici", "chip"}
    ici = [link for axis in mesh.axes for link in axis.links if link.fabric == "ici"]
    assert {link.bytes_per_s for link in ici} == {machine.link_bytes_per_s / 2}
    assert math.prod(link.size for link in ici) == 16


def test_gpus_fill_hosts_with_the_minor_axes() -> None:
    mesh = MeshModel.preset("h100-sxm", {"data": 4, "model": 16})
    assert [(link.fabric, link.size) for link in mesh.links("model")] == [("network", 2), ("host", 8)]
    assert [(link.fabric, link.size) for link in mesh.links("data")] == [("network", 4)]
    rack = MeshModel.preset("gb200", {"x": 128})
    assert [(link.fabric, link.size) for link in rack.links("x")] == [("network", 2), ("host", 64)]


def test_unknown_machines_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown hardware preset 'tpu-v99': there are tpu-v3"):
        MeshModel.preset("tpu-v99", {"x": 4})
    with pytest.raises(ValueError, match="leave slices out"):
        MeshModel.preset("h100-sxm", {"x": 8}, slices=2)
    with pytest.raises(ValueError, match="6 chips do not make 4 equal slices"):
        MeshModel.preset("tpu-v5e", {"x": 6}, slices=4)


def test_axes_of_size_1_stay() -> None:
    mesh = MeshModel.preset("tpu-v5e", {"one": 1, "x": 16, "y": 16})
    assert mesh.size("one") == 1 and isinstance(mesh.axes[0], MeshAxis)
