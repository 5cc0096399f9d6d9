"""Checks of text that `make lint` runs: documentation, and lists that name code or tests."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake, at the line to change."""

    path: Path
    line: int  #: Counts from 1.
    message: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.line}: {self.message}"


def line_of(text: str, part: str) -> int:
    """Return the line on which `part` first occurs in `text`, or 1 if it does not occur."""
    before, matched, _ = text.partition(part)
    return before.count("\n") + 1 if matched else 1
