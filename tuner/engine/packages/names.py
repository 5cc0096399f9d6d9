"""Names of modules that a package may not have, since something else is meant by them here."""

import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tuner.domain.errors import BadFile

OURS = frozenset({"tuner", "trainables", "ray", "torch"})
INSTALLED = ("site-packages", "dist-packages")
METADATA = (".dist-info", ".egg-info")


def check_tops(names: Iterable[str]) -> None:
    """Raises BadFile where a module at the top of a package, or what it says to be installed, stands before one of Python's own, of
    the service's or of an installed package."""
    standard = {name.casefold() for name in sys.stdlib_module_names}
    # Of files beside those folders, only what is Python can be imported.
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
    """Names of installed packages, and of their modules."""
    folders = [Path(root) for root in sys.path if Path(root).name in INSTALLED]
    return frozenset(_module(path.name) for folder in folders if folder.is_dir() for path in folder.iterdir())


def _module(name: str) -> str:
    """That a file or folder is found by: `a` of `a.py`, `a.cpython-311-x86_64-linux-gnu.so` and `a-1.0.dist-info`."""
    if name.endswith(METADATA):
        return name.partition("-")[0].replace(".", "_").casefold()
    return name.partition(".")[0].casefold()
