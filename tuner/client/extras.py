"""What notebooks have and the client does not need: imported when it is asked for."""

import importlib
from typing import Any


def load(module: str, what_for: str) -> Any:
    """The module; where it is missing, an ImportError that says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        told = f"{what_for} needs {missing}, which is not installed: pip install 'tuner[notebook]'"
        raise ImportError(told, name=missing) from error
