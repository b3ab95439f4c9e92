"""Runs: several steps over parts of mesh axes that one sharding constraint asks for.

Where axes have different sizes, the cheapest way may pass through specs that split a dimension by a part of an axis
(with x of 4 and y of 2, from [x, y] to [y, x] half of x moves over, then the shards are permuted). No PartitionSpec
says that, so the whole run is one constraint. Measured on XLA's CPU and TPU compilers, four kinds of runs happen
exactly as listed, whatever the mesh: slices then a permute, a permute then gathers, an all-to-all then a permute, a
permute then an all-to-all. Longer mixtures make XLA gather the tensor, so they are not offered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from .steps import (
    Move,
    Piece,
    PieceState,
    Sizes,
    State,
    Step,
    StepGraph,
    parts_of,
    piece_parts,
    piece_state,
)

Parts = tuple[int, ...]
Chain = tuple[Step, ...]


def runs_from(source: State, graph: StepGraph) -> Iterator[Move]:
    """Every run that starts at `source` and is not a chain of single steps over whole axes."""
    sizes = graph.sizes
    if len(set(sizes)) == 1:
        return  # parts are powers of one size, so no step ever cuts an axis
    before = parts_of(source, sizes)
    start = piece_state(source, sizes)
    for after, targets in graph.twins.items():
        for head in _heads(source, before, after, sizes):
            mid = head[-1].state
            for target in targets:
                yield Move(source, target, (*head, permute_step(mid, piece_state(target, sizes), sizes)))
        if _has_tails(before, after):
            for target in targets:
                for mid, tail in _tails(target, before, after, sizes):
                    yield Move(source, target, (permute_step(start, mid, sizes), *tail))


def _heads(source: State, before: Parts, after: Parts, sizes: Sizes) -> list[Chain]:
    """Slices, or one all-to-all, that reach the parts `after` and cut an axis."""
    if before == after:
        return []
    if _refines(after, before):
        chain = _slices(source, before, after, sizes)
    else:
        chain = _exchange(source, before, after, sizes)
    return [chain] if chain and not _is_whole(chain[-1].state, sizes) else []


def _has_tails(before: Parts, after: Parts) -> bool:
    return before != after and (_refines(before, after) or _exchanged(before, after) is not None)


@lru_cache(maxsize=1 << 16)
def _tails(target: State, before: Parts, after: Parts, sizes: Sizes) -> tuple[tuple[PieceState, Chain], ...]:
    """States of the parts `before` that cut an axis, with gathers, or one all-to-all, from there to `target`."""
    if _refines(before, after):
        mid, chain = _gathers(target, before, after, sizes)
    else:
        mid, chain = _exchange_back(target, before, after, sizes)
    return ((mid, chain),) if chain and not _is_whole(mid, sizes) else ()


def _refines(fine: Parts, coarse: Parts) -> bool:
    return all(f % c == 0 for f, c in zip(fine, coarse))


def _exchanged(before: Parts, after: Parts) -> tuple[int, int, int] | None:
    """The dimensions (from, to) and the factor, if one all-to-all changes the parts so."""
    changed = [i for i, (a, b) in enumerate(zip(before, after)) if a != b]
    if len(changed) != 2:
        return None
    i, j = changed if before[changed[0]] > after[changed[0]] else changed[::-1]
    factor, rest = divmod(before[i], after[i])
    return (i, j, factor) if rest == 0 and before[j] * factor == after[j] else None


def _slices(source: State, before: Parts, after: Parts, sizes: Sizes) -> Chain:
    pool = free_pieces(piece_state(source, sizes), sizes)
    state, steps = piece_state(source, sizes), []
    for i, (b, a) in enumerate(zip(before, after)):
        taken = take_pieces(pool, a // b)
        if taken:
            counted = piece_parts(state)
            state = _with(state, i, (*state[i], *taken))
            steps.append(Step("slice", taken, (i,), state, counted))
    return tuple(steps)


def _gathers(target: State, before: Parts, after: Parts, sizes: Sizes) -> tuple[PieceState, Chain]:
    pool = free_pieces(piece_state(target, sizes), sizes)
    end = piece_state(target, sizes)
    taken_of = {i: take_pieces(pool, b // a) for i, (b, a) in enumerate(zip(before, after)) if b > a}
    mid = end
    for i, taken in taken_of.items():
        mid = _with(mid, i, (*end[i], *taken))
    state, steps = mid, []
    for i, taken in taken_of.items():
        state = _with(state, i, end[i])
        steps.append(Step("all-gather", taken, (i,), state, piece_parts(state)))
    return mid, tuple(steps)


def _exchange(source: State, before: Parts, after: Parts, sizes: Sizes) -> Chain:
    exchange = _exchanged(before, after)
    if exchange is None:
        return ()
    i, j, factor = exchange
    start = piece_state(source, sizes)
    cut = suffix_cut(start[i], factor)
    if cut is None:
        return ()
    kept, suffix = cut
    mid = _with(_with(start, i, kept), j, (*start[j], *suffix))
    return (Step("all-to-all", suffix, (i, j), mid, before),)


def _exchange_back(target: State, before: Parts, after: Parts, sizes: Sizes) -> tuple[PieceState, Chain]:
    exchange = _exchanged(before, after)
    end = piece_state(target, sizes)
    if exchange is None:
        return end, ()
    i, j, factor = exchange
    cut = suffix_cut(end[j], factor)
    if cut is None:
        return end, ()
    kept, suffix = cut
    mid = _with(_with(end, j, kept), i, (*end[i], *suffix))
    return mid, (Step("all-to-all", suffix, (i, j), end, before),)


def permute_step(before: PieceState, after: PieceState, sizes: Sizes) -> Step:
    """The permute between two states of equal parts."""
    dims = tuple(i for i, (a, b) in enumerate(zip(before, after)) if a != b)
    axes = sorted({piece[0] for i in dims for piece in (*before[i], *after[i])})
    return Step("permute", tuple((axis, 1, sizes[axis]) for axis in axes), dims, after, piece_parts(before))


def free_pieces(state: PieceState, sizes: Sizes) -> list[Piece]:
    """What of the axes splits no dimension, major first."""
    free = []
    for axis, size in enumerate(sizes):
        used = sorted((major, part) for dim in state for held, major, part in dim if held == axis)
        bounds = [1, *(bound for major, part in used for bound in (major, major * part)), size]
        free += [(axis, low, high // low) for low, high in zip(bounds[::2], bounds[1::2]) if high > low]
    return free


def take_pieces(pool: list[Piece], factor: int) -> tuple[Piece, ...]:
    """Takes pieces of a product of `factor` out of the pool, minor parts of axes first."""
    taken: list[Piece] = []
    for i, (axis, major, size) in enumerate(pool):
        common = math.gcd(factor, size)
        if common > 1:
            taken.append((axis, major * size // common, common))
            pool[i] = (axis, major, size // common)
            factor //= common
    return tuple(taken)


def suffix_cut(dim: tuple[Piece, ...], factor: int) -> tuple[tuple[Piece, ...], tuple[Piece, ...]] | None:
    """Cuts a minor suffix of `factor` parts off, inside an axis if need be; None if no boundary is there."""
    kept, suffix = list(dim), []
    while factor > 1:
        axis, major, size = kept.pop()
        if factor % size == 0:
            suffix.append((axis, major, size))
            factor //= size
            continue
        if size % factor:
            return None
        kept.append((axis, major, size // factor))
        suffix.append((axis, major * size // factor, factor))
        break
    return tuple(kept), tuple(reversed(suffix))


def _with(state: PieceState, i: int, dim: tuple[Piece, ...]) -> PieceState:
    return (*state[:i], joined(dim), *state[i + 1 :])


def joined(dim: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Neighbouring parts of one axis, in order, are one part."""
    joined: list[Piece] = []
    for axis, major, size in dim:
        if joined and joined[-1][0] == axis and joined[-1][1] * joined[-1][2] == major:
            joined[-1] = (axis, joined[-1][1], joined[-1][2] * size)
        else:
            joined.append((axis, major, size))
    return tuple(joined)


def _is_whole(state: PieceState, sizes: Sizes) -> bool:
    return all(major == 1 and size == sizes[axis] for dim in state for axis, major, size in dim)
