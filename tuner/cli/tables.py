"""Print tables for a terminal, or write them as plain text, Markdown or CSV (`--format`).

Without a terminal, tables are as wide as their content, so that nothing is cut off.
"""

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, TypeVar

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tuner.cli.escape import harmless


class Style(StrEnum):
    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"


Format = Annotated[
    Style,
    typer.Option("--format", help="Format of tables: for people, for a report, or for a spreadsheet."),
]
T = TypeVar("T")
WIDE = 100_000  # a width in characters that no line exceeds
FIGURE = re.compile(r"-?\$?-?[\d,]+(\.\d+)?(e[+-]?\d+)?%?|-|")
AMOUNT = re.compile(r"(-?)\$(\d+(?:\.\d+)?)")


class Harmless:
    """Content from which control characters are removed when rich renders it, so that text from a job cannot control the terminal. Styles
    are kept.
    """

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self._shown, options):
            yield part if part.control else Segment(harmless(part.text), part.style)


def plain(*columns: str) -> Table:
    """Return an empty table with headings and without borders. If a column is too narrow, its text is wrapped and not cut off."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        # Without a minimum width, rich would leave out a column in which all texts have no width, such as a lone emoji modifier.
        table.add_column(column, overflow="fold", min_width=1)
    return table


Column = tuple[str, Callable[[T], object]]
"""A heading, and a function that returns the cell of an item."""


def rows(items: Iterable[T], columns: Mapping[str, Callable[[T], object]] | Sequence[Column[T]]) -> Table:
    """Return a table with a row for each item.

    A column is a heading and a function that returns an item's cell. `columns` is a sequence if a heading may occur twice.
    """
    pairs = list(columns.items() if isinstance(columns, Mapping) else columns)
    table = plain(*(heading for heading, _ in pairs))
    for item in items:
        cells = [cell(item) for _, cell in pairs]
        table.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in cells))
    return table


def show(shown: RenderableType) -> None:
    """Print content on the terminal. Numbers are never wrapped: a table becomes wider than the terminal if it must."""
    here = Console(highlight=False, markup=False, emoji=False)
    wide = here.options.update(max_width=WIDE)
    for part in _parts(_aligned(shown)):
        least = Measurement.get(here, wide, part).minimum if isinstance(part, Table) else 0
        width = max(here.width, least)
        Console(highlight=False, markup=False, emoji=False, width=width).print(Harmless(part))


def text(shown: RenderableType, style: Style) -> str:
    """Return tables and texts as plain text, Markdown or CSV, as `style` says.

    CSV contains only the tables, amounts without a dollar sign, and an empty cell for an unknown value.
    """
    if style is Style.TABLE:
        return _as_text(shown)
    write = _markdown if style is Style.MARKDOWN else _csv
    parts = [write(part) for part in _parts(shown) if style is Style.MARKDOWN or isinstance(part, Table)]
    return "\n".join(part for part in parts if part.strip())


def _as_text(shown: RenderableType) -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    console = Console(
        file=io.StringIO(), width=WIDE, highlight=False, markup=False, emoji=False, color_system=None
    )
    with console.capture() as caught:
        console.print(Harmless(_aligned(shown)))
    lines = "".join(f"{line.rstrip()}\n" for line in caught.get().splitlines())
    return lines.encode(encoding, "replace").decode(encoding)


def _aligned(shown: RenderableType) -> RenderableType:
    for part in _parts(shown):
        if isinstance(part, Table) and part.show_header:
            for column, is_figure in zip(part.columns, _figures(part), strict=True):
                column.justify = "right" if is_figure else column.justify
                column.no_wrap = column.no_wrap or is_figure
    return shown


def _parts(shown: RenderableType) -> Iterator[RenderableType]:
    if isinstance(shown, Group):
        for part in shown.renderables:
            yield from _parts(part)
    else:
        yield shown


def _rows(table: Table) -> list[list[str]]:
    columns = [[_word(cell) for cell in column.cells] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _figures(table: Table) -> list[bool]:
    """Return for each column whether it is numeric: it has at least one number, and all other cells are empty or dashes."""
    rows = _rows(table)
    return [
        any(row[i].strip("-") for row in rows) and all(FIGURE.fullmatch(row[i]) for row in rows)
        for i in range(len(table.columns))
    ]


def _word(cell: RenderableType) -> str:
    return harmless(cell.plain if isinstance(cell, Text) else str(cell)).strip()


def _markdown(part: RenderableType) -> str:
    if not isinstance(part, Table):
        return f"{_word(part)}\n"
    head = [_word(column.header) for column in part.columns] if part.show_header else [""] * len(part.columns)
    marks = ["---:" if is_figure else "---" for is_figure in _figures(part)]
    lines = [head, marks, *_rows(part)]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")


def _csv(part: RenderableType) -> str:
    assert isinstance(part, Table)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    if part.show_header:
        writer.writerow([_word(column.header) for column in part.columns])
    writer.writerows(map(_values, _rows(part)))
    return file.getvalue()


def _values(row: Sequence[str]) -> list[str]:
    return [
        "" if cell == "-" else AMOUNT.sub(r"\1\2", cell) if AMOUNT.fullmatch(cell) else _escaped(cell)
        for cell in row
    ]


def _escaped(cell: str) -> str:
    """Escape text that a spreadsheet would run as a formula, such as a job's name that begins with `=`."""
    try:
        float(cell)
    except ValueError:
        return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell
    return cell
