"""A `Report` as text for terminals and logs, and as HTML for notebooks: two views of the same sections."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from autoshard.patterns import pattern_text
from autoshard.plan import SolverSummary, Totals
from autoshard.report import CollectiveRow, FunctionRow, LeafGroup, OperationRow, Place, Report, ReshardingRow
from autoshard.tables import html_table, nbytes_text
from autoshard.tabular import count_text, seconds_text, table_lines

TOP_FUNCTIONS = 10
TOP_OPERATIONS = 15
TOP_RESHARDINGS = 10
"""Rows shown; the data have all of them, and the last line says what is left out."""

_NARROWEST = 60
_SHORT_TYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Section:
    """A titled table; lines of prose if it has no header.

    Attributes:
        title: What it shows.
        header: Names of the columns; those that begin with ``>`` are flush right.
        rows: The cells.
        remarks: Lines below.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()


def render_text(report: Report, *, width: int | None = None) -> str:
    """A report as text.

    Args:
        report: The report.
        width: Columns; those of the terminal if None, 100 where there is none.

    Returns:
        The lines, none longer than the width unless a table cannot be told in it.
    """
    columns = max(_NARROWEST, shutil.get_terminal_size((100, 24)).columns if width is None else width)
    blocks = ["\n".join(_wrapped(line, columns) for line in _headline(report))]
    blocks += [_section_text(section, columns) for section in _sections(report, columns)]
    return "\n\n".join(blocks)


def render_html(report: Report) -> str:
    """A report as a fragment of HTML, everything that comes from the program escaped."""
    lines = _headline(report)
    parts = [f"<h4>{escape(lines[0])}</h4>", *(f"<p>{escape(line)}</p>" for line in lines[1:])]
    parts += [_section_html(section, opened=n < 2) for n, section in enumerate(_sections(report, width=None))]
    return "<div>" + "".join(parts) + "</div>"


def _headline(report: Report) -> list[str]:
    axes = ", ".join(f"{name}={size}" for name, size in report.mesh.items())
    devices = 1
    for size in report.mesh.values():
        devices *= size
    return [
        f"{report.function} on {devices} devices ({axes}), {report.hardware}",
        *_solver_lines(report.solver),
        _memory_line(report),
    ]


def _solver_lines(solver: SolverSummary) -> list[str]:
    phases = "; ".join(f"{name} {seconds:.1f} s" for name, seconds in solver.seconds.items())
    took = f"planned in {sum(solver.seconds.values()):.1f} s ({phases})"
    if solver.status == "replicated":
        return [f"fallback: {solver.message}", took]
    cost, bound = seconds_text(solver.cost_seconds), seconds_text(solver.bound_seconds)
    return [
        f"{solver.status}: cost {cost}, bound {bound}, gap {solver.gap:.2%}",
        *([solver.message] if solver.message else []),
        took,
    ]


def _memory_line(report: Report) -> str:
    peak = report.totals.peak_memory_bytes
    held = nbytes_text(sum(group.shard_bytes for group in report.arguments))
    told = f"peak memory {nbytes_text(peak)} per device, {held} of it arguments"
    if report.memory_budget_bytes is None:
        return f"{told}; no budget"
    share = peak / report.memory_budget_bytes
    used = f"{share:.1%} used" if share <= 1 else "exceeded"
    return f"{told}; budget {nbytes_text(report.memory_budget_bytes)} ({used})"


def _sections(report: Report, width: int | None) -> list[Section]:
    shorten = _short_places(report)
    sections = [
        _totals(report),
        _functions(report),
        _operations(report, shorten),
        _collectives(report.collectives),
        _reshardings(report, shorten, width),
        _leaves("Arguments", report.arguments, width),
        _leaves("Results", report.results, width),
    ]
    if report.unruled:
        lines = [f"{row.primitive}, {row.fallback}: {shorten(row.place)}".rstrip(": ") for row in report.unruled]
        sections.append(_prose("Without a sharding rule (autoshard.register_rule)", lines))
    sections.append(_prose("Assumptions", [f"prices of {report.hardware}: {report.hardware_source}", *report.notes]))
    return [section for section in sections if section.rows]


def _prose(title: str, lines: Iterable[str]) -> Section:
    return Section(title, (), tuple((line,) for line in lines))


