"""List the trainables that the service may tune, by reading source files.

Nothing is imported, because an import takes seconds per module and runs code that the user did not ask to run. The list
therefore contains only facts that are visible in the source. Whether a trainable can be imported is known only after
`Prober.describe`, which the web page calls when the user chooses a trainable.

The number of files and folders, the size of a file and the time are limited, because the service may be started in any
folder. Files near the root are read first, so that a limit excludes files in deep folders.
"""

import ast
import importlib.util
import json
import os
import re
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tuner.service.cluster import import_path
from tuner.service.trainables import Described, is_allowed, source_of
from tuner.worker.environment import parse
from tuner.worker.packages import OURS

FILES_MAX, FOLDERS_MAX, DEPTH_MAX = 2_000, 1_000, 5
FILE_BYTES_MAX = 256 << 10
SUGGESTED_BYTES_MAX = 256 << 10
DOC_CHARS_MAX = 4_000
READ_S = 1.5
SHIPPED = "trainables"
NOT_CODE = frozenset({"tests", "test", "docs", "build", "dist", "node_modules", "venv", "env", "site"})
CONFIGS = frozenset({"config", "cfg", "conf", "params", "hparams", "hyperparameters", "hyperparams"})
# Most files do not train anything. A file without any of these words is therefore not parsed.
HINT = re.compile(rb"\btrain\b|\breport\b|Trainable\b|\b(?:" + "|".join(sorted(CONFIGS)).encode() + rb")\b")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class TrainableListing:
    """The trainables that a search of the source files found."""

    items: list[Described]
    truncated: bool  #: Whether a limit was reached, so that some files were not read.


def listed(allowed: Sequence[str], read_s: float = READ_S) -> TrainableListing:
    """List the trainables of the modules that `TUNER_ALLOWED_MODULES` allows.

    For `*`, these are the modules on PYTHONPATH, in the service's working directory, and in the package `trainables` that tuner ships.
    Installed modules may be tuned too, but they are not listed, because there are thousands of them.

    Args:
        read_s: How many seconds to search. After that time no further file is read.
    """
    walk, items = _Walk(time.monotonic() + read_s), dict[str, Described]()
    for module, file in walk.modules(allowed):
        for described in _read(module, str(file), *_facts(file)):
            items.setdefault(described.trainable, described)
    return TrainableListing(list(items.values()), walk.truncated)


class _Walk:
    """One search for modules, which ends at the time `until` or when it has read `FILES_MAX` files or `FOLDERS_MAX` folders."""

    def __init__(self, until: float) -> None:
        self.truncated = False
        self._until, self._files, self._folders = until, FILES_MAX, FOLDERS_MAX

    def modules(self, allowed: Sequence[str]) -> Iterator[tuple[str, Path]]:
        """Yield the name and file of each allowed module, until a limit is reached. No module is yielded twice."""
        seen = set[str]()
        for name, file in self._candidates(allowed):
            if name not in seen and is_allowed(name, allowed):
                seen.add(name)
                if self._files == 0 or time.monotonic() > self._until:
                    self.truncated = True
                    return
                self._files -= 1
                yield name, file

    def _candidates(self, allowed: Sequence[str]) -> Iterator[tuple[str, Path]]:
        for prefix in allowed:
            if prefix == "*":
                for root in import_path():
                    yield from self._below(Path(root), "")
                yield from self._of(SHIPPED)
            else:
                yield from self._of(prefix)

    def _of(self, module: str) -> Iterator[tuple[str, Path]]:
        """Yield the name and file of a module, or of each module of a package."""
        place = _place(module)
        if place is None:
            return
        if place.is_file():
            yield module, place
        else:
            yield from self._below(place, module)

    def _below(self, root: Path, package: str) -> Iterator[tuple[str, Path]]:
        """Yield the names and files of the modules in a folder, then of those in its subfolders, level by level.

        Args:
            package: The name of the package that the folder contains. It is empty if the folder is an entry of the import path.
        """
        folders = deque([(root, package)])
        while folders:
            folder, package = folders.popleft()
            if self._folders == 0:
                self.truncated = True
                return
            self._folders -= 1
            for entry in self._entries(folder):
                name = entry.name.removesuffix(".py")
                path = f"{package}.{name}" if package else name
                if not name.isidentifier() or name.startswith("_"):
                    continue
                if entry.name.endswith(".py"):
                    if not _is_test(name) and (package or name not in OURS) and entry.is_file():
                        yield path, Path(entry.path)
                elif entry.is_dir(follow_symlinks=False) and _has_code(entry, path):
                    if path.count(".") + 1 < DEPTH_MAX:
                        folders.append((Path(entry.path), path))
                    else:
                        self.truncated = True

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as scanned:
                entries = []
                for entry in scanned:
                    if time.monotonic() > self._until:
                        self.truncated = True
                        break
                    entries.append(entry)
        except OSError:  # the folder may be gone or not readable
            return []
        return sorted(entries, key=lambda entry: entry.name)


def _is_test(name: str) -> bool:
    return name.startswith("test_") or name.endswith("_test") or name in ("conftest", "setup")


