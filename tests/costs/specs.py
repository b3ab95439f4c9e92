"""Specs, meshes and an exhaustive search for the tests of resharding."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import permutations, product
from pathlib import Path

from autoshard.costs import Cost, MeshModel, ShardingSpec, all_gather, all_to_all, collective_permute

Dims = tuple[tuple[str, ...], ...]
Sizes = tuple[tuple[str, int], ...]


def unit_mesh(**sizes: int) -> MeshModel:
    """A mesh on which costs are bytes."""
    return MeshModel.uniform(sizes, bytes_per_s=1.0, latency_s=0.0)


@lru_cache
def all_specs(names: tuple[str, ...], rank: int) -> tuple[ShardingSpec, ...]:
    """Every spec of `rank` dimensions over the axes, in a fixed order."""
    found: dict[ShardingSpec, None] = {}
    for used in range(len(names) + 1):
        for order in permutations(names, used):
            for places in product(range(rank), repeat=used):
                dims = [tuple(axis for axis, place in zip(order, places) if place == i) for i in range(rank)]
                found[ShardingSpec.of(*dims)] = None
    return tuple(found)


def published_pairs() -> list[tuple[ShardingSpec, ShardingSpec, int, bool]]:
    """All pairs of a 3-D tensor on a 4x2 mesh: source, target, fewest bytes found, whether XLA replicates on a jump."""
    data = json.loads((Path(__file__).parent / "data" / "reshard_pairs_4x2.json").read_text())
    return [(_read(source), _read(target), nbytes, bool(jump)) for source, target, nbytes, jump in data["pairs"]]


def _read(text: str) -> ShardingSpec:
    return ShardingSpec.of(*(() if dim == "-" else tuple(dim) for dim in text.split(",")))


def fewest_bytes(source: Dims, sizes: Sizes, nbytes: int) -> dict[Dims, Fraction]:
    """Fewest wire bytes from one spec to all others by the exact steps, found by walking them one by one.

    Written apart from the planner, in plain loops over whole axes: give it the prime parts of axes to let it cut them.
    """
    of = dict(sizes)
    best: dict[Dims, Fraction] = {}
    queue: list[tuple[Fraction, Dims]] = [(Fraction(0), source)]
    while queue:
        cost, dims = heapq.heappop(queue)
        if dims in best:
            continue
        best[dims] = cost
        for price, after in _exact_steps(dims, of, nbytes):
            if after not in best:
                heapq.heappush(queue, (cost + price, after))
    return best


def _exact_steps(dims: Dims, of: dict[str, int], nbytes: int) -> Iterator[tuple[Fraction, Dims]]:
    held = Fraction(nbytes, math.prod(of[axis] for dim in dims for axis in dim))
    free = [axis for axis in of if not any(axis in dim for dim in dims)]
    for i, dim in enumerate(dims):
        for axis in free:
            yield Fraction(0), _put(dims, {i: (*dim, axis)})
        for keep in range(len(dim)):
            moved = math.prod(of[axis] for axis in dim[keep:])
            yield held * (moved - 1), _put(dims, {i: dim[:keep]})
            for j in range(len(dims)):
                if j != i:
                    yield held * Fraction(moved - 1, moved), _put(dims, {i: dim[:keep], j: (*dims[j], *dim[keep:])})
    for other in _of_parts(tuple(_parts(dim, of) for dim in dims), tuple(of.items())):
        if other != dims:
            yield held, other


def best_ranks(
    source: ShardingSpec, shape: tuple[int, ...], mesh: MeshModel
) -> dict[ShardingSpec, tuple[float, float, int]]:
    """Seconds, wire bytes and steps of the best way over whole axes, float32, compared in this order."""
    best: dict[ShardingSpec, tuple[float, float, int]] = {}
    queue: list[tuple[float, float, int, Dims]] = [(0.0, 0.0, 0, source.dims)]
    while queue:
        seconds, wire_bytes, steps, dims = heapq.heappop(queue)
        spec = ShardingSpec.of(*dims)
        if spec in best:
            continue
        best[spec] = (seconds, wire_bytes, steps)
        for cost, after in _priced_steps(spec, shape, mesh):
            # Rounded to 12 digits: sums of the same costs in another order are the same time.
            total = float(f"{seconds + cost.seconds:.12g}")
            heapq.heappush(queue, (total, wire_bytes + cost.wire_bytes, steps + 1, after))
    return best


def _priced_steps(spec: ShardingSpec, shape: tuple[int, ...], mesh: MeshModel) -> Iterator[tuple[Cost, Dims]]:
    held = spec.shard_bytes(shape, 4, mesh)
    dims = spec.dims
    for i, dim in enumerate(dims):
        free = [axis for axis in mesh.axis_names if axis not in spec.axes]
        for count in range(1, 2 if dim else len(free) + 1):
            for axes in permutations(free, count):
                yield Cost(), _put(dims, {i: (*dim, *axes)})
        for keep in range(len(dim)):
            moved = dim[keep:]
            gathered = held * math.prod(mesh.size(axis) for axis in moved)
            yield all_gather(gathered, moved, mesh), _put(dims, {i: dim[:keep]})
            for j in range(len(dims)):
                if j != i:
                    yield all_to_all(held, moved, mesh), _put(dims, {i: dim[:keep], j: (*dims[j], *moved)})
    for other in _of_parts(spec.parts(mesh), tuple(mesh.sizes.items())):
        changed = {axis for a, b in zip(dims, other) if a != b for axis in (*a, *b)}
        if changed:
            yield collective_permute(held, sorted(changed), mesh), other


@lru_cache(maxsize=1 << 12)
def _of_parts(parts: tuple[int, ...], sizes: Sizes) -> tuple[Dims, ...]:
    of = dict(sizes)
    specs = all_specs(tuple(of), len(parts))
    return tuple(spec.dims for spec in specs if tuple(_parts(dim, of) for dim in spec.dims) == parts)


def _parts(dim: tuple[str, ...], of: dict[str, int]) -> int:
    return math.prod(of[axis] for axis in dim)


def _put(dims: Dims, changes: dict[int, tuple[str, ...]]) -> Dims:
    return tuple(changes.get(i, dim) for i, dim in enumerate(dims))
