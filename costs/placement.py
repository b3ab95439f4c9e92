"""How a mesh lies on a machine: which links its axes run over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from .links import CollectiveFit, Link, Topology
from .mesh import MeshAxis

Rate = tuple[float, float]
"""Bytes per second, and seconds of latency."""


def switch_axes(
    sizes: Mapping[str, int],
    *,
    domain: int,
    topology: Topology,
    inside: Rate,
    outside: Rate,
    fits: tuple[CollectiveFit, ...] = (),
) -> tuple[MeshAxis, ...]:
    """Axes on hosts of `domain` devices: the minor axes lie within a host, the rest goes over the network.

    Args:
        sizes: Size of each mesh axis, major first.
        domain: Devices of a host.
        topology: How they are joined.
        inside: Rate within a host.
        outside: Rate between hosts.
        fits: What was measured within a host.
    """
    room = _largest_divisor(math.prod(sizes.values()), domain)
    axes = []
    for name, size in reversed(list(sizes.items())):
        near = math.gcd(size, room)
        room //= near
        links = [
            _link("switch", size // near, outside, "network"),
            _link(topology, near, inside, "host").model_copy(update={"fits": fits}),
        ]
        axes.append(MeshAxis(name=name, links=_without_ones(links)))
    return tuple(reversed(axes))


def torus_axes(
    sizes: Mapping[str, int],
    *,
    shapes: Sequence[tuple[int, ...]],
    wrap_size: int,
    devices_per_chip: int,
    slices: int | None,
    inside: Rate,
    outside: Rate,
) -> tuple[MeshAxis, ...]:
    """Axes on slices of a torus: as JAX lays them out, the minor axis first and over as many dimensions as fit.

    Args:
        sizes: Size of each mesh axis, major first.
        shapes: Shapes that a slice can have, in chips.
        wrap_size: The size at which a dimension wraps around; 0 where all do if every one is a multiple of 4.
        devices_per_chip: Devices on a chip: the minor-most dimension; they share its links. Where their number does not
            divide all devices, each is on a chip of its own.
        slices: Number of slices, or None for as few as possible.
        inside: Rate of one link of a chip.
        outside: Rate of a chip between slices.
    """
    devices = math.prod(sizes.values())
    shared = devices_per_chip if devices % devices_per_chip == 0 else 1
    chips = devices // shared
    count = slices if slices is not None else _fewest_slices(chips, shapes)
    if count < 1 or chips % count:
        raise ValueError(f"{chips} chips do not make {count} equal slices")
    rest = dict(sizes)
    far = _take_major(rest, count)
    near = _take_minor(rest, shared)
    link = (inside[0] / shared, inside[1])
    shape = _best_shape(rest, chips // count, shapes)
    placed = _place(rest, _torus_links(shape, wrap_size, link))
    # The link between the devices of a chip is not published; it is taken to be as fast as all links of the chip.
    die = (inside[0] * 2 * len(shape), inside[1])
    return tuple(
        MeshAxis(
            name=name,
            links=_without_ones(
                [
                    _link("switch", far[name], (outside[0] / shared, outside[1]), "dcn"),
                    *placed[name],
                    _link("switch", near[name], die, "chip"),
                ]
            ),
        )
        for name in sizes
    )


def wraps(shape: Sequence[int], wrap_size: int) -> tuple[bool, ...]:
    """Which dimensions of a slice wrap around.

    On TPU v5e and v6e a dimension does that spans the pod's 16 chips (on v3 its 32). On v4, v5p and v7 slices are made
    of cubes of 4x4x4 joined by optical switches: all dimensions wrap if every one is a multiple of 4, else none.
    """
    if wrap_size:
        return tuple(size == wrap_size for size in shape)
    return (all(size % 4 == 0 for size in shape),) * len(shape)


def _torus_links(shape: Sequence[int], wrap_size: int, rate: Rate) -> list[Link]:
    return [_link("ring" if wrap else "line", size, rate, "ici") for size, wrap in zip(shape, wraps(shape, wrap_size))]


def _link(topology: Topology, size: int, rate: Rate, fabric: str) -> Link:
    return Link(topology=topology, size=size, bytes_per_s=float(rate[0]), latency_s=float(rate[1]), fabric=fabric)


def _without_ones(links: Sequence[Link]) -> tuple[Link, ...]:
    return tuple(link for link in links if link.size > 1) or tuple(links[-1:])


def _largest_divisor(number: int, limit: int) -> int:
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def _fewest_slices(chips: int, shapes: Sequence[tuple[int, ...]]) -> int:
    largest = max(math.prod(shape) for shape in shapes)
    return next(count for count in range(1, chips + 1) if chips % count == 0 and chips // count <= largest)


def _take_major(rest: dict[str, int], factor: int) -> dict[str, int]:
    """Takes a factor out of the sizes, major axes first, in place; what was taken of each."""
    taken = {}
    for name, size in rest.items():
        taken[name] = math.gcd(size, factor)
        factor //= taken[name]
        rest[name] = size // taken[name]
    return taken


def _take_minor(rest: dict[str, int], factor: int) -> dict[str, int]:
    """Takes a factor out of the sizes, minor axes first, in place; what was taken of each."""
    taken = dict.fromkeys(rest, 1)
    for name in reversed(rest):
        taken[name] = math.gcd(rest[name], factor)
        factor //= taken[name]
        rest[name] //= taken[name]
    return taken


def _best_shape(sizes: Mapping[str, int], chips: int, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """A slice of so many chips on which every axis gets whole dimensions, else the most compact one.

    A number of chips that no slice has is taken to be a slice with a dimension for every axis.
    """
    fitting = sorted((shape for shape in shapes if math.prod(shape) == chips), key=max)
    if not fitting:
        return tuple(sizes.values())
    return next((shape for shape in fitting if _assigned(sizes, shape) is not None), fitting[0])


def _assigned(sizes: Mapping[str, int], shape: Sequence[int]) -> dict[str, tuple[int, ...]] | None:
    """Whole dimensions for every axis, the minor axis first, more before fewer; None if it does not work out."""
    free = list(range(len(shape)))
    assigned: dict[str, tuple[int, ...]] = {}
    for name, size in reversed(list(sizes.items())):
        candidates = (dims for count in range(len(free), 0, -1) for dims in combinations(free, count))
        fitting = (dims for dims in candidates if math.prod(shape[i] for i in dims) == size)
        dims = () if size == 1 else next(fitting, None)
        if dims is None:
            return None
        assigned[name] = dims
        free = [i for i in free if i not in dims]
    return assigned


def _place(sizes: Mapping[str, int], links: Sequence[Link]) -> dict[str, list[Link]]:
    """Links for every axis: whole dimensions if that works out, else parts of them, minor axes on neighbours."""
    assigned = _assigned(sizes, [link.size for link in links])
    if assigned is not None:
        return {name: [links[i] for i in dims] for name, dims in assigned.items()}
    placed: dict[str, list[Link]] = {}
    strides = [1] * len(links)
    for name, size in reversed(list(sizes.items())):
        placed[name] = []
        for i in reversed(range(len(links))):
            factor = math.gcd(size, links[i].size // strides[i])
            if factor > 1:
                placed[name].insert(0, links[i].part(size=factor, stride=strides[i]))
                strides[i] *= factor
                size //= factor
    return placed
