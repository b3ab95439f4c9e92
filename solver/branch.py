"""Splits what the search leaves open: a few choices often decide over much memory, and no price shares them out.

At the prices of the best bound there is a best choice that overfills memory and one that fits, and nothing in between
where many nodes follow one, as all layers do a shared parameter's sharding. Of the nodes on which the two differ the
one with most neighbours is fixed to the first's choice in one branch and kept from it in the other; each branch is
reduced and searched on its own. The branch of the lowest bound is split next: the bound of the whole is the lowest of
all branches that are open.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .clock import WORK_PER_SECOND, Clock
from .graph import Graph, Infeasible
from .search import Found, Search, Tell, entries, ignore, reduce, solve_quickly

BRANCH_SHARE = 0.7  # of the time left, for branches; the rest is for regions around the best choice
SHARE = 0.25  # of the time left, for each branch
SETUP = 15.0  # table entries that setting up a search touches, per entry of the graph's
WORTHWHILE = 1e-3  # relative gap from which on branches are worth their time


def conclude(graph: Graph, clock: Clock, tell: Tell, target_gap: float) -> Found:
    """Solve a graph as far as time allows; the graph is reduced in place.

    Args:
        graph: The graph; `Graph.recover` completes the choice that comes back.
        clock: When to stop.
        tell: Called with cost, bound and, where it is new, a choice for the live nodes.
        target_gap: Relative distance of cost and bound at which to stop.

    Raises:
        Infeasible: If no choice is valid.
    """
    reduce(graph, clock)
    found = solve_quickly(graph, clock)
    if found is not None:
        return found
    setup_s = SETUP * entries(graph) / WORK_PER_SECOND
    if setup_s > max(1.0, clock.left_s):  # time would be up before the search has begun
        return Found(None, math.inf, -math.inf, False, None)
    search = Search(graph, clock, tell, target_gap)
    search.run()
    if not search.done:
        _Branches(search, clock.part(BRANCH_SHARE * clock.left_s)).run()
    search.explore()
    return search.found()


@dataclass(order=True, slots=True)
class _Branch:
    """Part of the whole that is still open.

    Args:
        bound: No choice within it costs less.
        number: Breaks ties between bounds.
        path: The graphs from the whole's to its own, each a reduced copy of the one before.
        node, index: What to split it by.
    """

    bound: float
    number: int
    path: tuple[Graph, ...] = field(compare=False)
    node: int = field(compare=False)
    index: int = field(compare=False)


class _Branches:
    """The open branches, best bound first; the search of the whole learns of every better choice and bound."""

    def __init__(self, whole: Search, clock: Clock) -> None:
        self.whole = whole
        self.clock = clock
        self.open: list[_Branch] = []
        self.lowest_closed = math.inf  # bound of the branches that cannot be split
        self.count = 0

    def run(self) -> None:
        """Split until time is up, nothing can be split, or the gap is closed."""
        self._put(self.whole, ())
        while self.open and self._is_worthwhile():
            branch = heapq.heappop(self.open)
            children = list(_children(branch))
            for k, graph in enumerate(children):
                unseen = branch.bound if k + 1 < len(children) else math.inf
                self._search(graph, branch)
                self._raise_bound(unseen)

    def _is_worthwhile(self) -> bool:
        whole = self.whole
        gap = whole.cost - whole.bound
        return not (self.clock.expired or whole.done) and gap > WORTHWHILE * abs(whole.cost)

    def _search(self, graph: Graph, parent: _Branch) -> None:
        """Search a branch; keep it open if it may hold something better."""
        clock = self.clock.part(SHARE * self.clock.left_s)
        try:
            reduce(graph, clock)
            found = solve_quickly(graph, clock)
            child = None
            if found is None:
                child = Search(graph, clock, ignore, self.whole.target_gap, cutoff=self.whole.cost)
                child.run()
                found = child.found()
        except Infeasible:
            return
        finally:
            self.clock.spend(clock.work)
            self.whole.clock.spend(clock.work)
        path = (*parent.path, graph)
        if found.choice is not None:
            self.whole.offer(_completed(path, found.choice))
        if found.proven:
            return
        if child is None:
            self.lowest_closed = min(self.lowest_closed, max(found.bound, parent.bound))
        else:
            child.bound = max(child.bound, parent.bound)
            self._put(child, path)

    def _put(self, search: Search, path: tuple[Graph, ...]) -> None:
        """Open a branch, or note its bound if it cannot be split."""
        path = path or (search.graph,)
        split = _split(search)
        if split is None:
            self.lowest_closed = min(self.lowest_closed, search.bound)
            return
        self.count += 1
        heapq.heappush(self.open, _Branch(search.bound, self.count, path, *split))

    def _raise_bound(self, unseen: float) -> None:
        """The lowest bound of all that is open, and of what was not looked at yet."""
        lowest = min([unseen, self.lowest_closed, self.whole.cost, *(branch.bound for branch in self.open)])
        self.whole.bound = max(self.whole.bound, lowest)
        self.whole.tell(self.whole.cost, self.whole.bound, None)


def _split(search: Search) -> tuple[int, int] | None:
    """The node to split by, and its choice in the one branch; None if nothing is known to differ."""
    if search.between is None:
        return None
    overfull, fitting = search.between
    differ = np.flatnonzero(overfull != fitting)
    if not len(differ):
        return None
    degrees = np.bincount(search.packed.half_node, minlength=len(search.packed.nodes))
    position = int(differ[np.argmax(degrees[differ])])
    return search.packed.nodes[position], int(overfull[position])


def _children(branch: _Branch) -> Iterator[Graph]:
    """The branch with its node kept from the choice, and with it fixed to that; each graph an own copy."""
    graph, node = branch.path[-1], branch.node
    chosen = np.arange(len(graph.costs[node])) == branch.index
    for keep in (~chosen, chosen):
        copy = graph.copy()
        copy.restrict(node, keep)
        yield copy


def _completed(path: tuple[Graph, ...], choice: dict[int, int]) -> dict[int, int]:
    """A choice for the first graph of a path from one for the last."""
    for outer, inner in zip(path[-2::-1], path[:0:-1], strict=True):
        full = inner.recover(choice)
        choice = {node: full[node] for node in outer.costs}
    return choice
