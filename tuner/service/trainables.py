"""What can be tuned here: trainables looked at in a process of their own, since importing one runs somebody's code."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tuner.engine.worker.server_handle import clean_environment
from tuner.service.cluster import import_path

PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Described:
    """`error` says why it cannot be tuned; None: it can. Space and objective are its author's suggestions."""

    trainable: str
    doc: str = ""
    search_space: Mapping[str, Any] | None = None
    objective: Mapping[str, Any] | None = None
    error: str | None = None


class Prober(Protocol):
    def describe(self, entry: str) -> Described:
        """Never raises for what is wrong with the trainable."""


@dataclass
class SubprocessProber:
    """Remembers what it saw until the module's file changes."""

    _seen: dict[tuple[str, str, int, int], Described] = field(default_factory=dict)

    def describe(self, entry: str) -> Described:
        file = source_of(entry.partition(":")[0])
        if file is None:
            return _probe(entry)
        facts = file.stat()
        key = (entry, str(file), facts.st_mtime_ns, facts.st_size)
        found = self._seen.get(key)
        if found is None:
            found = _probe(entry)
            if found.error is None:
                self._seen[key] = found
        return found


def _probe(entry: str) -> Described:
    environment = clean_environment(os.environ, import_path())
    command = [sys.executable, "-m", "tuner.engine.worker.probe", entry]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        found = Described(entry, **json.loads(done.stdout.rstrip().rpartition("\n")[2]))
    except subprocess.TimeoutExpired:
        return Described(entry, error=f"importing it takes more than {PROBE_TIMEOUT_S:.0f} s")
    except (ValueError, TypeError):
        tail = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        return Described(
            entry, error=f"importing it ended the process with status {done.returncode}: {tail}"[:2000]
        )
    return found


def source_of(module: str) -> Path | None:
    """The file of a module, found without importing anything; None where it is not plainly on the path."""
    parts = module.split(".")
    for root in [*import_path(), *sys.path]:
        base = Path(root or ".", *parts)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None


def is_allowed(entry: str, allowed: Sequence[str]) -> bool:
    module = entry.partition(":")[0]
    return any(prefix == "*" or module == prefix or module.startswith(f"{prefix}.") for prefix in allowed)


def listed(prober: Prober, allowed: Sequence[str]) -> list[Described]:
    """Every `train` of the modules that are allowed by name."""
    modules = [module for prefix in allowed if prefix != "*" for module in _modules(prefix)]
    if "*" in allowed:
        modules += [module for module in _modules("trainables") if module not in modules]
    entries = [f"{module}:train" for module in modules]
    with ThreadPoolExecutor(2) as pool:
        return [
            found
            for found in pool.map(prober.describe, entries)
            if "has no attribute" not in (found.error or "")
        ]


def _modules(prefix: str) -> list[str]:
    file = source_of(prefix)
    if file is None:
        spec = importlib.util.find_spec(prefix) if "." not in prefix else None
        file = Path(spec.origin) if spec is not None and spec.origin else None
    if file is None:
        return []
    if file.name != "__init__.py":
        return [prefix]
    names = sorted(path.stem for path in file.parent.glob("*.py"))
    return [f"{prefix}.{name}" for name in names if not name.startswith("_")]
