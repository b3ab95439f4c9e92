"""XLA's own words about full rematerializations: provoked, caught, and traced to line and specs."""

import os
import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.compiler_log import captured_stderr, compile_with_log, involuntary_rematerializations
from autoshard.device_groups import spec_of_sharding
from tests.helpers import PACKAGE

P = PartitionSpec
MESH_AXES = {"x": 4, "y": 2}
BEFORE, AFTER = P("y", None, "x"), P(None, ("x", "y"), None)  # XLA has no direct way from one to the other
BETWEEN = P("y", "x", None)
CUBE = jax.ShapeDtypeStruct((16, 16, 16), jnp.float32)

JUMP = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))

def fn(x):
    for spec in SPECS:
        x = jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, spec))
    return jnp.cos(x)

print(jax.jit(fn).lower(jax.ShapeDtypeStruct((16, 16, 16), jnp.float32)).compile().as_text())
"""


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))


def moving(mesh: Mesh, *specs: P) -> Callable[[jax.Array], jax.Array]:
    def fn(x: jax.Array) -> jax.Array:
        for spec in specs:
            x = jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, spec))
        return jnp.cos(x)

    return fn


def compile_elsewhere(*specs: P) -> tuple[str, str]:
    """Optimised HLO and standard error of a fresh process whose logging is as installed."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL", "XLA_FLAGS", "JAX_PLATFORMS"}
    env = {name: value for name, value in os.environ.items() if name not in quiet}
    env |= {"PYTHONPATH": str(PACKAGE.parent), "JAX_PLATFORMS": "cpu"}
    written = "[" + ", ".join(f"P{tuple(spec)!r}" for spec in specs) + "]"
    code = JUMP.replace("SPECS", written)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_what_default_logging_prints_is_read() -> None:
    text, log = compile_elsewhere(BEFORE, AFTER)
    (found,) = involuntary_rematerializations(log, text, MESH_AXES)
    assert (found.from_spec, found.to_spec) == ("P('y', None, 'x')", "P(None, ('x', 'y'), None)")
    assert found.shape == "f32[8,16,4]"
    assert found.op_name == "jit(fn)/sharding_constraint"
    assert found.source == "<string>:12"
    assert f"{found.op_name}) at <string>:12: P('y', None, 'x') -> P(None, ('x', 'y'), None)" in str(found)


def test_a_step_between_makes_the_message_go_away() -> None:
    text, log = compile_elsewhere(BEFORE, BETWEEN, AFTER)
    assert involuntary_rematerializations(log, text, MESH_AXES) == ()


def test_the_log_is_there_though_jax_has_the_program_already(mesh: Mesh) -> None:
    lowered = jax.jit(moving(mesh, BEFORE, AFTER)).lower(CUBE)
    logs = [compile_with_log(lowered)[1] for _ in range(3)]
    assert [len(involuntary_rematerializations(log)) for log in logs] == [1, 1, 1]


def test_the_line_is_the_users(mesh: Mesh) -> None:
    compiled, log = compile_with_log(jax.jit(moving(mesh, BEFORE, AFTER)).lower(CUBE))
    (found,) = involuntary_rematerializations(log, compiled.as_text(), MESH_AXES)
    line = moving.__code__.co_firstlineno + 3
    assert found.source == f"{__file__}:{line}"


def test_without_mesh_and_text_the_shardings_remain(mesh: Mesh) -> None:
    (found,) = involuntary_rematerializations(compile_with_log(jax.jit(moving(mesh, BEFORE, AFTER)).lower(CUBE))[1])
    assert (found.from_spec, found.to_spec, found.source) == ("", "", "")
    assert str(found).endswith(f": {found.from_sharding} -> {found.to_sharding}")
    assert spec_of_sharding(found.from_sharding, MESH_AXES) == (("y",), (), ("x",))
    assert spec_of_sharding(found.to_sharding, MESH_AXES) == ((), ("x", "y"), ())


def test_the_older_wording_is_read() -> None:
    log = (
        "E0101 spmd_partitioner.cc:613] [spmd] Involuntary full rematerialization. The compiler was not able "
        "to go from sharding {devices=[4,2]<=[8]} to {devices=[8,1]<=[8]} without doing a full rematerialization of "
        "the tensor for HLO operation: %dot = f32[4,4]{1,0} dot(f32[4,2]{1,0} %a, f32[2,4]{1,0} %b), "
        'metadata={op_name="jit(f)/dot" source_file="model.py" '
        "source_line=3}. You probably want to enrich the sharding annotations."
    )
    (found,) = involuntary_rematerializations(log, mesh_axes=MESH_AXES)
    assert (found.op, found.from_spec, found.to_spec) == ("dot", "P('x', 'y')", "P(('x', 'y'), None)")
    assert found.source == "model.py:3"


def test_hidden_warnings_are_told(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    compile_with_log(jax.jit(moving(mesh, BEFORE)).lower(CUBE))
    assert "TF_CPP_MIN_LOG_LEVEL hides XLA's warnings" in caplog.text


def test_captured_text_is_replayed(capfd: pytest.CaptureFixture[str]) -> None:
    with captured_stderr() as log:
        os.write(2, b"from C++\n")
        print("from Python", file=sys.__stderr__, flush=True)
    assert log.text == "from C++\nfrom Python\n"
    assert capfd.readouterr().err == log.text


def test_after_an_error_nothing_is_lost_and_the_descriptor_is_given_back(capfd: pytest.CaptureFixture[str]) -> None:
    with captured_stderr(replay=False):
        os.write(2, b"kept quiet\n")
    with pytest.raises(RuntimeError), captured_stderr(replay=False):
        os.write(2, b"the reason\n")
        raise RuntimeError
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "the reason\nafterwards\n"
