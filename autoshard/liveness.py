"""Which values occupy device memory, and from when to when.

XLA computes elementwise operations, broadcasts and the like inside the loops of their consumers, so most values never
exist. A value is taken to be *fused* if its producer is fusible and either all its uses come within two operations, or
all its users are fusible or reductions themselves and it is cheap to compute again: a cast, a broadcast or a reshape on
CPU, anything elementwise elsewhere. A fused value takes no memory, but what it is computed from must live until it is
used. Boundaries of regions and constraints are other names of the same storage.

The CPU backend drops optimization barriers, so that outside of loops what `jax.checkpoint` computes again is merged
with the first computation: those values then live from the forward to the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autoshard.backends import CONTRACTIONS
from autoshard.graph import LITERAL, Graph, Op

FUSED_LIFE_OPS = 2
"""A fusible value that lives at most so many operations is taken to be fused (measured against the TPU compiler)."""

CHEAP = frozenset(
    "scan_xs convert_element_type broadcast_in_dim reshape squeeze expand_dims transpose stop_gradient copy neg".split()
)
"""Fusible operations that XLA computes again for every user rather than keep."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Half-open stretch of program time."""

    start: int
    stop: int


@dataclass(frozen=True)
class Liveness:
    """Storage and lifetimes of the values of a graph.

    Attributes:
        graph: The graph.
        donated: Per flat argument, whether its memory may be reused after its last use.
        platform: The backend that compiles: ``cpu``, ``tpu`` or ``gpu``.
    """

    graph: Graph
    donated: tuple[bool, ...]
    platform: str = "tpu"

    def occupies(self, value: int) -> bool:
        """Whether the value has storage of its own."""
        return self._stored[value]

    def is_returned(self, value: int) -> bool:
        """Whether it is a result of the program, or what a result is another name of."""
        return value in self._outputs

    def traffic(self, position: int) -> tuple[bool, ...]:
        """Per operand, then per result of an operation: is it read from or written to device memory here?"""
        op = self.graph.ops[position]
        if op.rule.aliases or not op.equation.operands:
            return (False,) * (len(op.operands) + len(op.results))
        if op.primitive in PARTIAL_TRAFFIC:
            read, written = PARTIAL_TRAFFIC[op.primitive]
            if op.primitive in IN_PLACE and op.operands[0] != LITERAL and self.graph.values[op.operands[0]].constant:
                written = (0,)  # what is updated has to be made first
            stored = [k in written and not self._selects(op) for k in range(len(op.results))]
            return (*(k in read for k in range(len(op.operands))), *stored)
        reads = tuple(v != LITERAL and self._has_storage(v) for v in op.operands)
        return reads + tuple(self._stored[v] for v in op.results)

    def interval(self, value: int) -> Interval:
        """When the value's storage is occupied; empty if it has none."""
        op, k = self.graph.values[value].producer
        start = self.graph.ops[op].result_from[k]
        if not self._stored[value] or value in self._merged:
            return Interval(start, start)
        last = self._made_again.get(value, self._last_needed[value])
        reused = self._dies_in_place(value, last)
        return Interval(start, max(last + (0 if reused else 1), start + 1))

    def _has_storage(self, value: int) -> bool:
        """Whether the value, or the one that it is another name of, is in memory."""
        return self._stored[self._original(value)]

    def _original(self, value: int) -> int:
        """The value that this is another name of; itself if of none. Names stand for the last operands, in order."""
        position, k = self.graph.values[value].producer
        op = self.graph.ops[position]
        named = op.operands[k - len(op.results)] if op.rule.aliases and op.operands else LITERAL
        return value if named == LITERAL else self._original(named)

    def _dies_in_place(self, value: int, last: int) -> bool:
        """Whether its last user writes a result of the same size, which then takes over the storage."""
        if last >= self.graph.end:
            return False
        op = self.graph.ops[last]
        size = self.graph.values[value].facts.nbytes
        if not any(self._stored[v] and self.graph.values[v].facts.nbytes == size for v in op.results):
            return False
        if op.primitive in IN_PLACE:
            return value in op.operands
        return op.rule.fusible and self._read_in_step(value, op)

    def _read_in_step(self, value: int, op: Op) -> bool:
        """Whether a fusible operation, or what is fused into it, reads each element when it writes the same element."""
        for operand, dims in zip(op.operands, op.rule.operands):
            if operand == LITERAL or dims != op.rule.results[0]:
                continue
            if operand == value:
                return True
            if not self._stored[operand]:
                producer = self.graph.ops[self.graph.values[operand].producer[0]]
                if producer.rule.fusible and producer.results and self._read_in_step(value, producer):
                    return True
        return False

    @cached_property
    def _stored(self) -> tuple[bool, ...]:
        stored = []
        for number, value in enumerate(self.graph.values):
            op = self.graph.ops[value.producer[0]]
            named = op.rule.aliases and bool(op.operands)
            stored.append(not (value.constant or named or self._fused(number, op)))
        return tuple(stored)

    def _fused(self, number: int, op: Op) -> bool:
        if not (op.rule.fusible or self._selects(op)) or number in self._outputs:
            return False
        uses = self.graph.uses(number)
        if self.platform == "tpu" and any(self.graph.ops[use.op].primitive == "gather" for use in uses):
            return False
        made = self.graph.values[number].producer[0]
        if all(use.op - made <= FUSED_LIFE_OPS for use in uses):
            return True
        if self.platform == "cpu" and op.primitive not in CHEAP:
            return False
        return all(self._fuses_operands(self.graph.ops[use.op]) for use in uses)

    def _selects(self, op: Op) -> bool:
        """Whether an update runs as a selection by index, inside the loops of its users."""
        return self.platform == "tpu" and op.primitive.startswith("scatter") and updates_one(op)

    def _fuses_operands(self, user: Op) -> bool:
        """Whether an operation computes its fusible operands inside its own loop."""
        if user.rule.fusible or user.primitive.startswith(("reduce", "argm")):
            return True
        if self.platform == "tpu" and user.primitive in CONTRACTIONS:
            return True
        return self.platform != "cpu" and user.primitive in PICKS

    @cached_property
    def _outputs(self) -> frozenset[int]:
        """What is returned, and the values that it is other names of: these have to be in memory at the end."""
        outputs = [number for number in self.graph.outputs if number != LITERAL]
        return frozenset((*outputs, *map(self._original, outputs)))

    @cached_property
    def _last_needed(self) -> tuple[int, ...]:
        """Per value the last time at which its storage is read, through aliases and fused users."""
        graph = self.graph
        last = [0] * len(graph.values)
        twins: dict[int, list[int]] = {}
        for again, once in self._merged.items():
            twins.setdefault(once, []).append(again)
        kept = {v for v, donated in zip(graph.arguments, self.donated) if not donated} | self._outputs
        for number in reversed(range(len(graph.values))):
            if number in kept:
                last[number] = graph.end
                continue
            latest = graph.values[number].producer[0]
            for use in graph.uses(number):
                latest = max(latest, use.until)
                user = graph.ops[use.op]
                if use.op < graph.values[number].producer[0]:  # a carry, which stores its own copy
                    continue
                through = [v for v in user.results if not self._stored[v] or v in self._made_again]
                latest = max([latest, *(last[v] for v in through)])
            last[number] = max([latest, *(last[twin] for twin in twins.get(number, ()))])
        return tuple(last)

    @cached_property
    def _made_again(self) -> Mapping[int, int]:
        """Until when values are stored that are stored only for the users that cannot fuse them.

        The other users compute them again; what they are computed from is no larger, and lives on instead.
        """
        if self.platform == "cpu":
            return {}
        found = {}
        for number, value in enumerate(self.graph.values):
            op = self.graph.ops[value.producer[0]]
            if not self._stored[number] or op.primitive not in CHEAP or number in self._outputs:
                continue
            uses = self.graph.uses(number)
            reading = [use.until for use in uses if not self._fuses_operands(self.graph.ops[use.op])]
            if len(reading) < len(uses) and op.equation.operands[0].nbytes <= value.facts.nbytes:
                found[number] = max(reading)
        return found

    @cached_property
    def _merged(self) -> Mapping[int, int]:
        """Values that are computed again outside of loops, to the first value that is the same."""
        if self.platform != "cpu":
            return {}
        first: dict[object, int] = {}
        names: dict[int, int] = {}
        merged: dict[int, int] = {}
        for op in self.graph.ops:
            operands = tuple(names.get(v, v) for v in op.operands)
            if op.rule.aliases and operands:
                names.update(zip(op.results, operands[-len(op.results) :]))
                continue
            if op.trips != 1 or not operands or op.primitive.endswith(("_carry", "_xs", "_ys")):
                continue
            params = tuple((k, str(v)) for k, v in op.equation.params.items())
            for k, v in enumerate(op.results):
                key = (op.primitive, params, operands, op.source, k)
                names[v] = first.setdefault(key, v)
                if names[v] != v and self._stored[v] and self._stored[names[v]]:
                    merged[v] = names[v]
        return merged


