"""What a function's hand-written shardings really cost once XLA has compiled them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.api import autoshard
from autoshard.compiler_log import Rematerialization, compile_with_log, involuntary_rematerializations
from autoshard.costs import MeshModel, collective_permute
from autoshard.errors import PlanningError
from autoshard.hardware import mesh_model
from autoshard.hlo import Collective, MemoryUsage, collectives, flops, memory, optimized_hlo
from autoshard.propagation import PropagatedValue, propagated_values
from autoshard.strategies import COLLECTIVES
from autoshard.tables import html_table, nbytes_text, text_table
from autoshard.verify import MEMORY_TOLERANCE, source_line

REPLICATED_BYTES = 2**20
"""Arrays below this size may be replicated without mention: biases, scales, scalars."""

_SHOWN = 12  # of the replicated arrays; the data have all
_UNKNOWN = "(unknown)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInstead:
    """What our plan for the same function expects, within the memory that it takes now, and the memory model's error.

    Attributes:
        wire_bytes: Bytes sent per device and call.
        peak_memory_bytes: Peak memory per device.
        step_seconds: Time of a call, which is what a plan makes small; more bytes may take less time.
        communication_seconds: The part of it that collectives take.
        sources: Bytes sent by the line of code they are sent for, as `file:line`; by value where there is no line.
        failure: Why there is no plan; empty if there is one.
    """

    wire_bytes: float = 0.0
    peak_memory_bytes: float = 0.0
    step_seconds: float = 0.0
    communication_seconds: float = 0.0
    sources: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return f"no plan within the same memory: {self.failure}"
        return (
            f"our plan within the same memory, as predicted: {nbytes_text(self.wire_bytes)} sent, "
            f"peak memory {nbytes_text(self.peak_memory_bytes)}, {1e3 * self.step_seconds:.3g} ms a call, "
            f"{1e3 * self.communication_seconds:.3g} ms of it in collectives"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What a compiled program does; all numbers per device and call.

    Attributes:
        collectives: Every collective, in the order of the program's text.
        memory: Memory of the program.
        flops: FLOPs of its matrix products and convolutions.
        communication_seconds: Time of its collectives, one after the other, priced as those of a plan are.
        rematerializations: Tensors that XLA replicated because it found no better way.
        replicated: Large arrays of which every device holds all, largest first.
        planned: What our plan would do instead, None where it was not asked for.
    """

    collectives: tuple[Collective, ...]
    memory: MemoryUsage
    flops: float
    communication_seconds: float
    rematerializations: tuple[Rematerialization, ...]
    replicated: tuple[PropagatedValue, ...]
    planned: PlannedInstead | None = None

    @property
    def wire_bytes(self) -> float:
        """Bytes sent."""
        return sum(collective.call_wire_bytes for collective in self.collectives)

    def to_json(self) -> str:
        """Everything as JSON, the totals first."""
        totals = {"wire_bytes": self.wire_bytes, "peak_memory_bytes": self.memory.total}
        return json.dumps({**totals, **asdict(self)}, indent=2)

    def __str__(self) -> str:
        tables = [text_table(header, rows) for header, rows in _tables(self) if rows]
        notes = "\n".join(f"- {note}" for note in _notes(self))
        return "\n\n".join(part for part in (_headline(self), *tables, notes) if part)

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(self))
        tables = "".join(html_table(header, rows) for header, rows in _tables(self) if rows)
        return f"<p>{escape(_headline(self))}</p>{tables}<ul>{notes}</ul>"


def audit(
    fn: Callable[..., Any],
    mesh: Mesh,
    *,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    replicated_bytes: int = REPLICATED_BYTES,
    with_plan: bool = True,
    hardware: str | MeshModel | None = None,
) -> Audit:
    """Compile a function that was sharded by hand and say what its annotations cost.

    Nothing runs: arguments may be arrays or shapes, and the mesh may be a TPU topology on a machine without a TPU
    (`autoshard.topology.tpu_mesh`).

    Args:
        fn: The function, with `with_sharding_constraint` or `shard_map` inside as you wrote them; it may be jitted.
        mesh: The mesh it is compiled for.
        args: Positional arguments, arrays or `jax.ShapeDtypeStruct`s.
        kwargs: Keyword arguments, likewise.
        in_shardings: Shardings of the positional arguments, NamedShardings or PartitionSpecs, as `jax.jit` takes them;
            None leaves them to the arguments, or to XLA.
        out_shardings: Shardings of the results, likewise.
        donate_argnums: Arguments whose memory is given away.
        static_argnums: Arguments that are not traced.
        replicated_bytes: From this size on, an array that every device holds in full is listed.
        with_plan: Whether to plan the function too, with all shardings free but those written inside it, and the memory
            it takes now as the budget.
        hardware: What collectives and the plan are priced for: a preset's name, a `MeshModel`, or None to follow the
            devices' kind.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from autoshard.auditing import audit
        >>> mesh = jax.make_mesh((4, 2), ("x", "y"))
        >>> x = jax.ShapeDtypeStruct((512, 512), "float32")
        >>> found = audit(lambda x: x.sum(), mesh, args=(x,), in_shardings=(jax.P("x"),), replicated_bytes=2**10)
        >>> [collective.kind for collective in found.collectives], found.replicated
        (['all-reduce'], ())
    """
    options: dict[str, Any] = {"donate_argnums": donate_argnums, "static_argnums": static_argnums}
    if in_shardings is not None:
        options["in_shardings"] = _on_mesh(in_shardings, mesh)
    if out_shardings is not None:
        options["out_shardings"] = _on_mesh(out_shardings, mesh)
    lowered = jax.jit(fn, **options).lower(*args, **(kwargs or {}))
    compiled, log = compile_with_log(lowered)
    text, mesh_axes = optimized_hlo(compiled), dict(mesh.shape)
    found, used, model = collectives(text, mesh_axes), memory(compiled), mesh_model(mesh, hardware)
    return Audit(
        collectives=found,
        memory=used,
        flops=flops(text),
        communication_seconds=sum(_seconds(collective, model) * collective.trips for collective in found),
        rematerializations=involuntary_rematerializations(log, text, mesh_axes),
        replicated=_replicated(propagated_values(lowered), replicated_bytes),
        planned=_planned(fn, mesh, model, used, args, kwargs or {}, options) if with_plan else None,
    )


