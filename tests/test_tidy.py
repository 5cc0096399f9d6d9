"""The house stays tidy: small files, small functions, nothing left lying about."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "tuner").rglob("*.py"))
MODULES = {str(path.relative_to(ROOT)): path for path in SOURCES}
FILE_LINES_MAX = 350
FUNCTION_LINES_MAX = 70
LATER = ("TODO", "FIXME", "XXX")
FOREIGN = [word[::-1] for word in ("/krow/", "/derahs", "repleh", "tnegabus")]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def tracked() -> Iterator[Path]:
    """Text files under version control; none where there is no repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in path.read_bytes()[:4096]:
            yield path


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


def test_every_module_says_what_it_is() -> None:
    silent = [
        name
        for name, path in MODULES.items()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_every_package_says_what_it_is() -> None:
    packages = {path.parent for path in SOURCES if "migrations/versions" not in str(path)}
    silent = []
    for package in sorted(packages):
        init = package / "__init__.py"
        if not init.is_file() or not ast.get_docstring(ast.parse(init.read_text())):
            silent.append(str(package.relative_to(ROOT)))
    assert silent == []


def test_nothing_is_left_for_later() -> None:
    found = [
        f"{name}: {word}" for name, path in MODULES.items() for word in LATER if word in path.read_text()
    ]
    assert found == []


def prints(path: Path) -> bool:
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls)


def test_only_the_command_line_prints() -> None:
    outside = {name: path for name, path in MODULES.items() if not name.startswith("tuner/cli/")}
    assert [name for name, path in outside.items() if prints(path)] == []


def test_no_file_speaks_of_where_or_by_whom_it_was_written() -> None:
    """Outside of ignore files, which name what is not kept."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word}"
        for path in tracked()
        if path.name != ".gitignore"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        for word in FOREIGN
        if word in line.lower()
    ]
    assert found == []
