"""Help shows valid examples and appears without delay."""

import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from tuner.cli.examples import EXAMPLES
from tuner.cli.main import app

HEAVY = ("pydantic", "httpx2", "ray", "torch", "fastapi", "sqlalchemy", "optuna", "numpy", "tuner.schemas")


def commands(group: typer.core.TyperGroup, prefix: str = "") -> Iterator[tuple[str, typer.core.TyperCommand]]:
    for name, command in group.commands.items():
        yield prefix + name, command  # type: ignore[misc]
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, f"{prefix}{name} ")


def root() -> typer.core.TyperGroup:
    found = get_command(app)
    assert isinstance(found, typer.core.TyperGroup)
    return found


@pytest.mark.parametrize("name", [name for name, _ in commands(root())])
def test_help_shows_examples_of_the_command(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], terminal_width=200)
    assert shown.exit_code == 0
    assert EXAMPLES[name]
    for example in EXAMPLES[name]:
        assert example.startswith(f"tuner {name}")
        assert example in shown.stdout


@pytest.mark.parametrize("example", sorted({one for found in EXAMPLES.values() for one in found}))
def test_examples_are_accepted_by_the_command_line(example: str) -> None:
    """Parse the example without running it."""
    context = root().make_context("tuner", shlex.split(example)[1:])
    while isinstance(context.command, typer.core.TyperGroup):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    assert not context.args


def test_examples_cover_exactly_the_existing_commands() -> None:
    assert set(EXAMPLES) == {name for name, _ in commands(root())}


def test_help_imports_no_heavy_modules() -> None:
    code = f"""
import sys
import tuner.cli.main
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
