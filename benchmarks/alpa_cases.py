"""The cases of Alpa's tests: our optimum by their formulas beside theirs, and the collectives that XLA compiles.

python benchmarks/alpa_cases.py [PART OF A NAME]
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=32")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from jax.sharding import AbstractMesh

from tests.autoshard.test_alpa_strategies import CASES, SLACK, as_they_count, how_many


def main() -> int:
    """Prints one line per case; exits with 1 if one costs more than theirs or needs more collectives."""
    worse = 0
    chosen = [case for case in CASES if all(part in case.ids for part in sys.argv[1:])]
    for case in chosen:
        with as_they_count():
            price = case.price(case.sharded(AbstractMesh(case.mesh, ("x", "y"))).plan(*case.step[1]))
        counted = case.compiled() if case.collectives >= 0 else {}
        bad = price > case.objective * SLACK + 1e-6 or how_many(counted) > max(0, case.collectives)
        worse += bad
        told = f"; {how_many(counted)} collectives, theirs {case.collectives}: {counted}" if counted else ""
        print(f"{case.ids}: {price:.2f}, theirs {case.objective:.2f}{told}{' WORSE' if bad else ''}", flush=True)
    print(f"{len(chosen)} cases, {worse} worse")
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
