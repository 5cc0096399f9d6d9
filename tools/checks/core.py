"""Check that the modules and tests that `make core` lists exist, and that no comment excludes a line of the
core from coverage.

Without this check, renaming a module or a test would silently leave a part of the core unmeasured.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.checks import Problem, line_of

# The spellings that coverage.py accepts.
PRAGMA = re.compile(r"#\s*pragma[:\s]?\s*no", re.IGNORECASE)


def check(root: Path) -> Iterator[Problem]:
    project = root / "pyproject.toml"
    text = project.read_text()
    coverage = tomllib.loads(text)["tool"]["coverage"]
    folders = [root / folder for folder in coverage["run"]["source"]]
    for pattern in coverage["report"]["include"]:
        modules = sorted(root.glob(pattern))
        if not modules:
            yield Problem(project, line_of(text, f'"{pattern}"'), f"no file matches {pattern}")
        for module in modules:
            if not any(module.is_relative_to(folder) for folder in folders):
                yield Problem(
                    project, line_of(text, f'"{pattern}"'), f"{pattern} is in no folder of `source`"
                )
            for number, line in enumerate(module.read_text().splitlines(), 1):
                if PRAGMA.search(line):
                    yield Problem(module, number, "the core must be covered without `pragma: no`")
    yield from _tests(root)


def _tests(root: Path) -> Iterator[Problem]:
    """Check each test in the variables CORE_* of the Makefile, which may name files, folders, or tests in a file."""
    makefile = root / "Makefile"
    lists = 0
    inside = False
    for number, line in enumerate(makefile.read_text().splitlines(), 1):
        start = re.match(r"CORE_\w+ :=", line)
        lists += start is not None
        if start or inside:
            for name in _expanded(line.removeprefix(start[0] if start else "")):
                if not _is_test(root, name):
                    yield Problem(makefile, number, f"the test {name} does not exist")
        inside = (inside or start is not None) and line.endswith("\\")
    if not lists:
        yield Problem(makefile, 1, "no variable CORE_* lists the tests of the core")


def _expanded(line: str) -> list[str]:
    """Return the words of a line, with each `$(addprefix prefix,words)` replaced by its value."""
    text = re.sub(
        r"\$\(addprefix (\S+?),([^)]*)\)",
        lambda match: " ".join(match[1] + name for name in match[2].split()),
        line.removesuffix("\\"),
    )
    return text.split()


def _is_test(root: Path, name: str) -> bool:
    path, _, inner = name.partition("::")
    if not (root / path).exists():
        return False
    text = (root / path).read_text() if inner else ""
    # A Hypothesis machine is a test by assignment: TestX = X.TestCase.
    return all(
        re.search(rf"\b(?:def|class) {part}\b|^{part} = ", text, re.MULTILINE)
        for part in inner.split("::")
        if part
    )
