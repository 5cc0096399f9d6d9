"""Help shows valid examples and appears without delay."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer import rich_utils
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


@pytest.fixture(scope="module")
def root() -> typer.core.TyperGroup:
    group = get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def test_every_command_has_a_help_text_with_its_examples(
    root: typer.core.TyperGroup, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", 200)
    assert EXAMPLES.keys() <= {name for name, _ in commands(root)}
    for name, command in commands(root):
        assert command.help, name
        with pytest.raises(SystemExit) as ended:
            root.main([*name.split(), "--help"], prog_name="tuner")
        shown = capsys.readouterr().out
        assert ended.value.code == 0
        assert all(example in shown for example in EXAMPLES.get(name, ()))


def test_command_line_accepts_the_examples_in_help_texts(root: typer.core.TyperGroup) -> None:
    """Parse each example without running it."""
    for name, examples in EXAMPLES.items():
        for example in examples:
            context = root.make_context("tuner", shlex.split(example)[1:])
            while isinstance(context.command, typer.core.TyperGroup):
                command_name, command, rest = context.command.resolve_command(
                    context, [*context._protected_args, *context.args]
                )
                assert command is not None
                context = command.make_context(command_name, rest, parent=context)
            assert not context.args
            assert context.command_path.startswith(f"tuner {name}")


def test_environment_of_a_ci_system_does_not_reach_the_tests() -> None:
    """With GITHUB_ACTIONS, Typer would color the help that the tests compare. A proxy would receive their requests."""
    variables = ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS", "HTTP_PROXY", "https_proxy", "all_proxy")
    code = f"""
import os
import tests.conftest
from typer import rich_utils
print(rich_utils.FORCE_TERMINAL, [name for name in {variables!r} if name in os.environ])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **dict.fromkeys(variables, "true")},
    )
    assert done.stdout.strip() == "None []"


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
