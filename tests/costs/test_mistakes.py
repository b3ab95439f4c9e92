"""Bad input to every public function of the package is answered with what, where and what to do."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from autoshard.costs import (
    CollectiveFit,
    DeviceModel,
    Link,
    Measurement,
    MeshAxis,
    MeshModel,
    ShardingSpec,
    all_gather,
    all_reduce,
    all_to_all,
    collective_permute,
    communication_resharding_cost_vector,
    compute_cost,
    fit_collective,
    memory_cost,
    memory_resharding_cost_vector,
    plan_resharding,
    reduce_scatter,
    refined_axes,
    refined_spec,
    reshard_table,
)

MESH = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1.0, latency_s=0.0)
X, Y, WHOLE = ShardingSpec.of("x", None), ShardingSpec.of("y", None), ShardingSpec.of(None, None)
LINK = {"topology": "ring", "size": 4, "bytes_per_s": 1.0, "latency_s": 0.0}
DEVICE = MESH.device.model_dump()


def mesh_of(*links: Link) -> MeshModel:
    return MeshModel(axes=tuple(MeshAxis(name=n, links=(link,)) for n, link in zip("xy", links)), device=MESH.device)


def unchecked(value: object) -> Any:
    """A value of the wrong type, past the type checker."""
    return value


MISTAKES: list[tuple[Callable[[], object], str]] = [
    # Sharding specs.
    (lambda: ShardingSpec.of(unchecked(4)), "4 is no entry of a sharding spec: give None, a mesh axis, or several"),
    (lambda: ShardingSpec.of(unchecked([["x"]])), "[['x']] is no entry of a sharding spec"),
    (lambda: ShardingSpec.of(unchecked({"x", "y"})), "is no entry of a sharding spec"),
    (lambda: ShardingSpec.of("x", partial=unchecked(4)), "4 is no entry of a sharding spec"),
    (lambda: ShardingSpec(unchecked(("x", None))), "ShardingSpec.of('x', None, ('y', 'z')) makes them"),
    (lambda: ShardingSpec(((),), unchecked("xy")), "partial 'xy': ShardingSpec.of("),
    (lambda: ShardingSpec.of("x", ("y", "x")), "sharding spec [x, (y,x)] uses mesh axis 'x' twice"),
    (lambda: X.shard_shape((8,), MESH), "[x, -] has rank 2, the shape (8,) has rank 1"),
    (lambda: X.parts(MeshModel.uniform({"a": 2}, bytes_per_s=1, latency_s=0)), "unknown mesh axis 'x'"),
    (lambda: memory_cost(X, (8,), 4, MESH), "[x, -] has rank 2, the shape (8,) has rank 1"),
    # Meshes.
    (lambda: MeshModel.uniform({"x": 0}, bytes_per_s=1.0, latency_s=0.0), "mesh axis 'x' has size 0: sizes are whole"),
    (lambda: MeshModel.uniform(unchecked({"x": 2.5}), bytes_per_s=1.0, latency_s=0.0), "'x' has size 2.5"),
    (lambda: MeshModel.uniform(unchecked((4, 2)), bytes_per_s=1.0, latency_s=0.0), "map axis names to numbers"),
    (lambda: MeshModel.uniform({"x": 4}, bytes_per_s=math.inf, latency_s=0.0), "finite number"),
    (lambda: MeshModel.uniform({"x": 4}, bytes_per_s=1.0, latency_s=-1.0), "latency_s"),
    (lambda: MeshModel.uniform({"": 4}, bytes_per_s=1.0, latency_s=0.0), "name"),
    (lambda: MeshModel.preset("tpu", {"x": 4}), "unknown hardware preset 'tpu': there are tpu-v3"),
    (lambda: MeshModel.preset("tpu-v5e", {"x": -4}), "mesh axis 'x' has size -4"),
    (lambda: MeshModel.preset("h100-sxm", unchecked(["x"])), "got ['x']"),
    (lambda: MeshModel.preset("tpu-v5e", {"x": 4}, slices=0), "4 chips do not make 0 equal slices"),
    (lambda: MeshModel.preset("h100-sxm", {"x": 4}, slices=2), "leave slices out"),
    (lambda: mesh_of(Link(**LINK), Link(**{**LINK, "topology": "switch"})), "fabric 'network' are of kinds torus and"),
    (lambda: DeviceModel(**{**DEVICE, "usable_memory_bytes": 1 << 63}), "is more than memory_bytes="),
    (lambda: DeviceModel(**{**DEVICE, "peak_flops_per_s": {"float32": 0.0}}), "peak_flops_per_s.float32"),
    (lambda: DeviceModel(**{**DEVICE, "platform": "npu"}), "'cpu', 'tpu' or 'gpu'"),
    (lambda: Link(**{**LINK, "topology": "mesh"}), "topology"),
    (lambda: Link(**LINK, fits=(FIT, FIT)), "two laws for all-gather"),
    (lambda: Link(**LINK).part(size=3, stride=1), "a link of 4 devices has no part of 3 at a stride of 1"),
    (lambda: MESH.device.peak("bf16"), "'bf16' is a short name of a dtype: give numpy's"),
    (lambda: MESH.wire_scale("f32"), "'f32' is a short name of a dtype"),
    (lambda: MESH.size("z"), "unknown mesh axis 'z': this mesh has axes x, y"),
    (lambda: MESH.links("x:(3)2"), "mesh axis 'x' of size 4 has no part 'x:(3)2'"),
    # Work and resharding.
    (lambda: compute_cost(-1.0, 0.0, "float32", MESH), "work is not negative, got -1.0 floating point operations"),
    (lambda: compute_cost(0.0, math.nan, "float32", MESH), "work is not negative"),
    (lambda: compute_cost(0.0, 1.0, "fp8", MESH), "'fp8' is a short name"),
    (lambda: plan_resharding(X, Y, (8,), 4, MESH), "[y, -] has rank 2, but the tensor has shape (8,)"),
    (lambda: plan_resharding(X, Y, (8, -8), 4, MESH), "a tensor has no shape (8, -8): sizes are whole numbers"),
    (lambda: plan_resharding(X, Y, (8, 8), 0, MESH), "an element takes some bytes, got 0"),
    (lambda: plan_resharding(X, Y, (8, 8), 4, MESH, wire_scale=0.0), "and 0.0 on the wire for each of them"),
    (lambda: plan_resharding(unchecked(("x", None)), Y, (8, 8), 4, MESH), "('x', None) is no ShardingSpec"),
    (lambda: plan_resharding(X, Y, (8, 8), 4, unchecked("tpu-v5e")), "'tpu-v5e' is no MeshModel: make one with"),
    (lambda: plan_resharding(X, ShardingSpec.of("w", None), (8, 8), 4, MESH), "unknown mesh axis 'w'"),
    (lambda: plan_resharding(X, ShardingSpec.of("x", None, partial="w"), (8, 8), 4, MESH), "unknown mesh axis 'w'"),
    (lambda: plan_resharding(X, ShardingSpec.of("x:(1)2", None), (8, 8), 4, MESH), "is a part of an axis"),
    (lambda: reshard_table([X], [ShardingSpec.of("x")], (8, 8), 4, MESH), "[x] has rank 1, but the tensor has shape"),
    (lambda: reshard_table([unchecked("x")], [X], (8, 8), 4, MESH), "'x' is no ShardingSpec"),
    (lambda: communication_resharding_cost_vector([X], (8,), 4, X, MESH), "[x, -] has rank 2, but the tensor has"),
    (lambda: memory_resharding_cost_vector([X], (8, 8), -4, X, MESH), "an element takes some bytes, got -4"),
    (lambda: refined_axes([ShardingSpec.of("w:(1)2")], {"x": 4}), "unknown mesh axis 'w:(1)2': this mesh has axes x"),
    (lambda: refined_axes([ShardingSpec.of("x:(1)2"), ShardingSpec.of("x:(1)3")], {"x": 6}), "both at 2 and at 3"),
    (lambda: refined_spec(ShardingSpec.of("w"), {"x": 4}, {"x": 4}), "unknown mesh axis 'w'"),
    # Laws.
    (lambda: Measurement(kind="permute", size=1, nbytes=4.0, seconds=1.0), "it takes at least 2 devices"),
    (lambda: Measurement(kind="permute", size=2, nbytes=4.0, seconds=0.0), "some bytes and some time"),
    (lambda: fit_collective([]), "needs at least 2 measurements, got 0"),
    (lambda: CollectiveFit(kind="all-gather", base_s=-1.0, bytes_per_s=1.0), "base_s"),
    (lambda: CollectiveFit(kind=unchecked("gather"), base_s=0.0, bytes_per_s=1.0), "'all-gather', 'all-reduce'"),
]

FIT = CollectiveFit(kind="all-gather", base_s=0.0, bytes_per_s=1.0)


@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_answered(mistake: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError, ValidationError), match=re.escape(message)):
        mistake()


@pytest.mark.parametrize("collective", [all_gather, all_reduce, reduce_scatter, all_to_all, collective_permute])
def test_collectives_check_bytes_and_axes(collective: Callable[..., object]) -> None:
    for nbytes in (-1.0, math.nan):
        with pytest.raises(ValueError, match=rf"of {nbytes} bytes times 1.0 on the wire: bytes are not negative"):
            collective(nbytes, ("x",), MESH)
    with pytest.raises(ValueError, match="unknown mesh axis 'z': this mesh has axes x, y"):
        collective(1.0, ("z",), MESH)
    for axes in (("x", "y", "x"), ("x", "x:(2)2"), ("x:(1)2", "x:(1)4")):
        with pytest.raises(ValueError, match=r"a collective runs over every axis once: 'x.*' and 'x.*' overlap"):
            collective(1.0, axes, MESH)
    assert collective(1.0, ("x:(2)2", "x:(1)2"), MESH) == collective(1.0, "x", MESH)
