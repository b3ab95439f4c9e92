"""Our rules beside Shardy's: dimensions that Shardy splits together share a factor of ours, or it is explained."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from jax.extend import core

from autoshard.rules import OpRule, rule_of, ruled_primitives
from autoshard.rules.base import Dims
from autoshard.rules.opaque import REPLICATED
from autoshard.rules.shardy import Place, ShardyClass, shardy_rule
from autoshard.trace import equation_of
from tests.helpers_rules import Case
from tests.reached import reached_by_calls
from tests.rule_zoo import FAMILIES

CASES = [case for family in FAMILIES.values() for case in family()]

UNEVEN = "no number of parts divides the extents before and after, and per-shard regions are even"
WINDOW = "Shardy also splits the elements of a window, which no mesh of devices does"
SPREAD = "a spread-out operand needs neighbours at places that differ from shard to shard"
KEY = "the words of a random key are never split"
FOLD = "JAX has no all-reduce with this operation, nor XLA on every backend"

EXPLAINED = {
    "conv_patches": WINDOW,
    "conv_stride": WINDOW,
    "conv_transposed": SPREAD,
    "conv_valid": UNEVEN,
    "pad_negative": UNEVEN,
    "pad_one": UNEVEN,
    "random_clone": KEY,
    "random_unwrap": KEY,
    "random_wrap": KEY,
    "reduce": FOLD,
    "reduce_several": FOLD,
    "reduce_xor": FOLD,
    "reshape_uneven": "a minor factor behind a major one that both shapes do not share",
    "scatter_mul": FOLD,
    "slice_shift": UNEVEN,
    "sum_pool_valid": UNEVEN,
    "symmetric_product": "a product with itself would need its operand in two shardings",
}
"""Cases where Shardy has more than we do, and why."""

EXPLAINED_PRIMITIVES = {
    "conv_general_dilated": UNEVEN,
    "random_unwrap": KEY,
    "random_wrap": KEY,
    "reduce": FOLD,
    "reduce_xor": FOLD,
    "slice": UNEVEN,
    "symmetric_product": EXPLAINED["symmetric_product"],
    "tile": KEY,
}
"""The same for primitives on the arguments with which JAX's public functions reach them."""

Sides = tuple[frozenset[Place], frozenset[Place]]


def our_factors(rule: OpRule) -> list[Sides]:
    """Per factor, the dimensions of operands and of results that have it."""
    return [(places_of(rule, rule.operands, f), places_of(rule, rule.results, f)) for f in range(len(rule.factors))]


def places_of(rule: OpRule, tensors: Sequence[Dims], factor: int) -> frozenset[Place]:
    found: set[Place] = set()
    for k, dims in enumerate(tensors):
        for d, entry in enumerate(dims):
            if factor in entry:
                before = math.prod(rule.factors[g].size for g in entry[: entry.index(factor)])
                found.add((k, d) if len(entry) == 1 else (k, d, before, rule.factors[factor].size))
    return frozenset(found)


def missing(eqn: core.JaxprEqn) -> list[ShardyClass]:
    """What Shardy splits and we do not."""
    ours = our_factors(rule_of(equation_of(eqn)))
    lost = []
    for theirs in shardy_rule(eqn).classes:
        if theirs.whole or theirs.size <= 1 or not (theirs.arguments and (theirs.results or theirs.reduced)):
            continue
        if not any(theirs.arguments <= a and theirs.results <= r for a, r in ours):
            lost.append(theirs)
    return lost


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whatever_shardy_splits_is_split_or_explained(case: Case) -> None:
    assert bool(missing(case.op.eqn)) == (case.name in EXPLAINED), missing(case.op.eqn)


def test_on_what_public_functions_reach() -> None:
    lost = {}
    for name, (function, eqn) in reached_by_calls().items():
        if name in ruled_primitives() and name not in NOT_LOWERED and missing(eqn):
            lost[name] = function
    assert lost.keys() == EXPLAINED_PRIMITIVES.keys(), lost


NOT_LOWERED = frozenset(REPLICATED) | {"shard_map", "cholesky_update"}
"""What has no StableHLO form of its own; the loop that updates a factorisation is ruled differently by each jaxlib."""
