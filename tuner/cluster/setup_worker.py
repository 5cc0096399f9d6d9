"""Start a worker of Ray with the variables of its runtime environment, without importing Ray twice.

The raylet runs this program in place of Ray's own `setup_worker.py`. Ray's program imports all of Ray, which takes half
a second of processor time, and then runs the worker, which imports Ray again. A job starts two workers, so this module
saves each job a second. `start_hook` passes the path of this file to Ray as `setup_worker_path`. The raylet treats a
program as a setup program only if its file is called `setup_worker.py`, so this file must keep its name. If a runtime environment
needs more than this program can apply, Ray's own program is run.
"""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

CONTEXT = "--serialized-runtime-env-context="
LANGUAGE = "--language="
#: The fields of Ray's `RuntimeEnvContext` that this program applies.
APPLIED = ("env_vars", "py_executable")


def main(arguments: list[str]) -> None:
    """Set the environment variables of the worker's runtime environment, and replace this process by the worker.

    `arguments` are the worker's program and options, and the two options that the raylet adds for this program.
    """
    context: dict[str, Any] = next(
        (json.loads(a[len(CONTEXT) :]) for a in arguments if a.startswith(CONTEXT)), {}
    )
    needs_more = any(value for name, value in context.items() if name not in APPLIED)
    if needs_more or f"{LANGUAGE}PYTHON" not in arguments:
        ray = importlib.util.find_spec("ray")  # unlike `import ray`, this does not import Ray
        assert ray is not None
        assert ray.origin is not None
        program = Path(ray.origin).parent / "_private" / "workers" / "setup_worker.py"
        os.execv(sys.executable, [sys.executable, str(program), *arguments])
    for name, value in (context.get("env_vars") or {}).items():
        # As in Ray's program, `${NAME}` is replaced by the variable's value, or by nothing if the variable is not set.
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    python = context.get("py_executable") or sys.executable
    os.execvp(python, [python, *(a for a in arguments if not a.startswith((CONTEXT, LANGUAGE)))])


if __name__ == "__main__":
    main(sys.argv[1:])
