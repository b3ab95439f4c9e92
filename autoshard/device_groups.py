"""Groups of devices in HLO text, mapped back to axes of the mesh: replica groups, permutes and tiled shardings.

Devices are numbered as the mesh counts them, row-major over its axes. An axis may be used in part: `x:(2)4` is the
sub-axis of size 4 below the major part of size 2, as Shardy writes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt

from autoshard.errors import InputError
from autoshard.hlo_text import Instruction

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_SUB_AXIS = re.compile(r"(.+):\((\d+)\)(\d+)")
_AXIS_REFERENCE = re.compile(r"\s*('[^']+'|[^',:()]+)(:\(\d+\)\d+)?(?:,|$)")
_NAMED = re.compile(r"\{mesh(\[[^\]]*\])(?:, device_ids=(\([^()]*(?:\([^()]*\)[^()]*)?\)))?, \[([^\]]*)\]\}")
_TILED = re.compile(r"\{devices=\[([\d,]+)\](<=\[[\d,]+\](?:T\([\d,]+\))?|[\d,]+)( last_tile_dim_replicate)?\}")


def replica_groups(instruction: Instruction, num_devices: int) -> Groups:
    """The groups of devices that a collective joins.

    Args:
        instruction: A collective with `replica_groups`, in any form: `{{0,1},{2,3}}`, `{}` (all devices),
            `[2,4]<=[4,2]T(1,0)` or `mesh['x'=4,'y'=2], device_ids=(...) {'x','y':(1)2}`.
        num_devices: Devices of the module.

    Raises:
        InputError: The attribute is missing or has a form that is not known.
    """
    text = instruction.attribute("replica_groups")
    if text is None:
        raise InputError(f"{instruction.opcode} %{instruction.name} has no replica_groups attribute")
    if text == "{}":
        return (tuple(range(num_devices)),)
    if text.startswith("{"):
        return tuple(_integers(group) for group in re.findall(r"\{([\d,]+)\}", text))
    if iota := _IOTA.fullmatch(text):
        return _as_groups(_iota(iota[2], iota[3]).reshape(_integers(iota[1])))
    if text.startswith("mesh["):
        return _mesh_groups(text, instruction.attribute("device_ids") or "")
    raise InputError(f"unknown form of replica groups on {instruction.opcode} %{instruction.name}: {text!r}")


def source_target_pairs(instruction: Instruction) -> Groups:
    """The (source, target) pairs of a collective-permute."""
    text = instruction.attribute("source_target_pairs") or ""
    return tuple(_integers(pair) for pair in re.findall(r"\{(\d+,\d+)\}", text))


def groups_of_axes(axes: Sequence[str], mesh_axes: Mapping[str, int]) -> Groups:
    """The groups of devices that differ only along `axes`, each group counted with the first axis as the major one.

    Args:
        axes: Distinct mesh axes, or sub-axes such as `x:(2)4`.
        mesh_axes: Axis names and sizes in mesh order.

    >>> groups_of_axes(["y"], {"x": 2, "y": 2})
    ((0, 1), (2, 3))
    >>> groups_of_axes(["x:(1)2"], {"x": 4})
    ((0, 2), (1, 3))
    """
    sizes: list[int] = []
    positions: dict[str, int] = {}
    for name, size in mesh_axes.items():
        used = [(axis, *extent) for axis in axes if (extent := _extent(axis, name, size))]
        pre = 1
        for axis, pre_size, length in sorted(used, key=lambda part: part[1]):
            sizes += [pre_size // pre, length]
            positions[axis] = len(sizes) - 1
            pre = pre_size * length
        sizes.append(size // pre)
    if unknown := [axis for axis in axes if axis not in positions]:
        raise InputError(f"axes {unknown} are not axes of the mesh {dict(mesh_axes)}")
    grouped = [positions[axis] for axis in axes]
    others = [dim for dim in range(len(sizes)) if dim not in grouped]
    devices = np.arange(math.prod(mesh_axes.values())).reshape(sizes)
    return _as_groups(devices.transpose(others + grouped).reshape(-1, math.prod(sizes[dim] for dim in grouped)))


def axes_of_groups(groups: Groups, mesh_axes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes whose groups these are, in mesh order; the inverse of `groups_of_axes` up to order.

    Returns:
        Names of axes or sub-axes; None where the groups follow no axes of this mesh.
    """
    first = next((group for group in groups if 0 in group), None)
    if first is None or max(map(max, groups)) >= math.prod(mesh_axes.values()):
        return None
    coordinates = np.unravel_index(np.array(first), tuple(mesh_axes.values()))
    axes: list[str] = []
    for (name, size), along in zip(mesh_axes.items(), coordinates, strict=True):
        axes += _axes_along(name, size, set(along.tolist()))
    # What was read off the group of device 0 is a guess until it explains every group.
    explained = {frozenset(group) for group in groups_of_axes(axes, mesh_axes)}
    return tuple(axes) if explained == {frozenset(group) for group in groups} else None


