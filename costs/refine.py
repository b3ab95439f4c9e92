"""Meshes with axes cut into parts, on which specs over parts of axes are ordinary specs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from .mesh import joined_axes, split_sub_axis, sub_axis_name
from .spec import ShardingSpec


def refined_axes(specs: Iterable[ShardingSpec], sizes: Mapping[str, int]) -> dict[str, int]:
    """The axes of the coarsest mesh on which all `specs` are ordinary: the same devices in the same order.

    Axes that no spec cuts keep their name; a part is named as in the specs.

    Args:
        specs: Specs that may name parts of axes, such as `x:(2)4`.
        sizes: Sizes of the axes of the mesh, major first.

    Raises:
        ValueError: An axis is unknown, or no mesh has all of these parts.

    Example:
        >>> refined_axes([ShardingSpec.of("x:(1)2", "y")], {"x": 8, "y": 2})
        {'x:(1)2': 2, 'x:(2)4': 4, 'y': 2}
    """
    bounds = {name: {1, size} for name, size in sizes.items()}
    for name in (name for spec in specs for name in (*spec.axes, *spec.partial) if name not in sizes):
        axis, major, size = _split(name, sizes)
        bounds[axis] |= {major, major * size}
    return {
        name: size for axis, found in bounds.items() for name, size in _parts(axis, sorted(found), sizes[axis]).items()
    }


def refined_spec(spec: ShardingSpec, axes: Mapping[str, int], sizes: Mapping[str, int]) -> ShardingSpec:
    """A spec over axes and parts of axes, written over the axes of a refined mesh.

    Args:
        spec: The spec.
        axes: The axes of the refined mesh, as `refined_axes` gives them.
        sizes: Sizes of the axes of the original mesh.

    Example:
        >>> spec, sizes = ShardingSpec.of("x:(1)2", "y"), {"x": 8, "y": 2}
        >>> refined_spec(spec, refined_axes([spec], sizes), sizes)
        ShardingSpec([x:(1)2, y])
    """

    def refined(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for name in names for part in _within(name, axes, sizes))

    return ShardingSpec.of(*map(refined, spec.dims), partial=refined(spec.partial))


def joined_spec(spec: ShardingSpec, sizes: Mapping[str, int]) -> ShardingSpec:
    """A spec in which parts of an axis that follow each other are one; the inverse of `refined_spec`.

    Args:
        spec: A spec that may name parts of axes.
        sizes: Sizes of the whole axes.

    Example:
        >>> joined_spec(ShardingSpec.of(("x:(1)2", "x:(2)4"), "y"), {"x": 8, "y": 2})
        ShardingSpec([x, y])
    """
    return ShardingSpec.of(*(joined_axes(dim, sizes) for dim in spec.dims), partial=joined_axes(spec.partial, sizes))


def _parts(axis: str, bounds: list[int], size: int) -> dict[str, int]:
    if len(bounds) <= 2:
        return {axis: size}
    for low, high in pairwise(bounds):
        if high % low:
            raise ValueError(f"mesh axis {axis!r} of size {size} cannot be cut both at {low} and at {high}")
    return {sub_axis_name(axis, low, high // low): high // low for low, high in pairwise(bounds)}


def _split(name: str, sizes: Mapping[str, int]) -> tuple[str, int, int]:
    """Axis, size of what is major, and size of an axis or a part of one."""
    axis, major, size = split_sub_axis(name) or (name, 1, sizes.get(name, 0))
    if axis not in sizes:
        raise ValueError(f"unknown mesh axis {name!r}: this mesh has axes {', '.join(sizes)}")
    return axis, major, size


def _within(name: str, axes: Mapping[str, int], sizes: Mapping[str, int]) -> list[str]:
    """The refined axes that make up an axis or a part of one, major first."""
    if name in axes:
        return [name]
    axis, major, size = _split(name, sizes)
    found = [(part, split_sub_axis(part)) for part in axes]
    return [part for part, cut in found if cut and cut[0] == axis and major <= cut[1] < major * size]