def _totals(report: Report) -> Section:
    """This plan and the baselines side by side."""
    columns: Mapping[str, Totals] = {"this plan": report.totals, **report.baselines}
    budget = report.memory_budget_bytes
    best = report.totals.step_seconds

    def peak(totals: Totals) -> str:
        over = budget is not None and totals.peak_memory_bytes > budget
        return nbytes_text(totals.peak_memory_bytes) + (" !" if over else "")

    def compared(totals: Totals) -> str:
        return f"{totals.step_seconds / best:.2f}x" if best else "-"

    measures: list[tuple[str, Callable[[Totals], str]]] = [
        ("compute", lambda t: seconds_text(t.compute_seconds)),
        ("reductions", lambda t: seconds_text(t.reduction_seconds)),
        ("resharding", lambda t: seconds_text(t.resharding_seconds)),
        ("step, their sum", lambda t: seconds_text(t.step_seconds)),
        ("step, of this plan", compared),
        ("sent", lambda t: nbytes_text(t.wire_bytes)),
        ("peak memory", peak),
        ("FLOPs", lambda t: count_text(t.flops)),
    ]
    rows = tuple((name, *(measure(totals) for totals in columns.values())) for name, measure in measures)
    over = any(cell.endswith("!") for row in rows for cell in row)
    remarks = ("! more than the memory budget",) if over else ()
    return Section("Per device and call", ("", *(f">{name}" for name in columns)), rows, remarks)


def _functions(report: Report) -> Section:
    rows = tuple(_function_cells(row, report.totals.step_seconds) for row in report.functions[:TOP_FUNCTIONS])
    header = (">share", ">compute", ">reductions", ">resharding", "function")
    return Section("Where the time goes", header, rows, _left_out(report, report.functions[TOP_FUNCTIONS:]))


def _function_cells(row: FunctionRow, total: float) -> tuple[str, ...]:
    where = row.function or (f"{row.file.rpartition(os.sep)[2]} itself" if row.file else "(moves of arguments)")
    parts = (row.compute_seconds, row.reduction_seconds, row.resharding_seconds)
    return (_share(row.seconds, total), *map(seconds_text, parts), where)


def _operations(report: Report, shorten: Callable[[Place], str]) -> Section:
    total = report.totals.step_seconds
    rows = tuple(_operation_cells(row, total, shorten) for row in report.operations[:TOP_OPERATIONS])
    header = (">share", ">compute", ">reductions", ">runs", "operation", "result sharding", "line")
    title = f"Operations that cost most{_in_file(report)}"
    return Section(title, header, rows, _left_out(report, report.operations[TOP_OPERATIONS:]))


def _operation_cells(row: OperationRow, total: float, shorten: Callable[[Place], str]) -> tuple[str, ...]:
    return (
        _share(row.seconds, total), seconds_text(row.compute_seconds), seconds_text(row.reduction_seconds),
        _count(row.executions), row.operation, row.sharding, shorten(row.place),
    )  # fmt: skip


def _share(seconds: float, total: float) -> str:
    return f"{seconds / total:.1%}" if total else "-"


def _count(number: float) -> str:
    return f"{number:,.4g}" if number < 1e4 else f"{number:,.0f}"


def _left_out(report: Report, rows: Sequence[FunctionRow | OperationRow | ReshardingRow]) -> tuple[str, ...]:
    if not rows:
        return ()
    seconds = sum(row.seconds for row in rows)
    return (f"{len(rows)} more, {_share(seconds, report.totals.step_seconds)} of the step ({seconds_text(seconds)})",)


def _collectives(collectives: Sequence[CollectiveRow]) -> Section:
    rows = tuple(
        (c.kind, ",".join(c.axes), c.role, _count(c.executions), nbytes_text(c.wire_bytes), seconds_text(c.seconds))
        for c in collectives
    )
    return Section("Communication", ("collective", "axes", "purpose", ">runs", ">sent", ">time"), rows)


def _reshardings(report: Report, shorten: Callable[[Place], str], width: int | None) -> Section:
    """One row a move; the paths of arguments get the columns that the other cells leave."""
    header = (">share", ">time", ">sent", ">runs", "collective", "for", "of")
    shown = report.reshardings[:TOP_RESHARDINGS]
    told = [_resharding_cells(row, report.totals.step_seconds, shorten) for row in shown]
    room = _room(header[:-1], told, width)
    rows = tuple((*cells, _moved_text(row, shorten, room)) for row, cells in zip(shown, told))
    title = f"Reshardings that cost most{_in_file(report)}"
    return Section(title, header, rows, _left_out(report, report.reshardings[TOP_RESHARDINGS:]))


