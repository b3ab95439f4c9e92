"""The cases of Alpa's tests: our optimum by their formulas beside theirs, and the collectives that XLA compiles.

python benchmarks/alpa_cases.py [PART OF A NAME]
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=32")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.autoshard.test_alpa_strategies import (
    CASES,
    CHEAPER_WITH_MORE_CALLS,
    NUMERIC,
    Case,
    assert_same_values,
    how_many,
    slack,
    whole_matrices,
)


def judged(case: Case) -> bool:
    """Prints a line about a case; true if it costs more than theirs, or needs more collectives for no less."""
    plan = case.planned()
    price = case.price(plan)
    counted = case.compiled() if case.collectives >= 0 else {}
    whole = whole_matrices(case, plan) if case.forced == "fully sharded" else 0
    more = how_many(counted) > max(0, case.collectives)
    told = [f"{price:.2f}, theirs {case.objective:.2f}"]
    told += [f"{how_many(counted)} collectives, theirs {case.collectives}: {dict(counted)}"] if counted else []
    told += [f"{whole} matrices whole, theirs {case.whole_leaves}"] if case.whole_leaves else []
    told += ["cheaper with more calls"] if more and price < case.objective else []
    bad = (
        price > slack(case) or whole > case.whole_leaves or (more and not CHEAPER_WITH_MORE_CALLS.keys() & {*case.ids})
    )
    print(f"{case}{' ' + case.forced if case.forced else ''}: {'; '.join(told)}{' WORSE' if bad else ''}", flush=True)
    return bad


def main() -> int:
    """Judges every case, or those of a name; exits with 1 if one is worse than theirs."""
    chosen = [case for case in CASES if all(part in str(case) for part in sys.argv[1:])]
    worse = sum(judged(case) for case in chosen)
    if all(part in str(NUMERIC) for part in sys.argv[1:]):
        assert_same_values(NUMERIC)
        print(f"{NUMERIC}: the values of one device", flush=True)
    names = {name for case in chosen for name in case.ids}
    print(f"{len(names)} of their cases, {worse} worse")
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
