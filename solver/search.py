"""Closes in on the optimum of a graph from both sides.

From below: message passing, with priced memory. From above: choices read off the messages; unions of such choices,
solved exactly; the part of the graph near the bound; regions around the best choice. What the bound rules out is
dropped, and what is left is searched again, until both sides meet, the rest fits an integer program, or time is up.
What is still open then is for `branch` to split.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .backend import Backend, Verdict, run_backend
from .clock import Clock
from .cutting import Cuts
from .dual import Dual
from .eliminate import eliminate
from .graph import Graph, Indices, Infeasible, drop_slack_rows
from .ilp import build_model
from .narrow import Narrowed, Priced, narrow
from .packed import FORBIDDEN, Packed, pack
from .pricing import Pricing
from .problem import Floats
from .simplify import simplify

Mask = NDArray[np.bool_]
Tell = Callable[[float, float, "dict[int, int] | None"], None]

SMALL = 3_000  # edge entries up to which the integer program is the quickest way
LARGE = 250_000  # edge entries up to which the integer program is tried
QUICK = 40_000  # edge entries up to which all that can be better is solved at once
NARROW = 1e-4  # relative gap up to which that is so for more: the best choice known is likely to be best
LARGE_PART = 20_000  # edge entries up to which it is tried on a part that only yields a choice
WARM_UP = 20  # sweeps at new prices
MOVES = 5  # rounds of moves to the cheapest choices
LOOK = 10  # sweeps between two looks at the choices
LEAST_LOOKS, MOST_LOOKS = 3, 12  # looks while choices get better
STALLED = 1e-6  # relative gain of the bound in a look below which sweeping stops
GAP_STALLED = 0.03  # the same, relative to the gap
PRICE_LOOK = 50  # iterations of pricing between two unions of the choices seen
PRICE_STALLED = 2e-4  # relative gain of the bound in such a time below which pricing stops
PRICE_SHARE = 0.5  # of the time left, for pricing
FIRST_WORTH = 0.3  # what all room costs at first, relative to the bound
WORTH_OF_SPREAD = 1e-3  # the least that stands for the bound there, relative to what choices differ by
TIE_WORTH = 1e-3  # what all rows' room costs on top, relative to the prices: of equal choices, the smaller
HIGHER = (1.0, 1.01, 1.05, 1.2, 1.6, 2.5)  # prices at which best choices are sought until one fits, relative to
LOWER = (0.99, 0.95, 0.8)  # those of the best bound; and until one overfills memory
TIES_WORTH = 1e-3  # relative to the bound: what breaking ties may cost
CUT_SHARE = 0.8  # of the time left, for cutting planes
FEW_ROWS = 12  # memory rows that may have a price
CUT_WORTH = 0.05  # relative to the bound: what all room may cost at first
LEAST_WORTH = 2.0**30  # units that it is at least: prices of bytes are rounded to whole units, and costs may be zero
CUT_TRIES = 4  # how often the best choice at new prices is sought
CUT_SWEEPS = 10  # sweeps before each time, as often as
CUT_GAIN = 2e-4  # the bound gains more than so much, relative to itself
CUT_GAP = 1e-5  # relative distance of the best bound to what the choices seen allow, at which prices are good enough
SLACKS = 6  # how often a best choice is sought among more of the choices
ELIMINATION = 20.0  # sweeps whose work the search for a best choice may take
WIDER = 30.0  # the most that the slack grows by each time
FIRST_SLACK = 3e-5  # relative to the bound: choices as near to it as this may be best
TIED = 1e-7  # relative to the bound: choices as near to it as this may be best
MINIMISER_SHARE = 0.1  # of the time limit, for the best choice at given prices
CLOSE_ENOUGH = 1e-5  # relative distance to the bound at which that choice is good enough
PRICED_ROWS = 12  # rows of highest price that parts respect from the start
UNITE_SHARE = 0.05  # of the time limit, for the best choice within a union
PART_SHARE = 0.3  # of the time left, for a part near the bound
WHOLE_SHARE = 0.8  # of the time left, for the part that holds all that can be better
SMALLER = 0.9  # of the edge entries: a part of more is as hard as the whole
SHRUNK = 0.25  # of the edge entries: a part of at most so many is worth solving
ROW_ROUNDS = 6  # how often a part is solved again with the rows that it overfilled
NEW_ROWS = 6  # rows added each time
FIRST_REGION = 200  # nodes of the first region explored
MOST_SEEDS = 6  # places that a region grows from
HUB = 12  # neighbours from which a node counts as a hub
REGION_S = 3.0  # seconds for each region
ROOT_WORK, NODE_WORK = 3e4, 1e4  # an integer program's work per nonzero, in table entries: at first, and per node
LEVEL_WORK, REDUCE_WORK = 1e5, 3e4  # work of a sweep per level, and of the reductions per node, whatever their size
SURELY = 1e-6  # relative excess of the bound over the dearest choice from which on nothing is valid, rounding or not
NOTHING_FITS = "no choice fits the memory budget and the forbidden entries"
CLOSE = 1e-9  # relative distance at which both sides count as equal: rounding of the costs as given


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to, in units.

    Args:
        choice: A choice for the graph's live nodes; None if none was found.
        cost: Its cost.
        bound: No choice costs less.
        proven: Whether the choice is best.
        price: Units that a byte of budget is worth at the bound; None if memory was not priced.
    """

    choice: dict[int, int] | None
    cost: float
    bound: float
    proven: bool
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Cheap:
    """A choice that is cheap at some prices of memory.

    Args:
        choice: A choice per position.
        bound: Units that every choice that fits costs at least.
        is_best: Whether no choice is cheaper at these prices.
    """

    choice: Indices
    bound: float
    is_best: bool


