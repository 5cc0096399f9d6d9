"""Determine what an attempt ran with: the digest of its code, its threads, versions and environment variables.

Results about a trainable, such as its self-test, are valid while the digest of its code is the same.
"""

import ast
import hashlib
import importlib.util
import os
import platform
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import tuner.training
from tuner.domain.command import PROGRAM_ENTRY, words_of
from tuner.domain.environment import HASH_SEED, Environment
from tuner.worker.program import located

if TYPE_CHECKING:
    from tuner.domain.job import JobSpec

MODULES_MAX = 2000
# If a command names a file larger than this, the digest covers only the size and the time of the last change.
FILE_MAX_BYTES = 16 << 20
UNREADABLE = b"cannot be read"  # counts as the content of a file that cannot be read
_parsing = threading.Lock()


def code_digest(entry: str, roots: Sequence[str]) -> str | None:
    """Return a SHA-256 digest of a trainable's code, or None if its module is not a plain file.

    The digest covers the trainable's module, all modules that it imports directly or indirectly from the directories
    `roots` or from its own package, and `tuner.training`.

    Nothing is imported. Data files, and modules that are imported by name at run time, are not covered.

    Args:
        entry: The trainable, as `module:name`.
        roots: The directories in which trainables are looked for.
    """
    first = entry.partition(":")[0]
    own = first.partition(".")[0]
    sources: dict[str, bytes] = {}
    waiting, known = [first], {first}
    while waiting and len(sources) < MODULES_MAX:
        module = waiting.pop()
        file = _file_of(module, [*roots, *sys.path] if module.partition(".")[0] == own else roots)
        if file is None:
            continue
        sources[module] = _source_of(file)
        for name in _imported(sources[module], module, is_package=file.name == "__init__.py"):
            if name not in known and name.partition(".")[0] != "tuner":
                known.add(name)
                waiting.append(name)
    if first not in sources:
        return None
    return _digest(entry, sources | _of_training())


def code_of(spec: "JobSpec", roots: Sequence[str]) -> str | None:
    """Return the digest of a job's code, or None if the module of the trainable is not a plain file.

    For a trainable from a package, the digest covers that package and `tuner.training`. For a command, it also covers the command and,
    without a package, the files that the words of the command name. If a file has more than 16 MiB, only its size and the time of its
    last change are covered.
    """
    if spec.package is None and spec.command is None:
        return code_digest(spec.trainable, roots)
    sources = _of_training() if spec.package is None else {spec.package: b"", **_of_training()}
    if spec.command is None:
        return _digest(spec.trainable, sources)
    if spec.package is None:
        files = {word: located(word, roots) for word in words_of(spec.command)}
        sources |= {f"file {word}": _file_digest(file) for word, file in files.items() if file is not None}
    return _digest(f"{spec.command}\n{spec.metrics_pattern}", sources)


def _source_of(file: Path) -> bytes:
    """Return the content of a module's file. Return fixed bytes if the file cannot be read."""
    try:
        return file.read_bytes()
    except OSError:
        return UNREADABLE


def _file_digest(file: Path) -> bytes:
    """Return bytes that change with the content of a file. Return fixed bytes if the file cannot be read."""
    try:
        with file.open("rb") as opened:
            about = os.fstat(opened.fileno())
            if about.st_size > FILE_MAX_BYTES:
                return f"{about.st_size} {about.st_mtime_ns}".encode()
            return hashlib.file_digest(opened, "sha256").digest()
    except OSError:
        return UNREADABLE


def _of_training() -> dict[str, bytes]:
    files = sorted(Path(str(tuner.training.__file__)).parent.glob("*.py"))
    return {f"tuner.training.{file.stem}": file.read_bytes() for file in files}


def _digest(entry: str, sources: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(entry.encode())
    for module in sorted(sources):
        digest.update(f"\n{module} {hashlib.sha256(sources[module]).hexdigest()}".encode())
    return digest.hexdigest()


def _file_of(module: str, roots: Sequence[str]) -> Path | None:
    for root in roots:
        base = Path(root or ".", *module.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None


# Cached, because parsing the two files of a shipped trainable took a quarter of the processor time of a submission.
@lru_cache(maxsize=256)
def _imported(source: bytes, module: str, *, is_package: bool) -> tuple[str, ...]:
    """Return the names of the modules that a module imports. The packages that contain the module come first.

    Some of the names may not be modules: in `from a import b`, `b` can be anything.
    """
    return tuple(_names_in(source, module, is_package=is_package))


def _names_in(source: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts)))
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    package = parts if is_package else parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name for alias in node.names for name in _with_packages(alias.name))
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from _with_packages(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def parse(source: bytes) -> ast.Module:
    """Parse Python source, in one thread at a time. Raise the same errors as `ast.parse`.

    Python 3.11 raises SystemError ("AST constructor recursion depth mismatch") if another thread parses while a
    garbage collection interrupts this one (https://github.com/python/cpython/issues/106905).
    """
    with _parsing:
        return ast.parse(source)


def _with_packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


THREADS = "OMP_NUM_THREADS"
DISTRIBUTIONS = ("tuner", "torch", "numpy", "ray")
#: Environment variables that change the result of a computation. Paths, devices and possible secrets are not
#: recorded.
PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "CUBLAS_")
NAMES = frozenset(
    {
        HASH_SEED,
        "NUMBA_NUM_THREADS",
        "NVIDIA_TF32_OVERRIDE",
        "TF_DETERMINISTIC_OPS",
        "TF_ENABLE_ONEDNN_OPTS",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "XLA_FLAGS",
    }
)


def environment_of(entry: str, roots: Sequence[str], environ: Mapping[str, str]) -> Environment:
    """Return the environment of a process that trains `entry`.

    Args:
        entry: The trainable, `module:attribute`. Its module is not imported.
        roots: Directories in which trainables are looked for, see `code_digest`.
        environ: The environment variables of the process.
    """
    threads = environ.get(THREADS, "")
    return Environment(
        threads=int(threads) if threads.isdecimal() else None,
        versions=_versions(entry.partition(":")[0].partition(".")[0]),
        variables=relevant(environ),
        code=None if entry == PROGRAM_ENTRY else code_digest(entry, roots),
    )


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that can change the result of a training, sorted by name."""
    kept = {name for name in environ if name.startswith(PREFIXES) or name in NAMES}
    return {name: environ[name] for name in sorted(kept - {THREADS})}


def _versions(package: str) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    own = _distribution_of(package)
    for name in (*DISTRIBUTIONS, *([own] if own else [])):
        version = _version(name)
        if version is not None:
            versions[name] = version
    return versions


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _distribution_of(package: str) -> str | None:
    """Return the name of the distribution that installed a top-level package. Return None for a module in a plain folder."""
    if _version(package) is not None:  # most distributions have the name of their package
        return package
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or "site-packages" not in Path(spec.origin or "").parts:
        return None
    return next(iter(metadata.packages_distributions().get(package, ())), None)
