"""Memory at a price: what prices per byte and row add to the costs of a packed graph.

Prices times bytes are rounded down to whole units. Few rows have a price as a rule: only the matrices of pairs that
hold memory there change, and those of equal layers change alike, so that they still form batches.
"""

from dataclasses import dataclass

import numpy as np

from .graph import Indices
from .packed import Batch, Packed, Spans, Tables, offsets_of, ranges, summed
from .problem import Floats


@dataclass(frozen=True, slots=True)
class Group:
    """Half-edges of a batch whose matrices are equal with memory charged.

    Args:
        table: Their matrix, a row per choice of the nodes at this end.
        messages: Where their message entries are among those of their level and kind.
        sources: For each half-edge and column the message entry of the other end that belongs to it.
    """

    table: Floats
    messages: slice | Indices
    sources: Indices


@dataclass(frozen=True, slots=True)
class Charged:
    """A packed graph's numbers with memory charged.

    Args:
        costs: Cost per choice.
        tables: Matrices of all pairs.
        entries: Entries of the half-edges outside batches, in the packed graph's order.
        groups: For each (level, kind) its batches, split by matrix.
    """

    costs: Floats
    tables: Tables
    entries: Floats
    groups: tuple[tuple[Group, ...], ...]


def charge(packed: Packed, prices: Floats) -> Charged:
    """Charge memory.

    Args:
        packed: The graph.
        prices: Units per byte of each memory row, none of them negative.
    """
    cumulated = np.concatenate([[0.0], np.cumsum(prices)])
    tables = _charged_tables(packed, cumulated)
    return Charged(
        costs=packed.costs + _charged(packed.loads, cumulated, len(packed.costs)),
        tables=tables,
        entries=_charged_entries(packed, tables),
        groups=tuple(
            tuple(group for batch in batches for group in _groups(packed, tables, batch, int(start)))
            for batches, start in zip(packed.batches, packed.message_offsets[packed.level_kinds[:-1]], strict=True)
        ),
    )


def _charged(spans: Spans, cumulated: Floats, size: int) -> Floats:
    paid = (cumulated[spans.stop] - cumulated[spans.start])[spans.load_of] * spans.nbytes
    return summed(spans.place, np.floor(paid), size)


def _charged_tables(packed: Packed, cumulated: Floats) -> Tables:
    """The packed graph's tables, and after them the charged ones."""
    loads, tables = packed.pair_loads, packed.tables
    price = cumulated[loads.stop] - cumulated[loads.start]
    dear = np.flatnonzero(price > 0.0)
    if not len(dear):
        return tables
    owners = np.unique(loads.owner[dear])
    sizes = packed.sizes[packed.pair_u[owners]] * packed.sizes[packed.pair_v[owners]]
    own = offsets_of(sizes)
    charged = tables.entries[ranges(tables.starts[owners], sizes)]
    counts = loads.offsets[dear + 1] - loads.offsets[dear]
    paid = np.repeat(price[dear], counts) * loads.nbytes[ranges(loads.offsets[dear], counts)]
    places = ranges(own[np.searchsorted(owners, loads.owner[dear])], counts)
    charged += summed(places, np.floor(paid), len(charged))
    starts, first = tables.starts.copy(), len(tables.entries)
    known: dict[tuple[int, bytes], int] = {}
    for pair, start, stop in zip(owners.tolist(), own[:-1].tolist(), own[1:].tolist(), strict=True):
        key = (int(packed.sizes[packed.pair_u[pair]]), charged[start:stop].tobytes())
        starts[pair] = known.setdefault(key, first + start)
    return Tables(starts, np.concatenate([tables.entries, charged]))


def _charged_entries(packed: Packed, tables: Tables) -> Floats:
    changed = (tables.starts != packed.tables.starts)[packed.half_pair]
    if not changed.any():
        return packed.entries
    half = np.repeat(np.arange(len(changed)), packed.sizes[packed.half_node])
    rows = np.flatnonzero(changed[half])
    counts = packed.row_starts[rows + 1] - packed.row_starts[rows]
    places = ranges(packed.row_starts[rows], counts)
    starts = np.repeat(tables.starts[packed.half_pair[half[rows]]], counts)
    entries = packed.entries.copy()
    entries[places] = tables.entries[starts + packed.entry_step[places]]
    return entries


def _groups(packed: Packed, tables: Tables, batch: Batch, first: int) -> list[Group]:
    """A batch, split by matrix."""
    starts = tables.starts[batch.pairs]
    start, stop = batch.messages.start - first, batch.messages.stop - first
    if (starts == starts[0]).all():
        return [Group(_table(packed, tables, batch, 0), slice(start, stop), batch.sources)]
    rows = (stop - start) // len(starts)
    groups = []
    for same in np.unique(starts).tolist():
        members = np.flatnonzero(starts == same)
        messages = (start + members[:, None] * rows + np.arange(rows)).ravel()
        groups.append(Group(_table(packed, tables, batch, int(members[0])), messages, batch.sources[members]))
    return groups


def _table(packed: Packed, tables: Tables, batch: Batch, member: int) -> Floats:
    table = packed.matrix(tables, int(batch.pairs[member]))
    return table if batch.forward else np.ascontiguousarray(table.T)
