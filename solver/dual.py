"""Lower bounds by message passing: accelerated tree-reweighted sweeps over a packed graph.

Messages move cost between nodes and edges and change no total: for messages m,

    cost(x) = constant + sum_i (c_i + sum_h m_h)[x_i] + sum_e (C_e - m_eu - m_ev)[x_u, x_v],

so the sum of the least entries of all brackets is a lower bound. A sweep visits the levels up and down; a node takes
all that its edges can give and shares it among the edges still to come (TRW-S: V. Kolmogorov, Convergent
tree-reweighted message passing for energy minimization, PAMI 2006). Sweeps are extrapolated with Nesterov's momentum,
restarted when the bound falls: an order of magnitude fewer of them are needed. Trees need no sweeps, they are passed up
exactly. Messages are whole numbers, so sums are exact in any order.

Of equally good choices each part of a graph may favour others, and what fits nowhere together is read off the messages.
Ties can be broken: choices cost a little more, by their number, the same in all nodes of so many choices; the most that
a solution can pay for this is taken off the bound.

Memory enters as a price per byte and row (a Lagrange multiplier): prices times bytes are added to the costs, prices
times room are taken off the bound, which is valid whatever the prices are.
"""

import math

import numpy as np

from .charge import Charged, charge
from .graph import Indices
from .packed import CHILD, DOWN, UP, Packed, summed
from .problem import Floats

KINDS = (CHILD, DOWN, UP)
CACHED = 60_000  # entries that are worked on at once in a batch: what a core's cache holds
MANY = 64  # vectors from which on short columns are worked on one by one
MOMENTUM = 0.95  # the most that a sweep is extrapolated


