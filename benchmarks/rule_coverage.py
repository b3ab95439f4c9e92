"""Which primitives JAX's public functions reach, and what becomes of each: a rule, a region, or whole, and why.

    python benchmarks/rule_coverage.py
    python benchmarks/rule_coverage.py --all

Every function of jax.numpy, lax, nn, random, fft, linalg, image and scipy is called on sample arguments. With ``--all``
every primitive that the installed JAX defines is listed as well. The first call that reaches a primitive is shown: it
has a factor to split ("split"), has none ("whole"), is entered ("region"), or its primitive has no rule ("none").
"""

from __future__ import annotations

import os
import sys
from collections import Counter

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import jax

from autoshard.rules import rule_of, ruled_primitives
from autoshard.trace import _REGIONS, equation_of
from tests.reached import reached_by_calls
from tests.test_rule_coverage import defined_primitives, excuse


def main() -> None:
    """Prints one line per primitive, and the sums."""
    found: Counter[str] = Counter()
    for name, (function, eqn) in sorted(reached_by_calls().items()):
        how, told = "region", ""
        if name not in _REGIONS:
            rule = rule_of(equation_of(eqn))
            how = "split" if rule.factors or rule.fixed else "whole" if rule.ruled else "none"
            factors = ", ".join(sorted({str(factor.combine) for factor in rule.factors}))
            told = rule.reason or factors or "no dimension of this call can be split"
            told = (
                told if rule.ruled else excuse(name, frozenset()) or "inside shard_map only, whose body is the user's"
            )
        found[how] += 1
        print(f"{name:34} {how:7} {function:44} {told}")
    count = found.total()
    ruled = (count - found["none"]) / count
    print(f"\njax {jax.__version__}: {count} primitives reached, {ruled:.1%} ruled: {dict(found)}")
    if "--all" in sys.argv:
        _defined()


def _defined() -> None:
    found: Counter[str] = Counter()
    for name, modules in defined_primitives():
        handled = name in ruled_primitives() or name in _REGIONS
        told = "ruled" if handled else excuse(name, modules) or "missing"
        found[told] += 1
        print(f"{name:34} {told}")
    print(f"\n{found.total()} primitives defined: " + "; ".join(f"{n} {why}" for why, n in found.most_common()))


if __name__ == "__main__":
    main()
