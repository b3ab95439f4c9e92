"""The problem: choose one strategy per node at least cost, within a memory budget at every time.

    minimise    sum_i c_i[x_i] + sum_(u,v) C_uv[x_u, x_v]
    subject to  at every time t, the bytes of all usages whose interval holds t add up to at most the budget,
                tied nodes choose the same index, and no chosen entry is infinite.

Node names are opaque strings, used in messages only. Time is program time: any whole numbers, intervals half-open.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class ProblemError(ValueError):
    """A problem that contradicts itself; the message lists every fault with its path."""


def _frozen(values: ArrayLike) -> Floats:
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


def _whole_bytes(nbytes: ArrayLike) -> Floats:
    array = np.ceil(np.asarray(nbytes, dtype=np.float64))
    array.setflags(write=False)
    return array


@dataclass(frozen=True, slots=True)
class Edge:
    """A cost that depends on the choices of two nodes.

    Args:
        u: Index of the node whose choice selects the row.
        v: Index of the node whose choice selects the column; another node than `u`.
        cost: Seconds (or any one unit), shape (choices of u, choices of v); `inf` forbids the pair.
    """

    u: int
    v: int
    cost: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", _frozen(self.cost))


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory that a node's choice holds during a time interval.

    Args:
        node: Index of the node.
        start: First time at which the memory is held.
        stop: First time at which it is no longer held; an interval with `stop <= start` is empty.
        nbytes: Bytes per choice, shape (choices,); fractions are rounded up to whole bytes.
    """

    node: int
    start: int
    stop: int
    nbytes: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", _whole_bytes(self.nbytes))


@dataclass(frozen=True, slots=True)
class EdgeUsage:
    """Memory that depends on the choices at both ends of an edge, as a resharded copy does.

    Args:
        edge: Index into `Problem.edges`.
        start: First time at which the memory is held.
        stop: First time at which it is no longer held; an interval with `stop <= start` is empty.
        nbytes: Bytes per pair of choices, the shape of the edge's cost; fractions are rounded up to whole bytes.
    """

    edge: int
    start: int
    stop: int
    nbytes: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", _whole_bytes(self.nbytes))


