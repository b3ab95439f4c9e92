"""What is planned is what XLA does: chains of constraints, compiled for 8 devices, move the planned bytes and no more.

315 pairs here, and 176 on the TPU compiler; `benchmarks/reshard_pairs.py` runs all of them on either, on more meshes.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.costs import MeshModel, ShardingSpec, plan_resharding
from autoshard.topology import tpu_mesh
from tests.costs.compiled import Chain, Setting, compile_chains, jax_mesh, planned_bytes, planned_chain
from tests.costs.specs import all_specs, published_pairs, unit_mesh

TOLERANCE = 1.05
SIZES = {"x": 4, "y": 2}
THREE = {"x": 2, "y": 2, "z": 2}

PUBLISHED = published_pairs()
REMATERIALIZED = [(source, target) for source, target, _, jump in PUBLISHED if jump]
OTHERS = [(source, target) for source, target, _, jump in PUBLISHED if not jump]


def chains_of(pairs: list[tuple[ShardingSpec, ShardingSpec]], shape: tuple[int, ...], mesh: MeshModel) -> list[Chain]:
    return [planned_chain(source, target, shape, mesh) for source, target in pairs]


def random_pairs(
    count: int, sizes: dict[str, int], shape: tuple[int, ...], *, uneven: bool = False
) -> list[tuple[ShardingSpec, ShardingSpec]]:
    mesh, pick = unit_mesh(**sizes), random.Random(f"{sizes} {shape}")
    specs = [spec for spec in all_specs(tuple(sizes), len(shape)) if uneven or spec.divides(shape, mesh)]
    return [(source, target) for source, target in (pick.sample(specs, 2) for _ in range(count))]


def check(chains: list[Chain], sizes: dict[str, int], setting: Setting = "plain", tpu: str | None = None) -> None:
    mesh = unit_mesh(**sizes)
    outcome = compile_chains(chains, tpu_mesh(tpu, sizes) if tpu else jax_mesh(sizes), setting=setting)
    planned = [planned_bytes(chain, mesh, setting=setting) for chain in chains]
    worse = [
        f"{chain.source} -> {' -> '.join(map(str, chain.constraints))}: planned {want:.0f}, moved {got:.0f}"
        for chain, want, got in zip(chains, planned, outcome.wire_bytes)
        if got > want * TOLERANCE
    ]
    assert not worse, "\n".join(worse)
    assert outcome.rematerializations == 0
    if setting != "inner":  # there the sums of the results are outside of all chains
        assert sum(outcome.wire_bytes) == pytest.approx(outcome.total_wire_bytes)


def test_direct_jumps_rematerialize() -> None:
    """The sweep sees what it is there to see: without a plan, XLA replicates these tensors and says so."""
    direct = [Chain(source, (target,), (16, 16, 16)) for source, target in REMATERIALIZED[:6]]
    outcome = compile_chains(direct, jax_mesh(SIZES))
    planned = sum(planned_bytes(chain, unit_mesh(**SIZES)) for chain in direct)
    assert outcome.rematerializations == 6
    assert outcome.total_wire_bytes > 2 * planned


def test_pairs_that_rematerialize_on_a_jump_do_not() -> None:
    assert len(REMATERIALIZED) == 60
    check(chains_of(REMATERIALIZED, (16, 16, 16), unit_mesh(**SIZES)), SIZES)


def test_pairs_of_two_axes() -> None:
    check(chains_of(OTHERS[::4], (16, 16, 16), unit_mesh(**SIZES)), SIZES)


@pytest.mark.parametrize("shape", [(16, 24), (8, 16, 24)])
def test_pairs_of_three_axes(shape: tuple[int, ...]) -> None:
    check(chains_of(random_pairs(40, THREE, shape), shape, unit_mesh(**THREE)), THREE)


def test_pairs_of_large_tensors() -> None:
    shape = (256, 256, 256)  # 64 MiB
    check(chains_of(random_pairs(16, SIZES, shape), shape, unit_mesh(**SIZES)), SIZES)


@pytest.mark.parametrize("setting", ["scan", "grad"])
@pytest.mark.parametrize("sizes", [SIZES, THREE], ids=["two axes", "three axes"])
def test_pairs_inside_scan_and_under_grad(setting: Setting, sizes: dict[str, int]) -> None:
    shape = (16, 16, 16)
    check(chains_of(random_pairs(12, sizes, shape), shape, unit_mesh(**sizes)), sizes, setting)


@pytest.mark.parametrize("sizes", [SIZES, THREE], ids=["two axes", "three axes"])
def test_pairs_of_uneven_shapes(sizes: dict[str, int]) -> None:
    shape = (12, 10, 14)
    check(chains_of(random_pairs(20, sizes, shape, uneven=True), shape, unit_mesh(**sizes)), sizes, "inner")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "int32", "bool"])
def test_the_wire_carries_what_the_model_says_of_a_dtype(dtype: str) -> None:
    itemsize, shape = jnp.dtype(dtype).itemsize, (64, 64)
    mesh = MeshModel.preset("cpu-virtual", SIZES)
    pairs = [("x", None, None, None), ("x", None, None, "x"), ("x", "y", "y", "x")]
    ends = [(ShardingSpec.of(a, b), ShardingSpec.of(c, d)) for a, b, c, d in pairs]
    outcome = compile_chains(chains_of(ends, shape, mesh), jax_mesh(SIZES), dtype=dtype)
    for (source, target), moved in zip(ends, outcome.wire_bytes):
        scale = mesh.wire_scale(dtype)
        assert plan_resharding(source, target, shape, itemsize, mesh, wire_scale=scale).wire_bytes == moved


class TestOnTheTpuCompiler:
    """The same, compiled for 8 chips of v5e: a third each in a row of statements, in a loop and under grad."""

    shape = (16, 16, 16)
    chips = "v5e:2x4"

    @pytest.fixture(autouse=True)
    def _compiler(self) -> None:
        pytest.importorskip("libtpu", reason="the TPU compiler comes with the libtpu wheel")

    def test_direct_jumps_rematerialize(self) -> None:
        direct = [Chain(source, (target,), self.shape) for source, target in REMATERIALIZED[:2]]
        assert compile_chains(direct, tpu_mesh(self.chips, SIZES)).rematerializations == 2

    @pytest.mark.parametrize("setting", ["plain", "scan", "grad"])
    def test_pairs_of_two_axes(self, setting: Setting) -> None:
        start = ["plain", "scan", "grad"].index(setting)
        pairs = [*REMATERIALIZED[start::3], *OTHERS[start::28]]
        check(chains_of(pairs, self.shape, unit_mesh(**SIZES)), SIZES, setting, self.chips)

    @pytest.mark.parametrize("setting", ["plain", "scan", "grad"])
    def test_pairs_of_three_axes(self, setting: Setting) -> None:
        pairs = random_pairs(28, THREE, self.shape)
        check(chains_of(pairs, self.shape, unit_mesh(**THREE)), THREE, setting, self.chips)


def test_values_arrive_unchanged() -> None:
    """The chains move data, not only specs: every element is where it was."""
    mesh = jax_mesh(SIZES)
    values = np.arange(16 * 16 * 16, dtype=np.float32).reshape(16, 16, 16)
    for chain in chains_of(REMATERIALIZED[:8], (16, 16, 16), unit_mesh(**SIZES)):
        specs = [jax.sharding.PartitionSpec(*(dim or None for dim in spec.dims)) for spec in chain.constraints]

        def walk(x: jax.Array, specs: list[jax.sharding.PartitionSpec] = specs) -> jax.Array:
            for spec in specs:
                x = jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, spec))
            return x

        assert np.array_equal(jax.jit(walk)(jnp.asarray(values)), values)
