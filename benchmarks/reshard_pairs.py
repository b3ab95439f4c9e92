"""Compile planned reshardings and count what XLA moves: all pairs of specs or a sample, on virtual CPUs or for TPU.

    python benchmarks/reshard_pairs.py --mesh x=4,y=2
    python benchmarks/reshard_pairs.py --mesh x=2,y=2,z=2 --setting grad --sample 500
    python benchmarks/reshard_pairs.py --mesh x=4,y=2 --tpu v5e:2x4 --sample 160

A pair passes if the compiled program moves at most the planned bytes plus 5 %, and XLA replicates nothing.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time


def main() -> int:
    """Runs one sweep and prints its figures; exits with 1 if a pair fails."""
    options = _options()
    sizes = {name: int(size) for name, size in (axis.split("=") for axis in options.mesh.split(","))}
    shape = tuple(int(size) for size in options.shape.split(","))
    _prepare(sizes)
    from autoshard.costs import MeshModel
    from tests.costs.compiled import planned_chain

    model = MeshModel.uniform(sizes, bytes_per_s=1.0, latency_s=0.0)
    pairs = list(itertools.permutations(_all_specs(model, shape, options.uneven), 2))
    if options.part:
        part, of = (int(number) for number in options.part.split("/"))
        pairs = pairs[part - 1 :: of]
    if options.sample:
        pairs = random.Random(options.seed).sample(pairs, min(options.sample, len(pairs)))
    start = time.perf_counter()
    chains = [planned_chain(source, target, shape, model) for source, target in pairs]
    print(f"{len(pairs)} pairs of {shape} on {sizes}, planned in {time.perf_counter() - start:.2f} s", flush=True)
    return _sweep(chains, sizes, model, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", default="x=4,y=2")
    parser.add_argument("--shape", default="16,16,16", help="of the float32 tensor")
    parser.add_argument("--uneven", action="store_true", help="take specs that do not divide the shape as well")
    parser.add_argument("--setting", choices=("plain", "scan", "grad", "inner"), default="plain")
    parser.add_argument("--sample", type=int, default=0, help="random pairs; 0 takes all")
    parser.add_argument("--part", help="a part of all pairs, such as 1/8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64, help="pairs in one compiled program")
    parser.add_argument("--tpu", help="compile for this TPU slice, such as v5e:2x4, instead of CPU")
    return parser.parse_args()


def _prepare(sizes: dict[str, int]) -> None:
    """Sets what must be set before jax is imported."""
    count = 1
    for size in sizes.values():
        count *= size
    # Code is generated without optimisation, which the partitioner does not see and which takes half of the time.
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count} --xla_backend_optimization_level=0"
    os.environ["JAX_PLATFORMS"] = "cpu"


def _all_specs(model: object, shape: tuple[int, ...], uneven: bool) -> list:  # type: ignore[type-arg]
    from autoshard.costs import ShardingSpec

    names = model.axis_names  # type: ignore[attr-defined]
    specs = {}
    for used in range(len(names) + 1):
        for order in itertools.permutations(names, used):
            for places in itertools.product(range(len(shape)), repeat=used):
                dims = [tuple(axis for axis, place in zip(order, places) if place == i) for i in range(len(shape))]
                spec = ShardingSpec.of(*dims)
                if uneven or spec.divides(shape, model):  # type: ignore[arg-type]
                    specs[spec] = None
    return list(specs)


def _sweep(chains: list, sizes: dict[str, int], model: object, options: argparse.Namespace) -> int:  # type: ignore[type-arg]
    from autoshard.topology import tpu_mesh
    from tests.costs.compiled import compile_chains, jax_mesh, planned_bytes

    mesh = tpu_mesh(options.tpu, sizes) if options.tpu else jax_mesh(sizes)
    failed, planned, moved, messages = 0, 0.0, 0.0, 0
    for i in range(0, len(chains), options.batch):
        batch = chains[i : i + options.batch]
        outcome = compile_chains(batch, mesh, setting=options.setting)
        expected = [planned_bytes(chain, model, setting=options.setting) for chain in batch]  # type: ignore[arg-type]
        planned, moved = planned + sum(expected), moved + outcome.total_wire_bytes
        messages += outcome.rematerializations
        for chain, want, got in zip(batch, expected, outcome.wire_bytes):
            if got > want * 1.05:
                failed += 1
                stops = " -> ".join(str(spec) for spec in (chain.source, *chain.constraints))
                print(f"  {stops}: planned {want:.0f}, moved {got:.0f}", flush=True)
        if options.setting != "inner" and abs(sum(outcome.wire_bytes) - outcome.total_wire_bytes) > 0.5:
            print(f"  batch {i}: {outcome.total_wire_bytes - sum(outcome.wire_bytes):.0f} bytes of no known pair")
    print(
        f"{len(chains)} pairs, {options.setting}, {options.tpu or 'CPU'}: {failed} above plan + 5 %, "
        f"{messages} rematerialized, planned {planned:.0f}, moved {moved:.0f} bytes ({moved / max(planned, 1):.4f})"
    )
    return int(failed > 0 or messages > 0)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.exit(main())
