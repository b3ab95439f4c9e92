"""Groups of devices in every form HLO prints, against enumeration, and shardings against what JAX writes."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.device_groups import (
    axes_of_groups,
    axes_of_pairs,
    groups_of_axes,
    replica_groups,
    spec_of_sharding,
)
from autoshard.errors import InputError
from autoshard.hlo_text import Instruction, parse_instruction

MESH_AXES = {"x": 4, "y": 2}

meshes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(
    lambda sizes: {f"axis{position}": size for position, size in enumerate(sizes)}
)


def gather(groups: str) -> Instruction:
    return parse_instruction(f"%g = f32[8]{{0}} all-gather(%p), replica_groups={groups}, dimensions={{0}}")


@st.composite
def meshes_and_axes(draw: st.DrawFn) -> tuple[dict[str, int], list[str]]:
    mesh_axes = draw(meshes)
    return mesh_axes, draw(st.lists(st.sampled_from(sorted(mesh_axes)), unique=True))


@given(meshes_and_axes())
def test_groups_differ_along_their_axes_only(case: tuple[dict[str, int], list[str]]) -> None:
    mesh_axes, axes = case
    groups = groups_of_axes(axes, mesh_axes)
    coordinates = list(itertools.product(*(range(size) for size in mesh_axes.values())))
    assert sorted(device for group in groups for device in group) == list(range(len(coordinates)))
    for group in groups:
        assert len(group) == math.prod(mesh_axes[axis] for axis in axes)
        fixed = [[coordinates[device][i] for i, name in enumerate(mesh_axes) if name not in axes] for device in group]
        assert all(other == fixed[0] for other in fixed)


@given(meshes_and_axes())
def test_axes_are_read_back_from_groups(case: tuple[dict[str, int], list[str]]) -> None:
    mesh_axes, axes = case
    visible = tuple(name for name in mesh_axes if name in axes and mesh_axes[name] > 1)
    assert axes_of_groups(groups_of_axes(axes, mesh_axes), mesh_axes) == visible


@pytest.mark.parametrize("axes", [("x:(1)2",), ("x:(2)2",), ("x:(2)4",), ("x:(1)2", "x:(4)2"), ("x:(4)2", "y")])
def test_sub_axes_are_read_back_from_groups(axes: tuple[str, ...]) -> None:
    mesh_axes = {"x": 8, "y": 3}
    assert axes_of_groups(groups_of_axes(axes, mesh_axes), mesh_axes) == axes


def test_groups_across_axes_have_no_axes() -> None:
    diagonal = ((0, 3), (1, 2), (4, 7), (5, 6))
    assert axes_of_groups(diagonal, {"x": 2, "y": 2, "z": 2}) is None


def test_groups_of_a_larger_program_have_no_axes() -> None:
    assert axes_of_groups(tuple((device, device + 8) for device in range(8)), MESH_AXES) is None


def test_an_unknown_axis_is_named() -> None:
    with pytest.raises(InputError, match=r"\['z'\] are not axes of the mesh"):
        groups_of_axes(["z"], MESH_AXES)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{{0,2,4,6},{1,3,5,7}}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("{}", (tuple(range(8)),)),
        ("[4,2]<=[8]", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("[4,2]<=[2,2,2]T(2,1,0)", ((0, 4), (2, 6), (1, 5), (3, 7))),
        ("mesh['x'=4,'y'=2] {'y'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=4,'y'=2] {'y','x'}", ((0, 2, 4, 6, 1, 3, 5, 7),)),
        ("mesh['x'=4,'y'=2] {'x':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=4,'y'=2] {'x':(2)2,'y'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['x:(1)2'=2,'x:(2)2'=2,'y z'=2] {'x:(2)2','y z'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'c'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=4], device_ids=(7,6,5,4,3,2,1,0) {'a'}", ((7, 3), (6, 2), (5, 1), (4, 0))),
    ],
)
def test_every_written_form(written: str, expected: tuple[tuple[int, ...], ...]) -> None:
    assert replica_groups(gather(written), num_devices=8) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%g = f32[8] all-gather(%p), dimensions={0}", "all-gather %g has no replica_groups"),
        ("%g = f32[8] all-gather(%p), replica_groups=all", "unknown form of replica groups on all-gather %g: 'all'"),
    ],
)
def test_what_cannot_be_read_is_said(line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replica_groups(parse_instruction(line), num_devices=8)


@pytest.mark.parametrize(
    ("pairs", "axes"),
    [
        (((0, 2), (2, 4), (4, 6), (6, 0)), ("x",)),
        (((0, 1), (1, 0)), ("y",)),
        (((1, 4), (4, 1)), ("x", "y")),
        (((3, 3),), ()),
        ((), None),
    ],
)
def test_axes_of_a_permute_are_those_along_which_data_moves(
    pairs: tuple[tuple[int, int], ...], axes: tuple[str, ...] | None
) -> None:
    assert axes_of_pairs(pairs, MESH_AXES) == axes


SPECS = [
    ("y", None, "x"),
    (None, ("x", "y"), None),
    (None, ("y", "x"), None),
    ("x",),
    (None, "y"),
    ("y", "x"),
    (),
]


@pytest.mark.parametrize("entries", SPECS, ids=str)
def test_shardings_are_read_as_jax_writes_them(entries: tuple[str | tuple[str, ...] | None, ...]) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    written = str(NamedSharding(mesh, PartitionSpec(*entries))._to_xla_hlo_sharding(3))
    spec = spec_of_sharding(written, MESH_AXES)
    assert spec is not None
    axes = tuple(() if entry is None else (entry,) if isinstance(entry, str) else entry for entry in entries)
    padding = ((),) * 3
    assert (spec + padding)[:3] == (axes + padding)[:3]


@pytest.mark.parametrize(
    ("sharding", "spec"),
    [
        ("{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}", (("y",), (), ("x",))),
        ("{mesh['x'=4,'y'=2], [{}, {'y','x'}]}", ((), ("y", "x"))),
        ("{mesh['x'=4,'y'=2], [{'x':(1)2}, {'y','x':(2)2}]}", (("x:(1)2",), ("y", "x:(2)2"))),
        ("{mesh['x'=4,'y'=2], [{'y', ?}, {?}]}", (("y",), ())),
        ("{mesh['x'=4,'y'=2], [{}, {}]}", ((), ())),
        ("{mesh['a'=2,'b'=2,'c'=2], [{'a','b'}, {'c'}]}", (("x",), ("y",))),
        ("{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'a'}, {'b'}]}", (("y",), ("x",))),
        ("{mesh['a'=4,'b'=2], device_ids=(0,2,4,6,1,3,5,7), [{}, {'b'}]}", ((), ("x:(2)2",))),
        ("{mesh['a'=4,'b'=2], device_ids=(0,3,1,2,4,7,5,6), [{}, {'b'}]}", None),
    ],
)
def test_named_shardings_are_read_over_any_mesh(sharding: str, spec: tuple[tuple[str, ...], ...] | None) -> None:
    assert spec_of_sharding(sharding, MESH_AXES) == spec


@pytest.mark.parametrize("sharding", ["{manual}", "{devices=[3]<=[3]}", "{maximal device=0}"])
def test_other_shardings_have_no_spec(sharding: str) -> None:
    assert spec_of_sharding(sharding, MESH_AXES) is None
