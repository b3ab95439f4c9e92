"""Fifty programs that went wrong for somebody: what their plans send, predicted and compiled, and what is not reached.

Links of 1 GB/s without latency between virtual CPU devices of 1 TFLOP/s and 1 TB/s. Names pick some of the programs.

    python benchmarks/bug_cases.py [name ...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.bugs import layers, lookups, moves
from tests.bugs.case import Found, examine

CASES = (*moves.CASES, *lookups.CASES, *layers.CASES)


def row(found: Found) -> str:
    case = found.case
    bound = "" if case.expect.sent_max is None else f"{case.expect.sent_max:,.0f}"
    error = found.predicted / found.compiled - 1 if found.compiled else 0.0
    verdict = "as expected" if not found.faults else "; ".join(found.faults)
    if found.faults and case.open:
        verdict += f" (known: {case.open})"
    return (
        f"{case.name:24} {bound:>9} {found.predicted:12,.0f} {found.compiled:12,.0f} {error:+7.1%} "
        f"{sum(found.plan.solver.seconds.values()):7.2f}  {verdict}"
    )


def main() -> None:
    names = set(sys.argv[1:])
    print(f"{'program':24} {'known':>9} {'predicted':>12} {'compiled':>12} {'error':>7} {'plan s':>7}  verdict")
    chosen = [case for case in CASES if not names or case.name in names]
    outcomes = []
    for case in chosen:
        outcomes.append(examine(case))
        print(row(outcomes[-1]), flush=True)
    met = sum(not found.faults for found in outcomes)
    print(f"{met} of {len(outcomes)} programs as expected")


if __name__ == "__main__":
    main()
