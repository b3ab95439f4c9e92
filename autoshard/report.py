"""What a plan costs and why, as data: everything that is shown is a field of `Report`.

The parts add up to the totals: compute and reductions over `Report.operations`, resharding over `Report.reshardings`,
bytes and seconds of all communication over `Report.collectives`. `autoshard.render` makes text and HTML of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from autoshard.costs import ShardingSpec
from autoshard.lower import PLACEMENT_WEIGHT
from autoshard.patterns import Pattern, components, merge
from autoshard.plan import Leaf, Model, OpCost, Plan, PlannedCollective, Role, SolverSummary, SpecDims, Totals

BASELINES = {
    "replicated": "everything on every device",
    "data parallel": "the arguments that are not fed back split by their leading dimension, the others whole; what "
    "happens in between is optimised",
    "fully sharded": "what is fed back split over the whole mesh, too, each array along the dimension that "
    "fsdp_sharding chooses",
}
"""What each baseline is, in the words of the report."""

_BOUNDARIES = {
    "scan_xs": "slice per iteration",
    "scan_ys": "stack per iteration",
    "scan_carry": "loop carry",
    "scan_const": "loop constant",
    "while_carry": "loop carry",
    "while_const": "loop constant",
    "remat_in": "checkpoint input",
    "cond_in": "branch input",
    "cond_out": "branch result",
}
_SOURCE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::\d+)?(?: \((?P<function>.*)\))?")


class Place(Model):
    """A line of the user's program.

    Attributes:
        file: Path of the file; empty where the line is not known.
        line: Line number, from 1; 0 where it is not known.
        function: The innermost named function around it.
    """

    file: str
    line: int
    function: str


class OperationRow(Model):
    """Operations of one kind, on one line, of one sharding.

    Attributes:
        operation: The primitive, or what a region's boundary does.
        place: The user's line.
        sharding: Of the first result.
        operations: How many operations these are.
        executions: How often they run per call, all together.
        compute_seconds: Arithmetic and memory traffic, per device and call.
        reduction_seconds: Collectives that end their partial sums, per device and call.
    """

    operation: str
    place: Place
    sharding: str
    operations: int
    executions: float
    compute_seconds: float
    reduction_seconds: float

    @property
    def seconds(self) -> float:
        """Compute and reductions."""
        return self.compute_seconds + self.reduction_seconds


class ReshardingRow(Model):
    """Collectives of one kind that bring the same values to one line of the program.

    Attributes:
        value: What is moved: the path of an argument, or the primitive that makes it.
        arguments: If arguments are moved, the pattern of their paths; `value` is the first of them. Else empty.
        made_at: Where it is made; None for arguments.
        needed_at: The line that asks for it.
        kind: The collective.
        axes: Mesh axes it runs over.
        executions: How often per call, all together.
        wire_bytes: Bytes sent per device and call.
        seconds: Time per call.
    """

    value: str
    arguments: Pattern
    made_at: Place | None
    needed_at: Place
    kind: str
    axes: tuple[str, ...]
    executions: float
    wire_bytes: float
    seconds: float


class CollectiveRow(Model):
    """All collectives of one kind over the same axes, for one purpose.

    Attributes:
        kind: The collective.
        axes: Mesh axes it runs over.
        role: It ends partial sums (``reduction``) or moves values between shardings (``resharding``).
        executions: How often per call.
        wire_bytes: Bytes sent per device and call.
        seconds: Time per call.
    """

    kind: str
    axes: tuple[str, ...]
    role: Role
    executions: float
    wire_bytes: float
    seconds: float


class FunctionRow(Model):
    """All that is done on the lines of one function of the user's.

    Attributes:
        file: Its file; empty for what no line is known of, such as moves of arguments.
        function: Its name; empty for a module's own lines.
        compute_seconds: Arithmetic and memory traffic, per device and call.
        reduction_seconds: Collectives that end partial sums.
        resharding_seconds: Collectives that bring values to it.
    """

    file: str
    function: str
    compute_seconds: float
    reduction_seconds: float
    resharding_seconds: float

    @property
    def seconds(self) -> float:
        """All three."""
        return self.compute_seconds + self.reduction_seconds + self.resharding_seconds


class LeafGroup(Model):
    """Arguments or results of one sharding, told by one pattern of paths.

    Attributes:
        pattern: Per component of the paths, the alternatives; stands for the paths of their product. Of results that
            are sharded as an argument is, what their paths begin with.
        paths: The path of every leaf.
        types: Their element types and shapes, such as ``float32[4,512]``, each once.
        sharding: ``[x, -]`` and so on, or ``replicated``.
        shard_bytes: Bytes on each device, all leaves together.
        donated: Their memory is given away.
        argument: For results, name of the argument whose leaves of the same path have the same sharding; else empty.
    """

    pattern: Pattern
    paths: tuple[str, ...]
    types: tuple[str, ...]
    sharding: str
    shard_bytes: float
    donated: bool
    argument: str = ""


class UnruledRow(Model):
    """A primitive without a sharding rule, what it falls back on, and a line where it stands."""

    primitive: str
    fallback: str
    place: Place


class Report(Model):
    """What a plan costs and why. Prints as text, shows as HTML in a notebook, and is JSON by ``model_dump_json()``.

    Attributes:
        function: Name of the planned function.
        mesh: Size of each mesh axis.
        hardware: The preset that prices were taken from.
        hardware_source: Where its figures come from.
        memory_budget_bytes: Limit per device; None for none.
        totals: Of this plan, per device and call.
        baselines: The same totals of other plans, by name.
        functions: The costliest first.
        operations: The costliest first.
        reshardings: The costliest first.
        collectives: The costliest first.
        arguments: In order of the first leaf.
        results: In order of the first leaf.
        solver: How the plan was found.
        unruled: What has no rule, and falls back on Shardy's or runs replicated.
        notes: Assumptions that the numbers rest on.
    """

    function: str
    mesh: dict[str, int]
    hardware: str
    hardware_source: str
    memory_budget_bytes: float | None
    totals: Totals
    baselines: dict[str, Totals]
    functions: tuple[FunctionRow, ...]
    operations: tuple[OperationRow, ...]
    reshardings: tuple[ReshardingRow, ...]
    collectives: tuple[CollectiveRow, ...]
    arguments: tuple[LeafGroup, ...]
    results: tuple[LeafGroup, ...]
    solver: SolverSummary
    unruled: tuple[UnruledRow, ...]
    notes: tuple[str, ...]

    def text(self, *, width: int | None = None) -> str:
        """The report as text.

        Args:
            width: Columns; those of the terminal if None.
        """
        from autoshard.render import render_text

        return render_text(self, width=width)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Report of {self.function}: print it, or .model_dump_json()>"

    def _repr_html_(self) -> str:
        from autoshard.render import render_html

        return render_html(self)


def build_report(plan: Plan, *, baselines: Mapping[str, Totals] | None = None) -> Report:
    """Gather what a plan has to say.

    Args:
        plan: The plan.
        baselines: Totals of other plans for the same program, to show beside it.

    Returns:
        The report.
    """
    shown = dict(baselines or {})
    operations = _operation_rows(plan.costs)
    reshardings = _resharding_rows([c for c in plan.collectives if c.role == "resharding"])
    return Report(
        function=plan.function,
        mesh=dict(plan.mesh.sizes),
        hardware=plan.mesh.device.name,
        hardware_source=plan.mesh.device.source,
        memory_budget_bytes=plan.memory_budget_bytes,
        totals=plan.predicted,
        baselines=shown,
        functions=_function_rows(operations, reshardings),
        operations=operations,
        reshardings=reshardings,
        collectives=_collective_rows(plan.collectives),
        arguments=_groups(plan.arguments),
        results=_result_groups(plan.results, plan.arguments),
        solver=plan.solver,
        unruled=tuple(_unruled_row(told) for told in plan.unruled),
        notes=(*plan.notes, *_assumptions(shown)),
    )


def _assumptions(baselines: Iterable[str]) -> list[str]:
    """What holds for every prediction."""
    told = [f'"{name}" is {BASELINES[name]}' for name in baselines if name in BASELINES]
    return [
        "seconds are the plain sum of compute, reductions and resharding: nothing is taken to overlap",
        f"cost and bound also count holding the arguments, at {PLACEMENT_WEIGHT:.0%} of reading them once, to choose "
        "among plans of equal time",
        "compute is a roofline of peak FLOP/s and memory bandwidth, collectives are ring formulas: no measured times",
        *told,
    ]


def place_of(source: str) -> Place:
    """The line that JAX writes as ``file.py:12:4 (outer.<locals>.inner)``; an empty place for anything else.

    >>> place_of("/home/me/gpt.py:75:12 (loss.<locals>.<lambda>)")
    Place(file='/home/me/gpt.py', line=75, function='loss')
    """
    match = _SOURCE.fullmatch(source)
    if match is None:
        return Place(file="", line=0, function="")
    named = [part for part in (match["function"] or "").split(".<locals>.") if part and not part.startswith("<")]
    return Place(file=match["file"], line=int(match["line"]), function=named[-1] if named else "")


def sharding_text(spec: SpecDims) -> str:
    """A sharding as in ``[x, -]``; ``replicated`` if no dimension is split."""
    return str(ShardingSpec.of(*spec)) if any(spec) else "replicated"


Item = TypeVar("Item")


def _grouped(items: Iterable[tuple[Hashable, Item]]) -> list[list[Item]]:
    groups: dict[Hashable, list[Item]] = defaultdict(list)
    for key, item in items:
        groups[key].append(item)
    return list(groups.values())


def _operation_rows(costs: Sequence[OpCost]) -> tuple[OperationRow, ...]:
    """Costs of equal primitive, line and sharding added up; those that cost nothing left out."""
    places = [place_of(cost.source) for cost in costs]
    groups = _grouped(
        ((cost.primitive, place, cost.spec), (cost, place))
        for cost, place in zip(costs, places)
        if cost.compute_seconds or cost.communication_seconds
    )
    rows = [_operation_row([cost for cost, _ in group], group[0][1]) for group in groups]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _operation_row(costs: Sequence[OpCost], place: Place) -> OperationRow:
    first = costs[0]
    return OperationRow(
        operation=_BOUNDARIES.get(first.primitive, first.primitive),
        place=place,
        sharding=sharding_text(first.spec),
        operations=len(costs),
        executions=sum(cost.trips for cost in costs),
        compute_seconds=sum(cost.compute_seconds for cost in costs),
        reduction_seconds=sum(cost.communication_seconds for cost in costs),
    )


def _resharding_rows(collectives: Sequence[PlannedCollective]) -> tuple[ReshardingRow, ...]:
    keyed = [((_value_of(c.value), place_of(c.source), c.kind, c.axes), c) for c in collectives]
    rows = [
        ReshardingRow(
            value=value, arguments=(), made_at=made_at, needed_at=needed_at, kind=kind, axes=axes,
            executions=executions, wire_bytes=wire_bytes, seconds=seconds,
        )
        for ((value, made_at), needed_at, kind, axes), (executions, wire_bytes, seconds) in _summed(keyed)
    ]  # fmt: skip
    values = [row for row in rows if row.made_at is not None]
    arguments = _grouped(((row.needed_at, row.kind, row.axes), row) for row in rows if row.made_at is None)
    values += [row for group in arguments for row in _arguments_together(group)]
    return tuple(sorted(values, key=lambda row: (-row.seconds, -row.wire_bytes)))


def _arguments_together(rows: Sequence[ReshardingRow]) -> list[ReshardingRow]:
    """Moves of arguments that differ in nothing but the argument, told by patterns of paths."""
    merged = merge([row.value for row in rows], [0] * len(rows), stars=False)
    together = []
    for pattern, members in merged:
        group = [rows[i] for i in members]
        sums = {name: sum(getattr(row, name) for row in group) for name in ("executions", "wire_bytes", "seconds")}
        together.append(group[0].model_copy(update={"arguments": pattern, **sums}))
    return together


def _collective_rows(collectives: Sequence[PlannedCollective]) -> tuple[CollectiveRow, ...]:
    keyed: list[tuple[tuple[str, tuple[str, ...], Role], PlannedCollective]] = [
        ((c.kind, c.axes, c.role), c) for c in collectives
    ]
    rows = [
        CollectiveRow(kind=kind, axes=axes, role=role, executions=executions, wire_bytes=wire_bytes, seconds=seconds)
        for (kind, axes, role), (executions, wire_bytes, seconds) in _summed(keyed)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.seconds, -row.wire_bytes)))


Key = TypeVar("Key", bound=Hashable)


def _summed(keyed: Iterable[tuple[Key, PlannedCollective]]) -> list[tuple[Key, tuple[float, float, float]]]:
    """Per key the executions, bytes and seconds of a call."""
    sums: dict[Key, tuple[float, float, float]] = {}
    for key, c in keyed:
        executions, wire_bytes, seconds = sums.get(key, (0.0, 0.0, 0.0))
        sums[key] = (executions + c.trips, wire_bytes + c.wire_bytes * c.trips, seconds + c.call_seconds)
    return list(sums.items())


def _function_rows(operations: Sequence[OperationRow], reshardings: Sequence[ReshardingRow]) -> tuple[FunctionRow, ...]:
    """Costs added up by the function whose lines they are on."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in operations:
        parts = sums[row.place.file, row.place.function]
        parts[0] += row.compute_seconds
        parts[1] += row.reduction_seconds
    for move in reshardings:
        sums[move.needed_at.file, move.needed_at.function][2] += move.seconds
    rows = [
        FunctionRow(
            file=file, function=function, compute_seconds=compute, reduction_seconds=reduction, resharding_seconds=moves
        )
        for (file, function), (compute, reduction, moves) in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _value_of(name: str) -> tuple[str, Place | None]:
    """A value's name taken apart: an argument's path, or ``primitive at file:line``."""
    what, at, source = name.partition(" at ")
    place = place_of(source)
    return (what, place) if at and place.line else (name, None)


def _unruled_row(told: str) -> UnruledRow:
    what, place = _value_of(told)
    primitive, _, fallback = what.removesuffix(" at ").partition(" (")
    return UnruledRow(primitive=primitive, fallback=fallback.removesuffix(")"), place=place or place_of(""))


def _type_text(leaf: Leaf) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _groups(leaves: Sequence[Leaf]) -> tuple[LeafGroup, ...]:
    """Leaves of equal sharding told together where one pattern of paths covers them."""
    labels = [(sharding_text(leaf.spec), leaf.donated) for leaf in leaves]
    merged = merge([leaf.name for leaf in leaves], labels)
    return tuple(_group([leaves[i] for i in members], pattern) for pattern, members in merged)


def _group(leaves: Sequence[Leaf], pattern: Pattern, argument: str = "") -> LeafGroup:
    shardings = tuple(dict.fromkeys(sharding_text(leaf.spec) for leaf in leaves))
    return LeafGroup(
        pattern=pattern,
        paths=tuple(leaf.name for leaf in leaves),
        types=tuple(dict.fromkeys(map(_type_text, leaves))),
        sharding=shardings[0] if len(shardings) == 1 else f"as {argument}",
        shard_bytes=sum(leaf.shard_bytes for leaf in leaves),
        donated=leaves[0].donated,
        argument=argument,
    )


def _result_groups(results: Sequence[Leaf], arguments: Sequence[Leaf]) -> tuple[LeafGroup, ...]:
    """Results; those that are sharded like an argument's leaves of the same paths are told as one."""
    known = {}
    for leaf in arguments:
        root, *rest = components(leaf.name)
        if rest:
            known[("".join(rest), leaf.shape, leaf.dtype, leaf.spec)] = root
    alike: dict[tuple[str, str], list[Leaf]] = defaultdict(list)
    others = []
    for leaf in results:
        for depth in (1, 2):
            parts = components(leaf.name)
            argument = known.get(("".join(parts[depth:]), leaf.shape, leaf.dtype, leaf.spec))
            if argument is not None:
                alike["".join(parts[:depth]), argument].append(leaf)
                break
        else:
            others.append(leaf)
    groups = [_group(leaves, ((root,),), argument) for (root, argument), leaves in alike.items()]
    order = {leaf.name: position for position, leaf in enumerate(results)}
    return tuple(sorted([*groups, *_groups(others)], key=lambda group: order[group.paths[0]]))
