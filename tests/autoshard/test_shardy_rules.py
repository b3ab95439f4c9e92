"""Our rules beside Shardy's: every class of dimensions that Shardy splits together is a factor of ours, or explained."""

from __future__ import annotations

import math

import pytest

from autoshard.rules.base import OpRule
from autoshard.rules.shardy import Place, ShardyClass, shardy_rule
from tests.helpers_rules import Case
from tests.rule_zoo import FAMILIES

CASES = [case for family in FAMILIES.values() for case in family()]

Sides = tuple[frozenset[Place], frozenset[Place]]


def our_factors(rule: OpRule) -> list[Sides]:
    """Per factor, the dimensions of operands and of results that have it."""
    return [(places_of(rule, rule.operands, f), places_of(rule, rule.results, f)) for f in range(len(rule.factors))]


def places_of(rule: OpRule, tensors: object, factor: int) -> frozenset[Place]:
    found: set[Place] = set()
    for k, dims in enumerate(tensors):
        for d, entry in enumerate(dims):
            if factor in entry:
                before = math.prod(rule.factors[g].size for g in entry[: entry.index(factor)])
                found.add((k, d) if len(entry) == 1 else (k, d, before, rule.factors[factor].size))
    return frozenset(found)


def missing(case: Case) -> list[ShardyClass]:
    """What Shardy splits and we do not."""
    ours = our_factors(case.op.rule)
    lost = []
    for theirs in shardy_rule(case.op.eqn).classes:
        if theirs.whole or theirs.size <= 1 or not (theirs.arguments and (theirs.results or theirs.reduced)):
            continue
        if not any(theirs.arguments <= a and theirs.results <= r for a, r in ours):
            lost.append(theirs)
    return lost
