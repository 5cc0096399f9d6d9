"""Describe every command with its arguments and options, from the parser of the command line."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from tools.reference.words import MADE, one_line, table
from tuner.cli.main import app

HEAD = f"""# Commands
{MADE}

`--json` prints the response of the [REST](rest.md) call. The exit status is 0 after success, 1 after an error, whose title and detail are printed on
standard error, and 2 after wrong usage. `TUNER_URL` is the address of the service ([settings](../settings.md)). `tuner COMMAND --help` prints the
same texts in a terminal.
"""
KINDS = {int: "INTEGER", float: "NUMBER", Path: "FILE"}


def page() -> str:
    commands = list(_commands("tuner", get_command(app)))
    contents = [[f"[`{path}`](#{path.replace(' ', '-')})", _first(command)] for path, command in commands]
    return "\n".join(
        [HEAD, table(["command", ""], contents), "", *(_section(*command) for command in commands)]
    )


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name in sorted(inner):
        if not inner[name].hidden:
            yield from _commands(f"{path} {name}", inner[name])


def _first(command: Any) -> str:
    return one_line((command.help or "").partition("\n\n")[0])


def _section(path: str, command: Any) -> str:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    options = [
        parameter
        for parameter in shown
        if parameter.param_type_name == "option" and "--help" not in parameter.opts
    ]
    usage = " ".join([path, *(["[OPTIONS]"] if options else []), *map(_metavar, arguments)])
    parts = [f"## {path}\n", f"```text\n{usage}\n```\n", _help(command)]
    rows = [[f"`{_name(argument)}`", argument.help or ""] for argument in arguments if argument.help]
    rows += [[f"`{_option(option)}`", _said(option)] for option in options]
    if rows:
        parts.append(table(["", ""], rows) + "\n")
    return "\n".join(parts)


def _help(command: Any) -> str:
    """Format a help text as Markdown. Examples, which are indented or marked by \\b, are kept as they are."""
    paragraphs = []
    for part in (command.help or "").replace("\b\n", "\b").split("\n\n"):
        as_is = part.startswith(("\b", "  ")) or "\n  " in part
        text = part.strip("\b\n")
        paragraphs.append(f"```text\n{text}\n```\n" if as_is else one_line(text) + "\n")
    if command.epilog:
        head, *examples = command.epilog.strip().split("\n\n")
        lines = "\n".join(line for example in examples for line in example.splitlines())
        paragraphs.append(f"{head}\n\n```console\n{lines}\n```\n")
    return "\n".join(paragraphs)


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).strip("[]")


def _metavar(argument: Any) -> str:
    name = _name(argument)
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> str:
    names = "/".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"{names} {'|'.join(str(member.value) for member in kind)}"
    what = "|".join(map(str, get_args(kind))) if get_origin(kind) is Literal else KINDS.get(kind, "TEXT")
    return f"{names} {option.metavar or what}"


def _said(option: Any) -> str:
    text = option.help or ""
    if option.required:
        return f"{text} Required."
    default = option.default
    if option.is_flag or default in (None, [], (), "") or callable(default):
        return text
    shown = default.value if isinstance(default, Enum) else default
    return f"{text} Default: `{shown}`."
