"""Tables and byte counts as text and HTML, for reports that are read in a terminal, a log or a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def nbytes_text(nbytes: float) -> str:
    """A number of bytes in the largest unit that leaves it at least one.

    >>> nbytes_text(0), nbytes_text(36700160), nbytes_text(1536)
    ('0 B', '35.0 MiB', '1.5 KiB')
    """
    power = 0
    while abs(nbytes) >= 1024 and power < len(_UNITS) - 1:
        nbytes, power = nbytes / 1024, power + 1
    return f"{nbytes:.1f} {_UNITS[power]}" if power else f"{nbytes:.0f} B"


def percent_text(fraction: float) -> str:
    """A relative difference with its sign.

    >>> percent_text(0.034), percent_text(-1.0), percent_text(float("inf"))
    ('+3.4 %', '-100.0 %', '+inf %')
    """
    return f"{100 * fraction:+.1f} %"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text: the first column flush left, the others flush right.

    >>> print(text_table(["kind", "bytes"], [["all-gather", "1 B"], ["all-reduce", "12 B"]]))
    kind        bytes
    all-gather    1 B
    all-reduce   12 B
    """
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same table in HTML, contents escaped."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
