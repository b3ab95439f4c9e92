"""Plan and compiled program side by side: is what was planned what runs?

Collectives are compared by kind and mesh axes, in bytes sent per device and call. Which line a collective is put down
to is shown too but decides nothing, because the compiler merges and moves collectives of different lines.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any

import jax

from autoshard.compiler_log import Rematerialization, compile_with_log, involuntary_rematerializations
from autoshard.costs import ShardingSpec, joined_spec
from autoshard.hlo import Collective, MemoryUsage, collectives, flops, memory, optimized_hlo
from autoshard.tables import html_table, nbytes_text, percent_text, text_table

WIRE_TOLERANCE = 0.03
MEMORY_TOLERANCE = 0.25
NEGLIGIBLE_SHARE = 0.01
"""Collectives below this share of all bytes sent do not count as unplanned or missing: scalar losses, counters."""
NEGLIGIBLE_MEMORY_BYTES = 2**18
"""Differences in peak memory below this do not count: alignment, scratch space and the like of small programs."""

_SOURCE = re.compile(r"(.+?):(\d+)(?::\d+)?(?: \(.*\))?")
_LONG_NAME = {"permute": "collective-permute"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCollective:
    """A collective that a plan expects to run.

    Attributes:
        kind: As in compiled programs, `all-gather` and so on; `permute` for short.
        axes: Mesh axes it runs over, in any order.
        wire_bytes: Bytes one device sends, per execution.
        trips: Executions per call.
        source: The user's line it serves, as `file:line`, also with column or function behind; may be empty.
    """

    kind: str
    axes: tuple[str, ...]
    wire_bytes: float
    trips: float = 1
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Collectives of one kind over the same axes, planned and compiled.

    Attributes:
        kind: What they do.
        axes: The axes, sorted by name.
        predicted_executions: Executions per call in the plan.
        compiled_executions: Executions per call in the compiled program, after the compiler combined some.
        predicted_wire_bytes: Bytes sent per device and call in the plan.
        compiled_wire_bytes: Bytes sent per device and call in the compiled program.
    """

    kind: str
    axes: tuple[str, ...]
    predicted_executions: float
    compiled_executions: float
    predicted_wire_bytes: float
    compiled_wire_bytes: float

    def __str__(self) -> str:
        planned, compiled = nbytes_text(self.predicted_wire_bytes), nbytes_text(self.compiled_wire_bytes)
        return f"{self.kind} over {','.join(self.axes) or '?'}: {planned} planned, {compiled} compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """Bytes sent per device and call on behalf of one source line, planned and compiled."""

    source: str
    predicted_wire_bytes: float
    compiled_wire_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingDifference:
    """A result whose sharding in the compiled program is not the one asked for."""

    path: str
    expected: str
    compiled: str

    def __str__(self) -> str:
        return f"{self.path}: {self.expected} asked for, {self.compiled} compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A plan compared with the program that XLA made of it; all numbers per device and call.

    Attributes:
        rows: Collectives by kind and axes, most bytes first.
        sources: Bytes sent by source line, most bytes first.
        predicted_peak_memory_bytes: Peak memory of the plan, None where none was given.
        memory: Memory of the compiled program, None where it is not known.
        compiled_flops: FLOPs of the compiled program's matrix products and convolutions.
        rematerializations: Tensors that XLA replicated because it found no better way.
        unhonoured: Results that did not get the sharding asked for.
        unknown_trips: Collectives in loops that run as often as data says, whose trips are assumed.
        wire_tolerance: Relative difference in bytes sent that is accepted.
        memory_tolerance: Relative difference in peak memory that is accepted.
    """

    rows: tuple[CollectiveRow, ...]
    sources: tuple[SourceRow, ...]
    predicted_peak_memory_bytes: float | None
    memory: MemoryUsage | None
    compiled_flops: float
    rematerializations: tuple[Rematerialization, ...]
    unhonoured: tuple[ShardingDifference, ...]
    unknown_trips: int
    wire_tolerance: float
    memory_tolerance: float

    @property
    def predicted_wire_bytes(self) -> float:
        """Bytes sent per device and call in the plan."""
        return sum(row.predicted_wire_bytes for row in self.rows)

    @property
    def compiled_wire_bytes(self) -> float:
        """Bytes sent per device and call in the compiled program."""
        return sum(row.compiled_wire_bytes for row in self.rows)

    @property
    def wire_bytes_error(self) -> float:
        """By how much of the compiled bytes the plan is too high (positive) or too low."""
        return _relative_difference(self.predicted_wire_bytes, self.compiled_wire_bytes)

    @property
    def memory_error(self) -> float | None:
        """By how much of the compiled peak memory the plan is too high or too low; None where either is unknown."""
        if self.predicted_peak_memory_bytes is None or self.memory is None:
            return None
        return _relative_difference(self.predicted_peak_memory_bytes, self.memory.total)

    @property
    def unplanned(self) -> tuple[CollectiveRow, ...]:
        """Collectives of a kind and axes that the plan has none of, beyond the negligible."""
        return tuple(row for row in self.rows if not row.predicted_wire_bytes and self._matters(row))

    @property
    def missing(self) -> tuple[CollectiveRow, ...]:
        """Planned collectives of a kind and axes that the compiled program has none of, beyond the negligible."""
        return tuple(row for row in self.rows if not row.compiled_wire_bytes and self._matters(row))

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that keeps the comparison from being good, one line each."""
        found = []
        if abs(self.wire_bytes_error) > self.wire_tolerance:
            found.append(f"bytes sent are off by {percent_text(self.wire_bytes_error)}")
        if self.memory_error is not None and self._memory_is_off:
            found.append(f"peak memory is off by {percent_text(self.memory_error)}")
        found += [f"unplanned: {row}" for row in self.unplanned]
        found += [f"missing: {row}" for row in self.missing]
        found += [f"full rematerialization: {message}" for message in self.rematerializations]
        found += [f"sharding not honoured: {difference}" for difference in self.unhonoured]
        return tuple(found)

    @property
    def ok(self) -> bool:
        """Whether the program does what was planned, within the tolerances."""
        return not self.problems

    def to_json(self) -> str:
        """Everything as JSON: the fields, the totals and the verdict. Infinite errors are null."""
        totals = {
            "ok": self.ok,
            "problems": self.problems,
            "predicted_wire_bytes": self.predicted_wire_bytes,
            "compiled_wire_bytes": self.compiled_wire_bytes,
            "wire_bytes_error": self.wire_bytes_error if math.isfinite(self.wire_bytes_error) else None,
            "memory_error": self.memory_error,
            "compiled_peak_memory_bytes": None if self.memory is None else self.memory.total,
        }
        return json.dumps({**totals, **asdict(self)}, indent=2)

    def __str__(self) -> str:
        tables = [text_table(header, rows) for header, rows in _tables(self) if rows]
        notes = "\n".join(f"- {note}" for note in _notes(self))
        return "\n\n".join(part for part in (_headline(self), *tables, notes) if part)

    def _repr_html_(self) -> str:
        tables = "".join(html_table(header, rows) for header, rows in _tables(self) if rows)
        notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(self))
        return f"<p>{escape(_headline(self))}</p>{tables}<ul>{notes}</ul>"

    @property
    def _memory_is_off(self) -> bool:
        if self.memory_error is None or self.memory is None or self.predicted_peak_memory_bytes is None:
            return False
        difference = abs(self.predicted_peak_memory_bytes - self.memory.total)
        return difference > NEGLIGIBLE_MEMORY_BYTES and abs(self.memory_error) > self.memory_tolerance

    def _matters(self, row: CollectiveRow) -> bool:
        all_bytes = max(self.predicted_wire_bytes, self.compiled_wire_bytes)
        return max(row.predicted_wire_bytes, row.compiled_wire_bytes) > NEGLIGIBLE_SHARE * all_bytes


def compare(
    predicted: Sequence[PredictedCollective],
    text: str,
    mesh_axes: Mapping[str, int],
    *,
    log: str = "",
    predicted_peak_memory_bytes: float | None = None,
    compiled_memory: MemoryUsage | None = None,
    unhonoured: Sequence[ShardingDifference] = (),
    assumed_trips: int = 1,
    whole_axes: Mapping[str, int] | None = None,
    wire_tolerance: float = WIRE_TOLERANCE,
    memory_tolerance: float = MEMORY_TOLERANCE,
) -> Verification:
    """Compare the collectives of a plan with those of a compiled program.

    Args:
        predicted: What the plan expects to run.
        text: Optimised HLO of the program, as `compiled.as_text()` gives it.
        mesh_axes: Axis names and sizes of the mesh, in mesh order.
        log: XLA's log of the compilation, as `compile_with_log` returns it.
        predicted_peak_memory_bytes: Peak memory of the plan, per device.
        compiled_memory: Memory of the compiled program, as `autoshard.hlo.memory` gives it.
        unhonoured: Results whose sharding is not the one asked for, as `unhonoured_outputs` finds them.
        assumed_trips: Trips of a loop that runs as often as data says, as the plan assumes them.
        whole_axes: Names and sizes of the axes as `predicted` names them, where those of the mesh are parts of them.
        wire_tolerance: Accepted difference in bytes sent, relative to the compiled program.
        memory_tolerance: Accepted difference in peak memory, relative to the compiled program.
    """
    compiled = collectives(text, mesh_axes, assumed_trips=assumed_trips)
    if whole_axes is not None and whole_axes != mesh_axes:
        named = collectives(text, whole_axes, assumed_trips=assumed_trips)
        compiled = tuple(_over_whole_axes(*pair, whole_axes) for pair in zip(compiled, named))
    return Verification(
        rows=_rows(predicted, compiled),
        sources=_sources(predicted, compiled),
        predicted_peak_memory_bytes=predicted_peak_memory_bytes,
        memory=compiled_memory,
        compiled_flops=flops(text, assumed_trips=assumed_trips),
        rematerializations=involuntary_rematerializations(log, text, mesh_axes),
        unhonoured=tuple(unhonoured),
        unknown_trips=sum(not collective.trips_known for collective in compiled),
        wire_tolerance=wire_tolerance,
        memory_tolerance=memory_tolerance,
    )


def verify_lowered(
    predicted: Sequence[PredictedCollective],
    lowered: jax.stages.Lowered,
    mesh_axes: Mapping[str, int],
    *,
    out_shardings: Any = None,
    predicted_peak_memory_bytes: float | None = None,
    assumed_trips: int = 1,
    whole_axes: Mapping[str, int] | None = None,
    wire_tolerance: float = WIRE_TOLERANCE,
    memory_tolerance: float = MEMORY_TOLERANCE,
) -> Verification:
    """Compile a lowered function and compare it with its plan.

    Args:
        predicted: What the plan expects to run.
        lowered: The function with the plan's constraints, as `jax.jit(fn).lower(...)` returns it, for the devices of a
            mesh that may be a TPU topology (`autoshard.topology.tpu_mesh`).
        mesh_axes: Axis names and sizes of that mesh, in mesh order.
        out_shardings: Shardings the results should have, a tree of the results' structure with None where any will do.
        predicted_peak_memory_bytes: Peak memory of the plan, per device.
        assumed_trips: Trips of a loop that runs as often as data says, as the plan assumes them.
        whole_axes: Names and sizes of the axes as `predicted` names them, where those of the mesh are parts of them.
        wire_tolerance: Accepted difference in bytes sent, relative to the compiled program.
        memory_tolerance: Accepted difference in peak memory, relative to the compiled program.
    """
    compiled, log = compile_with_log(lowered)
    return compare(
        predicted,
        optimized_hlo(compiled),
        mesh_axes,
        log=log,
        predicted_peak_memory_bytes=predicted_peak_memory_bytes,
        compiled_memory=memory(compiled),
        unhonoured=() if out_shardings is None else unhonoured_outputs(lowered, compiled, out_shardings),
        assumed_trips=assumed_trips,
        whole_axes=whole_axes,
        wire_tolerance=wire_tolerance,
        memory_tolerance=memory_tolerance,
    )


def unhonoured_outputs(
    lowered: jax.stages.Lowered, compiled: jax.stages.Compiled, out_shardings: Any
) -> tuple[ShardingDifference, ...]:
    """Results whose compiled sharding splits them otherwise than asked for.

    A constraint on a result that its mesh axes do not divide is one way to get here: XLA may replicate it silently.

    Args:
        lowered: The lowered function, which knows the results' shapes.
        compiled: The program compiled from it.
        out_shardings: Shardings asked for, a tree of the results' structure with None where any will do.
    """

    def difference(path: tuple[Any, ...], info: Any, wanted: Any, got: Any) -> ShardingDifference | None:
        if wanted is None or wanted.is_equivalent_to(got, len(info.shape)):
            return None
        name = "result" + jax.tree_util.keystr(path)
        return ShardingDifference(path=name, expected=_spec(wanted), compiled=_spec(got))

    found = jax.tree_util.tree_map_with_path(difference, lowered.out_info, out_shardings, compiled.output_shardings)
    return tuple(jax.tree.leaves(found))


def _over_whole_axes(divided: Collective, named: Collective, whole_axes: Mapping[str, int]) -> Collective:
    """A collective over the axes of the user, and parts of them: groups say theirs, the pairs of a permute do not."""
    if divided.kind != "collective-permute":
        return named
    return replace(divided, axes=joined_spec(ShardingSpec.of(divided.axes), whole_axes).axes)


def _rows(predicted: Iterable[PredictedCollective], compiled: Iterable[Collective]) -> tuple[CollectiveRow, ...]:
    planned_bytes: defaultdict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    planned_times, compiled_bytes, compiled_times = (planned_bytes.copy() for _ in range(3))
    for plan in predicted:
        key = _LONG_NAME.get(plan.kind, plan.kind), tuple(sorted(plan.axes))
        planned_bytes[key] += plan.wire_bytes * plan.trips
        planned_times[key] += plan.trips
    for collective in compiled:
        key = collective.kind, tuple(sorted(collective.axes))
        compiled_bytes[key] += collective.call_wire_bytes
        compiled_times[key] += collective.trips
    rows = (
        CollectiveRow(
            kind=key[0],
            axes=key[1],
            predicted_executions=planned_times[key],
            compiled_executions=compiled_times[key],
            predicted_wire_bytes=planned_bytes[key],
            compiled_wire_bytes=compiled_bytes[key],
        )
        for key in {**planned_bytes, **compiled_bytes}
    )
    return tuple(
        sorted(rows, key=lambda row: (-max(row.predicted_wire_bytes, row.compiled_wire_bytes), row.kind, row.axes))
    )


def _sources(predicted: Iterable[PredictedCollective], compiled: Iterable[Collective]) -> tuple[SourceRow, ...]:
    planned_bytes: defaultdict[str, float] = defaultdict(float)
    compiled_bytes = planned_bytes.copy()
    for plan in predicted:
        planned_bytes[source_line(plan.source)] += plan.wire_bytes * plan.trips
    for collective in compiled:
        compiled_bytes[collective.source or collective.op_name] += collective.call_wire_bytes
    rows = (
        SourceRow(source=source, predicted_wire_bytes=planned_bytes[source], compiled_wire_bytes=compiled_bytes[source])
        for source in {**planned_bytes, **compiled_bytes}
    )
    return tuple(sorted(rows, key=lambda row: (-max(row.predicted_wire_bytes, row.compiled_wire_bytes), row.source)))


def source_line(source: str) -> str:
    """The `file:line` of a source that may name column and function too, as `file.py:3:10 (fn)` does."""
    match = _SOURCE.fullmatch(source)
    return f"{match[1]}:{match[2]}" if match else source


def _relative_difference(predicted: float, compiled: float) -> float:
    if predicted == compiled:
        return 0.0
    return (predicted - compiled) / compiled if compiled else math.inf


def _spec(sharding: jax.sharding.Sharding) -> str:
    return str(sharding.spec) if isinstance(sharding, jax.sharding.NamedSharding) else str(sharding)


def _headline(verification: Verification) -> str:
    wire = _planned_and_compiled(
        verification.predicted_wire_bytes, verification.compiled_wire_bytes, verification.wire_bytes_error
    )
    line = f"{'as planned' if verification.ok else 'NOT as planned'}: sent per device and call {wire}"
    if verification.memory is None:
        return line
    peak = verification.predicted_peak_memory_bytes
    return f"{line}; peak memory {_planned_and_compiled(peak, verification.memory.total, verification.memory_error)}"


def _planned_and_compiled(planned: float | None, compiled: float, error: float | None) -> str:
    if planned is None or error is None:
        return f"{nbytes_text(compiled)} compiled"
    return f"{nbytes_text(planned)} planned, {nbytes_text(compiled)} compiled ({percent_text(error)})"


def _tables(verification: Verification) -> tuple[tuple[list[str], list[list[str]]], ...]:
    """Collectives and source lines as header and cells."""
    by_kind = [
        [
            row.kind,
            ",".join(row.axes) or "?",
            f"{row.predicted_executions:g}",
            f"{row.compiled_executions:g}",
            nbytes_text(row.predicted_wire_bytes),
            nbytes_text(row.compiled_wire_bytes),
        ]
        for row in verification.rows
    ]
    by_source = [
        [row.source or "(unknown)", nbytes_text(row.predicted_wire_bytes), nbytes_text(row.compiled_wire_bytes)]
        for row in verification.sources
    ]
    return (
        (["collective", "axes", "planned", "compiled", "planned bytes", "compiled bytes"], by_kind),
        (["source", "planned bytes", "compiled bytes"], by_source),
    )


def _notes(verification: Verification) -> list[str]:
    notes = list(verification.problems)
    if verification.unknown_trips:
        notes.append(f"{verification.unknown_trips} collectives run in loops whose trips are not known but assumed")
    return notes
