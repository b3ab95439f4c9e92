"""Resharding that cuts mesh axes wherever it helps, for those who can write specs over parts of axes.

Every state between two whole-axis specs may split dimensions by parts of axes, and each step is one constraint on a
mesh whose axes are cut accordingly (`refine.py`). That finds the last per cents on meshes with axes of several sizes.

A way has a head (slices and all-to-alls from the source), one permute, and a tail (all-to-alls and gathers to the
target). More permutes never pay: one already reaches every spec of the same parts, so whatever is sliced or gathered
can be moved to its side of it. What a permute leaves of a state is only its parts, so heads and tails are searched
apart, each once per sequence of factors, and meet where their parts agree.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from .runs import free_pieces, joined, permute_step, suffix_cut, take_pieces
from .steps import Piece, PieceState, Sizes, Step, piece_parts

StepSeconds = Callable[[Step], float]
Chain = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class _Way:
    seconds: float
    state: PieceState
    chain: Chain


@dataclass(frozen=True, slots=True)
class Cutter:
    """Searches ways that cut axes, for one mesh and shape.

    Attributes:
        sizes: Sizes of the mesh axes.
        shape: Shape of the tensor; only specs that divide it are passed through.
        step_s: Seconds of a step.
    """

    sizes: Sizes
    shape: tuple[int, ...]
    step_s: StepSeconds

    def cheapest(self, source: PieceState, target: PieceState, limit_s: float) -> Chain | None:
        """The steps of the cheapest way, if it takes less than `limit_s`."""
        heads = self._explored(source, self._forward, limit_s)
        tails = self._explored(target, self._backward, limit_s)
        best: Chain | None = None
        for parts, head in heads.items():
            tail = tails.get(parts)
            if tail is None:
                continue
            middle = () if head.state == tail.state else (permute_step(head.state, tail.state, self.sizes),)
            seconds = head.seconds + tail.seconds + sum(self.step_s(step) for step in middle)
            if seconds < limit_s:
                best, limit_s = (*head.chain, *middle, *tail.chain), seconds
        return best

    def _explored(
        self, start: PieceState, moves: Callable[[PieceState], Iterator[tuple[Step, PieceState]]], limit_s: float
    ) -> dict[tuple[int, ...], _Way]:
        """The cheapest way to every number of parts, by Dijkstra over sequences of factors."""
        best: dict[tuple[int, ...], _Way] = {}
        seen: set[tuple[tuple[int, ...], ...]] = set()
        order = count()
        queue = [(0.0, next(order), _Way(0.0, start, ()))]
        while queue:
            seconds, _, way = heapq.heappop(queue)
            factors = tuple(tuple(piece[2] for piece in dim) for dim in way.state)
            if factors in seen:
                continue
            seen.add(factors)
            best.setdefault(piece_parts(way.state), way)
            for step, state in moves(way.state):
                after_s = seconds + self.step_s(step)
                if after_s < limit_s:
                    chain = (*way.chain, step) if moves == self._forward else (step, *way.chain)
                    heapq.heappush(queue, (after_s, next(order), _Way(after_s, state, chain)))
        return best

    def _forward(self, state: PieceState) -> Iterator[tuple[Step, PieceState]]:
        parts = piece_parts(state)
        for taken in self._free(state, _primes):
            for i in range(len(state)):
                if self._divides(i, parts[i] * _product(taken)):
                    after = _put(state, {i: (*state[i], *taken)})
                    yield Step("slice", taken, (i,), after, parts), after
        for i, j, suffix, after in self._exchanged(state):
            yield Step("all-to-all", suffix, (i, j), after, parts), after

    def _backward(self, state: PieceState) -> Iterator[tuple[Step, PieceState]]:
        for taken in self._free(state, _divisors):
            for i, dim in enumerate(state):
                before = _put(state, {i: (*dim, *taken)})
                if self._divides(i, piece_parts(before)[i]):
                    yield Step("all-gather", taken, (i,), state, piece_parts(state)), before
        for j, i, suffix, before in self._exchanged(state):
            yield Step("all-to-all", suffix, (i, j), state, piece_parts(before)), before

    def _free(self, state: PieceState, factors: Callable[[int], list[int]]) -> Iterator[tuple[Piece, ...]]:
        """Free pieces of every size that `factors` gives."""
        free = math.prod(self.sizes) // math.prod(piece_parts(state))
        for factor in factors(free):
            yield take_pieces(free_pieces(state, self.sizes), factor)

    def _exchanged(self, state: PieceState) -> Iterator[tuple[int, int, tuple[Piece, ...], PieceState]]:
        """Every suffix of a dimension on the minor end of another."""
        parts = piece_parts(state)
        for i, dim in enumerate(state):
            for factor in _divisors(parts[i]):
                cut = suffix_cut(dim, factor)
                for j in range(len(state)) if cut else ():
                    if j != i and cut and self._divides(j, parts[j] * factor):
                        kept, suffix = cut
                        yield i, j, suffix, _put(state, {i: kept, j: (*state[j], *suffix)})

    def _divides(self, dim: int, parts: int) -> bool:
        return self.shape[dim] % parts == 0


def _put(state: PieceState, changes: dict[int, tuple[Piece, ...]]) -> PieceState:
    return tuple(joined(changes[i]) if i in changes else dim for i, dim in enumerate(state))


def _product(pieces: tuple[Piece, ...]) -> int:
    return math.prod(piece[2] for piece in pieces)


def _divisors(number: int) -> list[int]:
    return [factor for factor in range(2, number + 1) if number % factor == 0]


def _primes(number: int) -> list[int]:
    return [factor for factor in _divisors(number) if len(_divisors(factor)) == 1]
