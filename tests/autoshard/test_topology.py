"""The TPU compiler without a TPU; skipped where libtpu is not installed, but for what is said then."""

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from autoshard.compiler_log import compile_with_log, involuntary_rematerializations
from autoshard.errors import MeshError
from autoshard.hlo import collectives, memory, optimized_hlo
from autoshard.topology import tpu_mesh

P = PartitionSpec
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


def test_without_libtpu_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"for v5e:2x4 without a TPU needs .* pip install 'autoshard\[tpu\]'"):
        tpu_mesh("v5e:2x4", {"x": 4, "y": 2})


@needs_libtpu
def test_axes_must_multiply_to_the_devices() -> None:
    with pytest.raises(MeshError, match=r"'v5e:2x4' has 8 devices, the axes x=4 x y=4 need 16; give axes whose sizes"):
        tpu_mesh("v5e:2x4", {"x": 4, "y": 4})


@needs_libtpu
@pytest.mark.parametrize("topology", ["v5e", "v5e:3x5", "v99:2x2"])
def test_unknown_topologies_are_refused(topology: str) -> None:
    with pytest.raises(MeshError, match=rf"unknown TPU topology '{topology}', write it like 'v5e:2x4'"):
        tpu_mesh(topology, {"x": 8})


@needs_libtpu
def test_a_matmul_compiles_for_a_slice_of_256_chips() -> None:
    x, y, size, bf16 = 16, 16, 4096, 2
    mesh = tpu_mesh("v5e:16x16", {"x": x, "y": y})
    operand = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    shardings = [NamedSharding(mesh, spec) for spec in (P("x", "y"), P("y", None))]
    compiled = (
        jax.jit(jnp.matmul, in_shardings=shardings, out_shardings=NamedSharding(mesh, P("x", None)))
        .lower(operand, operand)
        .compile()
    )
    (found,) = collectives(optimized_hlo(compiled), dict(mesh.shape))
    assert (found.kind, found.axes, found.nbytes) == ("all-reduce", ("y",), size // x * size * bf16)
    assert memory(compiled).arguments == (size // x * size // y + size // y * size) * bf16


@needs_libtpu
def test_the_tpu_compiler_reports_full_rematerializations_too() -> None:
    mesh = tpu_mesh("v5e:2x4", {"x": 4, "y": 2})

    def fn(cube: Any) -> Any:
        for spec in (P("y", None, "x"), P(None, ("x", "y"), None)):
            cube = jax.lax.with_sharding_constraint(jnp.sin(cube), NamedSharding(mesh, spec))
        return jnp.cos(cube)

    compiled, log = compile_with_log(jax.jit(fn).lower(jax.ShapeDtypeStruct((16, 16, 16), jnp.float32)))
    (found,) = involuntary_rematerializations(log, optimized_hlo(compiled), dict(mesh.shape))
    assert (found.from_spec, found.to_spec) == ("P('y', None, 'x')", "P(None, ('x', 'y'), None)")
