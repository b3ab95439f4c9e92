"""The resharding planner."""

from autoshard.costs import MeshModel, ShardingSpec, plan_resharding


def test_two_all_to_alls_instead_of_full_rematerialization() -> None:
    mesh = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
    source, target = ShardingSpec.of("y", None, "x"), ShardingSpec.of(None, ("x", "y"), None)
    move = plan_resharding(source, target, (16, 16, 16), 4, mesh)
    shard_bytes = 16 * 16 * 16 * 4 // 8
    assert [step.kind for step in move.steps] == ["all-to-all", "all-to-all"]
    assert move.wire_bytes == shard_bytes * 1 / 2 + shard_bytes * 3 / 4
    assert move.constraints[-1] == target
