"""YAML as people write jobs: 1e-4 is a number, as in YAML 1.2, where PyYAML's 1.1 has it as text."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import typer
import yaml


class JobYaml(yaml.SafeLoader):
    """The safe loader; only numbers with exponents differ."""


JobYaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+"),
    list("-+0123456789."),
)


def read_job(file: Path) -> dict[str, Any]:
    """A job as it is written down; - reads standard input. Raises BadParameter for what is none."""
    return read_mapping(file, "job: a mapping with name, trainable, objective, search_space, budget")


def read_mapping(file: Path, what: str) -> dict[str, Any]:
    """A mapping as it is written down; - reads standard input. Raises BadParameter, saying that it is no `what`."""
    text = _text(file)
    try:
        found = yaml.load(text, JobYaml)  # noqa: S506  a SafeLoader
        json.dumps(found)
    except yaml.YAMLError as error:
        raise typer.BadParameter(f"{_place(file, error)} is no YAML: {_problem(error)}") from error
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}; put dates and the like into quotes") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{file} holds no {what}")
    return found


def _place(file: Path, error: yaml.YAMLError) -> str:
    """The file, with line and column, counted from 1, where they are known."""
    mark = getattr(error, "problem_mark", None)
    name = "standard input" if str(file) == "-" else str(file)
    return name if mark is None else f"{name}, line {mark.line + 1}, column {mark.column + 1},"


def _problem(error: yaml.YAMLError) -> str:
    parts = [getattr(error, "problem", None), getattr(error, "context", None)]
    return " ".join(part for part in parts if part) or " ".join(str(error).split())


def _text(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error
