"""Help shows valid examples and appears without delay."""

import shlex
import subprocess
import sys
from collections.abc import Iterator

import typer
from typer.main import get_command
from typer.testing import CliRunner

import tuner
from tuner.cli.command_group import EXAMPLES
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


def test_help_shows_examples_that_the_command_line_accepts() -> None:
    """Parse each example without running it."""
    names = {name for name, _ in commands(root())}
    for name, examples in EXAMPLES.items():
        assert name in names
        shown = CliRunner().invoke(app, [*name.split(), "--help"], terminal_width=200).stdout
        for example in examples:
            assert example in shown
            context = root().make_context("tuner", shlex.split(example)[1:])
            while isinstance(context.command, typer.core.TyperGroup):
                command_name, command, rest = context.command.resolve_command(
                    context, [*context._protected_args, *context.args]
                )
                assert command is not None
                context = command.make_context(command_name, rest, parent=context)
            assert not context.args
            assert context.command_path.startswith(f"tuner {name}")


def test_every_command_has_a_help_text() -> None:
    for name, command in commands(root()):
        assert command.help, name
        assert CliRunner().invoke(app, [*name.split(), "--help"]).exit_code == 0


def test_help_imports_no_heavy_modules() -> None:
    code = f"""
import sys
import tuner.cli.main
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"tuner {tuner.__version__}\n"
