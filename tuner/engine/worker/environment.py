"""Describe the environment of an attempt for its record: threads, versions, environment variables and code digest."""

import importlib.util
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from tuner.domain.environment import HASH_SEED, Environment
from tuner.engine.code_digest import code_digest

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
    """Return the environment of a process that trains `entry`, a `module:attribute`, with these variables.

    Args:
        entry: The trainable. Its module is not imported.
        roots: Directories in which trainables are looked for, see `code_digest`.
        environ: The variables of the process.
    """
    threads = environ.get(THREADS, "")
    return Environment(
        threads=int(threads) if threads.isdecimal() else None,
        versions=_versions(entry.partition(":")[0].partition(".")[0]),
        variables=relevant(environ),
        code=code_digest(entry, roots),
    )


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that can change the result of a training, sorted by name."""
    kept = {name for name in environ if name.startswith(PREFIXES) or name in NAMES}
    return {name: environ[name] for name in sorted(kept - {THREADS})}


def _versions(package: str) -> dict[str, str]:
    found = {"python": platform.python_version()}
    own = _distribution_of(package)
    for name in (*DISTRIBUTIONS, *([own] if own else [])):
        version = _version(name)
        if version is not None:
            found[name] = version
    return found


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _distribution_of(package: str) -> str | None:
    """Return the distribution that a top-level package was installed with. A module in a plain folder has none."""
    if _version(package) is not None:  # most distributions have the name of their package
        return package
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or "site-packages" not in Path(spec.origin or "").parts:
        return None
    return next(iter(metadata.packages_distributions().get(package, ())), None)
