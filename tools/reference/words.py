"""Helpers that all reference pages use."""

import inspect
import re

MADE = "<!-- Made from the code by `make docs`. Change the code, not this page. -->"


def doc(thing: object) -> str:
    """Return the object's own docstring, or an empty string if it has none or only inherits one."""
    own = vars(thing).get("__doc__") if isinstance(thing, type) else getattr(thing, "__doc__", None)
    return inspect.cleandoc(own).strip() if own else ""


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows)])
