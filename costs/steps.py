"""The specs of one mesh and rank, and the steps between them that XLA carries out exactly as told.

A step is one `with_sharding_constraint`. Measured on XLA's CPU and TPU compilers, these do what they say and nothing
else: append a free axis as the minor-most of a dimension (slice), gather a minor suffix of a dimension, move a minor
suffix of one dimension to the minor end of another (all-to-all), and permute between specs with equal parts in every
dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

StepKind = Literal["slice", "all-gather", "all-to-all", "permute", "all-reduce", "reduce-scatter"]
State = tuple[tuple[int, ...], ...]  # for each dimension the positions of mesh axes, major first


@dataclass(frozen=True, slots=True)
class Move:
    """One step from a state to another.

    Attributes:
        kind: What happens.
        axes: The mesh axes along which bytes travel, or that are sliced over.
        dims: The tensor dimensions touched; source and destination of an all-to-all in this order.
        state: The state after it.
    """

    kind: StepKind
    axes: tuple[int, ...]
    dims: tuple[int, ...]
    state: State


@dataclass(frozen=True, slots=True)
class StepGraph:
    """All states of a rank on a mesh, and all moves between them, sorted by destination.

    Attributes:
        sizes: Size of each mesh axis.
        states: Every way to split, in a fixed order.
        index: Position of each state.
        parts: Parts per dimension of each state, `[states, rank]`.
        moves: The moves.
        source: State a move starts from, `[moves]`.
        target: State a move leads to, `[moves]`, ascending.
    """

    sizes: tuple[int, ...]
    states: tuple[State, ...]
    index: dict[State, int]
    parts: NDArray[np.int64]
    moves: tuple[Move, ...]
    source: NDArray[np.intp]
    target: NDArray[np.intp]


def parts_of(state: State, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Into how many parts each dimension is split."""
    return tuple(math.prod(sizes[axis] for axis in dim) if dim else 1 for dim in state)


@lru_cache(maxsize=256)
def step_graph(sizes: tuple[int, ...], rank: int) -> StepGraph:
    """The graph of all states of `rank` dimensions over mesh axes of `sizes` (all above 1)."""
    states = _all_states(len(sizes), rank)
    index = {state: i for i, state in enumerate(states)}
    parts = np.array([parts_of(state, sizes) for state in states], dtype=np.int64).reshape(len(states), rank)
    twins: dict[tuple[int, ...], list[State]] = {}
    for state in states:
        twins.setdefault(parts_of(state, sizes), []).append(state)
    pairs = [(index[move.state], i, move) for i, state in enumerate(states) for move in _moves(state, sizes, twins)]
    pairs.sort(key=lambda pair: pair[:2])
    return StepGraph(
        sizes=sizes,
        states=states,
        index=index,
        parts=parts,
        moves=tuple(move for _, _, move in pairs),
        source=np.array([source for _, source, _ in pairs], dtype=np.intp),
        target=np.array([target for target, _, _ in pairs], dtype=np.intp),
    )


def _all_states(num_axes: int, rank: int) -> tuple[State, ...]:
    found: dict[State, None] = {}
    for used in range(num_axes + 1):
        for order in permutations(range(num_axes), used):
            for places in product(range(rank), repeat=used):
                dims: list[tuple[int, ...]] = [()] * rank
                for axis, dim in zip(order, places):
                    dims[dim] = (*dims[dim], axis)
                found[tuple(dims)] = None
    return tuple(found)


def _moves(state: State, sizes: tuple[int, ...], twins: dict[tuple[int, ...], list[State]]) -> list[Move]:
    return [*_slices(state, sizes), *_gathers(state), *_exchanges(state), *_permutes(state, sizes, twins)]


def _with(state: State, changes: dict[int, tuple[int, ...]]) -> State:
    return tuple(changes.get(i, dim) for i, dim in enumerate(state))


def _slices(state: State, sizes: tuple[int, ...]) -> list[Move]:
    free = set(range(len(sizes))) - {axis for dim in state for axis in dim}
    return [
        Move("slice", (axis,), (i,), _with(state, {i: (*dim, axis)}))
        for i, dim in enumerate(state)
        for axis in sorted(free)
    ]


def _gathers(state: State) -> list[Move]:
    return [
        Move("all-gather", dim[keep:], (i,), _with(state, {i: dim[:keep]}))
        for i, dim in enumerate(state)
        for keep in range(len(dim))
    ]


def _exchanges(state: State) -> list[Move]:
    return [
        Move("all-to-all", dim[keep:], (i, j), _with(state, {i: dim[:keep], j: (*state[j], *dim[keep:])}))
        for i, dim in enumerate(state)
        for keep in range(len(dim))
        for j in range(len(state))
        if j != i
    ]


def _permutes(state: State, sizes: tuple[int, ...], twins: dict[tuple[int, ...], list[State]]) -> list[Move]:
    moves = []
    for other in twins[parts_of(state, sizes)]:
        dims = tuple(i for i, (a, b) in enumerate(zip(state, other)) if a != b)
        if dims:
            changed = {axis for i in dims for axis in (*state[i], *other[i])}
            moves.append(Move("permute", tuple(sorted(changed)), dims, other))
    return moves
