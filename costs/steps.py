"""The specs of one mesh and rank, and the steps between them that XLA carries out exactly as told.

Measured on XLA's CPU and TPU compilers, each of these is one `with_sharding_constraint` that does what it says and
nothing else: append a free axis as the minor-most of a dimension, or several to a whole one (slice), gather a minor
suffix of a dimension, move a minor suffix of one dimension to the minor end of another (all-to-all), permute between
specs of equal parts in every dimension, and the runs over parts of axes of `runs.py`.

A state is a spec in numbers: for each dimension the positions of the mesh axes that split it, major first. Dimensions
are interchangeable as far as steps go, so states that differ by the order of dimensions share one canonical state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations, product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

StepKind = Literal["slice", "all-gather", "all-to-all", "permute", "all-reduce", "reduce-scatter"]

State = tuple[tuple[int, ...], ...]
Sizes = tuple[int, ...]

Piece = tuple[int, int, int]
"""A part of a mesh axis: its position, the product of what is major of it, and its size."""

PieceState = tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, or one slice.

    Attributes:
        kind: What happens.
        pieces: The parts of axes along which bytes travel, or that are sliced over.
        dims: The tensor dimensions touched; source and destination of an all-to-all in this order.
        state: The state after it.
        parts: Parts per dimension of the shard that the bytes are counted on: the result's for a gather, else the
            operand's.
    """

    kind: StepKind
    pieces: tuple[Piece, ...]
    dims: tuple[int, ...]
    state: PieceState
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """What one sharding constraint asks for: one step, or a run of steps over parts of axes.

    Attributes:
        source: State before.
        target: State after.
        steps: What happens.
    """

    source: State
    target: State
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class StepGraph:
    """All states of a rank on a mesh.

    Attributes:
        sizes: Size of each mesh axis.
        states: Every way to split, in a fixed order.
        index: Position of each state.
        parts: Parts per dimension of each state, `[states, rank]`.
        twins: The states of equal parts in every dimension.
    """

    sizes: Sizes
    states: tuple[State, ...]
    index: dict[State, int]
    parts: NDArray[np.int64]
    twins: dict[tuple[int, ...], tuple[State, ...]]
    _reorderings: dict[tuple[int, ...], NDArray[np.intp]] = field(default_factory=dict)

    def reordering(self, order: tuple[int, ...]) -> NDArray[np.intp]:
        """For every state the position of the state with its dimensions in the given order, `[states]`."""
        if order not in self._reorderings:
            moved = [self.index[tuple(state[i] for i in order)] for state in self.states]
            self._reorderings[order] = np.array(moved, dtype=np.intp)
        return self._reorderings[order]


def parts_of(state: State, sizes: Sizes) -> tuple[int, ...]:
    """Into how many parts each dimension is split."""
    return tuple(math.prod([sizes[axis] for axis in dim]) for dim in state)


def piece_parts(state: PieceState) -> tuple[int, ...]:
    """Into how many parts each dimension is split."""
    return tuple(math.prod([piece[2] for piece in dim]) for dim in state)


def pieces_of(dim: tuple[int, ...], sizes: Sizes) -> tuple[Piece, ...]:
    """Whole axes as pieces."""
    return tuple((axis, 1, sizes[axis]) for axis in dim)


def piece_state(state: State, sizes: Sizes) -> PieceState:
    """A state with whole axes as pieces."""
    return tuple(pieces_of(dim, sizes) for dim in state)


def canonical_order(state: State, types: tuple[int, ...]) -> tuple[int, ...]:
    """The order of dimensions that makes a state canonical: within a type, split dimensions first, by their axes."""
    order = list(range(len(state)))
    for kind in set(types):
        places = [i for i in order if types[i] == kind]
        for place, i in zip(places, sorted(places, key=lambda i: (not state[i], state[i], i))):
            order[place] = i
    return tuple(order)


@lru_cache(maxsize=256)
def step_graph(sizes: Sizes, rank: int) -> StepGraph:
    """The states of `rank` dimensions over mesh axes of `sizes` (all above 1)."""
    states = _all_states(len(sizes), rank)
    parts = [parts_of(state, sizes) for state in states]
    twins: dict[tuple[int, ...], list[State]] = {}
    for state, state_parts in zip(states, parts):
        twins.setdefault(state_parts, []).append(state)
    return StepGraph(
        sizes=sizes,
        states=states,
        index={state: i for i, state in enumerate(states)},
        parts=np.array(parts, dtype=np.int64).reshape(len(states), rank),
        twins={key: tuple(found) for key, found in twins.items()},
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


def single_steps(state: State, graph: StepGraph) -> list[Move]:
    """Every move of one step over whole axes that starts at `state`."""
    sizes = graph.sizes
    return [*_slices(state, sizes), *_gathers(state, sizes), *_exchanges(state, sizes), *_permutes(state, graph)]


def replaced(state: State, changes: dict[int, tuple[int, ...]]) -> State:
    """The state with some dimensions changed."""
    return tuple(changes.get(i, dim) for i, dim in enumerate(state))


def _move(
    kind: StepKind, axes: tuple[int, ...], dims: tuple[int, ...], source: State, target: State, sizes: Sizes
) -> Move:
    counted = target if kind == "all-gather" else source
    after = piece_state(target, sizes)
    step = Step(kind, pieces_of(axes, sizes), dims, after, parts_of(counted, sizes))
    return Move(source, target, (step,))


def _slices(state: State, sizes: Sizes) -> list[Move]:
    """One free axis more on any dimension; on a whole one also several at once, which uneven dimensions need."""
    free = sorted(set(range(len(sizes))) - {axis for dim in state for axis in dim})
    return [
        _move("slice", axes, (i,), state, replaced(state, {i: (*dim, *axes)}), sizes)
        for i, dim in enumerate(state)
        for count in range(1, 2 if dim else len(free) + 1)
        for axes in permutations(free, count)
    ]


def _gathers(state: State, sizes: Sizes) -> list[Move]:
    return [
        _move("all-gather", dim[keep:], (i,), state, replaced(state, {i: dim[:keep]}), sizes)
        for i, dim in enumerate(state)
        for keep in range(len(dim))
    ]


def _exchanges(state: State, sizes: Sizes) -> list[Move]:
    return [
        _move(
            "all-to-all",
            dim[keep:],
            (i, j),
            state,
            replaced(state, {i: dim[:keep], j: (*state[j], *dim[keep:])}),
            sizes,
        )
        for i, dim in enumerate(state)
        for keep in range(len(dim))
        for j in range(len(state))
        if j != i
    ]


def _permutes(state: State, graph: StepGraph) -> list[Move]:
    moves = []
    for other in graph.twins[parts_of(state, graph.sizes)]:
        dims = tuple(i for i, (a, b) in enumerate(zip(state, other)) if a != b)
        if dims:
            changed = tuple(sorted({axis for i in dims for axis in (*state[i], *other[i])}))
            moves.append(_move("permute", changed, dims, state, other, graph.sizes))
    return moves
