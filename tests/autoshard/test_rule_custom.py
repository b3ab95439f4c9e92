"""Rules that users register: what the notation means, and that split calls run as priced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

import autoshard
from autoshard.costs import MeshModel
from autoshard.errors import InputError
from autoshard.rules import Combine, Equation, TensorFacts, base, custom, register_rule, rule_of
from tests.helpers_rules import MESHES, Case, execute, sampled
from tests.rule_zoo import normal


def primitive(name: str, function: Any) -> Primitive:
    """A primitive that computes a function of JAX."""
    made = Primitive(name)
    made.def_impl(function)
    made.def_abstract_eval(lambda *avals: jax.core.ShapedArray(**_like(jax.eval_shape(function, *avals))))
    mlir.register_lowering(made, mlir.lower_fun(function, multiple_results=False))
    return made


def _like(shape: jax.ShapeDtypeStruct) -> dict[str, Any]:
    return {"shape": shape.shape, "dtype": shape.dtype}


PRODUCT = primitive("their_product", jnp.matmul)
PACK = primitive("their_pack", lambda x: x.reshape(*x.shape[:-1], -1, 4)[..., :2])


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "USER_RULES", {})
    monkeypatch.setattr(custom, "USER_RULES", base.USER_RULES)
    monkeypatch.setattr(custom, "_CUSTOM", {})


def rule(*shapes: tuple[int, ...], results: tuple[tuple[int, ...], ...] = ((4, 8),), name: str = "theirs") -> Any:
    facts = [tuple(TensorFacts(shape, "float32", 4) for shape in group) for group in (shapes, results)]
    return rule_of(Equation(name, {}, *facts))


class TestNotation:
    def test_names_are_factors(self) -> None:
        register_rule("theirs", "m k, k n -> m n", sums="k", flops=lambda a, b: 2 * a[0] * a[1] * b[1])
        found = rule((4, 16), (16, 8))
        assert found.operands == (((0,), (1,)), ((1,), (2,)))
        assert found.results == (((0,), (2,)),)
        assert [f.combine for f in found.factors] == [Combine.PARALLEL, Combine.SUM, Combine.PARALLEL]
        assert found.flops == 2 * 4 * 16 * 8
        assert found.ruled and found.local_factors == {0, 1, 2}

    def test_groups_take_their_sizes_from_elsewhere(self) -> None:
        register_rule("theirs", "(a b) -> a b")
        found = rule((32,))
        assert found.operands == (((0, 1),),)
        assert [f.size for f in found.factors] == [4, 8]

    def test_what_is_minor_to_a_whole_name_is_whole(self) -> None:
        register_rule("theirs", "(a b) -> a b", whole="a")
        assert rule((32,)).factors == ()

    def test_leading_dimensions_and_scalars(self) -> None:
        register_rule("theirs", "... _, () -> ... _")
        found = rule((2, 4, 8), (), results=((2, 4, 1),))
        assert found.operands == (((0,), (1,), ()), ())
        assert found.results == (((0,), (1,), ()),)

    @pytest.mark.parametrize(
        ("notation", "message"),
        [
            ("m k", "'m k' is no rule: write it as 'm k, k n -> m n'"),
            ("m (k -> m", r"'m \(k': parentheses do not match"),
            ("((m) k) -> m", "nested"),
            ("m 3 -> m", "'m 3': '3' is no name of a dimension"),
            ("m ... -> m", "'m ...': '...' stands for leading dimensions only"),
        ],
    )
    def test_what_cannot_be_read_is_refused(self, notation: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            register_rule("theirs", notation)

    def test_all_faults_are_told_at_once(self) -> None:
        with pytest.raises(InputError) as caught:
            register_rule("add", "m k, n n -> m n z", sums="n q")
        assert str(caught.value).splitlines() == [
            "rule of 'add', 'm k, n n -> m n z':",
            "  'q' in sums= or whole= names no dimension",
            "  'n' is in sums= and in a result",
            "  'k' is in the operands only: say sums='k' if partial results add up, whole='k' otherwise",
            "  'z' is in the results only: say whole='z'",
            "  'n' is twice in one array",
            "  it has a rule already",
        ]

    @pytest.mark.parametrize(
        ("notation", "message"),
        [
            ("m -> m n", r"does not fit \[4, 8\]: it names 1 dimensions of \[4, 8\]"),
            ("m n, m n -> m n", r"does not fit \[4, 8\]: it names 2 arrays where there are 1"),
            ("n m -> m n", r"does not fit \[4, 8\]: 'm' is 8 in one place and 4 in another"),
            ("(a n) _ -> (a n) _", r"does not fit \[4, 8\]: the sizes of a and n are nowhere to be seen"),
        ],
    )
    def test_a_rule_that_does_not_fit_a_call_is_refused(self, notation: str, message: str) -> None:
        register_rule("theirs", notation, whole="n")
        with pytest.raises(InputError, match=message):
            rule((4, 8))


def _doubled(x: Any) -> Any:
    def kernel(source: Any, target: Any) -> None:
        target[...] = source[...] * 2

    block = pl.BlockSpec((2, x.shape[1]), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    grid = (x.shape[0] // 2,)
    return pl.pallas_call(
        kernel, shape, grid=grid, in_specs=[block], out_specs=block, interpret=True, name="their_kernel"
    )(x)


CALLS = {
    "their_product": ("their_product", PRODUCT.bind, (normal(16, 8), normal(8, 24))),
    "their_pack": ("their_pack", PACK.bind, (normal(8, 32),)),
    "their_kernel": ("pallas_call", _doubled, (normal(16, 8),)),
}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", CALLS)
def test_split_calls_compute_the_same_and_communicate_as_priced(name: str, mesh: str) -> None:
    register_rule("their_product", "m k, k n -> m n", sums="k")
    register_rule("their_pack", "... (n p) -> ... n _", whole="p")
    register_rule("their_kernel", "m n -> m n", local=_doubled)
    case = Case(name, *CALLS[name])
    sizes = MESHES[mesh]
    strategies = case.op.strategies(MeshModel.preset("cpu-virtual", sizes)).strategies
    assert len(strategies) > 3
    outcomes = [execute(case, strategy, sizes) for strategy in sampled(strategies, 4)]
    assert all(outcome.agrees for outcome in outcomes), "\n".join(map(str, outcomes))


def test_custom_calls_are_made_on_shards() -> None:
    register_rule("their_target", "m n -> m n")
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def fn(x: Any) -> Any:
        return jax.ffi.ffi_call("their_target", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    step = autoshard.autoshard(fn, mesh, in_shardings=NamedSharding(mesh, PartitionSpec("x", "y")))
    plan = step.plan(normal(16, 8))
    assert not plan.unruled and plan.predicted.wire_bytes == 0
    call = next(line for line in step.lower(normal(16, 8)).as_text().splitlines() if "@their_target" in line)
    assert "-> tensor<4x4xf32>" in call


def test_without_a_rule_the_report_says_what_it_falls_back_on() -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def fn(a: Any, b: Any, c: Any) -> Any:
        kept = jax.ffi.ffi_call("nobodys_kernel", jax.ShapeDtypeStruct(c.shape, c.dtype))(c)
        return PRODUCT.bind(a, b), kept

    plan = autoshard.autoshard(fn, mesh).plan(*(np.ones((8, 8), np.float32) for _ in range(3)))
    rows = {row.primitive: row.fallback for row in plan.report().unruled}
    assert rows == {"their_product": "split by Shardy's rule", "nobodys_kernel": "replicated"}
    assert "their_product, split by Shardy's rule: " in plan.report().text()
