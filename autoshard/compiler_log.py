"""What XLA says in its C++ log while it compiles: which tensors it replicates because it found no better way.

The log goes to file descriptor 2, past Python's `sys.stderr`, so it is caught there. Two traps are taken care of:
jax keeps compiled programs and logs nothing when it finds one, and libtpu logs to files unless told otherwise
(`autoshard.topology` tells it).
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import jax

from autoshard.device_groups import spec_of_sharding
from autoshard.hlo_text import parse_instruction, parse_module

_LOGGER = logging.getLogger("autoshard")
_MESSAGE = re.compile(
    r"Involuntary full rematerialization\. The compiler (?:cannot|was not able to) go from sharding "
    r"(\{.*?\}) to (\{.*?\}) (?:efficiently|without doing a full rematerialization of the tensor) "
    r"for HLO operation:? (%.*)"
)
_COMPILATIONS = itertools.count()


@dataclass(slots=True)
class CapturedLog:
    """What was written to file descriptor 2 within `captured_stderr`, filled in place when that ends."""

    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rematerialization:
    """A tensor that XLA replicates on every device and cuts anew, because it cannot get from one sharding to another.

    Attributes:
        op: Name of the HLO operation whose result is replicated.
        shape: Its shape on one device before, as HLO writes it.
        from_sharding: How it is split before, as HLO writes it.
        to_sharding: How it should be split, as HLO writes it.
        from_spec: The same as a PartitionSpec over the mesh, empty where it is none.
        to_spec: The same as a PartitionSpec over the mesh, empty where it is none.
        op_name: JAX's name of the operation.
        source: The user's `file:line`, empty if unknown.
    """

    op: str
    shape: str
    from_sharding: str
    to_sharding: str
    from_spec: str = ""
    to_spec: str = ""
    op_name: str = ""
    source: str = ""

    def __str__(self) -> str:
        before, after = self.from_spec or self.from_sharding, self.to_spec or self.to_sharding
        where = f" at {self.source}" if self.source else ""
        return f"%{self.op} {self.shape} ({self.op_name or 'unnamed'}){where}: {before} -> {after}"


@contextmanager
def captured_stderr(*, replay: bool = True) -> Iterator[CapturedLog]:
    """Catch what the process writes to file descriptor 2, C++ code included.

    The descriptor belongs to the whole process: what other threads write meanwhile is caught too.

    Args:
        replay: Whether to write it to the real standard error afterwards. After an exception that happens anyway.
    """
    log = CapturedLog()
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield log
        except BaseException:
            replay = True
            raise
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            caught.seek(0)
            written = caught.read()
            log.text = written.decode(errors="replace")
            with open(original, "wb") as stderr:  # closes the duplicate
                stderr.write(written if replay else b"")


def compile_with_log(
    lowered: jax.stages.Lowered, compiler_options: Mapping[str, str | bool] | None = None
) -> tuple[jax.stages.Compiled, str]:
    """Compile a lowered function and return the compiled program and what XLA logged.

    The program is compiled even where jax holds it already: a program from a cache has no log.

    Args:
        lowered: What `jax.jit(fn).lower(...)` returns.
        compiler_options: Options for XLA, as `lowered.compile` takes them.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") > "1":
        _LOGGER.warning("TF_CPP_MIN_LOG_LEVEL hides XLA's warnings: full rematerializations will not be seen")
    # Which modules to dump, where nothing is dumped: an option without effect that no cache has seen yet.
    unseen = {"xla_dump_hlo_module_re": f"autoshard-{os.getpid()}-{next(_COMPILATIONS)}"}
    with captured_stderr(replay=False) as log:
        compiled = lowered.compile(compiler_options={**unseen, **(compiler_options or {})})
    return compiled, log.text


def involuntary_rematerializations(
    log: str, text: str | None = None, mesh_axes: Mapping[str, int] | None = None
) -> tuple[Rematerialization, ...]:
    """The full rematerializations that XLA reports in its log.

    Args:
        log: The C++ log of one compilation, as `compile_with_log` returns it.
        text: Optimised HLO of that compilation, which holds the table of source lines.
        mesh_axes: Axis names and sizes of the mesh, in mesh order, to write the shardings as PartitionSpecs.
    """
    lines_by_frame = parse_module(text).lines_by_frame if text else {}
    found = []
    for before, after, operation in _MESSAGE.findall(log):
        instruction = parse_instruction(operation)
        metadata = instruction.metadata(lines_by_frame)
        found.append(
            Rematerialization(
                op=instruction.name,
                shape=re.sub(r"\{.*", "", instruction.shape),
                from_sharding=before,
                to_sharding=after,
                from_spec=_written_spec(before, mesh_axes or {}),
                to_spec=_written_spec(after, mesh_axes or {}),
                op_name=metadata.op_name,
                source=metadata.source,
            )
        )
    return tuple(found)


def _written_spec(sharding: str, mesh_axes: Mapping[str, int]) -> str:
    spec = spec_of_sharding(sharding, mesh_axes)
    if spec is None:
        return ""
    entries = (None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec)
    return f"P({', '.join(map(repr, entries))})"
