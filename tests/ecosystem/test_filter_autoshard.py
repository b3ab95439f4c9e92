"""Pytrees with leaves that are no arrays: they are constants, in arguments and in results."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard import filter_autoshard
from autoshard.errors import InputError

AUTO = (jax.sharding.AxisType.Auto,)


class Layer(NamedTuple):
    """A weight, and two leaves that are no arrays."""

    weight: Any
    activation: Callable[[jax.Array], jax.Array]
    name: str


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((8,), ("x",), axis_types=AUTO)


def test_constants_come_back_as_they_were() -> None:
    def grow(layer: Layer, x: jax.Array, *, power: int) -> tuple[Layer, jax.Array, str]:
        assert isinstance(power, int)
        return layer._replace(weight=2 * layer.weight), layer.activation(x @ layer.weight) ** power, layer.name

    step = filter_autoshard(grow, mesh(), donate_argnums=0)
    layer = Layer(jnp.eye(64), jax.nn.relu, "first")
    x = np.random.default_rng(0).normal(size=(32, 64)).astype(np.float32)
    plan = step.plan(layer, x, power=2)
    assert [leaf.name for leaf in plan.arguments] == ["layer.weight", "x"]
    assert plan.arguments[0].donated and plan.arguments[0].spec == plan.results[0].spec
    grown, y, name = step(layer, x, power=2)
    assert (grown.activation, grown.name, name) == (jax.nn.relu, "first", "first")
    np.testing.assert_allclose(y, np.maximum(x, 0) ** 2, rtol=1e-6)
    np.testing.assert_array_equal(grown.weight, 2 * np.eye(64))


def test_another_constant_is_another_plan() -> None:
    traced = []

    def scaled(x: jax.Array, factor: Any) -> jax.Array:
        traced.append(factor)
        return x * factor

    step = filter_autoshard(scaled, mesh())
    x = jnp.ones(16)
    assert [float(step(x, factor)[0]) for factor in (2, 3, 2, 3)] == [2, 3, 2, 3]
    for factor in (1, True, 1.0):
        step(x, factor)
    assert list(dict.fromkeys(map(repr, traced))) == ["2", "3", "1", "True", "1.0"]
    plan = step.plan(x, 1.0)
    assert step.plan(x, 1.0) is plan
    step.clear_cache()
    assert step.plan(x, 1.0) is not plan


def test_leaves_that_cannot_be_constants_are_refused_all_at_once() -> None:
    step = filter_autoshard(lambda a, b: a["x"], mesh())
    with pytest.raises(InputError) as raised:
        step({"x": jnp.ones(8), "y": {1, 2}}, bytearray(b"no"))
    assert str(raised.value).splitlines()[1:] == [
        "  argument [0]['y']: set is neither an array nor hashable",
        "  argument [1]: bytearray is neither an array nor hashable",
    ]


def test_it_works_as_a_method() -> None:
    class Model:
        scale = 3.0

        def __hash__(self) -> int:
            return 0

        def apply(self, x: jax.Array) -> jax.Array:
            return self.scale * x

        sharded = filter_autoshard(apply, mesh())

    assert float(Model().sharded(jnp.ones(8)).sum()) == 24.0


def test_equinox_module_trains_as_without() -> None:
    eqx = pytest.importorskip("equinox")

    def step(model: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        loss, grads = eqx.filter_value_and_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -g, grads)), loss

    model = eqx.nn.MLP(8, 8, width_size=64, depth=1, key=jax.random.key(0))
    x = jnp.ones((64, 8))
    planned = filter_autoshard(step, mesh())
    expected, actual = model, model
    for _ in range(3):
        expected, wanted = eqx.filter_jit(step)(expected, x)
        actual, found = planned(actual, x)
        assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    assert actual.activation is model.activation
