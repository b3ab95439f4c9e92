"""Execute the strategies of every rule on eight virtual devices: values, and collectives in kind, axes and bytes.

    python benchmarks/rules.py
    python benchmarks/rules.py --mesh 2x2x2 --sample 0 --family contractions
    python benchmarks/rules.py --part 1/4
    python benchmarks/rules.py --tpu v5e:2x4 --sample 2

Every case of tests/rule_zoo.py is planned on a 4x2 and a 2x2x2 mesh; where a rule generates more strategies than
``--sample``, that many are drawn, the same ones every time. A strategy agrees if its values are those of the operation
on one device and the compiled collectives are those that were priced. With ``--tpu`` the strategies are priced and
compiled for that slice, and nothing is run; known differences (`tests.helpers_rules`) are counted by reason. Exits with
1 if a strategy differs in an unknown way; on virtual CPUs there are no known ones.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Code is generated without optimisation, which the partitioner does not see and which takes a third of the time.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from autoshard.costs import MeshModel
from autoshard.strategies import Strategy
from autoshard.topology import tpu_mesh
from tests.helpers_rules import MESHES, Case, Outcome, execute, known_difference, only_compile, sampled
from tests.rule_zoo import FAMILIES


def main() -> int:
    """Prints one line per case, the strategies that differ, and the sums."""
    options = _options()
    found: Counter[str] = Counter()
    start = time.perf_counter()
    for case, mesh in _chosen(options):
        found += _case(case, mesh, options)
    count = found.total()
    print(f"\n{count} strategies, {found['agree']} as priced, in {time.perf_counter() - start:.0f} s")
    for reason in sorted(found.keys() - {"agree", "differ"}):
        print(f"{found[reason]} ({found[reason] / count:.2%}): {reason}")
    print(f"{found['differ']} differ in unknown ways")
    return int(found["differ"] > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", choices=tuple(MESHES), help="this mesh only")
    parser.add_argument("--family", choices=tuple(FAMILIES), help="this family of rules only")
    parser.add_argument("--case", help="this case only")
    parser.add_argument("--sample", type=int, default=64, help="most strategies of a case on a mesh; 0 takes all")
    parser.add_argument("--tpu", help="compile for this TPU slice, such as v5e:2x4")
    parser.add_argument("--part", default="1/1", help="a part of all cases, such as 1/4")
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> list[tuple[Case, str]]:
    families = [options.family] if options.family else list(FAMILIES)
    cases = [case for name in families for case in FAMILIES[name]() if options.case in (None, case.name)]
    meshes = [options.mesh] if options.mesh else list(MESHES)
    part, of = (int(number) for number in options.part.split("/"))
    return [(case, mesh) for case in cases for mesh in meshes][part - 1 :: of]


def _case(case: Case, mesh: str, options: argparse.Namespace) -> Counter[str]:
    """How many strategies agree, differ for which known reason, or differ."""
    sizes = MESHES[mesh]
    model = MeshModel.preset(f"tpu-{options.tpu.split(':')[0]}" if options.tpu else "cpu-virtual", sizes)
    strategies = case.op.strategies(model).strategies
    found: Counter[str] = Counter()
    for strategy in sampled(strategies, options.sample or len(strategies)):
        try:
            outcome = _outcome(case, strategy, sizes, options.tpu)
        except NotImplementedError:
            found["JAX has no kernel for this platform"] += 1
            continue
        if outcome.agrees:
            found["agree"] += 1
            continue
        reason = known_difference(case, outcome) if options.tpu else None
        found[reason or "differ"] += 1
        if reason is None:
            print(f"  {case.name} on {mesh}: {outcome}", flush=True)
    print(f"{case.name} on {mesh}: {found.total()} of {len(strategies)}, {found['agree']} as priced", flush=True)
    return found


def _outcome(case: Case, strategy: Strategy, sizes: dict[str, int], topology: str | None) -> Outcome:
    if topology is None:
        return execute(case, strategy, sizes)
    return only_compile(case, strategy, tpu_mesh(topology, sizes), sizes)


if __name__ == "__main__":
    sys.exit(main())
