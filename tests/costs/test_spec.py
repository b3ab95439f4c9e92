"""Sharding specs: how they are written, what they hold, what they refuse."""

import pickle

import pytest

from autoshard.costs import MeshModel, ShardingSpec
from tests.helpers import run_python

MESH = MeshModel.uniform({"x": 4, "y": 2, "z": 3}, bytes_per_s=1.0, latency_s=0.0)


def test_a_spec_is_written_as_a_partition_spec() -> None:
    spec = ShardingSpec.of("y", None, ("x", "z"))
    assert spec.dims == (("y",), (), ("x", "z"))
    assert (spec.rank, spec.axes, spec.partial) == (3, ("y", "x", "z"), ())
    assert str(spec) == "[y, -, (x,z)]"
    assert str(ShardingSpec.of(None, "x", partial=("z", "y"))) == "[-, x]{partial y,z}"


def test_equal_specs_are_one_object_with_one_hash() -> None:
    assert ShardingSpec.of("y", None) is ShardingSpec.of(("y",), ())
    assert ShardingSpec.replicated(2) is ShardingSpec.of(None, None)
    both = ShardingSpec.of("x", partial=("z", "y")), ShardingSpec.of("x", partial=("y", "z"))
    assert both[0] == both[1] and hash(both[0]) == hash(both[1])
    assert ShardingSpec.of("x", None) != ShardingSpec.of(None, "x")


def test_shards_are_padded_up() -> None:
    spec = ShardingSpec.of(("x", "y"), "z")
    assert spec.parts(MESH) == (8, 3)
    assert spec.shard_shape((100, 9), MESH) == (13, 3)
    assert spec.shard_bytes((100, 9), 2, MESH) == 13 * 3 * 2
    assert spec.divides((104, 9), MESH) and not spec.divides((100, 9), MESH)


def test_parts_of_axes_have_sizes() -> None:
    assert ShardingSpec.of("x:(1)2", ("y", "x:(2)2")).parts(MESH) == (2, 4)


def test_an_axis_splits_one_dimension_once() -> None:
    with pytest.raises(ValueError, match=r"sharding spec \[x, x\] uses mesh axis 'x' twice"):
        ShardingSpec.of("x", "x")
    with pytest.raises(ValueError, match="uses mesh axis 'x' twice"):
        ShardingSpec.of("x", partial=("x",))


def test_a_shape_of_another_rank_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[x\] has rank 1, the shape \(4, 4\) has rank 2"):
        ShardingSpec.of("x").shard_shape((4, 4), MESH)


def test_a_pickled_spec_is_found_again_in_another_process() -> None:
    written = pickle.dumps(ShardingSpec.of("x", None)).hex()
    code = (
        "import pickle; from autoshard.costs import ShardingSpec; "
        f"spec = pickle.loads(bytes.fromhex('{written}')); print(spec in {{ShardingSpec.of('x', None)}})"
    )
    assert run_python(code).strip() == "True"
