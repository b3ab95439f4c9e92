"""Branches hold together what they were split from."""

import pytest

from autoshard.solver import branch, search
from autoshard.solver.branch import conclude
from autoshard.solver.clock import Clock
from autoshard.solver.graph import Graph
from autoshard.solver.search import Search, ignore
from tests.solver.problems import solvable


@pytest.fixture
def nothing_but_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """No integer program, and no part is solved: what bounds leave open is split."""
    monkeypatch.setattr(search, "SMALL", -1)
    monkeypatch.setattr(search, "LARGE", -1)
    monkeypatch.setattr(branch, "WORTHWHILE", 0.0)
    monkeypatch.setattr(Search, "_close_in", lambda self: False)
    monkeypatch.setattr(Search, "_unite", lambda self, seen: None)
    monkeypatch.setattr(Search, "explore", lambda self: None)


@pytest.mark.usefixtures("nothing_but_branches")
def test_branches_agree_with_exhaustive_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = 0
    original = branch._Branches._search

    def counted(self: branch._Branches, graph: Graph, parent: branch._Branch) -> None:
        nonlocal searched
        searched += 1
        original(self, graph, parent)

    monkeypatch.setattr(branch._Branches, "_search", counted)
    proven = 0
    for _, graph, best in solvable(150, needs_memory=True):
        found = conclude(graph, Clock(limit_s=5.0), ignore, 0.0)
        assert found.bound <= best <= found.cost
        proven += found.proven
        if found.choice is not None:
            assert graph.fits(found.choice) and graph.value(found.choice) == found.cost
    assert proven > 100 and searched > 50
