"""Check that links lead somewhere, and that the pages that list settings, metrics, commands and references
agree with the code.
"""

import csv
import inspect
import re
import tomllib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any, get_args

from typer import Typer
from typer.main import get_command

from tools.checks import Problem, line_of
from tools.checks.blocks import pages, prose
from tools.reference.pages import made
from tuner.api.metric_families import table
from tuner.cli.main import app
from tuner.domain.commands import Command
from tuner.domain.cost import KINDS
from tuner.domain.events import Event
from tuner.domain.job import StopReason

#: Tables that list names of the code: page, heading, number of the column, and the names.
TABLES: tuple[tuple[str, str, int, frozenset[str]], ...] = (
    ("docs/money.md", "What is in a bill", 1, frozenset(KINDS)),
    ("docs/how-to/bill.md", "Line by line", 1, frozenset(KINDS)),
    ("docs/money.md", "Limits that end a job", 1, frozenset(get_args(StopReason))),
    ("docs/explanation/algorithm.md", "`decide`", 1, frozenset(kind.__name__ for kind in get_args(Event))),
    ("docs/explanation/algorithm.md", "`decide`", 2, frozenset(kind.__name__ for kind in get_args(Command))),
)


def check(root: Path) -> Iterator[Problem]:
    yield from links(root)
    yield from settings(root)
    yield from extras(root)
    yield from metrics(root)
    yield from spot_share(root)
    yield from tables(root)
    yield from reference(root, made())
    yield from helps(app)


def links(root: Path) -> Iterator[Problem]:
    """Check each link to a file or a heading of the repository. Web addresses are not requested."""
    for page in sorted({*pages(root), *root.glob("*.md"), *(root / "benchmarks").glob("*.md")}):
        text = prose(page.read_text())
        for match in re.finditer(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
            file, heading = match[1], match[2]
            if "://" in file or file.startswith("mailto:"):
                continue
            target, line = page.parent / file if file else page, text.count("\n", 0, match.start()) + 1
            if not target.exists():
                yield Problem(page, line, f"the link leads nowhere: {file}")
            elif heading and target.suffix == ".md" and heading not in headings(target.read_text()):
                yield Problem(page, line, f"{target.name} has no heading for #{heading}")


def headings(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    plain = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "") for title in titles
    ]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in plain}


def settings(root: Path) -> Iterator[Problem]:
    """Check that the table in docs/settings.md lists exactly the variables that the settings read."""
    page, code = root / "docs/settings.md", root / "tuner/settings.py"
    text, source = page.read_text(), code.read_text()
    listed = set(re.findall(r"^\| `(TUNER_\w+)`", text, re.MULTILINE))
    read = set(re.findall(r'"(TUNER_[A-Z_]+)"', source)) - {"TUNER_"}
    for name in sorted(listed - read):
        yield Problem(page, line_of(text, f"| `{name}`"), f"the settings do not read a variable {name}")
    for name in sorted(read - listed):
        yield Problem(code, line_of(source, f'"{name}"'), f"{name} is not listed in docs/settings.md")


def extras(root: Path) -> Iterator[Problem]:
    """Check that the table in docs/install.md lists exactly the extras of the project."""
    page, project = root / "docs/install.md", root / "pyproject.toml"
    text, metadata = page.read_text(), project.read_text()
    rows = re.findall(r"^\| (`[a-z].*?) \|", text, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    defined = set(tomllib.loads(metadata)["project"]["optional-dependencies"])
    for name in sorted(listed - defined):
        yield Problem(page, line_of(text, f"`{name}`"), f"the project has no extra {name}")
    for name in sorted(defined - listed):
        yield Problem(
            project,
            line_of(metadata, f"\n{name} = [") + 1,
            f"the extra {name} is not listed in docs/install.md",
        )


def metrics(root: Path) -> Iterator[Problem]:
    """Check the table in docs/metrics.md, which `python -m tuner.api.metric_families` prints."""
    page = root / "docs/metrics.md"
    text, expected = page.read_text(), table()
    first = line_of(text, expected.partition("\n")[0])
    rest = "\n".join(text.splitlines()[first - 1 :])
    if not rest.startswith(expected.rstrip("\n")):
        yield Problem(
            page,
            first - 1 + _difference(rest, expected),
            "the table differs from the code: copy it from `python -m tuner.api.metric_families`",
        )


def tables(root: Path) -> Iterator[Problem]:
    """Check that each of the tables lists exactly the names that the code defines."""
    for name, heading, column, defined in TABLES:
        page = root / name
        text = page.read_text()
        section = text.partition(f"\n## {heading}\n")[2].partition("\n#")[0]
        cells = [line.split("|")[column] for line in section.splitlines() if line.startswith("|")]
        listed = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}
        line = line_of(text, f"\n## {heading}\n") + 1
        yield from (
            Problem(page, line, f"the code does not define {word}") for word in sorted(listed - defined)
        )
        yield from (Problem(page, line, f"the table lacks {word}") for word in sorted(defined - listed))


def spot_share(root: Path) -> Iterator[Problem]:
    """Check what docs/how-to/spot.md says that spot machines cost, which is the median of the catalogue."""
    page, catalogue = root / "docs/how-to/spot.md", root / "tuner/planning/data/prices.csv"
    rows = csv.DictReader(catalogue.read_text().splitlines())
    prices = [(row["spot_usd_h"], row["on_demand_usd_h"]) for row in rows]
    shares = [float(spot) / float(on_demand) for spot, on_demand in prices if spot and on_demand]
    quoted, text = f"{median(shares):.0%}".replace("%", " %"), page.read_text()
    if f"costs {quoted} of its on-demand price in the median" not in text:
        yield Problem(page, line_of(text, "in the median"), f"in the catalogue, the median is {quoted}")


def reference(root: Path, generated: dict[str, str]) -> Iterator[Problem]:
    """Check that docs/reference has the pages that `make docs` generates, given by name."""
    for name, expected in generated.items():
        page = root / "docs/reference" / name
        text = page.read_text() if page.is_file() else ""
        if text != expected:
            yield Problem(
                page,
                _difference(text, expected),
                "the page differs from the code: run `make docs` and commit it",
            )


def _difference(text: str, expected: str) -> int:
    """Return the first line that differs."""
    pairs = enumerate(zip_longest(text.splitlines(), expected.splitlines()), 1)
    return next((number for number, (line, other) in pairs if line != other), 1)


def helps(program: Typer) -> Iterator[Problem]:
    """Check that each command has a help text."""
    pending: list[Any] = [get_command(program)]
    while pending:
        command = pending.pop()
        if hasattr(command, "commands"):
            pending += command.commands.values()
        elif not command.help:
            code = inspect.unwrap(command.callback).__code__
            yield Problem(
                Path(code.co_filename), code.co_firstlineno, f"the command {command.name} has no help text"
            )
