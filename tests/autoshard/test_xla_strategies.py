"""Strategy cases of XLA's deleted auto-sharding tests that have a meaning for a tool of JAX, as programs of ours.

``must`` holds for any correct system, ``should`` for any with a sane cost model. A mesh axis of the cases costs alpha
seconds and beta seconds a byte. The cases count no compute; here it decides between plans of equal communication.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from autoshard import Plan, autoshard
from autoshard.costs import DeviceModel, MeshAxis, MeshModel
from autoshard.device_groups import groups_of_axes

AXES = "abcd"

Dims = tuple[str, ...]
"""Per dimension the mesh axes that split it, written together: ``("ab", "")``."""

FULL = ("replicated",)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case.

    Attributes:
        id: Its number among XLA's.
        tier: ``must`` or ``should``.
        fn: The program.
        args: Shapes and types of its arguments.
        mesh: Sizes of the axes.
        beta: Seconds a byte along each axis; alpha is a second.
        fixed: Shardings of the arguments that are given.
        fixed_result: That of the result.
        accepted: What it may come to: argument (``0``, ``1``), result (``out``) or primitive to dimensions.
        rejected: What it must not come to.
        tiles: Into how many parts values are split, and, if not 0, over how many dimensions.
        reshards: How many moves there may be.
        silent: It communicates nothing.
        options: Keywords of `autoshard`.
    """

    id: str
    tier: str
    fn: Callable[..., Any]
    args: Sequence[jax.ShapeDtypeStruct]
    mesh: tuple[int, ...]
    beta: tuple[float, ...]
    fixed: Mapping[int, Dims] = field(default_factory=dict)
    fixed_result: Dims | None = None
    accepted: Sequence[Mapping[int | str, Dims]] = ()
    tiles: Mapping[int | str, tuple[int, int]] = field(default_factory=dict)
    reshards: int | None = None
    silent: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def plan(self) -> Plan:
        """Plan it on a mesh without devices."""
        names = AXES[: len(self.mesh)]
        axes = tuple(
            MeshAxis.of(name, size, bytes_per_s=1 / beta, latency_s=1.0, fabric=name)
            for name, size, beta in zip(names, self.mesh, self.beta)
        )
        mesh = AbstractMesh(self.mesh, tuple(names), axis_types=(AxisType.Auto,) * len(names))
        in_shardings = tuple(_spec(self.fixed[k]) if k in self.fixed else None for k in range(len(self.args)))
        step = autoshard(
            self.fn, mesh,
            hardware=MeshModel(axes=axes, device=DEVICE),
            in_shardings=in_shardings if self.fixed else None,
            out_shardings=None if self.fixed_result is None else _spec(self.fixed_result),
            **self.options,
        )  # fmt: skip
        return step.plan(*self.args)


DEVICE = DeviceModel(
    name="of XLA's cases",
    platform="tpu",
    peak_flops_per_s={"float32": 4e9},
    memory_bytes=1 << 62,
    usable_memory_bytes=1 << 62,
    memory_bytes_per_s=16e6,
    source="so fast that compute is never worth a byte on the wire; a TPU v5e's 250 operations a byte of memory, 2023",
)


def _spec(dims: Dims) -> PartitionSpec:
    return PartitionSpec(*(tuple(axes) or None for axes in dims))