def settle(graph: Graph, clock: Clock, target_gap: float = 0.0, cutoff: float = math.inf) -> Found:
    """Reduce a graph, then solve what is left; the graph is reduced in place.

    Args:
        graph: The graph; `Graph.recover` completes the choice that comes back.
        clock: When to stop.
        target_gap: Relative distance of cost and bound at which to stop.
        cutoff: Only choices that cost less are sought.

    Raises:
        Infeasible: If no choice is valid.
    """
    reduce(graph, clock)
    found = solve_quickly(graph, clock)
    if found is None:
        search = Search(graph, clock, ignore, target_gap, cutoff)
        search.run()
        found = search.found()
    return found


def reduce(graph: Graph, clock: Clock) -> None:
    """Apply all reductions to a graph.

    Raises:
        Infeasible: If no choice is valid.
    """
    nodes = len(graph.costs)
    drop_slack_rows(graph)
    simplify(graph, clock)
    drop_slack_rows(graph)
    clock.spend(entries(graph) + REDUCE_WORK * nodes)


def solve_quickly(graph: Graph, clock: Clock) -> Found | None:
    """The solution of a reduced graph if nothing is left of it, or of time, or if it is small; None if it is not.

    Raises:
        Infeasible: If no choice is valid.
    """
    if not graph.costs:
        return Found({}, graph.constant, graph.constant, proven=True)
    if clock.expired:
        return Found(None, math.inf, -math.inf, proven=False)
    if entries(graph) <= SMALL and rows_filled(graph) <= SMALL:
        return integer_program(graph, clock)
    eliminated = None if len(graph.room) else eliminate(graph, clock)
    if eliminated is None:
        return None
    choice, cost = eliminated
    if cost == math.inf:
        raise Infeasible(NOTHING_FITS)
    return Found(choice, cost, cost, proven=True)


def entries(graph: Graph) -> int:
    """Number of edge entries, and of choices."""
    return sum(map(len, graph.costs.values())) + sum(matrix.size for _, _, matrix in graph.pairs())