def axes_of_pairs(pairs: Groups, mesh_axes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes along which source and target differ in any pair, in mesh order."""
    sizes = tuple(mesh_axes.values())
    if not pairs or max(map(max, pairs)) >= math.prod(sizes):
        return None
    sources, targets = (np.unravel_index(np.array(ends), sizes) for ends in zip(*pairs, strict=True))
    return tuple(
        name for name, source, target in zip(mesh_axes, sources, targets, strict=True) if (source != target).any()
    )


def spec_of_sharding(sharding: str, mesh_axes: Mapping[str, int]) -> tuple[tuple[str, ...], ...] | None:
    """The mesh axes, major first, that an HLO sharding gives to each dimension.

    Args:
        sharding: As XLA writes it: `{devices=[2,1,4]<=[4,2]T(1,0)}`, or `{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}` since
            JAX 0.12, whose mesh may have other axes than the user's.
        mesh_axes: Axis names and sizes of the user's mesh, in mesh order.

    Returns:
        One tuple of axes per dimension, none at all for `{replicated}`; None where the sharding follows no axes of
        this mesh or is of another kind.

    >>> spec_of_sharding("{devices=[2,1,4]<=[4,2]T(1,0)}", {"x": 4, "y": 2})
    (('y',), (), ('x',))
    """
    if sharding == "{replicated}":
        return ()
    if tiled := _TILED.fullmatch(sharding):
        devices = _tiled_devices(tiled[1], tiled[2])
    elif named := _NAMED.fullmatch(sharding):
        devices = _named_devices(named[1], named[2] or "", named[3])
    else:
        return None
    if devices.size != math.prod(mesh_axes.values()):
        return None
    ranks_of_copies = 0 if tiled and not tiled[3] else 1
    spec = [_axes_of_dimension(devices, dim, mesh_axes) for dim in range(devices.ndim - ranks_of_copies)]
    return None if None in spec else tuple(axes for axes in spec if axes is not None)


def _tiled_devices(tiles: str, devices: str) -> npt.NDArray[np.int64]:
    """Devices by tile, from `2,1,4` and `<=[4,2]T(1,0)` or a list."""
    iota = _IOTA.fullmatch(f"[{tiles}]{devices}")
    numbers = _iota(iota[2], iota[3]) if iota else np.array(_integers(devices))
    return numbers.reshape(_integers(tiles))


def _named_devices(mesh_text: str, devices_text: str, dims: str) -> npt.NDArray[np.int64]:
    """Devices by tile, with those that hold copies of one along a last dimension, from `{'y'}, {}, {'x'}`."""
    mesh_axes = _mesh_axes(mesh_text)
    by_dim = [_axis_references(dim) for dim in re.findall(r"\{([^}]*)\}", dims)]
    # Groups over all axes that split something are the tiles of one copy, in order of the dimensions.
    copies = np.array(groups_of_axes([axis for axes in by_dim for axis in axes], mesh_axes))
    if devices_text:
        copies = np.array(_device_ids(devices_text))[copies]
    parts = [len(groups_of_axes(axes, mesh_axes)[0]) for axes in by_dim]
    return copies.T.reshape(*parts, -1)


def _axes_of_dimension(
    devices: npt.NDArray[np.int64], dim: int, mesh_axes: Mapping[str, int]
) -> tuple[str, ...] | None:
    """The axes, major first, along one dimension of an array of devices."""
    groups = _as_groups(np.moveaxis(devices, dim, -1).reshape(-1, devices.shape[dim]))
    axes = axes_of_groups(groups, mesh_axes)
    if axes is None:
        return None
    return next((order for order in permutations(axes) if set(groups_of_axes(order, mesh_axes)) == set(groups)), None)


def _extent(axis: str, name: str, size: int) -> tuple[int, int] | None:
    """(size of the part above, own size) of an axis or sub-axis of mesh axis `name`; None if it is of another."""
    if axis == name:
        return 1, size
    sub_axis = _SUB_AXIS.fullmatch(axis)
    return (int(sub_axis[2]), int(sub_axis[3])) if sub_axis and sub_axis[1] == name else None


def _axes_along(name: str, size: int, coordinates: set[int]) -> list[str]:
    """The sub-axes of one axis whose combined coordinates these are (0 among them), major first."""
    found: list[str] = []
    remaining = coordinates
    while len(remaining) > 1:
        stride = min(remaining - {0})
        length = 1
        while length * stride in remaining:
            length += 1
        if size % (stride * length):
            return []
        found.insert(0, name if length == size else f"{name}:({size // (stride * length)}){length}")
        remaining = {coordinate for coordinate in remaining if coordinate % (stride * length) == 0}
    return found


def _mesh_groups(mesh_text: str, devices_text: str) -> Groups:
    """Groups of `mesh['a'=4,'b'=2] {'a'}`; with device ids the braces stand behind those."""
    mesh_axes = _mesh_axes(mesh_text)
    braces = re.search(r"\{([^}]*)\}", devices_text or mesh_text)
    if braces is None:
        raise InputError(f"replica groups name no axes: {mesh_text!r}")
    groups = groups_of_axes(_axis_references(braces[1]), mesh_axes)
    if not devices_text:
        return groups
    device_ids = _device_ids(devices_text)
    return tuple(tuple(device_ids[position] for position in group) for group in groups)


def _mesh_axes(text: str) -> dict[str, int]:
    """Axis names and sizes of `mesh['a'=4,'b'=2]`."""
    return {name: int(size) for name, size in re.findall(r"'?([^',=\[\]]+)'?=(\d+)", text)}


def _axis_references(text: str) -> list[str]:
    """Axes and sub-axes of `'a','b':(1)2`; a question mark, which leaves a dimension open, is none."""
    return [name.strip("'") + sub_axis for name, sub_axis in _AXIS_REFERENCE.findall(text) if name != "?"]


def _device_ids(text: str) -> tuple[int, ...]:
    """Devices by mesh position, from `([4,2]T(1,0))` or `(0,2,1,3)`."""
    if iota := re.match(r"\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)", text):
        return tuple(_iota(iota[1], iota[2]).ravel().tolist())
    explicit = re.match(r"\(([\d,]+)\)", text)
    if explicit is None:
        raise InputError(f"unknown form of mesh device ids: {text!r}")
    return _integers(explicit[1])


def _iota(dims: str, permutation: str | None) -> npt.NDArray[np.int64]:
    """Device numbers 0, 1, ... shaped as `dims` and transposed."""
    shape = _integers(dims)
    devices = np.arange(math.prod(shape)).reshape(shape)
    return devices.transpose(_integers(permutation)) if permutation else devices


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _as_groups(devices: npt.NDArray[np.int64]) -> Groups:
    return tuple(tuple(group) for group in devices.tolist())