def updates_one(op: Op) -> bool:
    """Whether a scatter writes one element for each of its batch entries, as the gradient of `take_along_axis` does.

    The TPU compiler makes a comparison with the index and a selection of it, which fuse like anything elementwise.
    """
    numbers, indices, updates = (
        op.equation.params["dimension_numbers"],
        op.equation.operands[1],
        op.equation.operands[2],
    )
    batch = numbers.scatter_indices_batching_dims
    rows = math.prod(n for d, n in enumerate(indices.shape[:-1]) if d not in batch)
    window = math.prod(updates.shape[d] for d in numbers.update_window_dims)
    return bool(rows * window == 1)


PICKS = frozenset("dynamic_slice slice".split())
"""Operations that read a few elements of their operand, and fuse what computes it (a gather does not)."""

PARTIAL_TRAFFIC: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "scan_xs": ((), (0,)),
    "scan_ys": ((0,), ()),
    "scan_carry": ((), ()),
    "while_carry": ((), ()),
    "cond_out": ((), ()),
    "dynamic_slice": ((), (0,)),
    "dynamic_update_slice": ((1,), ()),
    "gather": ((1,), (0,)),
    "scatter": ((1, 2), ()),
    "scatter-add": ((1, 2), ()),
}
"""Operations that touch only a part of their large operand or result: the operands and results whose size is that of
the part which is read or written."""

IN_PLACE = frozenset("dynamic_update_slice scatter scatter-add scatter_add scan_carry while_carry".split())
"""Operations besides the fusible ones that overwrite an operand which dies."""
