"""The house stays tidy: small files, small functions. The linter sees to the rest."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONGEST

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "tuner").rglob("*.py"))
MODULES = {str(path.relative_to(ROOT)): path for path in SOURCES}
FILE_LINES_MAX = 350
FUNCTION_LINES_MAX = 70


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 80


@pytest.mark.parametrize("name", MODULES)
def test_no_file_is_too_long_to_read_at_once(name: str) -> None:
    assert len(MODULES[name].read_text().splitlines()) <= FILE_LINES_MAX


def test_no_function_is_too_long_to_read_at_once() -> None:
    """Migrations are lists of tables, and are told once."""
    found = [
        f"{name}: {one.name} has {one.end_lineno - one.lineno + 1} lines"
        for name, path in MODULES.items()
        if "migrations/versions" not in name
        for one in functions(path)
        if one.end_lineno is not None and one.end_lineno - one.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert found == []


def test_what_is_to_be_tested_first_is_there() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).exists()] == []
