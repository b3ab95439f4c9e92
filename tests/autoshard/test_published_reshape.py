"""The published reshape (openxla/xla#12392), as the planner sees it: what it asks of its operand, and what that costs.

f16[32,16,1000,256] split [2,4,1,1] over (x=2, y=4), reshaped to [512,1000,256]; costs are bytes.
"""

import jax
import jax.numpy as jnp
import pytest

from autoshard import explore
from autoshard.costs import MeshModel, ShardingSpec
from autoshard.exploring import Operation

SHAPE, MERGED = (32, 16, 1000, 256), (512, 1000, 256)
IN_BYTES = MeshModel.uniform({"x": 2, "y": 4}, bytes_per_s=1.0, latency_s=0.0)
HELD = ShardingSpec.of("x", "y", None, None)


def merge(x: jax.Array) -> jax.Array:
    return jnp.reshape(x, MERGED)


@pytest.fixture(scope="module")
def reshape() -> Operation:
    found = explore(merge, IN_BYTES, args=(jax.ShapeDtypeStruct(SHAPE, jnp.float16),))
    return found.find("reshape")


def test_a_merge_split_by_x_asks_for_x_on_the_major_dimension(reshape: Operation) -> None:
    wanted = [row for row in reshape.strategies if row.results == (ShardingSpec.of("x", None, None),)]
    assert [row.operands for row in wanted] == [(ShardingSpec.of("x", None, None, None),)]
    assert (wanted[0].communication_seconds, wanted[0].collectives) == (0, ())
    move = next(move for move in reshape.operands[0].moves(wanted[0].operands[0]).rows if move.source == HELD)
    shard_bytes, gathered_bytes = 2 * 32 * 16 * 1000 * 256 // 8, 2 * 32 * 16 * 1000 * 256 // 2
    assert (move.seconds, move.wire_bytes, move.extra_bytes) == (98_304_000,) * 3
    assert move.seconds == gathered_bytes * 3 / 4 and move.extra_bytes == gathered_bytes - shard_bytes


def test_a_merge_of_two_split_dimensions_is_never_free(reshape: Operation) -> None:
    """Blocks of two split dimensions are strided in the merged one, so every way out of them moves bytes."""
    for row in reshape.strategies:
        move = next(move for move in reshape.operands[0].moves(row.operands[0]).rows if move.source == HELD)
        assert move.seconds + row.communication_seconds > 0, row
    both = [row for row in reshape.strategies if set(row.results[0].dims[0]) == {"x", "y"}]
    assert both and all(row.operands[0].dims[1] == () for row in both)