def _has_code(entry: os.DirEntry[str], path: str) -> bool:
    """Return whether a folder may contain modules of users.

    Folders of this service, virtual environments, tests, docs and builds are excluded.

    Args:
        path: The dotted name of the package that the folder contains.
    """
    is_ours = "." not in path and path in OURS
    return (
        not is_ours
        and entry.name not in NOT_CODE
        and not os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))
    )


def _place(module: str) -> Path | None:
    """Return the file of a module or the folder of a package without importing it, or None if there is none."""
    file = source_of(module)
    # A package that is installed from a checkout (in editable mode) can be found only by Python's own finders.
    if file is None and "." not in module:
        spec = importlib.util.find_spec(module)
        file = Path(spec.origin) if spec is not None and spec.origin else None
    if file is not None:
        return file.parent if file.name == "__init__.py" else file
    folders = (Path(root or ".", *module.split(".")) for root in [*import_path(), *sys.path])
    return next((folder for folder in folders if folder.is_dir()), None)


def _facts(file: Path) -> tuple[int, int]:
    try:
        facts = file.stat()
    except OSError:
        return (0, 0)
    return facts.st_mtime_ns, facts.st_size


# Cached by size and time of modification: parsing 278 files of Python's library, of 22 kB each, takes 3.1 s. Checking whether
# they have changed takes 3 ms.
@lru_cache(FILES_MAX)
def _read(module: str, file: str, _modified_ns: int, size: int) -> tuple[Described, ...]:
    """Return the trainables that a file defines, as far as its source shows.

    Return an empty tuple for a file that is too large, cannot be read or is not valid Python.

    Args:
        _modified_ns: When the file was last modified. With the size, it makes the cache miss after the file has changed.
    """
    if size > FILE_BYTES_MAX:
        return ()
    try:
        source = Path(file).read_bytes()
        if HINT.search(source) is None:
            return ()
        with warnings.catch_warnings():
            # hides warnings about user code, such as invalid escape sequences
            warnings.simplefilter("ignore")
            tree = parse(source)
        return tuple(_described(module, tree))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _described(module: str, tree: ast.Module) -> Iterator[Described]:
    """Yield the trainables of a module: `train`, other functions that report metrics, subclasses of Ray Tune's `Trainable`, and values of
    `tuner.training.Packed`.

    If the module defines none, yield the functions whose first parameter has a name such as `config` or `params`. An async function is
    listed with the reason why it cannot be tuned.
    """
    defined = [node for node in tree.body if isinstance(node, Definition)]
    public = [node for node in defined if not node.name.startswith("_")]
    packed = _packed(tree)
    functions = [node for node in public if _trains(node)]
    if not packed and all(isinstance(node, ast.AsyncFunctionDef) for node in functions):
        functions = [node for node in public if node in functions or _takes_config(node)]
    names = dict.fromkeys(packed) | {node.name: ast.get_docstring(node) for node in functions}
    bound = _bound(tree)
    if "train" not in {node.name for node in defined} and "train" in bound:
        names["train"] = None
    errors = {node.name: _async_error(module, node) for node in functions if node.name not in bound}
    suggested = {name.lower(): _literal(tree, name) for name in ("SEARCH_SPACE", "OBJECTIVE")}
    for name, doc in names.items():
        about = (doc or ast.get_docstring(tree) or "")[:DOC_CHARS_MAX]
        yield Described.parse(f"{module}:{name}", {"doc": about, "error": errors.get(name), **suggested})


def _async_error(module: str, node: Definition) -> str | None:
    """Return why an async function cannot be tuned. Return None for other definitions, and if a decorator may have replaced the function."""
    if not isinstance(node, ast.AsyncFunctionDef) or node.decorator_list:
        return None
    from tuner.worker.child import ASYNC_FUNCTION  # loads what a worker needs, so only when needed

    return ASYNC_FUNCTION.format(entry=f"{module}:{node.name}")


def _trains(node: Definition) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(_last_name(base) == "Trainable" for base in node.bases)
    return _takes_one(node) and (node.name == "train" or any(_reports(part) for part in ast.walk(node)))


def _reports(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) == "report"


def _takes_config(node: Definition) -> bool:
    if isinstance(node, ast.ClassDef) or not _takes_one(node):
        return False
    given = [*node.args.posonlyargs, *node.args.args]
    return bool(given) and given[0].arg.lower() in CONFIGS


def _takes_one(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function can be called with one positional argument."""
    args = node.args
    count, required = len(args.posonlyargs) + len(args.args), None in args.kw_defaults
    return count - len(args.defaults) <= 1 and (count >= 1 or args.vararg is not None) and not required


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that a module imports with `from ... import`, or assigns."""
    names = set[str]()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def _packed(tree: ast.Module) -> list[str]:
    """Return the names to which a module assigns a call of `Packed`."""
    return [
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _last_name(node.value.func) == "Packed"
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


def _literal(tree: ast.Module, name: str) -> Mapping[str, Any] | None:
    """Return the dictionary that a module assigns to a name.

    Return None if there is none, if it is computed, or if it is too large or cannot be written as JSON.
    """
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if value is None or not any(isinstance(target, ast.Name) and target.id == name for target in targets):
            continue
        try:
            text = json.dumps(ast.literal_eval(value), allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return None
        literal = json.loads(text) if len(text) <= SUGGESTED_BYTES_MAX else None
        return literal if isinstance(literal, dict) else None
    return None


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
