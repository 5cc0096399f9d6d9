"""The output formats of tables."""

from enum import StrEnum
from typing import Annotated

import typer


class Style(StrEnum):
    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"


Format = Annotated[
    Style,
    typer.Option("--format", help="Format of tables: for people, for a report, or for a spreadsheet."),
]
