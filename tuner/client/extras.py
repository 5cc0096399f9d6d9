"""Import optional dependencies, such as pandas and matplotlib, which only notebooks need."""

import importlib
from typing import Any


def load(module: str, what_for: str) -> Any:
    """Import a module. If a dependency is missing, raise an ImportError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        text = f"{what_for} needs {missing}, which is not installed: pip install 'tuner[notebook]'"
        raise ImportError(text, name=missing) from error