def _seconds(collective: Collective, model: MeshModel) -> float:
    """Time of one execution; where groups follow no axes, as if every device sent its bytes across the whole mesh."""
    price = COLLECTIVES.get(collective.kind.removeprefix("collective-").removeprefix("ragged-"))
    if price is None or not collective.axes:
        return collective_permute(collective.wire_bytes, collective.axes or model.axis_names, model).seconds
    whole = collective.nbytes * (collective.group_size if collective.kind == "reduce-scatter" else 1)
    return price(whole, collective.axes, model).seconds


def _planned(
    fn: Callable[..., Any],
    mesh: Mesh,
    model: MeshModel,
    used: MemoryUsage,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> PlannedInstead:
    """Totals of a plan for the same function in the same memory."""
    argnums = {name: options[name] for name in ("donate_argnums", "static_argnums")}
    try:
        budget = used.total * (1 + MEMORY_TOLERANCE)  # what is compiled may be so much less than what is predicted
        plan = autoshard(fn, mesh, memory_budget=budget, hardware=model, **argnums).plan(*args, **kwargs)
    except PlanningError as error:
        return PlannedInstead(failure=str(error))
    predicted = plan.predicted
    sources: defaultdict[str, float] = defaultdict(float)
    for collective in plan.collectives:
        sources[source_line(collective.source) or collective.value] += collective.wire_bytes * collective.trips
    return PlannedInstead(
        wire_bytes=predicted.wire_bytes,
        peak_memory_bytes=predicted.peak_memory_bytes,
        step_seconds=predicted.step_seconds,
        communication_seconds=predicted.communication_seconds,
        sources=dict(sources),
    )


def _on_mesh(shardings: Any, mesh: Mesh) -> Any:
    """The tree with every PartitionSpec put on the mesh."""

    def place(leaf: Any) -> Any:
        return NamedSharding(mesh, leaf) if isinstance(leaf, PartitionSpec) else leaf

    return jax.tree.map(place, shardings, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))


def _replicated(values: Sequence[PropagatedValue], replicated_bytes: int) -> tuple[PropagatedValue, ...]:
    """Values that every device holds in full, each kind once, largest first."""
    found = dict.fromkeys(value for value in values if value.parts == 1 and value.nbytes >= replicated_bytes)
    return tuple(sorted(found, key=lambda value: -value.nbytes))


def _headline(audit: Audit) -> str:
    used = audit.memory
    return (
        f"sent per device and call {nbytes_text(audit.wire_bytes)} in "
        f"{1e3 * audit.communication_seconds:.3g} ms of collectives; peak memory {nbytes_text(used.total)} "
        f"({nbytes_text(used.arguments)} arguments, {nbytes_text(used.temporaries)} temporaries, "
        f"{nbytes_text(used.outputs - used.aliases)} results); {audit.flops / 1e9:.2f} GFLOP"
    )


def _tables(audit: Audit) -> list[tuple[list[str], list[list[str]]]]:
    """What is sent, and what our plan would send instead, if there is one."""
    planned = audit.planned
    return [_cost_table(audit), *([] if planned is None or planned.failure else [_difference_table(audit, planned)])]


def _difference_table(audit: Audit, planned: PlannedInstead) -> tuple[list[str], list[list[str]]]:
    """Bytes sent by source line, as compiled and in our plan, the largest difference first."""
    sent: defaultdict[str, float] = defaultdict(float)
    for collective in audit.collectives:
        sent[_where(collective)] += collective.call_wire_bytes
    ours = planned.sources
    lines = sorted({**sent, **ours}, key=lambda line: (-abs(sent.get(line, 0.0) - ours.get(line, 0.0)), line))
    rows = [[line, nbytes_text(sent.get(line, 0.0)), nbytes_text(ours.get(line, 0.0))] for line in lines]
    return ["source", "bytes sent", "in our plan"], rows


def _where(collective: Collective) -> str:
    return collective.source or collective.op_name or _UNKNOWN


def _cost_table(audit: Audit) -> tuple[list[str], list[list[str]]]:
    """Bytes sent by source line and kind of collective, most first."""
    sent: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    times: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for collective in audit.collectives:
        key = _where(collective), collective.kind, ",".join(collective.axes) or "?"
        sent[key] += collective.call_wire_bytes
        times[key] += collective.trips
    rows = [[*key, str(times[key]), nbytes_text(sent[key])] for key in sorted(sent, key=lambda key: (-sent[key], key))]
    return ["source", "collective", "axes", "times", "bytes sent"], rows


def _notes(audit: Audit) -> list[str]:
    notes = [] if audit.planned is None else [str(audit.planned)]
    notes += [f"full rematerialization: {message}" for message in audit.rematerializations]
    notes += [f"every device holds all {nbytes_text(value.nbytes)} of {value}" for value in audit.replicated[:_SHOWN]]
    if len(audit.replicated) > _SHOWN:
        notes.append(f"every device holds all of {len(audit.replicated) - _SHOWN} more arrays")
    unknown = sum(not collective.trips_known for collective in audit.collectives)
    if unknown:
        notes.append(f"{unknown} collectives run in loops that run as often as data says, counted as one trip")
    return notes
