"""Packed graphs say what graphs say; message passing gives bounds, with and without prices of memory."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from autoshard.solver import packed as packed_module
from autoshard.solver.dual import Dual
from autoshard.solver.graph import Graph
from autoshard.solver.packed import FORBIDDEN, Packed, pack
from autoshard.solver.pricing import Pricing
from tests.solver.problems import solvable

Choice = NDArray[np.int64]


def every_choice(packed: Packed) -> list[Choice]:
    return [np.array(choice, dtype=np.int64) for choice in itertools.product(*map(range, packed.sizes))]


def valid(packed: Packed, choice: Choice) -> bool:
    return packed.value(choice) < FORBIDDEN / 2 and bool((packed.usage(choice) <= packed.room).all())


def named(packed: Packed, choice: Choice) -> dict[int, int]:
    return dict(zip(packed.nodes, choice.tolist(), strict=True))


def test_packed_graphs_say_what_graphs_say() -> None:
    for _, graph, best in solvable(150):
        packed = pack(graph)
        choices = every_choice(packed)
        assert [valid(packed, choice) for choice in choices] == [
            np.isfinite(graph.value(named(packed, choice))) and graph.fits(named(packed, choice)) for choice in choices
        ]
        assert best == min(packed.value(choice) for choice in choices if valid(packed, choice))


def test_neighbours_are_never_in_one_level() -> None:
    for _, graph, _ in solvable(100):
        packed = pack(graph)
        level = np.repeat(np.arange(packed.levels), np.diff(packed.level_nodes))
        assert (level[packed.pair_u] != level[packed.pair_v]).all()


def priced_bound(graph: Graph, seed: int) -> tuple[Dual, float]:
    """Message passing at a few prices, one after the other, most rows at a price of zero."""
    dual = Dual(pack(graph))
    random = np.random.default_rng(seed)
    for _ in range(int(random.integers(1, 4))):
        if len(graph.room):
            prices = random.random(len(graph.room)) * float(random.choice([0.0, 0.1, 10.0, 1e6]))
            dual.set_prices(np.where(random.random(len(graph.room)) < 0.6, prices, 0.0))
        for _ in range(int(random.integers(1, 12))):
            dual.sweep()
    return dual, dual.bound


def test_bounds_hold_whatever_the_prices() -> None:
    for seed, (_, graph, best) in enumerate(solvable(300)):
        _, bound = priced_bound(graph, seed)
        assert bound <= best, seed


def test_bounds_of_forests_without_memory_are_exact() -> None:
    forests = 0
    for _, graph, best in solvable(300):
        packed = pack(graph)
        if packed.trees == packed.levels and not len(graph.room):
            dual = Dual(packed)
            assert dual.sweep() == best == packed.value(dual.decode())
            forests += 1
    assert forests > 20


def test_a_choice_costs_no_less_than_what_it_forces() -> None:
    for seed, (_, graph, _) in enumerate(solvable(60, needs_memory=True)):
        dual, _ = priced_bound(graph, seed)
        packed, forced = dual.packed, dual.forced_bounds()
        for choice in every_choice(packed):
            if valid(packed, choice):
                assert (forced[packed.offsets[:-1] + choice] <= packed.value(choice)).all(), seed


def test_losses_add_up_to_the_distance_to_the_bound() -> None:
    for seed, (_, graph, _) in enumerate(solvable(150)):
        dual, bound = priced_bound(graph, seed)
        packed = dual.packed
        choice = dual.decode()
        paid = float(dual.prices @ (packed.usage(choice) - packed.room)) if len(packed.room) else 0.0
        distance = packed.value(choice) + paid - bound
        rounding = len(packed.loads.owner) + len(
            packed.pair_loads.owner
        )  # a priced load is rounded down to a whole unit
        if packed.value(choice) < FORBIDDEN / 2:
            assert abs(float((dual.losses(choice) - 1.0).sum()) - distance) <= rounding + 1e-9 * abs(distance), seed


def test_prices_rise_where_memory_is_short_and_fall_where_it_is_not() -> None:
    room = np.array([100.0, 100.0, 100.0])
    pricing = Pricing(room, worth=30.0)
    first = pricing.prices.copy()
    assert float(first @ room) == 30.0
    for _ in range(20):
        pricing.update(np.array([150.0, 100.0, 10.0]))
    ratio = pricing.prices / first
    assert ratio[0] > 1.2 and ratio[1] == 1.0 and ratio[2] < 0.8


def test_batches_of_equal_matrices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [graph for _, graph, _ in solvable(80)]
    apart = [priced_bound(graph, seed) for seed, graph in enumerate(graphs)]
    monkeypatch.setattr(packed_module, "BATCH", 1)
    batched = [priced_bound(graph, seed) for seed, graph in enumerate(graphs)]
    assert any(batches for dual, _ in batched for batches in dual.packed.batches)
    for seed, ((before, bound), (after, same)) in enumerate(zip(apart, batched, strict=True)):
        assert bound == same, seed
        np.testing.assert_array_equal(before.forced_bounds(), after.forced_bounds())
        np.testing.assert_array_equal(before.decode(), after.decode())


def test_moves_never_worsen_a_choice() -> None:
    for seed, (_, graph, _) in enumerate(solvable(100)):
        dual, _ = priced_bound(graph, seed)
        packed = dual.packed
        dual.set_prices(np.zeros(len(packed.room)))
        start = np.random.default_rng(seed).integers(packed.sizes)
        moved = dual.improve(start, 3)
        assert packed.value(moved) <= packed.value(start), seed
