"""flax: nnx objects updated in place, annotations of nnx variables and of linen boxes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from autoshard import autoshard, fsdp_sharding, infer_sharding, nnx_autoshard, prefer_sharding
from autoshard.errors import InputError

pytest.importorskip("flax")
import flax.linen as nn
import optax
from flax import nnx

AUTO = jax.sharding.AxisType.Auto
LECUN = nn.initializers.lecun_normal()


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AUTO, AUTO))


class Counted(nnx.Module):
    """A layer with dropout and with a variable that every call updates."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(16, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls[...] += 1
        return self.dropout(self.linear(x))


def train_step(model: Any, optimizer: Any, x: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def new() -> tuple[Any, Any]:
    model = Counted(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def test_nnx_objects_are_updated_in_place_as_by_jit() -> None:
    x = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
    (expected, expected_opt), (actual, actual_opt) = new(), new()
    plain, sharded = nnx.jit(train_step), nnx_autoshard(train_step, mesh(), donate_argnums=(0, 1))
    for _ in range(3):
        wanted = plain(expected, expected_opt, x)
        found = sharded(actual, actual_opt, x)
        assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    assert not sharded.plan(actual, actual_opt, x).unruled
    assert int(actual.calls[...]) == 3 and int(actual_opt.step[...]) == 3
    plan = sharded.plan(actual, actual_opt, x)
    specs = {leaf.name: leaf.spec for leaf in plan.arguments}
    results = {leaf.name: leaf.spec for leaf in plan.results}
    assert specs["model['linear']['kernel'].value"] == results["result[0]['linear']['kernel'].value"]
    kernel = actual.linear.kernel[...]
    assert kernel.sharding.is_equivalent_to(jax.tree.leaves(plan.in_shardings[0]["linear"]["kernel"])[0], 2)


def test_nnx_objects_that_share_a_variable_are_one() -> None:
    def step(first: Any, second: Any) -> None:
        first.calls[...] += 1
        second.calls[...] += 10

    first, second = Counted(nnx.Rngs(0)), Counted(nnx.Rngs(1))
    second.calls = first.calls
    nnx_autoshard(step, mesh())(first, second)
    assert int(first.calls[...]) == int(second.calls[...]) == 11


def test_nnx_objects_keep_their_variables() -> None:
    def step(model: Any) -> None:
        model.extra = nnx.Variable(jnp.zeros(3))

    with pytest.raises(InputError, match="step adds or removes variables of its nnx objects"):
        nnx_autoshard(step, mesh())(Counted(nnx.Rngs(0)))


def test_nnx_objects_are_positional_arguments_of_their_own() -> None:
    step = nnx_autoshard(lambda *models, **named: None, mesh())
    model = Counted(nnx.Rngs(0))
    with pytest.raises(InputError) as raised:
        step(model, [model, jnp.ones(3)], late=model)
    assert str(raised.value).splitlines()[1:] == ["  argument [1][0]: Counted", "  argument ['late']: Counted"]


def test_annotations_of_nnx_variables_are_decided() -> None:
    with nnx.use_eager_sharding(False):
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "x"))
        layer = nnx.Linear(16, 64, kernel_init=init, rngs=nnx.Rngs(0))
    _, specs = infer_sharding(nnx.state(layer), mesh(), fsdp_sharding("y", 0))
    assert (specs["kernel"], specs["bias"]) == (P("y", "x"), P(None))
    shardings, _ = infer_sharding(nnx.state(layer), mesh(), fsdp_sharding("y", 0))
    plan = nnx_autoshard(lambda layer, x: layer(x), mesh(), in_shardings=(shardings, None)).plan(
        layer, jnp.ones((32, 16))
    )
    assert {leaf.name: leaf.spec for leaf in plan.arguments}["layer['kernel'].value"] == (("y",), ("x",))


class Boxed(nn.Module):
    """One kernel annotated with a mesh axis, one with logical names."""

    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        x = nn.Dense(64, kernel_init=nn.with_partitioning(LECUN, (None, "y")))(x)
        return nn.Dense(8, kernel_init=nn.with_logical_partitioning(LECUN, ("mlp", "embed")))(x)


@pytest.mark.parametrize(
    ("logical_axes", "spec"),
    [
        ({"mlp": "x", "embed": "y"}, P("x", "y")),
        ({"mlp": ("x", "y"), "embed": None}, P(("x", "y"), None)),
        ((("mlp", "x"), ("embed", "x"), ("embed", "y")), P("x", "y")),  # the first that is unused counts
        ((("mlp", "x"), ("embed", "x")), P("x", None)),
    ],
)
def test_annotations_of_linen_boxes_are_decided(logical_axes: Any, spec: P) -> None:
    params = Boxed().init(jax.random.key(0), jnp.ones((1, 16)))["params"]
    _, specs = infer_sharding(params, mesh(), logical_axes=logical_axes)
    assert (specs["Dense_0"]["kernel"], specs["Dense_1"]["kernel"]) == (P(None, "y"), spec)
    moments = infer_sharding(optax.adam(1e-2).init(params), mesh(), logical_axes=logical_axes)[1][0].mu
    assert moments == specs


def test_annotations_can_be_hints() -> None:
    params = Boxed().init(jax.random.key(0), jnp.ones((1, 16)))["params"]
    annotated, _ = infer_sharding(params, mesh(), logical_axes={"mlp": "y", "embed": None})

    def squares(params: Any) -> Any:
        return jax.tree.map(jnp.square, params)

    def kernels(**options: Any) -> list[Any]:
        plan = autoshard(squares, mesh(), **options).plan(params)
        return [leaf.spec for leaf in plan.arguments if "kernel" in leaf.name]

    hinted = kernels(in_shardings=(prefer_sharding(annotated),))
    assert hinted == kernels(in_shardings=(annotated,)) == [((), ("y",)), (("y",), ())]
    assert hinted != kernels()


def test_unknown_logical_names_are_told(caplog: pytest.LogCaptureFixture) -> None:
    params = Boxed().init(jax.random.key(0), jnp.ones((1, 16)))["params"]
    _, specs = infer_sharding(params, mesh(), fsdp_sharding("x", 0), logical_axes={"embed": "y"})
    assert specs["Dense_1"]["kernel"] == P("x", "y")
    assert "annotation 'mlp' is neither an axis of the mesh nor in logical_axes" in caplog.text


def test_boxes_are_fixed_and_the_rest_is_planned() -> None:
    params = Boxed().init(jax.random.key(0), jnp.ones((1, 16)))["params"]
    x = jnp.ones((64, 16))
    fixed, _ = infer_sharding(params, mesh(), logical_axes={"mlp": "y"}, undecided="free")
    step = autoshard(lambda p, x: Boxed().apply({"params": p}, x), mesh(), in_shardings=(fixed, None))
    specs = {leaf.name: leaf.spec for leaf in step.plan(params, x).arguments}
    assert specs["p['Dense_0']['kernel'].value"][1] == specs["p['Dense_1']['kernel'].value"][0] == ("y",)
    np.testing.assert_allclose(step(params, x), Boxed().apply({"params": params}, x), rtol=1e-5)
