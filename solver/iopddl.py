"""Reads the JSON of the public contest on intra-operator parallelism (google/iopddl) as a `Problem`."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from .problem import Edge, Floats, Problem, Usage

FORBIDDEN = 1e18  # the contest's marker: this cost and above means "not allowed"


def load_iopddl(path: str | Path) -> Problem:
    """Read a contest instance.

    Args:
        path: A `.json` or `.json.gz` file.

    Returns:
        The same problem; costs of 1e18 and above become `inf`, intervals stay half-open.

    Example:
        >>> import tempfile
        >>> nodes = {"costs": [[1, 2], [3, 0]], "intervals": [[0, 2], []], "usages": [[8, 4], [0, 0]]}
        >>> edges = {"nodes": [[0, 1]], "costs": [[0, 7, 7, 0]]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "tiny.json")
        ...     _ = path.write_text(json.dumps({"problem": {"nodes": nodes, "edges": edges, "usage_limit": 6}}))
        ...     problem = load_iopddl(path)
        >>> problem.choices, problem.budget
        ((2, 2), 6.0)
    """
    opened = gzip.open(path, "rb") if str(path).endswith(".gz") else open(path, "rb")
    with opened as file:
        raw = json.load(file)["problem"]
    return parse_iopddl(raw)


def parse_iopddl(raw: dict[str, Any]) -> Problem:
    """Make a `Problem` of the contest's `problem` object, already parsed from JSON."""
    nodes, edges = raw["nodes"], raw["edges"]
    costs = tuple(_allowed(cost) for cost in nodes["costs"])
    sizes = [len(cost) for cost in costs]
    limit = raw.get("usage_limit")
    return Problem(
        names=tuple(f"node {i}" for i in range(len(costs))),
        costs=costs,
        edges=tuple(
            Edge(u, v, _allowed(cost).reshape(sizes[u], sizes[v]))
            for (u, v), cost in zip(edges["nodes"], edges["costs"], strict=True)
        ),
        usages=tuple(
            Usage(i, interval[0], interval[1], nbytes)
            for i, (interval, nbytes) in enumerate(zip(nodes["intervals"], nodes["usages"], strict=True))
            if interval and interval[0] < interval[1] and any(nbytes)
        ),
        budget=None if limit is None else float(limit),
    )


def _allowed(cost: list[float]) -> Floats:
    array = np.array(cost, dtype=np.float64)
    array[array >= FORBIDDEN] = np.inf
    return array