@dataclass(frozen=True, slots=True)
class Problem:
    """One choice per node, at least total cost, within a memory budget; validates itself.

    Args:
        names: One name per node.
        costs: One vector per node, an entry per choice; `inf` forbids the choice. Seconds, or any one unit.
        edges: Pairwise costs; several edges may join the same two nodes, and their costs add up.
        usages: Memory held by nodes; a node may have several.
        edge_usages: Memory held by edges, at the indices of `edges`.
        budget: Bytes that the live usages may add up to at any time; `None` for no limit.
        ties: Pairs of nodes that must choose the same index.
        classes: Optional hint, one label per node: nodes of one label play the same part in repeated layers and may
            be solved as one first. Only speed depends on it, never what is returned as optimal.

    Raises:
        ProblemError: If a shape, an index or a number is wrong; all faults are listed.

    Example:
        >>> import numpy as np
        >>> Problem(names=("a", "b"), costs=([1.0, 2.0], [0.0, 5.0]), edges=(Edge(0, 1, [[9, 9], [0, 9]]),)).choices
        (2, 2)
    """

    names: tuple[str, ...]
    costs: tuple[Floats, ...]
    edges: tuple[Edge, ...] = ()
    usages: tuple[Usage, ...] = ()
    edge_usages: tuple[EdgeUsage, ...] = ()
    budget: float | None = None
    ties: tuple[tuple[int, int], ...] = ()
    classes: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("names", "edges", "usages", "edge_usages", "classes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "costs", tuple(_frozen(cost) for cost in self.costs))
        object.__setattr__(self, "ties", tuple((int(u), int(v)) for u, v in self.ties))
        faults = list(_faults(self))
        if faults:
            shown = faults[:20] + ([f"... and {len(faults) - 20} more"] if len(faults) > 20 else [])
            raise ProblemError("The problem contradicts itself:\n" + "\n".join(f"  {fault}" for fault in shown))

    @property
    def choices(self) -> tuple[int, ...]:
        """The number of choices of each node."""
        return tuple(len(cost) for cost in self.costs)


def _faults(problem: Problem) -> Iterator[str]:
    yield from _node_faults(problem)
    yield from _edge_faults(problem)
    yield from _usage_faults(problem)
    yield from _tie_faults(problem)


def _node_faults(problem: Problem) -> Iterator[str]:
    count = len(problem.costs)
    if len(problem.names) != count:
        yield f"names: {len(problem.names)} names for {count} nodes"
    if problem.classes and len(problem.classes) != count:
        yield f"classes: {len(problem.classes)} labels for {count} nodes"
    for i, cost in enumerate(problem.costs):
        if cost.ndim != 1 or not len(cost):
            yield f"costs[{i}]: shape {cost.shape}, expected one entry per choice and at least one choice"
        elif fault := _number_fault(cost):
            yield f"costs[{i}]: {fault}"


def _number_fault(cost: Floats) -> str | None:
    lowest = cost.min() if cost.size else 0.0
    if np.isnan(lowest):
        return "contains NaN; use inf to forbid a choice"
    return "contains -inf" if np.isneginf(lowest) else None


def _edge_faults(problem: Problem) -> Iterator[str]:
    count = len(problem.costs)
    for e, edge in enumerate(problem.edges):
        if not (0 <= edge.u < count and 0 <= edge.v < count):
            yield f"edges[{e}]: joins nodes {edge.u} and {edge.v}, but nodes are 0 to {count - 1}"
        elif edge.u == edge.v:
            yield f"edges[{e}]: joins node {edge.u} with itself; add its diagonal to costs[{edge.u}]"
        elif edge.cost.shape != (shape := (problem.costs[edge.u].size, problem.costs[edge.v].size)):
            yield f"edges[{e}].cost: shape {edge.cost.shape}, expected {shape}"
        elif fault := _number_fault(edge.cost):
            yield f"edges[{e}].cost: {fault}"


def _usage_faults(problem: Problem) -> Iterator[str]:
    if problem.budget is not None and not problem.budget >= 0:
        yield f"budget: {problem.budget}, expected bytes of at least 0, or None"
    for n, usage in enumerate(problem.usages):
        if not 0 <= usage.node < len(problem.costs):
            yield f"usages[{n}]: node {usage.node}, but nodes are 0 to {len(problem.costs) - 1}"
        else:
            yield from _bytes_faults(f"usages[{n}]", usage.nbytes, problem.costs[usage.node].shape)
    for n, copy in enumerate(problem.edge_usages):
        if not 0 <= copy.edge < len(problem.edges):
            yield f"edge_usages[{n}]: edge {copy.edge}, but edges are 0 to {len(problem.edges) - 1}"
        else:
            yield from _bytes_faults(f"edge_usages[{n}]", copy.nbytes, problem.edges[copy.edge].cost.shape)


def _bytes_faults(path: str, nbytes: Floats, shape: tuple[int, ...]) -> Iterator[str]:
    if nbytes.shape != shape:
        yield f"{path}.nbytes: shape {nbytes.shape}, expected {shape}"
    elif nbytes.size and not (nbytes.min() >= 0 and nbytes.max() < np.inf):
        yield f"{path}.nbytes: expected finite bytes of at least 0"


def _tie_faults(problem: Problem) -> Iterator[str]:
    count = len(problem.costs)
    for n, (u, v) in enumerate(problem.ties):
        if not (0 <= u < count and 0 <= v < count):
            yield f"ties[{n}]: ties nodes {u} and {v}, but nodes are 0 to {count - 1}"
        elif problem.costs[u].size != problem.costs[v].size:
            yield f"ties[{n}]: nodes {u} and {v} have {problem.costs[u].size} and {problem.costs[v].size} choices"
