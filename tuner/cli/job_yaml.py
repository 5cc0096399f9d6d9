"""Read and write job files in YAML.

Scalars are read as in the core schema of YAML 1.2, so that the command line and the page read the same values. PyYAML implements YAML 1.1,
in which 1e-4 is text, `on` is true, 010 is 8, and 22:00 is 1320, a number in base 60.
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import typer
import yaml
from yaml.composer import ComposerError

from tuner.domain.space import pointer_token

MAX_BYTES = 1 << 20  # The same limit as in the service.
MAX_DEPTH = 60  # This limit only protects the parser. The service has a lower limit, and its error says where the job exceeds it.
MAX_VALUES = 100_000
MERGE = "tag:yaml.org,2002:merge"


class SecondDocument(ComposerError):
    """The file has more than one YAML document."""


class JobYaml(yaml.SafeLoader):
    """A safe loader that reads numbers, true and false as YAML 1.2 does.

    It refuses duplicate keys, because one of them would be ignored. It also refuses files with more than `MAX_VALUES` values after aliases
    are expanded, aliases inside the node that they refer to, and nesting deeper than `MAX_DEPTH`.
    """

    def __init__(self, text: Any) -> None:
        super().__init__(text)
        self._depth, self._values = 0, 0
        # The number of values in each finished node, by the node's id(). An alias of a node counts as that many values.
        self._sizes: dict[int, int] = {}

    def get_single_node(self) -> Any:
        self.get_event()  # type: ignore[no-untyped-call]  # the start of the stream
        is_empty = self.check_event(yaml.StreamEndEvent)
        node = None if is_empty else self.compose_document()
        if not self.check_event(yaml.StreamEndEvent):
            raise SecondDocument(None, None, None, self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        before = self._values
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ComposerError(None, None, f"the file is nested deeper than {MAX_DEPTH} levels", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not is_alias:
            self._values += 1
            self._sizes[id(node)] = self._values - before
        elif id(node) in self._sizes:
            self._values += self._sizes[id(node)]
        else:
            raise ComposerError(
                None, None, "an alias refers to a node that contains the alias; remove the alias", mark
            )
        if self._values > MAX_VALUES:
            raise ComposerError(
                None, None, f"the file has more than {MAX_VALUES} values with its aliases expanded", mark
            )
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node, seen = super().compose_mapping_node(anchor), set[tuple[str, str]]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                if (key.tag, key.value) in seen:
                    raise ComposerError(None, None, f"the key {key.value!r} occurs twice", key.start_mark)
                seen.add((key.tag, key.value))
        return node

    def construct_integer(self, node: Any) -> int:
        value = self.construct_scalar(node).replace("_", "")
        return int(value, 0 if value.lstrip("-+")[:2] in ("0b", "0o", "0x") else 10)


class JobDumper(yaml.SafeDumper):
    """A safe dumper that quotes text which `JobYaml` would read as another value, such as 1e-3."""


# The plain scalars that are not text, as (tag, pattern, first characters). The first pattern that matches counts. As in YAML 1.1 and on
# the page, digits may be grouped with underscores.
SCALARS = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (
        "tag:yaml.org,2002:int",
        r"[-+]?(?:[0-9][0-9_]*|0b[01][01_]*|0o[0-7][0-7_]*|0x[0-9a-fA-F][0-9a-fA-F_]*)",
        "-+0123456789",
    ),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
)
# In YAML 1.1, a plain `=` has a type of its own, which PyYAML cannot read.
REPLACED = {tag for tag, *_ in SCALARS} | {"tag:yaml.org,2002:value"}
for resolver in (JobYaml, JobDumper):
    resolver.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag not in REPLACED]
        for first, known in resolver.yaml_implicit_resolvers.items()
    }
    for scalar_tag, scalar, characters in SCALARS:
        resolver.add_implicit_resolver(scalar_tag, re.compile(rf"(?:{scalar})\Z"), list(characters))
JobYaml.add_constructor("tag:yaml.org,2002:int", JobYaml.construct_integer)


def read_job(file: Path) -> dict[str, Any]:
    """Read a job from a file, or from standard input if the file is `-`.

    Raises:
        typer.BadParameter: The file cannot be read, does not hold a mapping, or its search space has `tune.uniform(0, 1)` or the like.
    """
    job = read_mapping(file, "a job: a mapping with name, trainable, objective, search_space, budget")
    _refuse_python(file, job.get("search_space"))
    return job


# What to write in a job file instead of Ray Tune's functions. The upper end of Ray Tune's `randint` is exclusive and that of a job file is
# inclusive, hence HIGH - 1.
INSTEAD = {
    "uniform": "{type: float, low: LOW, high: HIGH}",
    "quniform": "{type: float, low: LOW, high: HIGH, step: Q}",
    "loguniform": "{type: float, low: LOW, high: HIGH, log: true}",
    "randint": "{type: int, low: LOW, high: HIGH - 1}",
    "qrandint": "{type: int, low: LOW, high: HIGH, step: Q}",
    "lograndint": "{type: int, low: LOW, high: HIGH - 1, log: true}",
    "choice": "{type: categorical, choices: [A, B, C]}",
    "grid_search": "{type: categorical, choices: [A, B, C]} and algorithm: {sampler: grid}",
}
PYTHON = re.compile(rf"(?:ray\.)?(?:tune\.)?({'|'.join(INSTEAD)})\(")


def _refuse_python(file: Path, space: object) -> None:
    """Raise BadParameter if a parameter is written as Python code, such as `tune.uniform(0, 1)`. The message says what to write instead."""
    for name, value in space.items() if isinstance(space, dict) else ():
        call = PYTHON.match(value) if isinstance(value, str) else None
        if call is not None:
            raise typer.BadParameter(
                f"{_name(file)}: search_space.{name} is a Python call, which a job file cannot contain; write {INSTEAD[call[1]]}"
            )


def job_file(job: Mapping[str, Any]) -> str:
    """Return a job as the text of a job file."""
    return yaml.dump(dict(job), Dumper=JobDumper, sort_keys=False, default_flow_style=None, width=120)


def read_mapping(file: Path, what: str) -> dict[str, Any]:
    """Read a mapping from a YAML file, or from standard input if the file is `-`.

    Raises:
        typer.BadParameter: The file cannot be read, is not YAML, or does not hold a mapping. In the last case, the message says that `what`
            was expected.
    """
    text = _text(file)
    try:
        mapping = yaml.load(text, JobYaml)  # noqa: S506  JobYaml is a SafeLoader
    except SecondDocument as error:
        raise typer.BadParameter(f"{_place(file, error)} begins a second YAML document; give one") from error
    except yaml.YAMLError as error:
        raise typer.BadParameter(f"{_place(file, error)} is not YAML: {_problem(error)}") from error
    except (TypeError, ValueError) as error:  # such as the date 2026-02-31
        raise typer.BadParameter(f"{_name(file)}: {error}; put dates and similar values in quotes") from error
    if not isinstance(mapping, dict):
        raise typer.BadParameter(f"{_name(file)} does not contain {what}")
    for fault in _json_faults("", mapping):
        raise typer.BadParameter(f"{_name(file)}: {fault}")
    return mapping


def _json_faults(pointer: str, value: Any) -> Iterator[str]:
    """Yield, for each value of a YAML document that JSON does not have, its JSON pointer and what to write instead."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str | int | float | None):
                yield f"{pointer or 'the file'} has the key {key}: put it in quotes"
            yield from _json_faults(f"{pointer}/{pointer_token(str(key))}", inner)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _json_faults(f"{pointer}/{index}", inner)
    elif isinstance(value, date):  # a datetime is a date, too
        yield f"{pointer} is a date: put it in quotes"
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{pointer} is {value}: give a finite number"
    elif not isinstance(value, str | int | float | None):
        yield f"{pointer} is of the YAML type {type(value).__name__}: write text, a number, a list or a mapping"


def _name(file: Path) -> str:
    return "standard input" if str(file) == "-" else str(file)


def _place(file: Path, error: yaml.YAMLError) -> str:
    """Return the name of the file, and the line and column of the error if they are known. Both are counted from 1."""
    mark = getattr(error, "problem_mark", None)
    return _name(file) if mark is None else f"{_name(file)}, line {mark.line + 1}, column {mark.column + 1},"


def _problem(error: yaml.YAMLError) -> str:
    parts = [getattr(error, "problem", None), getattr(error, "context", None)]
    return " ".join(part for part in parts if part) or " ".join(str(error).split())


def _text(file: Path) -> str:
    try:
        text = sys.stdin.read(MAX_BYTES + 1) if str(file) == "-" else _read(file)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{_name(file)} cannot be read: {error}") from error
    if len(text) > MAX_BYTES:
        raise typer.BadParameter(f"{_name(file)} is larger than 1 MiB")
    return text


def _read(file: Path) -> str:
    with file.open() as opened:
        return opened.read(MAX_BYTES + 1)