def _held(dims: Dims) -> Callable[[Any], Any]:
    return lambda x: lax.with_sharding_constraint(x, _spec(dims))


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def typed(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def contracted(*dims: int) -> Callable[[Any, Any], Any]:
    return lambda a, b: lax.dot_general(a, b, ((dims, dims), ((), ())))


PRODUCT = (f32(32, 64), f32(64, 128))
SUM = (f32(16, 32, 64), f32(16, 32, 64))
TWO = (f32(4, 256, 64), f32(4, 256, 32))
SQUARE = (f32(400, 400), f32(400, 400))
NEAR = (1.0, 1.0)
CHEAP = (0.01, 1.0)


def _sliced(x: Any) -> Any:
    return lax.slice(x, (0, 0), (512, 2048))


def _two_slices(pred: Any, x: Any) -> Any:
    return lax.cond(pred, lambda v: v[16:32, 16:32], lambda v: v[0:16, 0:16], x)


def _second_held(a: Any, b: Any) -> Any:
    return a + _held(("ab", ""))(b)


def _argmax(x: Any) -> Any:
    places = lax.broadcasted_iota(jnp.int32, x.shape, 2)

    def larger(p: Any, q: Any) -> Any:
        keep = p[0] >= q[0]
        return jnp.where(keep, p[0], q[0]), jnp.where(keep, p[1], q[1])

    return lax.reduce((x, places), (-jnp.inf, 0), larger, (2,))


SCATTER = lax.ScatterDimensionNumbers(
    update_window_dims=(1, 2), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0, 1, 2)
)
GATHER = lax.GatherDimensionNumbers(offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,))


def _scatter(operand: Any, indices: Any, updates: Any) -> Any:
    return lax.scatter(operand, indices, updates, SCATTER, indices_are_sorted=True, unique_indices=True)


def _lookup(table: Any, indices: Any) -> Any:
    return lax.gather(table, indices, GATHER, (1, 128))


def _twice(a: Any, b: Any) -> Any:
    def body(_: int, held: Any) -> Any:
        product = lax.dot_general(held[0], held[1], (((2,), (2,)), ((0,), (0,))))
        return jnp.tanh(product), jnp.cos(product)

    first, _ = lax.fori_loop(0, 2, body, (a, b))
    return jnp.tanh(_held(("c", "a", ""))(first))


def _loop(w: Any, lhs: Any, out: Any, index: Any) -> Any:
    weights = jnp.stack([w, w])

    def body(held: Any) -> Any:
        count, stacked, left, _, place = held
        right = lax.dynamic_slice(stacked, (place, 0, 0), (1, *w.shape)).reshape(w.shape)
        return count + 1, stacked, left, left @ right, place

    return lax.while_loop(lambda held: held[0] < 2, body, (0, weights, lhs, out, index))


def _row(i: Any, x: Any) -> Any:
    return lax.dynamic_slice(x, (jnp.where(i < 0, i + 2, i), 0), (1, 1024))


def _heads(w: Any, i: Any, x: Any) -> Any:
    one = lax.dynamic_slice(w, (i, 0, 0), (1, 2048, 2048)).reshape(2048, 16, 128)
    return lax.dot_general(x, one, (((2,), (0,)), ((), ())))


def _random_bits(a: Any, b: Any) -> Any:
    return lax.rng_bit_generator(jnp.concatenate([a, b]), (100, 100))[1]


def _uniform(a: Any) -> Any:
    key = jnp.concatenate([lax.reduce_or(a, (1,)), lax.reduce_or(a, (0,))])
    bits = lax.rng_bit_generator(key, (8, 512))[1]
    return jnp.maximum(lax.bitcast_convert_type((bits >> 9) | jnp.uint32(0x3F800000), jnp.float32) - 1.0, 0.0)


def _same(*arrays: Any) -> Any:
    return arrays


