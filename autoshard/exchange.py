"""Moving rows between shards where a static rearrangement crosses their borders: slices, pads, joins, reversals.

Along one dimension, such an operation says for every row of a result which row of which operand it is. Split over n
devices, most rows are where they are needed; the others travel in rounds. A round is one collective-permute: every
device sends to at most one other and receives from at most one. All messages of a round are as long as its longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autoshard.rules.base import Segment

Table = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Round:
    """One collective-permute.

    Attributes:
        operand: Whose rows are sent.
        pairs: Sending and receiving device.
        rows: Per device, the rows of its shard that it sends; as many for all devices.
    """

    operand: int
    pairs: tuple[tuple[int, int], ...]
    rows: Table

    @property
    def length(self) -> int:
        """Rows of every message."""
        return int(self.rows.shape[1])

    def along(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Positions of the mesh axes along which something moves, given the sizes of the axes, major first."""
        ends = np.array(np.unravel_index(np.array(self.pairs).T, sizes))
        return tuple(int(k) for k in np.flatnonzero((ends[:, 0] != ends[:, 1]).any(1)))


@dataclass(frozen=True, slots=True)
class Exchange:
    """How the shards of one result are made.

    Attributes:
        operands: The operands that it takes rows from; their shards come first in the pool, in this order.
        rounds: The messages; what is received follows in the pool, in this order.
        rows: Per device, for each row of its shard of the result, the row of the pool; -1 for fill.
    """

    operands: tuple[int, ...]
    rounds: tuple[Round, ...]
    rows: Table


@cache
def exchange(segments: tuple[Segment, ...], result: int, extents: tuple[int, ...], extent: int, parts: int) -> Exchange:
    """Plan the messages that make one result.

    Args:
        segments: Which rows are which, along one dimension.
        result: The result.
        extents: Extent of every operand along the dimension.
        extent: Extent of the result.
        parts: Number of devices that split the dimension; it divides all extents.

    Returns:
        The plan, the same for the same arguments.
    """
    mine = [segment for segment in segments if segment.result == result]
    operands = tuple(sorted({segment.operand for segment in mine}))
    shards = [extents[k] // parts for k in operands]
    starts = np.cumsum([0, *shards])
    rows: Table = np.full((parts, extent // parts), -1, dtype=np.intp)
    flat = rows.reshape(-1)
    rounds: list[Round] = []
    received = int(starts[-1])
    for operand, start, shard in zip(operands, starts, shards):
        sources, targets = _places([segment for segment in mine if segment.operand == operand])
        senders, receivers = sources // shard, targets // rows.shape[1]
        stays = senders == receivers
        flat[targets[stays]] = start + sources[stays] % shard
        messages = _messages(senders[~stays], receivers[~stays])
        sources, targets = sources[~stays] % shard, targets[~stays]
        for chosen in _rounds({pair: len(found) for pair, found in messages.items()}):
            sent: Table = np.zeros((parts, max(len(messages[pair]) for pair in chosen)), dtype=np.intp)
            for sender, receiver in chosen:
                found = messages[sender, receiver]
                sent[sender, : len(found)] = sources[found]
                flat[targets[found]] = received + np.arange(len(found))
            rounds.append(Round(operand, tuple(chosen), sent))
            received += sent.shape[1]
    return Exchange(operands, tuple(rounds), rows)


def _places(segments: Sequence[Segment]) -> tuple[Table, Table]:
    """Row of the operand and row of the result, for all rows of segments."""
    steps = [np.arange(segment.count, dtype=np.intp) for segment in segments]
    sources = [segment.source + i * segment.source_step for segment, i in zip(segments, steps)]
    targets = [segment.target + i * segment.target_step for segment, i in zip(segments, steps)]
    return np.concatenate(sources), np.concatenate(targets)


def _messages(senders: Table, receivers: Table) -> dict[tuple[int, int], Table]:
    """Positions of the rows that go from one device to another."""
    if not len(senders):
        return {}
    order = np.lexsort((receivers, senders))
    pairs = np.stack([senders[order], receivers[order]], 1)
    cuts = np.flatnonzero((pairs[1:] != pairs[:-1]).any(1)) + 1
    groups = np.split(order, cuts)
    return {(int(senders[group[0]]), int(receivers[group[0]])): group for group in groups}


def _rounds(lengths: dict[tuple[int, int], int]) -> list[list[tuple[int, int]]]:
    """Messages put into rounds, long ones first, each into the first round where both ends are free."""
    rounds: list[list[tuple[int, int]]] = []
    for pair in sorted(lengths, key=lambda pair: (-lengths[pair], pair)):
        for chosen in rounds:
            if all(pair[0] != sender and pair[1] != receiver for sender, receiver in chosen):
                chosen.append(pair)
                break
        else:
            rounds.append([pair])
    return rounds


def rounds(
    segments: tuple[Segment, ...], extents: Sequence[int], results: Sequence[int], parts: int
) -> tuple[Round, ...]:
    """All messages that make all results."""
    plans = (exchange(segments, k, tuple(extents), extent, parts) for k, extent in enumerate(results))
    return tuple(moved for plan in plans for moved in plan.rounds)