def rows_filled(graph: Graph) -> int:
    """Number of entries that the memory rows have as constraints."""
    loads = [load for held in (*graph.loads.values(), *graph.edge_loads.values()) for load in held]
    return sum((load.stop - load.start) * load.nbytes.size for load in loads)


def integer_program(graph: Graph, clock: Clock) -> Found:
    """Hand a graph to the backend.

    Raises:
        Infeasible: If no choice is valid.
    """
    nothing = Found(None, math.inf, -math.inf, proven=False)
    if clock.expired:
        return nothing
    model, layout, scale = build_model(graph)
    root_work, node_work = ROOT_WORK * len(model.entries), NODE_WORK * len(model.entries)
    if clock.left_work < root_work:
        return nothing
    nodes = None if clock.work_limit is None else int(1 + (clock.left_work - root_work) / node_work)
    outcome = run_backend(model, Backend.HIGHS, seconds=clock.patience_s, nodes=nodes)
    clock.spend(root_work + node_work * outcome.nodes)
    if outcome.verdict is Verdict.INFEASIBLE:
        raise Infeasible(NOTHING_FITS)
    bound = -math.inf
    if math.isfinite(outcome.bound):
        bound = math.floor(outcome.bound * scale * (1 - CLOSE)) + graph.constant
    if not len(outcome.values):
        return Found(None, math.inf, bound, proven=False)
    choice = layout.choice(graph, outcome.values)
    cost = graph.value(choice)
    if not (math.isfinite(cost) and graph.fits(choice)):
        return Found(None, math.inf, bound, proven=False)
    proven = outcome.verdict is Verdict.OPTIMAL
    return Found(choice, cost, cost if proven else min(bound, cost), proven)