def _cases() -> list[Case]:
    return [
        *(
            Case(
                id=f"st-00{name}", tier="should", fn=jnp.dot, args=PRODUCT, mesh=mesh, beta=beta, tiles={"out": tiles},
                silent=True,
            )
            for name, mesh, beta, tiles in (
                ("1a", (4,), (1.0,), (4, 1)),
                ("1b", (8,), (1.0,), (8, 1)),
                ("2a", (2, 2), CHEAP, (4, 0)),
                ("2b", (1, 4), CHEAP, (4, 1)),
                ("2c", (4, 1), CHEAP, (4, 1)),
                ("3c", (4, 1), NEAR, (4, 1)),
                ("5b", (2, 1, 2), (1.0, 1.0, 1.0), (4, 0)),
                ("5c", (2, 2, 1), (1.0, 1.0, 1.0), (4, 0)),
            )
        ),
        *(
            Case(
                id=f"st-00{name}", tier="should", fn=jnp.add, args=SUM, mesh=mesh, beta=beta, tiles={"out": (parts, 0)}
            )
            for name, mesh, beta, parts in (
                ("6a", (1, 2, 4), (0.01, 0.5, 1.0), 8),
                ("6b", (4, 1, 2), (0.01, 0.5, 1.0), 8),
                ("6c", (1, 4, 2), (0.01, 0.5, 1.0), 8),
                ("7", (2, 2), CHEAP, 4),
            )
        ),
        Case(
            id="st-014", tier="should", fn=lambda x: _sliced(_held(("ab", ""))(x)), args=(f32(512, 3084),),
            mesh=(16, 16), beta=CHEAP, fixed={0: ("ba", "")}, accepted=[{"slice": ("ab", "")}],
        ),
        Case(
            id="st-015", tier="should", fn=lambda x: jnp.copy(_sliced(x)), args=(f32(512, 3084),), mesh=(2, 2),
            beta=CHEAP, accepted=[{"slice": (rows, "")} for rows in ("ab", "ba", "a", "b")],
        ),
        Case(
            id="st-018", tier="should",
            fn=lambda x: jnp.copy(lax.broadcasted_iota(jnp.int32, (11, 1026), 1)) + _held(("", "b"))(x),
            args=(typed("int32", 11, 1026),), mesh=(16, 16), beta=CHEAP, accepted=[{"add": ("", "b")}],
        ),
        Case(
            id="st-020", tier="should", fn=lambda x: jnp.copy(_held(("", "ab"))(_sliced(x))), args=(f32(512, 3084),),
            mesh=(2, 2), beta=CHEAP, fixed={0: ("", "ab")}, reshards=0,
        ),
        Case(
            id="st-021", tier="must",
            fn=lambda x: jnp.copy(_held(("", "", "a", ""))(jnp.pad(x, ((0, 0), (0, 256), (0, 0), (0, 0))))),
            args=(f32(1, 4096, 8, 256),), mesh=(128, 1), beta=CHEAP,
            accepted=[{"sharding_constraint": ("", "", "a", "")}],
        ),
        Case(
            id="st-025", tier="must", fn=_random_bits, args=(typed("uint32", 2), typed("uint32", 2)), mesh=(2, 2),
            beta=CHEAP, accepted=[{0: ("",), 1: ("",)}],
        ),
        Case(
            id="st-031", tier="must",
            fn=lambda a, b: jnp.copy(_held(("a", "b"))(contracted(1)(a, b))),
            args=(f32(256, 256), f32(256, 256)), mesh=(2, 2), beta=CHEAP,
            fixed={0: ("a", ""), 1: ("a", "b")}, accepted=[{"dot_general[0]": ("a", ""), "dot_general[1]": ("b", "")}],
        ),
        Case(
            id="st-034", tier="should", fn=contracted(0, 1), args=TWO, mesh=(2, 2), beta=CHEAP,
            tiles={"out": (4, 0)}, silent=True,
        ),
        Case(
            id="st-035", tier="should", fn=lambda p, q, r: (p @ q) @ r, args=(f32(64, 64), f32(64, 128), f32(128, 64)),
            mesh=(2, 2), beta=CHEAP, tiles={"out": (4, 0)}, silent=True,
        ),
        Case(
            id="st-038", tier="must", fn=lambda a, b: jnp.copy(_held(("a", "b"))(contracted(0, 1)(a, b))), args=TWO,
            mesh=(2, 2), beta=NEAR, fixed={0: ("", "", "a"), 1: ("", "", "b")}, fixed_result=("a", "b"),
            accepted=[{0: ("", "", "a"), 1: ("", "", "b"), "dot_general": ("a", "b"), "out": ("a", "b")}],
        ),
        Case(
            id="st-043", tier="should", fn=_argmax, args=(f32(1, 16, 40),), mesh=(2, 2), beta=CHEAP,
            accepted=[{"out": ("", kept), "out[1]": ("", kept)} for kept in ("a", "b", "ab", "ba")],
        ),
        Case(
            id="st-044", tier="should", fn=lambda x, init: lax.reduce(x, init, lax.add, (2,)),
            args=(f32(1, 16, 128), f32()), mesh=(2, 2), beta=CHEAP,
            accepted=[{0: ("", kept, ""), "out": ("", kept)} for kept in ("a", "b", "ab", "ba")],
        ),
        Case(
            id="st-048", tier="must", fn=_scatter, args=(f32(4, 128, 128), typed("int32", 4, 3), f32(4, 8, 8)),
            mesh=(2, 2), beta=CHEAP, tiles={"out": (4, 0)}, options={"memory_budget": 132145},
        ),
        Case(
            id="st-051", tier="should", fn=_lookup, args=(typed("int8", 1000, 128), typed("int32", 8, 1, 1)),
            mesh=(1, 1, 8), beta=(0.01, 1.0, 1.0), options={"memory_budget": 16 * 1024}, reshards=0,
            tiles={0: (8, 0), "out": (8, 0)},
        ),
        Case(
            id="st-053", tier="must", fn=lambda a, b: jnp.copy(contracted(0, 1)(a, b)), args=TWO, mesh=(2, 2),
            beta=NEAR, fixed={0: ("", "", "a"), 1: ("", "", "b")}, fixed_result=("a", "b"),
            accepted=[{"dot_general": ("a", "b")}],
        ),
        Case(
            id="st-055", tier="should", fn=lambda a, b: jnp.copy(_held(("a", "b"))(contracted(0, 1)(a, b))), args=TWO,
            mesh=(2, 2), beta=NEAR, accepted=[{0: ("", "", "a"), 1: ("", "", "b"), "out": ("a", "b")}],
        ),
        Case(
            id="st-056", tier="should", fn=_second_held, args=(f32(32, 64), f32(32, 64)), mesh=(2, 2), beta=CHEAP,
            fixed={1: ("a", "b")}, accepted=[{1: ("a", "b"), "out": ("ab", "")}],
        ),
        Case(
            id="st-058", tier="must", fn=_twice, args=(f32(16, 256, 256), f32(16, 256, 256)), mesh=(2, 1, 2),
            beta=(0.01, 1.0, 1.0), fixed={0: ("a", "", "c"), 1: ("a", "", "c")},
            accepted=[{"sharding_constraint": ("c", "a", "")}],
        ),
        Case(
            id="st-059", tier="must", fn=_loop,
            args=(f32(2048, 768), f32(128, 512, 2048), f32(128, 512, 768), typed("int32")), mesh=(2, 2), beta=CHEAP,
        ),
        Case(id="st-060", tier="must", fn=_row, args=(typed("int32"), f32(2, 1024)), mesh=(2, 2), beta=CHEAP),
        *(
            Case(
                id=name, tier="must", fn=_same, args=(f32(), f32(32), f32(32), f32(extent)), mesh=(2, 2), beta=CHEAP,
                options={"donate_argnums": (0, 1, 2, 3)},
            )
            for name, extent in (("st-061a", 1000), ("st-061b", 32000))
        ),
        Case(
            id="st-062", tier="must", fn=lambda t: t, args=((f32(), f32(32), f32(32), f32(1000)),), mesh=(2, 2),
            beta=CHEAP, options={"donate_argnums": 0},
        ),
        Case(
            id="st-063", tier="must", fn=_uniform, args=(typed("uint32", 2, 2),), mesh=(2, 2), beta=CHEAP,
            accepted=[{"rng_bit_generator[0]": ("",)}], tiles={"out": (4, 0)},
        ),
        Case(
            id="st-064", tier="must", fn=_heads, args=(f32(24, 2048, 2048), typed("int32"), f32(512, 1024, 2048)),
            mesh=(64, 1), beta=CHEAP,
        ),
        Case(
            id="st-065", tier="must", fn=lambda x: jnp.copy(_held(("a", "", ""))(x).reshape(1, 24, 16, 16)),
            args=(f32(24, 16, 16),), mesh=(32, 1), beta=CHEAP, accepted=[{"reshape": ("", "a", "", "")}],
        ),
        Case(
            id="st-066", tier="must", fn=lambda x: jnp.copy(_held(("ba", "", "c", ""))(x)),
            args=(typed("bfloat16", 256, 4096, 4, 256),), mesh=(8, 4, 4, 2), beta=(1.0, 1.0, 1.0, 1.0),
            accepted=[{"sharding_constraint": ("ba", "", "c", "")}],
        ),
        Case(
            id="st-067", tier="must", fn=lambda x: jnp.broadcast_to(x, (512, 1024, 1024, 32)),
            args=(typed("int32", 32),), mesh=(1, 1, 64), beta=(1.0, 1.0, 1.0), tiles={"out": (64, 0)},
            options={"memory_budget": 1074790400},
        ),
        Case(
            id="st-069", tier="must", fn=_same, args=(f32(), f32()), mesh=(2, 2), beta=NEAR,
            options={"donate_argnums": (0, 1)},
        ),
        Case(
            id="st-070", tier="must", fn=_two_slices, args=(typed("bool"), f32(256, 256)), mesh=(32, 1), beta=CHEAP,
            fixed={1: ("a", "")}, accepted=[{"cond_in": ("a", ""), "slice": ("", "")}],
        ),
        *(
            Case(
                id=f"st-073{name}", tier="must", fn=jnp.dot, args=SQUARE, mesh=(4, 2), beta=NEAR,
                fixed=dict(enumerate(given)),
                accepted=[{0: given[0], 1: given[1], "dot_general": ("a", "b")}],
            )
            for name, given in (
                ("b", (("", ""), ("", ""))),
                ("c", (("a", ""), ("", ""))),
                ("d", (("a", ""), ("", "b"))),
            )
        ),
    ]  # fmt: skip


