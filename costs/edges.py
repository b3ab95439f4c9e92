"""All moves of a graph of specs as arrays, built from the moves of canonical states in every order of dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .links import CollectiveKind
from .runs import runs_from
from .steps import Move, Piece, Sizes, Step, StepGraph, canonical_order, single_steps, step_graph

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Law = tuple[CollectiveKind, tuple[Piece, ...]]
Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Canon:
    """Canonical states of a graph.

    Attributes:
        state: The canonical state of every state, `[states]`.
        order: The order of dimensions that leads there, as a row of `orders`, `[states]`.
        orders: Orders of dimensions.
        reordered: Every state with its dimensions in every order, `[orders, states]`.
    """

    state: Indices
    order: Indices
    orders: tuple[Order, ...]
    reordered: Indices


@lru_cache(maxsize=1024)
def canon_of(sizes: Sizes, types: tuple[int, ...]) -> Canon:
    """Canonical states of a graph whose dimensions of one type are interchangeable."""
    graph = step_graph(sizes, len(types))
    orders: dict[Order, int] = {}
    found = [orders.setdefault(canonical_order(state, types), len(orders)) for state in graph.states]
    order = np.array(found, dtype=np.intp)
    reordered = np.stack([graph.reordering(o) for o in orders])
    state = reordered[order, np.arange(len(graph.states))]
    return Canon(state=state, order=order, orders=tuple(orders), reordered=reordered)


@dataclass(frozen=True, slots=True)
class Steps:
    """The collectives inside the moves of canonical states, `[steps]`.

    Attributes:
        move: The move that a step belongs to.
        law: Its collective, as a row of `laws`.
        parts: Parts per canonical dimension of the shard that its bytes count, `[steps, rank]`.
        laws: The collectives that occur.
    """

    move: Indices
    law: Indices
    parts: NDArray[np.int64]
    laws: tuple[Law, ...]


@dataclass(frozen=True, slots=True)
class Edges:
    """All moves of a graph, `[edges]` sorted by target.

    Attributes:
        source: State before.
        target: State after.
        move: Which move of `moves` it is.
        order: The order of dimensions that makes its source canonical, as a row of `orders`.
        starts: First edge of every group of one target.
        moves: The moves from canonical states.
        orders: Orders of dimensions.
        steps: The collectives inside the moves.
        is_run: Whether a move is a run, `[moves]`.
        tie: Number by which a move loses against an equally dear one: its steps, and half a step for a run, `[moves]`.
    """

    source: Indices
    target: Indices
    move: Indices
    order: Indices
    starts: Indices
    moves: tuple[Move, ...]
    orders: tuple[Order, ...]
    steps: Steps
    is_run: NDArray[np.bool_]
    tie: Array

    def move_of(self, edge: int) -> Move:
        """The move of an edge, in the edge's own order of dimensions."""
        return reordered(self.moves[self.move[edge]], inverse_order(self.orders[self.order[edge]]))


@lru_cache(maxsize=256)
def edges_of(sizes: Sizes, rank: int) -> Edges:
    """The edges of `step_graph(sizes, rank)`."""
    graph, canon = step_graph(sizes, rank), canon_of(sizes, (0,) * rank)
    moves_of = {int(c): _moves_from(graph, int(c)) for c in np.unique(canon.state)}
    moves = tuple(move for found in moves_of.values() for move in found)
    source, target, move = _placed(graph, canon, moves_of, moves)
    steps_of = np.array([len(found.steps) for found in moves], dtype=np.int64)
    return Edges(
        source=source,
        target=target,
        move=move,
        order=canon.order[source],
        starts=np.flatnonzero(np.diff(target, prepend=-1)),
        moves=moves,
        orders=canon.orders,
        steps=_steps_of(moves, rank),
        is_run=steps_of > 1,
        tie=steps_of + 0.5 * (steps_of > 1),
    )


def _moves_from(graph: StepGraph, state: int) -> list[Move]:
    return [*single_steps(graph.states[state], graph), *runs_from(graph.states[state], graph)]


def _placed(
    graph: StepGraph, canon: Canon, moves_of: dict[int, list[Move]], moves: tuple[Move, ...]
) -> tuple[Indices, Indices, Indices]:
    """Source, target and move of every edge: each state has the moves of its canonical state, turned back."""
    counts = np.array([len(moves_of[int(c)]) for c in canon.state], dtype=np.intp)
    first = dict(zip(moves_of, np.cumsum([0, *(len(found) for found in moves_of.values())])))
    source = np.repeat(np.arange(len(graph.states)), counts)
    within = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
    move = np.repeat(np.array([first[int(c)] for c in canon.state], dtype=np.intp), counts) + within
    canonical_target = np.array([graph.index[found.target] for found in moves], dtype=np.intp)[move]
    back = np.stack([graph.reordering(inverse_order(order)) for order in canon.orders])
    target = back[canon.order[source], canonical_target]
    by_target = np.lexsort((move, source, target))
    return source[by_target], target[by_target], move[by_target]


def _steps_of(moves: tuple[Move, ...], rank: int) -> Steps:
    laws: dict[Law, int] = {}
    found = [
        (i, laws.setdefault((step.kind, tuple(sorted(step.pieces))), len(laws)), step.parts)
        for i, move in enumerate(moves)
        for step in move.steps
        if step.kind != "slice"
    ]
    return Steps(
        move=np.array([i for i, _, _ in found], dtype=np.intp),
        law=np.array([law for _, law, _ in found], dtype=np.intp),
        parts=np.array([parts for _, _, parts in found], dtype=np.int64).reshape(len(found), rank),
        laws=tuple(laws),
    )


def inverse_order(order: Order) -> Order:
    """The order of dimensions that undoes another."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def reordered(move: Move, order: Order) -> Move:
    """The same move with the dimensions of the tensor in another order: place i takes dimension order[i]."""
    place = inverse_order(order)
    return Move(
        source=tuple(move.source[i] for i in order),
        target=tuple(move.target[i] for i in order),
        steps=tuple(
            Step(
                kind=step.kind,
                pieces=step.pieces,
                dims=tuple(place[dim] for dim in step.dims),
                state=tuple(step.state[i] for i in order),
                parts=tuple(step.parts[i] for i in order),
            )
            for step in move.steps
        ),
    )
