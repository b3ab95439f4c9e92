"""Audits of functions sharded by hand, with faults planted in them."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.auditing import Audit, audit
from autoshard.costs import MeshModel, all_reduce
from autoshard.errors import InfeasibleError
from autoshard.tables import nbytes_text
from autoshard.verify import MEMORY_TOLERANCE

P = PartitionSpec
BATCH, WIDTH, HIDDEN, F32 = 64, 512, 1024, 4


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))


def network(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["up"])
    return hidden @ params["down"]


PARAMS = {
    "up": jax.ShapeDtypeStruct((WIDTH, HIDDEN), jnp.float32),
    "down": jax.ShapeDtypeStruct((HIDDEN, WIDTH), jnp.float32),
}
X = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)


@pytest.fixture(scope="module")
def half_done(mesh: Mesh) -> Audit:
    """Tensor parallel, but `up` was forgotten."""
    shardings = ({"up": P(), "down": P("y", None)}, P("x", None))
    return audit(network, mesh, args=(PARAMS, X), in_shardings=shardings, out_shardings=P("x", None))


def test_collectives_memory_and_flops_are_those_of_the_layout(half_done: Audit) -> None:
    (reduced,) = half_done.collectives
    assert (reduced.kind, reduced.axes, reduced.nbytes) == ("all-reduce", ("y",), BATCH // 4 * WIDTH * F32)
    assert half_done.wire_bytes == reduced.nbytes
    arguments = WIDTH * HIDDEN + HIDDEN // 2 * WIDTH + BATCH // 4 * WIDTH
    assert half_done.memory.arguments == arguments * F32
    assert half_done.flops == 2 * 2 * (BATCH // 4) * WIDTH * HIDDEN // 2
    assert half_done.rematerializations == ()


def test_what_every_device_holds_in_full_is_named(half_done: Audit) -> None:
    (forgotten,) = half_done.replicated
    assert (forgotten.role, forgotten.name, forgotten.nbytes) == ("argument", "params['up']", WIDTH * HIDDEN * F32)
    assert "- every device holds all 2.0 MiB of argument params['up'] f32[512,1024]" in str(half_done).splitlines()


def test_the_size_from_which_replication_matters_is_the_callers(mesh: Mesh) -> None:
    found = audit(network, mesh, args=(PARAMS, X), in_shardings=P(), replicated_bytes=BATCH * HIDDEN * F32)
    names = [value.name for value in found.replicated]
    assert names[:2] == ["params['down']", "params['up']"]
    assert "jit(network)/tanh" in names
    assert "x" not in names


def test_full_rematerializations_are_traced_to_the_line(mesh: Mesh) -> None:
    def jump(x: jax.Array) -> jax.Array:
        for spec in (P("y", None, "x"), P(None, ("x", "y"), None)):
            x = jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, spec))
        return x

    found = audit(jump, mesh, args=(jax.ShapeDtypeStruct((16, 16, 16), jnp.float32),))
    line = jump.__code__.co_firstlineno + 2
    assert [message.source for message in found.rematerializations] == [f"{__file__}:{line}"]
    assert f"{__file__}:{line}: P('y', None, 'x') -> P(None, ('x', 'y'), None)" in str(found)


def test_our_plan_stands_beside_it(half_done: Audit) -> None:
    assert half_done.planned is not None
    assert half_done.planned.failure == ""
    assert half_done.planned.step_seconds > 0
    assert half_done.planned.peak_memory_bytes <= half_done.memory.total * (1 + MEMORY_TOLERANCE)
    assert "- our plan within the same memory, as predicted: " in str(half_done)


def test_lines_are_compared_with_those_of_our_plan(half_done: Audit) -> None:
    """The second product's sums, which the layout reduces whole, are what the plan saves."""
    assert half_done.planned is not None
    line = f"{__file__}:{network.__code__.co_firstlineno + 2}"
    (reduced,) = half_done.collectives
    assert reduced.source == line
    assert sum(half_done.planned.sources.values()) == pytest.approx(half_done.planned.wire_bytes)
    sent, ours = nbytes_text(reduced.wire_bytes), nbytes_text(half_done.planned.sources[line])
    rows = [text.split() for text in str(half_done).splitlines() if text.startswith(line)]
    assert [line, *sent.split(), *ours.split()] in rows


def test_compiled_collectives_are_priced_as_planned_ones_are(mesh: Mesh) -> None:
    model = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1e6, latency_s=1e-3)
    shardings = ({"up": P(), "down": P("y", None)}, P("x", None))
    found = audit(network, mesh, args=(PARAMS, X), in_shardings=shardings, out_shardings=P("x", None), hardware=model)
    priced = all_reduce(found.collectives[0].nbytes, "y", model)
    assert found.communication_seconds == pytest.approx(priced.seconds)


def test_without_a_plan_the_reason_is_told(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_plan(*args: Any, **options: Any) -> None:
        raise InfeasibleError("the arguments alone need more")

    monkeypatch.setattr("autoshard.auditing.autoshard", no_plan)
    found = audit(jnp.sin, mesh, args=(X,))
    assert "- no plan within the same memory: the arguments alone need more" in str(found).splitlines()
    assert audit(jnp.sin, mesh, args=(X,), with_plan=False).planned is None


def test_donation_and_static_arguments_are_passed_on(mesh: Mesh) -> None:
    def scaled(x: jax.Array, times: int) -> jax.Array:
        return x * times

    found = audit(scaled, mesh, args=(jnp.ones((8, 8)), 3), donate_argnums=0, static_argnums=1)
    assert found.memory.aliases == 8 * 8 * F32


def test_a_jitted_function_with_shardings_of_its_own_is_audited_as_it_is(mesh: Mesh) -> None:
    sharding = NamedSharding(mesh, P("x", "y"))
    fn = jax.jit(jnp.sum, in_shardings=sharding)
    found = audit(fn, mesh, args=(jax.ShapeDtypeStruct((8, 8), jnp.float32),))
    assert {collective.kind for collective in found.collectives} == {"all-reduce"}
    assert {axis for collective in found.collectives for axis in collective.axes} == {"x", "y"}
    assert found.memory.arguments == 8 * 8 * F32 // 8


def test_text_and_json_and_notebook_tell_the_same(half_done: Audit) -> None:
    line = network.__code__.co_firstlineno + 2
    width = len(f"{__file__}:{line}")
    headline = str(half_done).splitlines()[0]
    assert headline.startswith("sent per device and call 32.0 KiB in 0.00136 ms of collectives; peak memory ")
    assert headline.endswith("results); 0.02 GFLOP")
    assert str(half_done).splitlines()[2:4] == [
        f"{'source'.ljust(width)}  collective  axes  times  bytes sent",
        f"{__file__}:{line}  all-reduce     y      1    32.0 KiB",
    ]
    data = json.loads(half_done.to_json())
    assert data["wire_bytes"] == half_done.wire_bytes
    assert data["replicated"][0]["name"] == "params['up']"
    assert "<td>32.0 KiB</td>" in half_done._repr_html_()
