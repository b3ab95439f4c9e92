"""Objects that print as one titled table, and how times and counts are written in tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape

from autoshard.tables import html_table

Table = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
"""Header and rows; the names of columns that are flush right begin with ``>``."""


class AbstractTabular(ABC):
    """Prints as a titled table, and shows as one in a notebook."""

    __slots__ = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """The line above the table."""

    @abstractmethod
    def table(self) -> Table:
        """Header and rows."""

    def __str__(self) -> str:
        return "\n".join([self.title, *table_lines(*self.table())])

    def _repr_html_(self) -> str:
        header, rows = self.table()
        return f"<p>{escape(self.title)}</p>" + html_table([name.removeprefix(">") for name in header], rows)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """The table, indented by two; columns that are too long for the width are shortened, the widest first."""
    right = [name.startswith(">") for name in header]
    lines = [tuple(name.removeprefix(">") for name in header), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 12:
        widths[widths.index(max(widths))] -= 1
    return [
        "  " + "  ".join(
            _fitted(cell, size).rjust(size) if flush else _fitted(cell, size).ljust(size)
            for cell, size, flush in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]  # fmt: skip


def _fitted(cell: str, width: int) -> str:
    """The cell, its middle left out if it is too long: both ends of a path tell more than its middle."""
    if len(cell) <= width:
        return cell
    tail = (width - 1) // 2
    return cell[: width - 1 - tail] + "…" + cell[len(cell) - tail :]


def seconds_text(seconds: float) -> str:
    """A time in the unit that suits it, three digits.

    >>> seconds_text(0), seconds_text(3.456e-5), seconds_text(1.28e-3), seconds_text(62.2)
    ('0', '34.6 us', '1.28 ms', '62.2 s')
    """
    for unit, scale in (("us", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if seconds < 999.5 * scale or unit == "s":
            break
    return f"{_three_digits(seconds / scale)} {unit}" if seconds else "0"


def count_text(number: float) -> str:
    """A large number in thousands, millions and so on, three digits.

    >>> count_text(0), count_text(12.27e9), count_text(6e20)
    ('0', '12.3 G', '600 E')
    """
    power = 0
    while number >= 999.5 and power < 6:
        number, power = number / 1000, power + 1
    return f"{_three_digits(number)} {' kMGTPE'[power]}" if power else f"{number:.0f}"


def _three_digits(number: float) -> str:
    return f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:,.0f}"
