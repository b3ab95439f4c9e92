"""Shardy's own resharding never beats the planner, at the planner's prices."""

import random

import pytest

from autoshard.costs import MeshModel, plan_resharding
from tests.costs.shardy import shardy_costs
from tests.costs.specs import all_specs

NAMES = ("x", "y", "z", "w")
PAIRS = 60
ODD_SIZES = ((6, 4), (8, 4, 2), (3, 2, 4), (2, 4, 8, 2))
SIZES = ((8,), (4, 2), (2, 4), (8, 2), (3, 2), (4, 4), (2, 2, 2), (4, 2, 2), (2, 4, 2), (2, 2, 2, 2), (4, 2, 2, 2))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("rank", [2, 3])
def test_shardy_finds_nothing_cheaper(sizes: tuple[int, ...], rank: int) -> None:
    """More than 1,000 random pairs in all: 11 meshes of 1 to 4 axes, 2 ranks, 60 pairs, in bytes and with latency."""
    pick = random.Random(f"{sizes} {rank}")
    specs = all_specs(NAMES[: len(sizes)], rank)
    pairs = [(pick.choice(specs), pick.choice(specs)) for _ in range(PAIRS)]
    shape = (96,) * rank
    for bytes_per_s, latency_s in ((1.0, 0.0), (1e9, 1e-6)):
        mesh = MeshModel.uniform(dict(zip(NAMES, sizes)), bytes_per_s=bytes_per_s, latency_s=latency_s)
        theirs = shardy_costs(pairs, shape, 4, mesh)
        assert sum(cost is not None for cost in theirs) >= PAIRS - 3
        for (source, target), cost in zip(pairs, theirs):
            if cost is not None:
                assert plan_resharding(source, target, shape, 4, mesh).seconds <= cost.seconds * (1 + 1e-8)


@pytest.mark.parametrize("sizes", ODD_SIZES, ids=str)
def test_shardy_finds_nothing_cheaper_where_axes_are_cut(sizes: tuple[int, ...]) -> None:
    """With axes of three sizes, or neither of which divides the other, whole axes are not always enough."""
    pick = random.Random(f"{sizes}")
    specs = all_specs(NAMES[: len(sizes)], 2)
    pairs = [(pick.choice(specs), pick.choice(specs)) for _ in range(PAIRS)]
    mesh = MeshModel.uniform(dict(zip(NAMES, sizes)), bytes_per_s=1.0, latency_s=0.0)
    theirs = shardy_costs(pairs, (384, 384), 4, mesh)
    assert sum(cost is not None for cost in theirs) >= PAIRS - 6
    for (source, target), cost in zip(pairs, theirs):
        if cost is not None:
            plan = plan_resharding(source, target, (384, 384), 4, mesh, sub_axes=True)
            assert plan.seconds <= cost.seconds * (1 + 1e-8)