def found(plan: Plan, what: int | str) -> Dims:
    """The dimensions of an argument, a result, an operation's result or, in brackets, its operand."""
    name, _, number = str(what).removesuffix("]").partition("[")
    if isinstance(what, int):
        dims = plan.arguments[what].spec
    elif name == "out":
        dims = plan.results[int(number or 0)].spec
    else:
        decision = next(d for d in plan.decisions if d.primitive == name)
        dims = decision.operands[int(number)] if number else decision.results[0]
    sizes = {axis.name: axis.size for axis in plan.mesh.axes}
    return tuple("".join(axis for axis in entry if sizes[axis] > 1) for entry in dims)


def moves(plan: Plan) -> int:
    """How many reshardings a plan has."""
    routes = [route for d in plan.decisions for route in d.routes.values()]
    routes += [leaf.route for leaf in plan.results if leaf.route is not None]
    return sum(bool(route.steps) for route in routes)


CASES = _cases()

SAME_AS_OTHERS = "a constraint of the function's that is kept or reopened: tests/autoshard/test_constraints.py"
DEVICE_LISTS = "XLA's device lists; the same translations are in tests/autoshard/test_device_groups.py"
UNEVEN_ARGUMENT = "an uneven sharding of an argument, which jax.jit refuses"
OPTION = "an option of XLA's pass"

