"""`python -m tuner.engine.worker.probe MODULE:NAME`: imports a trainable as a worker would, and prints what it is, as JSON."""

import contextlib
import importlib
import inspect
import io
import json
import os
import sys
from typing import Any

from tuner.engine.worker.child import load

MAX_TEXT = 4000


def describe(entry: str) -> dict[str, Any]:
    """Never raises: what is wrong is told as `error`."""
    try:
        found = load(entry)
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"[:MAX_TEXT]}
    module = importlib.import_module(entry.partition(":")[0])
    return {
        "error": None,
        "doc": (inspect.getdoc(found) or inspect.getdoc(module) or "")[:MAX_TEXT],
        "search_space": _plain(getattr(module, "SEARCH_SPACE", None)),
        "objective": _plain(getattr(module, "OBJECTIVE", None)),
    }


def _plain(value: Any) -> Any:
    """A mapping that JSON can carry, else None."""
    try:
        return json.loads(json.dumps(value)) if isinstance(value, dict) else None
    except (TypeError, ValueError):
        return None


def main() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        found = describe(sys.argv[1])
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # before what the module wants done at the end, which may print


if __name__ == "__main__":
    main()
