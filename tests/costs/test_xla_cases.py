"""Cost and memory cases of XLA's deleted auto-sharding tests that any sane cost model meets, restated for this one.

The two others of that kind are not about prices: the smallest memory budget of a problem and the shift of negative edge
costs are the solver's.
"""

import math

import pytest

from autoshard.costs import ShardingSpec, memory_cost, plan_resharding
from tests.costs.specs import all_specs, unit_mesh


@pytest.mark.parametrize(
    ("source", "target", "free"),
    [
        (ShardingSpec.of("x", "y"), ShardingSpec.of(("x", "y"), None), False),
        (ShardingSpec.of(("x", "y"), None), ShardingSpec.of("x", "y"), False),
        (ShardingSpec.of("x", None), ShardingSpec.of(("x", "y"), None), True),
    ],
)
def test_resharding_on_a_mesh_with_an_axis_of_1(source: ShardingSpec, target: ShardingSpec, free: bool) -> None:
    """cost-reshard-013: f32[16,32] on a 1x4x2 mesh; both ways cost something, splitting finer is free."""
    mesh = unit_mesh(one=1, x=4, y=2)
    seconds = plan_resharding(source, target, (16, 32), 4, mesh).seconds
    assert math.isfinite(seconds) and (seconds == 0) == free


def test_the_memory_bound_shrinks_with_the_mesh() -> None:
    """mem-021: the least that a device can hold of f32[16384,16384], on 64 and on 512 devices."""
    shape = (16384, 16384)
    least = {}
    for side, devices in (((8, 8), 64), ((16, 32), 512)):
        mesh = unit_mesh(x=side[0], y=side[1])
        least[devices] = min(memory_cost(spec, shape, 4, mesh) for spec in all_specs(("x", "y"), 2))
    assert least == {64: 16_777_216, 512: 2_097_152}


@pytest.mark.parametrize(
    ("shape", "itemsize", "sizes", "spec", "expected"),
    [
        ((11, 1026), 4, (16, 16), ShardingSpec.of(None, "y"), 2860),
        ((8192, 23), 4, (2, 2), ShardingSpec.of(("x", "y"), None), 188_416),
        ((10,), 4, (4, 1), ShardingSpec.of("x"), 12),
        ((4, 4), 2, (8, 1), ShardingSpec.of("x", None), 8),
    ],
)
def test_memory_is_of_the_padded_shard(
    shape: tuple[int, ...], itemsize: int, sizes: tuple[int, int], spec: ShardingSpec, expected: int
) -> None:
    """mem-022: dimensions are divided one by one and rounded up, not the total."""
    mesh = unit_mesh(x=sizes[0], y=sizes[1])
    assert memory_cost(spec, shape, itemsize, mesh) == expected