class Search:
    """One reduced graph under search: the best choice and the best bound known, changed in place.

    Attributes:
        choice: The best choice, per position of `packed`; None if none is known.
        cost: Its cost; without a choice the cost below which choices are sought.
        bound: No choice costs less.
        between: A best choice at some prices that overfills memory, and one that fits; None if they are not known.
    """

    def __init__(
        self, graph: Graph, clock: Clock, tell: Tell, target_gap: float = 0.0, cutoff: float = math.inf
    ) -> None:
        self.graph: Graph = graph
        self.packed: Packed = pack(graph)
        self.dual: Dual = Dual(self.packed)
        self.clock: Clock = clock
        self.tell: Tell = tell
        self.target_gap: float = target_gap
        self.choice: Indices | None = None
        self.cost: float = cutoff
        self.bound: float = -math.inf
        self.between: tuple[Indices, Indices] | None = None
        self.sweep_work: float = 2 * self.packed.work + LEVEL_WORK * self.packed.levels
        self.ceiling: float = _ceiling(self.packed)
        self._is_priced = False
        self.rows: set[int] = set()  # memory rows that parts have to respect, found as they are overfilled

    def run(self) -> None:
        """Search until both sides meet, nothing helps any more, or time is up.

        Raises:
            Infeasible: If no choice is valid.
        """
        self._sweep(LOOK)
        if not self.done:
            self._start()
        while not self.done:
            before = self.bound, self.cost
            if self._close_in():
                break
            self._sweep()
            if self.bound - before[0] <= STALLED * abs(self.bound) and self.cost == before[1]:
                break
        if not self.done and entries(self.graph) + rows_filled(self.graph) <= LARGE:
            self._finish()

    def _start(self) -> None:
        """A first choice and, where memory binds, prices for it."""
        if self._price_by_cuts() if len(self.packed.room) else self._is_eliminated():
            return
        self.dual.break_ties(TIES_WORTH * abs(self.bound))
        if len(self.packed.room):
            self._price()
        else:
            self._sweep_for_choices()
        self.dual.break_ties(0.0)
        self._sweep(WARM_UP)

    def _is_eliminated(self) -> bool:
        """Whether the best choice was found by elimination."""
        self._approach(self.clock)
        known = None if self.done else self._cheapest()
        return known is not None and known.is_best

    def found(self) -> Found:
        """What is known now."""
        choice = None if self.choice is None else self._named(self.choice)
        bound = self.cost if self.closed else self.bound
        price = float(self.dual.prices.sum()) if self._is_priced else None
        return Found(choice, self.cost, bound, self.closed, price)

    def offer(self, choice: dict[int, int]) -> None:
        """Take a choice for the graph's live nodes if it is valid and better."""
        self._offer(np.array([choice[node] for node in self.packed.nodes], dtype=np.int64))

    def _finish(self) -> None:
        """The integer program of all that is left."""
        found = integer_program(self.graph, self.clock)
        self.bound = max(self.bound, found.bound)
        if found.choice is not None:
            self.offer(found.choice)

    @property
    def closed(self) -> bool:
        """Whether nothing is better than the best choice, or than what was to be bettered."""
        return self.cost < math.inf and self.cost - self.bound <= CLOSE * abs(self.cost)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to find, or no time."""
        near = self.cost < math.inf and self.cost - self.bound <= self.target_gap * abs(self.cost)
        return near or self.closed or self.clock.expired

    def _named(self, choice: Indices) -> dict[int, int]:
        return {node: int(index) for node, index in zip(self.packed.nodes, choice, strict=True)}

    def _offer(self, choice: Indices) -> Floats:
        """Take a choice if it is valid and better; returns by how much it overfills each row."""
        cost = self.packed.value(choice)
        over = self.packed.usage(choice) - self.packed.room
        if cost < min(self.cost, FORBIDDEN / 2) and over.max(initial=0.0) <= 0.0:
            self.cost, self.choice = cost, choice
            self.tell(self.cost, self.bound, self._named(choice))
        return over

    def _swept(self) -> float:
        """One sweep; keeps the best bound.

        Raises:
            Infeasible: If the bound exceeds what any choice can cost.
        """
        self.clock.spend(self.sweep_work)
        bound = self.dual.sweep()
        if bound - self.ceiling > SURELY * (abs(bound) + abs(self.ceiling)) + 1.0:
            raise Infeasible(NOTHING_FITS)
        if bound > self.bound:
            self.bound = self.graph.units.reachable(bound)
        return bound

    def _sweep_for_choices(self) -> None:
        """Sweep as long as the choices read off the messages get better."""
        for look in range(MOST_LOOKS):
            before = self.cost
            for _ in range(LOOK):
                if not self.clock.expired:
                    self._swept()
            self._look()
            is_near = self.cost - self.bound <= NARROW * abs(self.cost) < math.inf
            if self.done or is_near or (look >= LEAST_LOOKS and self.cost == before):
                return

    def _look(self) -> None:
        """Offer the choice that the messages tell, and what moves make of it."""
        choice = self.dual.decode()
        self._offer(choice)
        self._offer(self.dual.improve(choice, MOVES))
        self.tell(self.cost, self.bound, None)

    def _sweep(self, sweeps: int | None = None) -> None:
        """Sweep so often, or until the bound stalls; look at the choices now and then."""
        count = 0
        while not self.done and count != sweeps:
            before = self.bound
            for _ in range(LOOK):
                self._swept()
                if self.clock.expired:
                    break
            count += LOOK
            self._look()
            known = self.cost < math.inf
            enough = GAP_STALLED * (self.cost - self.bound) if known else STALLED * abs(self.bound)
            if self.bound - before <= enough:
                return

    @property
    def _spread(self) -> float:
        """What the choices of all nodes differ by."""
        packed = self.packed
        return float((np.maximum.reduceat(packed.costs, packed.offsets[:-1]) - packed.least(packed.costs)).sum())

    def _price(self) -> None:
        """Price memory: one sweep and one choice per change of the prices, and the unions of the choices seen."""
        packed, stop = self.packed, self.clock.part(PRICE_SHARE * self.clock.left_s)
        pricing = Pricing(packed.room, FIRST_WORTH * max(abs(self.bound), WORTH_OF_SPREAD * self._spread))
        best, seen, before = (self.bound, self.dual.prices), np.zeros(len(packed.costs), dtype=bool), self.bound
        iteration = 0
        while not self.done and not stop.expired:
            self.dual.set_prices(pricing.prices)
            bound = self._swept()
            stop.spend(self.sweep_work)
            if bound > best[0]:
                best = (bound, pricing.prices)
            choice = self.dual.decode()
            seen[packed.offsets[:-1] + choice] = True
            over = self._offer(choice)
            pricing.update(over + packed.room)
            iteration += 1
            if iteration % PRICE_LOOK == 0:
                self._unite(seen)
                seen[:] = False
                self.tell(self.cost, self.bound, None)
                if best[0] - before <= PRICE_STALLED * abs(best[0]):
                    break
                before = best[0]
        highest = best[1].max(initial=0.0)
        self.rows.update(np.argsort(-best[1], kind="stable")[:PRICED_ROWS].tolist() if highest > 0 else [])
        even = best[1] + TIE_WORTH * float(best[1] @ packed.room) / len(packed.room) / np.maximum(packed.room, 1.0)
        self._climb(even)
        self.dual.set_prices(even)
        self._is_priced = True
        self._sweep(3 * WARM_UP)

    def _price_by_cuts(self) -> bool:
        """Price memory by cutting planes, and unite the choices seen.

        Returns:
            Whether that went well: not where best choices are out of reach, where nothing that fits was among the
            choices seen, or where so many rows bind that changing all prices at once gets there sooner.
        """
        packed, stop = self.packed, self.clock.part(CUT_SHARE * self.clock.left_s)
        cuts = Cuts(packed.room, max(CUT_WORTH * max(abs(self.bound), WORTH_OF_SPREAD * self._spread), LEAST_WORTH))
        seen = np.zeros(len(packed.costs), dtype=bool)
        fitting, overfull = None, None
        self._approach(stop)
        known = None if self.done else self._cheapest()
        if known is None or not known.is_best:
            return False
        while known is not None and not (self.done or stop.expired):
            choice = known.choice
            seen[packed.offsets[:-1] + choice] = True
            over = packed.usage(choice) - packed.room
            fitting, overfull = (choice, overfull) if over.max() <= 0.0 else (fitting, choice)
            cuts.add(known.bound, packed.value(choice), over + packed.room)
            self.tell(self.cost, self.bound, None)
            prices = cuts.next_prices(self.clock.patience_s, max(CUT_GAP, self.target_gap / 4))
            if prices is None:
                break
            if np.count_nonzero(prices) > FEW_ROWS:
                return False
            self.dual.set_prices(prices)
            known = self._cheapest_soon(stop, choice)
        self.rows.update(np.flatnonzero(cuts.best).tolist())
        if fitting is not None and overfull is not None:
            self.between = overfull, fitting
            pair = np.zeros(len(packed.costs), dtype=bool)
            pair[packed.offsets[:-1] + overfull] = pair[packed.offsets[:-1] + fitting] = True
            self._unite(pair)
        self._unite(seen)
        self.dual.set_prices(cuts.best)
        self._is_priced = True
        self._sweep(WARM_UP)
        return self.cost < math.inf

    def _cheapest_soon(self, stop: Clock, like: Indices | None = None) -> Cheap | None:
        """A best choice at new prices, after as many sweeps as it takes to get it into reach; at last, a good one."""
        known = None
        for _ in range(CUT_TRIES):
            self._approach(stop)
            known = self._cheapest(like)
            if self.done or stop.expired or (known is not None and known.is_best):
                break
        return known

    def _approach(self, stop: Clock) -> None:
        """Sweep as long as the bound gains much."""
        before = self._swept()
        for _ in range(CUT_TRIES):
            for _ in range(CUT_SWEEPS):
                if stop.expired or self.clock.expired:
                    return
                self._swept()
                if stop is not self.clock:
                    stop.spend(self.sweep_work)
            if stop.expired or self.done or self.dual.bound - before <= CUT_GAIN * abs(before):
                return
            before = self.dual.bound

    def _cheapest(self, like: Indices | None = None) -> Cheap | None:
        """A best choice at the current prices, or a good one if that is out of reach; None if that is, too.

        Choices with a forced bound above a slack are left out. What is found within is best of all if it costs no more
        than that; otherwise it tells which slack is enough.

        Args:
            like: A choice that it should differ little from, at a unit per node.
        """
        dual = self.dual
        forced = dual.forced_bounds() - dual.bound
        least = np.repeat(self.packed.least(forced), self.packed.sizes)
        slack, good = max(1.0, FIRST_SLACK * abs(dual.bound)), None
        for _ in range(SLACKS):
            keep = (forced <= slack) | (forced <= least)
            found = self._eliminated(keep, like)
            if found is None:
                break
            choice, cost = found
            excess = cost - dual.paid - dual.bound - (0 if like is None else len(like))
            if choice is not None:
                self._offer(choice)
                good = Cheap(choice, dual.bound, is_best=False)
                if excess <= slack or keep.all():
                    self.bound = max(self.bound, self.graph.units.reachable(dual.bound + excess))
                    return Cheap(choice, dual.bound + excess, is_best=True)
            slack = min(max(excess, slack), WIDER * slack)
        return good

    def _eliminated(self, keep: Mask, like: Indices | None) -> tuple[Indices | None, float] | None:
        """A best choice at the current prices among some, if there is one, and its cost; None if it is out of reach."""
        costs, nothing = self.dual.costs, np.zeros(0, dtype=np.int64)
        if like is not None:
            costs = costs + 1.0
            costs[self.packed.offsets[:-1] + like] -= 1.0
        part = narrow(self.packed, keep, nothing, self.graph.units, Priced(costs, self.dual.charged.tables))
        clock = self.clock.part(MINIMISER_SHARE * self.clock.limit_s)
        try:
            reduce(part.graph, clock)
            found = eliminate(part.graph, clock, ELIMINATION * self.sweep_work)
        except Infeasible:
            return None, math.inf
        finally:
            self.clock.spend(clock.work)
        if found is None or found[1] == math.inf:
            return None if found is None else (None, math.inf)
        return part.complete(part.graph.recover(found[0])), found[1]

    def _climb(self, prices: Floats) -> None:
        """The best choices at prices around these: one that fits, one that does not, and the best of their union."""
        seen = np.zeros(len(self.packed.costs), dtype=bool)
        fitting, overfull = self._best_at(prices, HIGHER, seen, fits=True)
        if overfull is None and fitting is not None:
            _, overfull = self._best_at(prices, LOWER, seen, fits=False)
        if fitting is not None and overfull is not None:
            self.between = overfull, fitting
        if seen.any() and not self.done:
            seen |= self._first_places(~seen)
            self._unite(seen)

    def _best_at(
        self, prices: Floats, factors: tuple[float, ...], seen: Mask, *, fits: bool
    ) -> tuple[Indices | None, Indices | None]:
        """The best choices at multiples of some prices, until one fits or one does not: the last of each kind."""
        fitting, overfull = None, None
        for factor in factors:
            self.dual.set_prices(factor * prices)
            for _ in range(2 * WARM_UP):
                self._swept()
                if self.done:
                    return fitting, overfull
            choice = self._minimiser()
            if choice is None:
                continue
            seen[self.packed.offsets[:-1] + choice] = True
            if self._offer(choice).max(initial=0.0) <= 0.0:
                fitting = choice
            else:
                overfull = choice
            if (fitting if fits else overfull) is not None:
                break
        return fitting, overfull

    def _first_places(self, missing: Mask) -> Mask:
        """The first choice of every node whose choices are all missing."""
        lacking = np.minimum.reduceat(missing, self.packed.offsets[:-1])
        first = np.zeros(len(missing), dtype=bool)
        first[self.packed.offsets[:-1][lacking]] = True
        return first

    def _minimiser(self) -> Indices | None:
        """A best choice at the current prices, memory apart from them: the part at the bound, without memory rows."""
        forced = self.dual.forced_bounds() - self.dual.bound
        keep = forced <= TIED * abs(self.dual.bound)
        keep |= forced <= np.repeat(self.packed.least(forced), self.packed.sizes)
        nothing = np.zeros(0, dtype=np.int64)
        part = narrow(self.packed, keep, nothing, self.graph.units, Priced(self.dual.costs, self.dual.charged.tables))
        clock = self.clock.part(MINIMISER_SHARE * self.clock.limit_s)
        try:
            found = settle(part.graph, clock, CLOSE_ENOUGH)
        except Infeasible:
            return None
        finally:
            self.clock.spend(clock.work)
        return None if found.choice is None else part.complete(part.graph.recover(found.choice))

    def _unite(self, seen: Mask) -> None:
        """The best choice within a union of choices."""
        if not seen.any():
            return
        if self.choice is not None:
            seen[self.packed.offsets[:-1] + self.choice] = True
        self._solve_part(seen, self.clock.part(UNITE_SHARE * self.clock.limit_s))

    def _close_in(self) -> bool:
        """Solve the part near the bound, then larger ones; whether one held all that can be better.

        Raises:
            Infeasible: If all choices were left and none is valid.
        """
        forced = self.dual.forced_bounds() - self.dual.bound
        least = np.repeat(self.packed.least(forced), self.packed.sizes)
        slack = self._first_slack(forced)
        while not self.done:
            gap = self.cost - self.dual.bound
            quick = LARGE if gap <= NARROW * abs(self.cost) else QUICK
            slack = gap if slack > gap / 2 or self._size(forced <= gap) <= quick else slack
            keep = (forced <= slack) | (forced <= least)
            if self.choice is not None:
                keep[self.packed.offsets[:-1] + self.choice] = True
            whole = slack == gap or bool(keep.all())
            share = WHOLE_SHARE if whole else PART_SHARE
            if not self._is_small(keep):
                return False
            clock = self.clock.part(share * self.clock.left_s)
            least_inside = self._solve_part(keep, clock)
            if whole:
                if min(least_inside, self.cost) == math.inf:
                    raise Infeasible(NOTHING_FITS)
                self.bound = max(self.bound, min(least_inside, self.cost))
                return self.closed
            if least_inside < self.cost:
                return False
            slack = max(8 * slack, CLOSE * abs(self.dual.bound), 1.0)
        return False

    def _is_small(self, keep: Mask) -> bool:
        """Whether a part is so much smaller than the whole that it is worth solving."""
        return self._size(keep) <= max(SHRUNK * self.packed.work, LARGE if len(self.packed.room) else LARGE_PART)

    def _size(self, keep: Mask) -> float:
        """Number of edge entries of a part."""
        packed = self.packed
        counts = np.add.reduceat(keep, packed.offsets[:-1], dtype=np.float64)
        return float((counts[packed.pair_u] * counts[packed.pair_v]).sum())

    def _first_slack(self, forced: Floats) -> float:
        """The slack at which about two choices a node are left."""
        count = min(2 * len(self.packed.nodes), len(forced) - 1)
        return float(np.partition(forced, count)[count])

    def _solve_part(self, keep: Mask, clock: Clock) -> float:
        """Solve a part and offer its choice; returns what everything in the part costs at least."""
        bound = -math.inf
        for _ in range(ROW_ROUNDS):
            rows = np.array(sorted(self.rows), dtype=np.int64)
            part = narrow(self.packed, keep, rows, self.graph.units)
            try:
                found = self._settle_part(part, clock)
            except Infeasible:
                return math.inf
            self.clock.spend(clock.work)
            if found is None:
                return bound
            bound = max(bound, found.bound)
            if found.choice is None:
                return bound
            over = self._offer(part.complete(part.graph.recover(found.choice)))
            if over.max(initial=0.0) <= 0.0 or clock.expired:
                return bound
            self._respect(over)
        return bound

    def _settle_part(self, part: Narrowed, clock: Clock) -> Found | None:
        """Settle a part, by the integer program if it is not too large."""
        graph = part.graph
        reduce(graph, clock)
        size = entries(graph)
        if not graph.costs or size <= SMALL:
            return settle(graph, clock)
        if len(graph.room):
            return integer_program(graph, clock) if size + rows_filled(graph) <= LARGE else None
        if size <= LARGE_PART:
            return integer_program(graph, clock)
        return settle(graph, clock, cutoff=self.cost) if size <= SMALLER * entries(self.graph) else None

    def _respect(self, over: Floats) -> None:
        """Add the rows that are overfilled most, some apart from each other."""
        over = over.copy()
        apart = max(1, len(over) // 200)
        for _ in range(NEW_ROWS):
            worst = int(np.argmax(over))
            if over[worst] <= 0.0:
                return
            self.rows.add(worst)
            over[max(0, worst - apart) : worst + apart + 1] = 0.0

    def explore(self) -> None:
        """Free regions around where the best choice loses most against the bound; fix the rest; solve.

        Regions grow while they are solved quickly. What a choice loses at a place is what messages leave of its costs
        there: all losses add up to the distance of the choice, at the prices of memory, to the bound.
        """
        if self.choice is None or not len(self.packed.room):
            return
        random = np.random.default_rng(0)
        packed, neighbours = self.packed, _neighbours(self.packed)
        forced = self.dual.forced_bounds()
        size, losses, cost = FIRST_REGION, self.dual.losses(self.choice), self.cost
        while not self.done:
            if self.cost < cost:
                cost, losses = self.cost, self.dual.losses(self.choice)
            seeds = random.choice(len(losses), int(random.integers(1, MOST_SEEDS + 1)), p=losses / losses.sum())
            inside = np.zeros(len(packed.nodes), dtype=bool)
            for seed in sorted(set(seeds.tolist())):
                inside[_region(neighbours, seed, size // len(seeds) + 1, random)] = True
            keep = inside[packed.node_of] & (forced < self.cost)
            keep[packed.offsets[:-1] + self.choice] = True
            clock = self.clock.part(REGION_S)
            solved = self._solve_part(keep, clock) >= self.cost
            quick = solved and clock.left_s > REGION_S / 2
            size = min(int(size * 1.2) + 1, len(packed.nodes)) if quick else max(FIRST_REGION // 4, int(size * 0.8))


def ignore(cost: float, bound: float, choice: dict[int, int] | None) -> None:
    """Parts keep what they find to themselves."""


def _ceiling(packed: Packed) -> float:
    """No choice without a forbidden entry costs more."""
    entries = np.where(packed.tables.entries >= FORBIDDEN / 2, 0.0, packed.tables.entries)
    starts, table = np.unique(packed.tables.starts, return_inverse=True)
    dearest = np.maximum.reduceat(entries, starts)[table] if len(entries) else entries
    nodes = np.maximum.reduceat(packed.costs, packed.offsets[:-1])
    return float(packed.constant + nodes.sum() + np.maximum(dearest, 0.0).sum())


def _neighbours(packed: Packed) -> list[Indices]:
    """The neighbours of each position."""
    order = np.argsort(packed.half_node, kind="stable")
    counts = np.bincount(packed.half_node, minlength=len(packed.nodes))
    return np.split(packed.half_other[order], np.cumsum(counts)[:-1])


def _region(neighbours: list[Indices], start: int, size: int, random: np.random.Generator) -> list[int]:
    """About `size` nodes around one, breadth first; of a hub's many neighbours only some."""
    region, inside = [start], {start}
    for node in region:
        around = neighbours[node]
        if len(around) > HUB:
            around = random.choice(around, HUB, replace=False)
        for other in around.tolist():
            if other not in inside:
                inside.add(other)
                region.append(other)
        if len(region) >= size:
            break
    return region
