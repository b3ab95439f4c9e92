"""Costs are an algebra, and the roofline is one of them."""

from hypothesis import given
from hypothesis import strategies as st

from autoshard.costs import ZERO_COST, Cost, MeshModel, ShardingSpec, compute_cost, memory_cost

PARTS = ("compute_s", "communication_s", "latency_s", "wire_bytes", "flops", "memory_traffic_bytes")

# Powers of two add and scale without rounding, so that the laws hold exactly.
exact = st.integers(0, 2**20).map(float)
costs = st.builds(Cost, **dict.fromkeys(PARTS, exact))
factors = st.sampled_from([0.0, 0.5, 1.0, 2.0, 8.0])


@given(costs, costs, costs, factors)
def test_costs_add_and_scale(a: Cost, b: Cost, c: Cost, times: float) -> None:
    assert a + ZERO_COST == a == ZERO_COST + a
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert times * (a + b) == times * a + times * b == (a + b) * times
    assert 0 * a == ZERO_COST


@given(costs, costs)
def test_seconds_are_the_plain_sum(a: Cost, b: Cost) -> None:
    assert a.seconds == a.compute_s + a.communication_s + a.latency_s
    assert (a + b).seconds == a.seconds + b.seconds


def test_the_roofline_is_the_larger_of_arithmetic_and_memory() -> None:
    mesh = MeshModel.preset("tpu-v5e", {"x": 4})
    device = mesh.device
    flops, nbytes = 1e12, 1e9
    assert compute_cost(flops, 0, "bfloat16", mesh).seconds == flops / device.peak("bfloat16")
    assert compute_cost(0, nbytes, "bfloat16", mesh).seconds == nbytes / device.memory_bytes_per_s
    both = compute_cost(flops, nbytes, "bfloat16", mesh)
    assert both.seconds == max(flops / device.peak("bfloat16"), nbytes / device.memory_bytes_per_s)
    assert (both.flops, both.memory_traffic_bytes) == (flops, nbytes)


def test_the_memory_of_a_spec_is_its_padded_shard() -> None:
    mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
    assert memory_cost(ShardingSpec.of("x", "y"), (10, 8), 4, mesh) == 3 * 4 * 4
    assert memory_cost(ShardingSpec.of("x", None, partial=("y",)), (8, 8), 4, mesh) == 2 * 8 * 4
