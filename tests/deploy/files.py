"""What deploy/ holds, read as what starts it reads it."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONSTRAINTS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
)
TEXTS = {".yaml", ".yml", ".sh", ".env", ".service", ".sbatch", ".md", ""}


def texts() -> Iterator[tuple[Path, str]]:
    for path in sorted(DEPLOY.rglob("*")):
        if path.is_file() and path.suffix in TEXTS and path.name != ".env":
            yield path, path.read_text()


def scripts() -> list[Path]:
    return [path for path, text in texts() if text.startswith(("#!/bin/sh", "#!/bin/bash"))]


@cache
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text()))


def interpolated(found: Any, values: dict[str, str]) -> Any:
    """As Compose puts `${NAME:-default}` and `${NAME:?message}` in. Raises KeyError for what has to be given and is not."""
    if isinstance(found, dict):
        given = {name: interpolated(one, values) for name, one in found.items()}
        return {name: int(one) if name == "replicas" else one for name, one in given.items()}
    if isinstance(found, list):
        return [interpolated(one, values) for one in found]
    if not isinstance(found, str):
        return found
    return re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", lambda m: _value(m, values), found)


def _value(match: re.Match[str], values: dict[str, str]) -> str:
    name, kind, default = match.groups()
    if name in values:
        return values[name]
    if kind == "-":
        return str(default)
    raise KeyError(name)


def strings(found: Any) -> Iterator[str]:
    """Every string in it, however deep."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        for one in found.values():
            yield from strings(one)
    elif isinstance(found, list):
        for one in found:
            yield from strings(one)


def labels_of(words: str) -> dict[str, str]:
    """Of `--labels=a=b,c=d`."""
    return dict(pair.split("=", 1) for pair in words.removeprefix("--labels=").split(","))