class Dual:
    """Messages and prices of a packed graph, and the bound that they prove.

    Attributes:
        bound: Units that every choice within the room costs at least, as of the last sweep.
        prices: Price per byte of each memory row.
        costs: Costs per choice, memory priced and ties broken.
        charged: Costs and matrices, memory priced.
    """

    def __init__(self, packed: Packed) -> None:
        self.packed: Packed = packed
        self.bound: float = -math.inf
        self.prices: Floats = np.zeros(len(packed.room))
        self.costs: Floats = packed.costs
        self.messages: Floats = np.zeros(len(packed.message_place))
        self._previous = self.messages.copy()
        self._age = 0
        kinds = np.repeat(np.arange(len(packed.level_kinds) - 1) % 3, np.diff(packed.level_kinds))
        ups = np.bincount(packed.half_node[kinds == UP], minlength=len(packed.nodes))
        downs = np.bincount(packed.half_node[kinds == DOWN], minlength=len(packed.nodes))
        self._share = (1.0 / np.maximum(1, np.maximum(ups, downs)))[packed.node_of]
        self._downs = downs[packed.node_of]
        self._is_root = (ups == 0)[packed.node_of]
        self._ties = np.zeros(len(packed.costs))
        self._most_ties = 0.0
        self.set_prices(self.prices)

    def break_ties(self, worth: float) -> None:
        """Let choices cost a little more, by their number; all of it together is worth so many units at most."""
        packed = self.packed
        number = np.arange(len(packed.costs)) - packed.offsets[:-1][packed.node_of]
        self._ties = np.floor(worth / max(1, len(packed.nodes)) * _scattered(number, packed.sizes[packed.node_of]))
        starts = packed.offsets[:-1]
        self._most_ties = float(np.maximum.reduceat(self._ties, starts).sum()) if len(starts) else 0.0
        self.set_prices(self.prices)

    def set_prices(self, prices: Floats) -> None:
        """Price memory, and pass what the trees then cost up to the core."""
        self.prices = prices
        self.charged: Charged = charge(self.packed, prices)
        self.costs = self.charged.costs + self._ties
        self._paid_room = math.fsum((prices * self.packed.room).tolist())
        self._lift()

    @property
    def paid(self) -> float:
        """Units that the priced costs of a choice within the room exceed the bound's by: room and ties."""
        return self._paid_room + self._most_ties

    def _lift(self) -> None:
        """Minimise the trees out, leaves first: every tree node gives all it has to the edge above it."""
        packed = self.packed
        self._collected = self.costs.copy()
        self._forest = 0.0
        for level in range(packed.levels):
            nodes, children = self._nodes(level), self._half(level, CHILD, CHILD)
            if children.stop > children.start:
                self._refresh(level, CHILD)
                self._previous[children] = self.messages[children]
                self._collected[nodes] += self._gathered(level, children)
            if level < packed.trees:
                ups = self._half(level, UP, UP)
                self.messages[ups] = -self._collected[packed.message_place[ups]]
                self._previous[ups] = self.messages[ups]
                rest = np.where(self._is_root[nodes], self._collected[nodes], 0.0)
                self._forest += float(packed.least(rest, *packed.level_nodes[level : level + 2]).sum())

    def sweep(self) -> float:
        """Sweep the core up and down, extrapolated; returns the new bound."""
        pace = min(self._age / (self._age + 3.0), MOMENTUM)
        extrapolated = np.floor(self.messages + pace * (self.messages - self._previous))
        self._previous, self.messages = self.messages, extrapolated
        before = self.bound
        levels = range(self.packed.trees, self.packed.levels)
        for level in levels:
            self._pass(level, DOWN, UP)
        rest = sum(self._pass(level, UP, DOWN) for level in reversed(levels))
        self.bound = self.packed.constant - self._paid_room - self._most_ties + self._forest + rest
        self._age = 0 if self.bound < before else self._age + 1
        return self.bound

    def _pass(self, level: int, source: int, target: int) -> float:
        """Take what the edges of one kind can give, share it among those of the other; returns what stays."""
        packed, nodes = self.packed, self._nodes(level)
        self._refresh(level, source)
        totals = self._collected[nodes] + self._gathered(level, self._half(level, DOWN, UP))
        shares = np.floor(totals * self._share[nodes])
        receivers = self._half(level, target, target)
        self.messages[receivers] -= shares[packed.message_place[receivers] - nodes.start]
        if target == UP:
            return 0.0
        rest = totals - shares * self._downs[nodes]
        return float(packed.least(rest, *packed.level_nodes[level : level + 2]).sum())

    def _nodes(self, level: int) -> slice:
        """The choices of a level's nodes."""
        first, last = self.packed.level_nodes[level : level + 2]
        return slice(int(self.packed.offsets[first]), int(self.packed.offsets[last]))

    def _half(self, level: int, first: int, last: int) -> slice:
        """The message entries of a level's half-edges of kinds `first` to `last`."""
        start, stop = self.packed.level_kinds[3 * level + first], self.packed.level_kinds[3 * level + last + 1]
        return slice(int(self.packed.message_offsets[start]), int(self.packed.message_offsets[stop]))

    def _refresh(self, level: int, kind: int) -> None:
        """Set messages to all that their edges can give: the least entry of each row."""
        span = self._half(level, kind, kind)
        if span.start < span.stop:
            self.messages[span] = self._row_minima(level, kind, self.messages)

    def _row_minima(self, level: int, kind: int, messages: Floats) -> Floats:
        """For the half-edges of a kind, the least of each row less the messages of the other ends."""
        packed, span = self.packed, self._half(level, kind, kind)
        least = np.empty(span.stop - span.start)
        stop = int(packed.flat_stops[3 * level + kind])
        if span.start < stop:
            starts = packed.row_starts[span.start : stop]
            rows = slice(int(starts[0]), int(packed.row_starts[stop]))
            values = self.charged.entries[rows] - messages[packed.entry_source[rows]]
            least[: stop - span.start] = np.minimum.reduceat(values, starts - rows.start)
        for group in self.charged.groups[3 * level + kind]:
            least[group.messages] = _batch_minima(group.table, messages[group.sources]).ravel()
        return least

    def _gathered(self, level: int, span: slice) -> Floats:
        """Messages added up per choice of a level's nodes."""
        nodes = self._nodes(level)
        places = self.packed.message_place[span] - nodes.start
        return summed(places, self.messages[span], nodes.stop - nodes.start)

    def decode(self) -> Indices:
        """A choice per position, read off the messages: level by level, given the choices already made."""
        packed = self.packed
        choice = np.zeros(len(packed.nodes), dtype=np.int64)
        for level in [*range(packed.trees, packed.levels), *range(packed.trees - 1, -1, -1)]:
            open_kind, made_kind = (UP, DOWN) if level >= packed.trees else (CHILD, UP)
            totals = self._collected[self._nodes(level)] + self._taken(level, made_kind, choice)
            if level >= packed.trees:
                totals = totals + self._gathered(level, self._half(level, open_kind, open_kind))
            first, last = packed.level_nodes[level : level + 2]
            choice[first:last] = packed.best(totals, int(first), int(last))
        return choice

    def improve(self, choice: Indices, rounds: int) -> Indices:
        """Move the nodes to their cheapest choices, level by level, at the current prices; never to a worse total."""
        packed = self.packed
        choice = choice.copy()
        for _ in range(rounds):
            before = choice.copy()
            for level in range(packed.levels):
                totals = self.costs[self._nodes(level)].copy()
                for kind in KINDS:
                    totals += self._taken(level, kind, choice)
                first, last = (int(bound) for bound in packed.level_nodes[level : level + 2])
                places = packed.offsets[first:last] - packed.offsets[first]
                best = packed.best(totals, first, last)
                better = totals[places + best] < totals[places + choice[first:last]]
                choice[first:last] = np.where(better, best, choice[first:last])
            if (choice == before).all():
                break
        return choice

    def _taken(self, level: int, kind: int, choice: Indices) -> Floats:
        """What the edges of one kind cost per choice, given the choices at their other ends."""
        packed, nodes, span = self.packed, self._nodes(level), self._half(level, kind, kind)
        halves = slice(*packed.level_kinds[3 * level + kind : 3 * level + kind + 2])
        steps = choice[packed.half_other[halves]] * packed.half_stride[halves]
        tables = self.charged.tables
        starts = tables.starts[packed.half_pair[halves]] + steps
        places = packed.row_step[span] + np.repeat(starts, packed.sizes[packed.half_node[halves]])
        return summed(packed.message_place[span] - nodes.start, tables.entries[places], nodes.stop - nodes.start)

    def forced_bounds(self) -> Floats:
        """For every choice, units that everything costs at least if it is taken; valid after a sweep."""
        packed = self.packed
        kept = self.costs + summed(packed.message_place, self.messages, len(self.costs))
        least = np.repeat(packed.least(kept), packed.sizes)
        minima = [self._row_minima(level, kind, self.messages) for level in range(packed.levels) for kind in KINDS]
        fresh = np.concatenate(minima) if minima else self.messages
        extra = self.costs + summed(packed.message_place, fresh, len(self.costs)) - least
        for level in range(packed.trees - 1, -1, -1):
            self._force_down(level, extra)
        return self.bound + extra

    def losses(self, choice: Indices) -> Floats:
        """What a choice loses at each position: what messages leave of its costs there and on half of each edge."""
        packed = self.packed
        kept = self.costs + summed(packed.message_place, self.messages, len(self.costs))
        nodes = (kept - np.repeat(packed.least(kept), packed.sizes))[packed.offsets[:-1] + choice]
        taken = self.messages[packed.message_offsets[:-1] + choice[packed.half_node]]
        pairs = packed.taken(self.charged.tables, choice) - summed(packed.half_pair, taken, len(packed.pair_u))
        ends = np.concatenate([packed.pair_u, packed.pair_v])
        lost: Floats = nodes + summed(ends, np.tile(np.maximum(pairs, 0.0) / 2, 2), len(packed.nodes)) + 1.0
        return lost

    def _force_down(self, level: int, extra: Floats) -> None:
        """Bounds of tree nodes given those of the nodes above them: an edge's entry is paid on top."""
        packed, span = self.packed, self._half(level, UP, UP)
        if span.start == span.stop:
            return
        above = self._row_minima(level, UP, self.messages - extra[packed.message_place])
        extra[packed.message_place[span]] = above - self.messages[span]


def _batch_minima(table: Floats, messages: Floats) -> Floats:
    """For every vector of messages the least of each row of the table less the vector."""
    if len(messages) >= MANY > len(table):
        return _column_minima(table, messages)
    least = np.empty((len(messages), len(table)))
    step = max(1, CACHED // table.size)
    for start in range(0, len(messages), step):
        part = messages[start : start + step]
        np.min(table - part[:, None, :], axis=2, out=least[start : start + step])
    return least


def _column_minima(table: Floats, messages: Floats) -> Floats:
    """The same, column by column: faster for many vectors and short columns."""
    least = table[:, 0] - messages[:, :1]
    rest = np.empty_like(least)
    for column in range(1, table.shape[1]):
        np.subtract(table[:, column], messages[:, column, None], out=rest)
        np.minimum(least, rest, out=least)
    return least


def _scattered(number: Indices, size: Indices) -> Floats:
    """Numbers between 0 and 1 that look random and are the same everywhere (the finaliser of SplitMix64)."""
    mixed = (number + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + size.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    scattered: Floats = (mixed ^ (mixed >> np.uint64(31))) / 2.0**64
    return scattered
