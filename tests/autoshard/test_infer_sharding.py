"""Shardings by rule: what each name, size and annotation leads to, and that nothing decided is overwritten."""

import logging
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from autoshard import (
    autoshard,
    chain_sharding,
    dim_sharding,
    fsdp_sharding,
    infer_sharding,
    prefer_sharding,
    stacked_sharding,
    state_sharding,
    where_named,
)
from autoshard.errors import OptionError, SpecError

P = PartitionSpec
MESH = AbstractMesh((4, 2), ("x", "y"))
RULE = fsdp_sharding("x", min_size_to_shard_mb=0)


def leaf(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def specs(params: Any, rule: Any = RULE, **options: Any) -> Any:
    return infer_sharding(params, MESH, rule, **options)[1]


@pytest.mark.parametrize(
    ("name", "shape", "spec"),
    [
        ("token_embedding", (64, 32), P(None, "x")),
        ("attention/out/kernel", (64, 32), P(None, "x")),
        ("mlp/down_kernel", (64, 32), P(None, "x")),
        ("attention/q/kernel", (32, 64), P("x", None)),
        ("attention/k_kernel", (8, 32, 64), P(None, "x", None)),
        ("attention/v/kernel", (32, 64), P("x", None)),
        ("mlp/gate/kernel", (32, 64), P("x", None)),
        ("mlp/up/kernel", (32, 64), P("x", None)),
        ("mlp/up/bias", (64,), P(None)),
        ("norm/scale", (64,), P(None)),
        ("head/kernel", (32, 64), P(None, "x")),
        ("head/kernel", (64, 32), P("x", None)),
        ("square", (64, 64), P(None, "x")),
        ("out/q/kernel", (32, 64), P("x", None)),  # the word nearest to the leaf counts
        ("temperature", (), P()),
    ],
)
def test_the_name_calls_for_a_dimension(name: str, shape: tuple[int, ...], spec: PartitionSpec) -> None:
    assert specs({name: leaf(*shape)}) == {name: spec}


def test_a_dimension_that_does_not_divide_passes_it_on_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="autoshard"):
        assert specs({"wte": leaf(64, 31)}) == {"wte": P("x", None)}
        assert specs({"conv": leaf(3, 7)}) == {"conv": P(None, None)}
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("INFO", "wte: dimension 1 of (64, 31) is not divisible by 4") in said
    assert ("INFO", "wte (64, 31): ('x', None)") in said
    assert ("INFO", "conv: no free dimension of (3, 7) is divisible by 4; ('x',) is not used") in said


def test_small_leaves_stay_whole() -> None:
    rule = fsdp_sharding("x", min_size_to_shard_mb=1)
    assert specs({"small": leaf(512, 512), "large": leaf(512, 516)}, rule) == {
        "small": P(None, None),
        "large": P(None, "x"),
    }


def test_several_axes_split_one_dimension() -> None:
    assert specs({"w": leaf(64, 12)}, fsdp_sharding(("x", "y"), 0)) == {"w": P(("x", "y"), None)}


def test_lists_of_square_matrices_are_preconditioners() -> None:
    state = {"up": [leaf(3, 64, 64), leaf(32, 32)], "down": [leaf(16, 16), leaf(128), None], "layers": [leaf(8, 16)]}
    assert specs(state) == {
        "up": [P(None, "x", None), P("x", None)],
        "down": [P("x", None), P("x"), None],
        "layers": [P(None, "x")],
    }


def test_what_is_decided_is_kept() -> None:
    rule = chain_sharding(where_named("up", dim_sharding("y", 0)), RULE)
    assert specs({"up": leaf(32, 64), "down": leaf(64, 32)}, rule) == {"up": P("y", "x"), "down": P(None, "x")}
    assert specs({"w": leaf(32, 64)}, chain_sharding(dim_sharding("x", 0), RULE)) == {"w": P("x", None)}


def test_the_sharding_that_an_array_has_is_kept() -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    placed = jax.device_put(jnp.ones((32, 64)), NamedSharding(mesh, P("y", None)))
    assert infer_sharding({"w": placed}, mesh, RULE)[1] == {"w": P("y", "x")}
    other = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    assert infer_sharding({"w": placed}, other, RULE)[1] == {"w": P(None, "x")}


def test_stacked_layers_are_never_split() -> None:
    params = {"layers": {"w": leaf(64, 16, 16), "norm": leaf(64)}, "head": leaf(64, 16)}
    assert specs(params, stacked_sharding(RULE, "^layers/")) == {
        "layers": {"w": P(None, None, "x"), "norm": P(None)},
        "head": P("x", None),
    }


def test_state_is_where_its_parameter_is() -> None:
    params = {"w": leaf(64, 64), "b": leaf(64)}
    state = ({"count": leaf(), "mu": params, "nu": params}, {"row": {"w": leaf(64)}})
    rule = state_sharding(params, {"w": P(None, "x"), "b": P()})
    moments = {"w": P(None, "x"), "b": P(None)}
    assert specs(state, rule) == ({"count": P(), "mu": moments, "nu": moments}, {"row": {"w": P(None)}})


