"""Programs that rule-based sharding went wrong on for somebody, placed by our rules and run.

Each is planned with the rule's shardings fixed, compiled for eight devices, compared with the unsharded function, and
held to the bytes that the best hand-written plan sends.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard import (
    autoshard,
    chain_sharding,
    dim_sharding,
    fsdp_sharding,
    infer_sharding,
    stacked_sharding,
    state_sharding,
    where_named,
)
from autoshard.costs import MeshAxis, MeshModel
from autoshard.costs.hardware import UNIT_DEVICE
from autoshard.plan import Leaf, Plan
from autoshard.verify import Verification

AUTO = jax.sharding.AxisType.Auto


def line() -> jax.sharding.Mesh:
    return jax.make_mesh((8,), ("d",), axis_types=(AUTO,))


def grid() -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AUTO, AUTO))


def hardware(mesh: jax.sharding.Mesh, flops_per_s: float = 1e12) -> MeshModel:
    """Links of 1 GB/s without latency between devices with 1 TB/s of memory bandwidth."""
    axes = tuple(MeshAxis.of(name, size, bytes_per_s=1e9, latency_s=0.0) for name, size in mesh.shape.items())
    speed = {"platform": "cpu", "peak_flops_per_s": {"float32": flops_per_s}, "memory_bytes_per_s": 1e12}
    return MeshModel(axes=axes, device=UNIT_DEVICE.model_copy(update=speed))


def normal(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def run(fn: Callable[..., Any], mesh: Any, *args: Any, sent_max: float, **options: Any) -> tuple[Plan, Verification]:
    """Plan, compile and run; what was planned must be what runs, send no more than `sent_max`, and be right."""
    step = autoshard(fn, mesh, **{"hardware": hardware(mesh), **options})
    plan = step.plan(*args)
    verification = plan.verify()
    assert not verification.rematerializations
    assert not verification.unhonoured
    assert verification.compiled_wire_bytes <= 1.05 * sent_max
    assert plan.predicted.wire_bytes == pytest.approx(verification.compiled_wire_bytes, rel=0.05)
    expected = jax.tree.leaves(jax.jit(fn)(*args))
    for want, have in zip(expected, jax.tree.leaves(step(*args)), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-3, atol=1e-3)
    return plan, verification


def specs(leaves: tuple[Leaf, ...], prefix: str) -> dict[str, Any]:
    """Shardings of the leaves below a prefix of their names."""
    return {leaf.name.removeprefix(prefix): leaf.spec for leaf in leaves if leaf.name.startswith(prefix)}


def test_a_stack_of_small_layers_is_not_split_by_layer() -> None:
    def fn(w: Any, h: Any) -> Any:
        return lax.scan(lambda c, a: (jnp.tanh(c @ a), None), h, w)[0]

    w, h = normal(0, 64, 16, 16) * 0.3, normal(1, 64, 16)
    largest, _ = infer_sharding({"w": w}, line(), fsdp_sharding("d", 0))
    assert largest["w"].spec == P("d", None, None)  # the rule alone takes the dimension of the layers
    shardings, found = infer_sharding({"w": w}, line(), stacked_sharding(fsdp_sharding("d", 0)))
    assert found["w"] == P(None, None, "d")
    ring = 64 * 16 * 16 * 4 * 7 / 8  # every layer is gathered once
    _, verification = run(fn, line(), w, h, in_shardings=(shardings["w"], P("d")), sent_max=ring)
    assert verification.memory is not None
    assert verification.memory.temporaries <= 8192  # a layer at a time, not the stack


def test_odd_sizes_small_leaves_and_scalars_get_shardings_that_fit() -> None:
    params = {
        "wte": normal(0, 5025, 64) * 0.1,
        "norm": {"scale": jnp.ones(64)},
        "temperature": jnp.float32(0.5),
        "conv": normal(1, 3, 7),
        "mlp": {"up": normal(2, 64, 256) * 0.1, "down": normal(3, 256, 64) * 0.1},
        "head": normal(4, 64, 1000) * 0.1,
    }

    def fn(params: Any, tokens: Any) -> Any:
        h = jnp.mean(params["wte"][tokens], axis=1) * params["norm"]["scale"] * params["temperature"]
        h = jax.nn.gelu(h @ params["mlp"]["up"]) @ params["mlp"]["down"]
        return (h + jnp.pad(params["conv"].reshape(-1), (0, 43))) @ params["head"]

    shardings, found = infer_sharding(params, line(), fsdp_sharding("d", min_size_to_shard_mb=0.01))
    assert found == {
        "wte": P(None, "d"),  # 5025 rows do not divide
        "norm": {"scale": P(None)},
        "temperature": P(),
        "conv": P(None, None),
        "mlp": {"up": P("d", None), "down": P(None, "d")},
        "head": P(None, "d"),
    }
    held = sum(
        x.dtype.itemsize * np.prod(s.shard_shape(x.shape)) for x, s in zip(*map(jax.tree.leaves, (params, shardings)))
    )
    assert held <= 0.14 * sum(x.nbytes for x in jax.tree.leaves(params))
    tokens = jnp.asarray(np.random.default_rng(5).integers(0, 5025, (16, 8)), jnp.int32)
    everything = sum(x.nbytes for x in jax.tree.leaves(params))
    run(fn, line(), params, tokens, in_shardings=(shardings, P("d")), sent_max=everything)


def test_moments_are_where_their_parameters_are() -> None:
    optax = pytest.importorskip("optax")
    optimizer = optax.adam(1e-2)

    def fn(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean(jnp.square(jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] - y))

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    params = {"w1": normal(0, 64, 256) * 0.1, "b1": jnp.zeros(256), "w2": normal(1, 256, 16) * 0.1}
    state = optimizer.init(params)
    placed, found = infer_sharding(params, line(), fsdp_sharding("d", min_size_to_shard_mb=0.002))
    assert found == {"w1": P(None, "d"), "b1": P(None), "w2": P("d", None)}
    state_placed, _ = infer_sharding(state, line(), state_sharding(params, placed))
    batch = normal(2, 128, 64), normal(3, 128, 16)
    plan, _ = run(
        fn, line(), params, state, *batch, in_shardings=(placed, state_placed, P("d"), P("d")), sent_max=51_100
    )
    where = specs(plan.arguments, "params")
    for moment in ("mu", "nu"):
        assert specs(plan.arguments, f"state[0].{moment}") == where
        assert specs(plan.results, f"result[1][0].{moment}") == where
    assert specs(plan.results, "result[0]") == where
    updates = [c.source for c in plan.collectives if "optax" in c.source]
    assert not updates, "the update itself moves nothing"


def test_lists_of_preconditioners_are_refreshed_in_place() -> None:
    mesh = grid()

    def fn(g: Any, factors: Any, due: Any) -> Any:
        def refreshed(factors: Any) -> Any:
            left = jnp.einsum("lij,ljk,lmk->lim", factors[0], g, g)
            right = jnp.einsum("lij,lki,lkm->ljm", factors[1], g, g)
            scaled = [m / jnp.max(jnp.abs(m), axis=(1, 2), keepdims=True) for m in (left, right)]
            return [q - 0.1 * jnp.triu(m) @ q for q, m in zip(factors, scaled)]

        factors = lax.cond(due, refreshed, lambda factors: factors, factors)
        wanted = NamedSharding(mesh, P(None, None, "y"))
        left, right = (lax.with_sharding_constraint(q, wanted) for q in factors)
        step = jnp.einsum("lia,lij,ljk,lmk->lam", left, left, g, right)
        return jnp.einsum("lam,lmb->lab", step, right), [left, right]

    factors = [jnp.tile(jnp.eye(n)[None], (3, 1, 1)) for n in (64, 32)]
    rule = chain_sharding(where_named("grad", dim_sharding("x", 1)), where_named("grad", dim_sharding("y", 2)),
                          fsdp_sharding("x", 0))  # fmt: skip
    state = {"grad": normal(0, 3, 64, 32), "factors": factors}
    placed, found = infer_sharding(state, mesh, rule)
    assert found == {"grad": P(None, "x", "y"), "factors": [P(None, "x", None)] * 2}
    fixed = (placed["grad"], placed["factors"], P())
    plan, _ = run(fn, mesh, state["grad"], factors, jnp.bool_(True), in_shardings=fixed, sent_max=122_922)
    boundaries = [d for d in plan.decisions if d.primitive == "cond_out"]
    assert boundaries and all(len(set(d.operands)) == 1 for d in boundaries)  # both branches leave one sharding


def test_orthogonalisation_moves_once_each_way() -> None:
    def fn(m: Any) -> Any:
        x = m / (jnp.linalg.norm(m, axis=(-2, -1), keepdims=True) + 1e-7)
        for _ in range(5):
            a = jnp.einsum("lij,lkj->lik", x, x)
            b = -4.7750 * a + 2.0315 * jnp.einsum("lij,ljk->lik", a, a)
            x = 3.4445 * x + jnp.einsum("lij,ljk->lik", b, x)
        return x

    rule = chain_sharding(dim_sharding("x", 1), dim_sharding("y", 2))
    placed, found = infer_sharding(normal(0, 8, 64, 64), grid(), rule)
    assert found == P(None, "x", "y")
    run(fn, grid(), normal(0, 8, 64, 64), in_shardings=(placed,), out_shardings=placed, sent_max=40_960)


def test_a_donated_state_keeps_its_sharding() -> None:
    def fn(state: Any, t: Any) -> Any:
        return {"s": state["s"] + 1.0}, t * 2.0

    state = {"s": normal(0, 64)}
    placed, _ = infer_sharding(state, line(), fsdp_sharding("d", 0))
    step = autoshard(fn, line(), in_shardings=(placed, None), out_shardings=(None, P("d")), donate_argnums=0)
    plan = step.plan(state, normal(1, 64))
    assert plan.arguments[0].spec == plan.results[0].spec == (("d",),)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "some donated buffers were not usable"
        step(jax.device_put(state, placed), normal(1, 64))


def test_accumulation_splits_the_rows_of_a_microbatch() -> None:
    def fn(w: Any, x: Any) -> Any:
        def loss(w: Any, rows: Any) -> Any:
            return jnp.mean(jnp.square(rows @ w))

        return lax.scan(lambda g, rows: (g + jax.grad(loss)(w, rows), None), jnp.zeros_like(w), x.reshape(4, 8, 64))[0]

    args = (normal(0, 64, 16), normal(1, 32, 64))
    placed, _ = infer_sharding(args, grid(), where_named("^1$", dim_sharding("x", 0)))
    assert [sharding.spec for sharding in placed] == [P(None, None), P("x", None)]
    slow = hardware(grid(), flops_per_s=1e9)  # on faster devices it pays to gather the rows and compute everywhere
    fixed = {"in_shardings": placed, "out_shardings": placed[0]}
    plan, verification = run(fn, grid(), *args, hardware=slow, sent_max=26_112, **fixed)
    slices = [d for d in plan.decisions if d.primitive == "scan_xs"]
    assert slices and all(d.operands[0][0] == () for d in slices)
    whole = 4 * 2 * (2 * 8 * 64 * 16)
    assert verification.compiled_flops <= 0.26 * whole


def test_large_arrays_are_born_in_place() -> None:
    def fn(seed: Any) -> Any:
        key = jax.random.PRNGKey(seed)
        return jnp.zeros((1024, 64)), jnp.arange(1024 * 8).reshape(1024, 8), jax.random.normal(key, (1024, 128))

    born = jax.eval_shape(fn, jnp.int32(0))
    placed, _ = infer_sharding(born, line(), fsdp_sharding("d", 0))
    plan, _ = run(fn, line(), jnp.int32(0), out_shardings=placed, sent_max=0)
    assert [leaf.shard_bytes * 8 for leaf in plan.results] == [4 * np.prod(leaf.shape) for leaf in plan.results]
