"""Cutting planes find the prices at which what was seen proves most."""

import math

import numpy as np
import pytest

from autoshard.solver import backend, search
from autoshard.solver.clock import Clock
from autoshard.solver.cutting import Cuts
from autoshard.solver.search import Search, ignore
from tests.solver.problems import solvable


def test_the_price_of_two_choices_is_their_rate_of_exchange() -> None:
    room = np.array([100.0, 100.0])
    cuts = Cuts(room, worth=50.0)
    cuts.add(bound=10.0, cost=10.0, held=np.array([150.0, 80.0]))
    high = cuts.next_prices(math.inf, 0.0)
    assert high is not None and (high @ room, high[1]) == (pytest.approx(50.0), 0.0), "nothing fits: all that it may be"
    cuts.add(bound=-10.0, cost=40.0, held=np.array([50.0, 90.0]))
    assert cuts.best.tolist() == [0.0, 0.0] and cuts.bound == 10.0
    prices = cuts.next_prices(math.inf, 0.0)
    assert prices is not None and prices.tolist() == pytest.approx([0.5 * 30.0 / 100.0, 0.0]), "half of the way there"
    cuts.add(bound=25.0, cost=40.0, held=np.array([50.0, 90.0]))
    assert cuts.bound == 25.0 and cuts.next_prices(math.inf, 0.0) is None, "half of each costs 25"


def test_prices_rise_until_something_fits() -> None:
    cuts = Cuts(np.array([100.0]), worth=1.0)
    worths = []
    for _ in range(4):
        cuts.add(bound=0.0, cost=5.0, held=np.array([120.0]))
        prices = cuts.next_prices(math.inf, 0.0)
        assert prices is not None
        worths.append(float(prices[0]))
    assert worths[-1] > 4 * worths[0]


def test_a_backend_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("no licence")

    monkeypatch.setattr(backend.math_opt, "solve", broken)
    cuts = Cuts(np.array([100.0]), worth=1.0)
    cuts.add(bound=0.0, cost=5.0, held=np.array([120.0]))
    assert cuts.next_prices(math.inf, 0.0) is None


def test_what_priced_choices_prove_holds_for_every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CUT_GAP", 1e-9)
    near = 0
    for seed, (_, graph, best) in enumerate(solvable(200, needs_memory=True)):
        searched = Search(graph, Clock(limit_s=5.0), ignore)
        searched._sweep(1)
        if not searched.done:
            searched._price_by_cuts()
        assert searched.bound <= best <= searched.cost, seed
        near += best - searched.bound <= 0.2 * abs(best)
    assert near > 150