LEFT_OUT = {
    "st-010b": "an empty mesh: JAX makes one of a single device, on which everything runs",
    "st-010c": "a mesh axis of size 0: below",
    "st-010d": "a mesh axis of negative size: below",
    "st-010e": "XLA's device ids beside the mesh's shape: a Mesh is made of its devices",
    "st-012": "an uneven sharding of a result, which jax.jit refuses",
    "st-022b": UNEVEN_ARGUMENT,
    "st-023a": UNEVEN_ARGUMENT,
    "st-023b": UNEVEN_ARGUMENT,
    "st-039": OPTION + ": tensors marked as small",
    "st-040": SAME_AS_OTHERS,
    "st-041": SAME_AS_OTHERS,
    "st-042": OPTION + ": tensors marked as small",
    "map-001": DEVICE_LISTS,
    "map-002": DEVICE_LISTS,
    "map-003": "groups of devices along an axis: below",
    "map-009": "the alias pairs of st-061 and st-062",
    "mesh-001": "XLA's device ids: a Mesh keeps its devices",
    "sdy-002": "XLA's export to Shardy; JAX's own carries our constraints",
}
"""The cases of both tiers without a meaning of their own here, and why."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_strategies_are_those_of_a_sane_planner(case: Case) -> None:
    plan = case.plan()
    seen = {what: found(plan, what) for choice in case.accepted for what in choice}
    if case.accepted:
        assert any(all(seen[what] == dims for what, dims in choice.items()) for choice in case.accepted), seen
    for what, (parts, dimensions) in case.tiles.items():
        dims = found(plan, what)
        sizes = {axis.name: axis.size for axis in plan.mesh.axes}
        assert math.prod(sizes[axis] for entry in dims for axis in entry) == parts, dims
        assert not dimensions or sum(bool(entry) for entry in dims) == dimensions, dims
    assert not case.silent or plan.predicted.wire_bytes == 0
    if case.reshards is not None:
        assert moves(plan) <= case.reshards
    if "donate_argnums" in case.options:
        assert all(leaf.donated for leaf in plan.arguments)
        assert [leaf.spec for leaf in plan.arguments] == [leaf.spec for leaf in plan.results]


def test_every_case_is_run_or_left_out_with_a_reason() -> None:
    tiers = Counter(case.tier for case in CASES)
    assert len(CASES) + len(LEFT_OUT) == 38 + 25
    assert not LEFT_OUT.keys() & {case.id for case in CASES}
    assert tiers == {"must": 22, "should": 23}


def test_what_xla_forbids_by_an_option_may_be_chosen() -> None:
    """Uneven arguments are never chosen: st-022b and st-023b hold in all plans."""
    mesh = AbstractMesh((16, 16), ("a", "b"))
    plan = autoshard(lambda p: jnp.copy(p + p), mesh, hardware="tpu-v5e").plan(f32(8, 1024))
    assert found(plan, 0)[0] == "" and found(plan, "add")[0] == ""


@pytest.mark.parametrize("size", [0, -1])
def test_meshes_that_are_none_are_refused(size: int) -> None:
    """st-010c, st-010d."""
    with pytest.raises(ValueError, match="at least 1"):
        MeshModel.uniform({"a": size, "b": 4}, bytes_per_s=1.0, latency_s=0.0)


@pytest.mark.parametrize(
    ("sizes", "axis", "groups"),
    [
        ((2, 4), 0, [[1, 5], [2, 6], [3, 7], [4, 8]]),
        ((2, 4), 1, [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ((3, 3), 0, [[1, 4, 7], [2, 5, 8], [3, 6, 9]]),
        ((2, 2, 2), 1, [[1, 3], [2, 4], [5, 7], [6, 8]]),
        ((2, 2, 2), 2, [[1, 2], [3, 4], [5, 6], [7, 8]]),
    ],
)
def test_groups_along_one_axis(sizes: tuple[int, ...], axis: int, groups: list[list[int]]) -> None:
    """map-003, with devices counted from 1."""
    seen = groups_of_axes([AXES[axis]], dict(zip(AXES, sizes)))
    assert sorted([device + 1 for device in group] for group in seen) == groups
