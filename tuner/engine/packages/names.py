"""Names of modules that a package may not use, because they would hide other modules."""

import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tuner.domain.errors import BadFile

OURS = frozenset({"tuner", "trainables", "ray", "torch"})
INSTALLED = ("site-packages", "dist-packages")
METADATA = (".dist-info", ".egg-info")


def check_tops(names: Iterable[str]) -> None:
    """Raise BadFile if a top-level module or the metadata of a package hides another module.

    Names of Python's standard library, of the service and of installed packages are refused.

    Args:
        names: The names of the files in the package.
    """
    standard = {name.casefold() for name in sys.stdlib_module_names}
    # Of the files at the top level, only Python files can be imported.
    tops = {name.partition("/")[0] for name in names if "/" in name or name.endswith(".py")}
    for name in sorted(tops):
        top = _module(name)
        whose = (
            "Python's own"
            if top in standard
            else "the service's own"
            if top in OURS
            else "that of an installed package"
            if top in installed()
            else None
        )
        if whose is not None:
            raise BadFile(f"{name!r} is a name of {whose} module, which it would stand before: rename it")


@cache
def installed() -> frozenset[str]:
    """Return the names of installed distributions and of their top-level modules, in lower case."""
    folders = [Path(root) for root in sys.path if Path(root).name in INSTALLED]
    return frozenset(_module(path.name) for folder in folders if folder.is_dir() for path in folder.iterdir())


def _module(name: str) -> str:
    """Return the module name of a file or folder: `a` for `a.py`, `a.cpython-311-x86_64-linux-gnu.so` and `a-1.0.dist-info`."""
    if name.endswith(METADATA):
        return name.partition("-")[0].replace(".", "_").casefold()
    return name.partition(".")[0].casefold()