def _room(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> int | None:
    """Columns that a table of these cells leaves for one more."""
    if width is None:
        return None
    return width - 2 - sum(2 + max(len(row[k]) for row in (header, *rows)) for k in range(len(header)))


def _resharding_cells(row: ReshardingRow, total: float, shorten: Callable[[Place], str]) -> tuple[str, ...]:
    return (
        _share(row.seconds, total), seconds_text(row.seconds), nbytes_text(row.wire_bytes), _count(row.executions),
        f"{row.kind} {','.join(row.axes)}", shorten(row.needed_at) or "all users",
    )  # fmt: skip


def _moved_text(row: ReshardingRow, shorten: Callable[[Place], str], room: int | None) -> str:
    if row.made_at is None:
        return pattern_text(row.arguments, room)
    if row.made_at == row.needed_at:
        return row.value
    return f"{row.value} {shorten(row.made_at).partition(' ')[0]}"


def _leaves(title: str, groups: Sequence[LeafGroup], width: int | None) -> Section:
    """One row a group; the paths get the columns that the other cells leave."""
    header = ("path", "type", "sharding", ">per device")
    told = [_leaf_cells(group) for group in groups]
    room = _room(header[1:], told, width)
    rows = tuple((pattern_text(group.pattern, room), *cells) for group, cells in zip(groups, told))
    leaves = sum(len(group.paths) for group in groups)
    donated = dict.fromkeys(root for group in groups if group.donated for root in group.pattern[0])
    heading = f"{title}: {leaves} leaves, {nbytes_text(sum(group.shard_bytes for group in groups))} per device"
    return Section(heading, header, rows, (f"donated: {', '.join(donated)}",) if donated else ())


def _leaf_cells(group: LeafGroup) -> tuple[str, str, str]:
    count = f"{len(group.paths)} x " if len(group.paths) > 1 else ""
    types = _short_type(group.types[0]) if len(group.types) == 1 else f"{len(group.types)} types"
    return (count + types, group.sharding, nbytes_text(group.shard_bytes))


def _short_type(text: str) -> str:
    dtype, bracket, shape = text.partition("[")
    return _SHORT_TYPES.get(dtype, dtype) + bracket + shape


def _files(report: Report) -> set[str]:
    places = [row.place for row in report.operations]
    places += [place for row in report.reshardings for place in (row.made_at, row.needed_at) if place is not None]
    places += [row.place for row in report.unruled]
    return {place.file for place in places if place.file}


def _in_file(report: Report) -> str:
    """The file, in the title if all lines are of one."""
    files = _files(report)
    return f", by line of {_unique_endings(files).popitem()[1]}" if len(files) == 1 else ""


def _short_places(report: Report) -> Callable[[Place], str]:
    """A function from a place to ``file.py:12 function``; without the file if all lines are of one."""
    names = _unique_endings(_files(report))

    def shorten(place: Place) -> str:
        if not place.line:
            return ""
        file = names[place.file] if len(names) > 1 else ""
        return f"{file}:{place.line} {place.function}".rstrip()

    return shorten


def _unique_endings(files: Iterable[str]) -> dict[str, str]:
    """Each path's shortest ending, in whole folders, that no other one has."""
    parts = {file: file.replace(os.sep, "/").split("/") for file in files}
    names = {}
    for file, own in parts.items():
        others = [other for name, other in parts.items() if name != file]
        depth = next((d for d in range(1, len(own)) if all(o[-d:] != own[-d:] for o in others)), len(own))
        names[file] = "/".join(own[-depth:])
    return names


def _wrapped(line: str, width: int, indent: str = "") -> str:
    return textwrap.fill(line, width, subsequent_indent=indent + "  ", initial_indent=indent, break_long_words=False)


def _section_text(section: Section, width: int) -> str:
    remarks = [_wrapped(remark, width, "  ") for remark in section.remarks]
    if not section.header:
        lines = [_wrapped(f"- {row[0]}", width) for row in section.rows]
        return "\n".join([section.title, *lines, *remarks])
    return "\n".join([section.title, *table_lines(section.header, section.rows, width - 2), *remarks])


def _section_html(section: Section, *, opened: bool) -> str:
    title = escape(section.title)
    remarks = "".join(f"<p>{escape(remark)}</p>" for remark in section.remarks)
    if not section.header:
        body = "<ul>" + "".join(f"<li>{escape(row[0])}</li>" for row in section.rows) + "</ul>"
    else:
        body = html_table([name.removeprefix(">") for name in section.header], section.rows)
    return f"<details{' open' if opened else ''}><summary>{title}</summary>{body}{remarks}</details>"