def test_undecided_dimensions_can_be_left_to_the_planner() -> None:
    params = {"w": leaf(64, 32)}
    assert specs(params, RULE, undecided="free") == {"w": P("x", PartitionSpec.UNCONSTRAINED)}
    for mesh in (jax.make_mesh((4, 2), ("x", "y")), MESH):  # also where axes are Explicit
        assert infer_sharding(params, mesh, RULE, undecided="free")[0]["w"].spec[1] is PartitionSpec.UNCONSTRAINED
    with pytest.raises(OptionError, match="'open' must be 'whole' or 'free'"):
        infer_sharding(params, MESH, RULE, undecided="open")  # type: ignore[arg-type]


def test_faults_of_rules_are_told_all_at_once() -> None:
    params = {"a": leaf(8, 8), "b": leaf(6), "c": leaf(8)}

    def bad(spec: Any, mesh: Any, name: str, leaf: Any) -> Any:
        return {"a": ("x",), "b": ("x",), "c": ("z",)}[name]

    with pytest.raises(SpecError) as raised:
        infer_sharding(params, MESH, bad)
    assert "a: a rule made ('x',) of (None, None)" in str(raised.value)
    assert "extent 6 does not divide into 4 parts" in str(raised.value)
    assert "axis 'z' is not in the mesh" in str(raised.value)
    with pytest.raises(SpecError, match="must keep the rank and what is decided"):
        infer_sharding({"b": leaf(8)}, MESH, chain_sharding(dim_sharding("y", 0), bad))


SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 31, 64]), max_size=4).map(tuple)
NAMES = st.sampled_from(["embedding", "out/kernel", "q/kernel", "up", "scale", "w", "bias", "head"])


@given(tree=st.dictionaries(NAMES, SHAPES), axis=st.sampled_from(["x", "y", ("x", "y")]))
def test_every_spec_fits_and_nothing_that_could_be_split_is_whole(tree: Any, axis: Any) -> None:
    params = {name: leaf(*shape) for name, shape in tree.items()}
    shardings, found = infer_sharding(params, MESH, fsdp_sharding(axis, 0))
    parts = math.prod(MESH.shape[a] for a in ((axis,) if isinstance(axis, str) else axis))
    for name, shape in tree.items():
        assert len(found[name]) == len(shape)
        assert len(shardings[name].shard_shape(shape)) == len(shape)  # raises where a dimension does not divide
        split = any(entry is not None for entry in found[name])
        whole = name in ("scale", "bias") or not any(extent % parts == 0 for extent in shape)
        assert split == (not whole)


def test_rules_feed_autoshard() -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    params = {"up": jnp.ones((64, 128)), "down": jnp.ones((128, 64))}
    shardings, _ = infer_sharding(params, mesh, RULE)
    step = autoshard(lambda w, x: jnp.tanh(x @ w["up"]) @ w["down"], mesh, in_shardings=(shardings, None))
    x = jnp.ones((32, 64))
    assert step.plan(params, x).in_shardings[0] == shardings
    assert jnp.allclose(step(params, x), jnp.tanh(x @ params["up"]) @ params["down"], rtol=1e-5)


def test_a_wish_is_followed_unless_another_sharding_pays() -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    a = leaf(1024, 1024)
    wish = prefer_sharding({"a": P("y", "x"), "b": None})

    def elementwise(tree: Any) -> Any:
        return {"a": jnp.sin(tree["a"]), "b": tree["b"]}

    for spec in (P("y", "x"), P(None, ("y", "x")), P("x", None)):
        tree = {"a": a, "b": leaf(8)}
        plan = autoshard(elementwise, mesh, in_shardings=(prefer_sharding({"a": spec, "b": None}),)).plan(tree)
        assert plan.in_shardings[0]["a"].spec == spec
    assert autoshard(elementwise, mesh).plan(tree).in_shardings[0]["a"].spec != P("x", None)

    def contracted(tree: Any, x: Any) -> Any:
        return x @ tree["a"]

    fixed = {"in_shardings": ({"a": P("y", "x"), "b": None}, P(("x", "y"), None))}
    free = {"in_shardings": (wish, P(("x", "y"), None))}
    tree, rows = {"a": a, "b": leaf(8)}, leaf(8192, 1024)
    demanded = autoshard(contracted, mesh, **fixed).plan(tree, rows)
    wished = autoshard(contracted, mesh, **free).plan(tree, rows)
    assert demanded.in_shardings[0]["a"].spec == P("y", "x")
    assert wished.in_shardings[0]["a"].spec == P(None, None)  # nothing to gather
    assert wished.predicted.step_seconds < demanded.predicted.step_seconds


def test_a_wish_has_to_fit_and_is_not_for_results() -> None:
    step = autoshard(lambda x: x, MESH, hardware="cpu-virtual", in_shardings=(prefer_sharding(P("x")),))
    with pytest.raises(SpecError, match="extent 6 does not divide into 4 parts"):
        step.plan(leaf(6))
    with pytest.raises(SpecError, match="Hint is not a PartitionSpec"):
        autoshard(lambda x: x, MESH, hardware="cpu-virtual", out_shardings=prefer_sharding(P("x"))).plan(leaf(8))
