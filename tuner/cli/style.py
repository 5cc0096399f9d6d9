"""How a table is written."""

from enum import StrEnum
from typing import Annotated

import typer


class Style(StrEnum):
    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"


Format = Annotated[
    Style,
    typer.Option("--format", help="How tables are written: for people, for a report, for a spreadsheet."),
]
