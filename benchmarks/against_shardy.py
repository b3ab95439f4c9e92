"""The planner beside Shardy's own resharding, at the planner's prices, over many random pairs and meshes.

python benchmarks/against_shardy.py --pairs 100 --seed 0
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from autoshard.costs import MeshModel, plan_resharding
from tests.costs.shardy import shardy_costs
from tests.costs.specs import all_specs

NAMES = ("x", "y", "z", "w")
SIZES = (
    *((8,), (4, 2), (2, 4), (8, 2), (3, 2), (6, 4), (2, 2, 2), (4, 2, 2), (2, 4, 2), (8, 4, 2), (3, 2, 4)),
    *((2, 2, 2, 2), (4, 2, 2, 2), (2, 4, 8, 2), (3, 2, 4, 2)),
)
ROUNDING = 1 + 1e-8


def main() -> None:
    """Prints how often each side is cheaper, with whole axes and with parts of axes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100, help="per mesh and rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--sub-axes", action="store_true", help="let plans name parts of axes")
    options = parser.parse_args()
    pick = random.Random(options.seed)
    outcomes: Counter[str] = Counter()
    worst = 1.0
    for sizes in SIZES:
        for rank in (2, 3, 4) if len(sizes) < 4 else (2, 3):
            mesh = MeshModel.uniform(dict(zip(NAMES, sizes)), bytes_per_s=1e9, latency_s=options.latency_s)
            specs = all_specs(NAMES[: len(sizes)], rank)
            pairs = [(pick.choice(specs), pick.choice(specs)) for _ in range(options.pairs)]
            shape = (384,) * rank
            for (source, target), cost in zip(pairs, shardy_costs(pairs, shape, 4, mesh)):
                if cost is None:
                    outcomes["Shardy fails"] += 1
                    continue
                ours = plan_resharding(source, target, shape, 4, mesh, sub_axes=options.sub_axes).seconds
                outcomes[_verdict(ours, cost.seconds)] += 1
                worst = max(worst, ours / cost.seconds if cost.seconds else 1.0)
    print(f"{sum(outcomes.values())} pairs: {dict(outcomes)}; the planner takes at most {worst:.3f} of Shardy's time")


def _verdict(ours_s: float, theirs_s: float) -> str:
    if ours_s > theirs_s * ROUNDING:
        return "Shardy cheaper"
    return "planner cheaper" if ours_s * ROUNDING < theirs_s else "equal"


if __name__ == "__main__":
    main()
