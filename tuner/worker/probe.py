"""Import a trainable as a worker would, and print a description of it as JSON: `python -m tuner.worker.probe REQUEST`.

User code runs in a child of this process. This process limits the child's time, processes and memory and how much of its output is
kept. When the child ends, everything that it started is killed.
"""

import gc
import importlib
import inspect
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tuner.domain.space import SpaceRefused
from tuner.domain.units import GIB
from tuner.training.channel import message_at_import
from tuner.worker.child import import_first_from, import_fix, load
from tuner.worker.limits import MAX_LEVELS, ProbeRequest, excess, give_up_privileges
from tuner.worker.process_tree import (
    KILL_S,
    become_child,
    become_subreaper,
    kill_own_descendants,
    signal_at_parents_death,
)

MAX_TEXT = 4000
MAX_SUGGESTED = 1 << 18
MAX_ANSWER = 1 << 20
LOOK_S = 0.1
FIX_LOADING = "load data in a function that is decorated with `prepare` of tuner.training, not at the module's top level"


def describe(entry: str, package: str = "", kind: str = "", limit_s: float = 30.0) -> dict[str, Any]:
    """Return a description of the trainable. If it cannot be used, `error` says why. Never raises.

    `import_ns` is the processor time of the import in nanoseconds. A trial on a new worker takes at least as long before its first step.

    Args:
        entry: The trainable, `module:attribute`.
        package: The folder that the trainable comes from, or empty.
        kind: `optuna` to run the objective and record its search space.
        limit_s: Seconds for all runs of the objective.
    """
    began = time.process_time_ns()
    try:
        target = load(entry, package)
    except ModuleNotFoundError as error:
        fix = import_fix(error, entry)
        return {"error": f"{type(error).__name__}: {error}. {fix}"[:MAX_TEXT]}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {message_at_import(error)}"[:MAX_TEXT]}
    module = importlib.import_module(entry.partition(":")[0])
    import_ns = time.process_time_ns() - began
    if kind == "optuna":
        return {
            "import_ns": import_ns,
            "doc": (inspect.getdoc(target) or "")[:MAX_TEXT],
            **_recorded(target, limit_s),
        }
    return {
        "error": _takes_no_config(entry, target),
        "import_ns": import_ns,
        "doc": (inspect.getdoc(target) or inspect.getdoc(module) or "")[:MAX_TEXT],
        "search_space": _plain(getattr(module, "SEARCH_SPACE", None)),
        "objective": _plain(getattr(module, "OBJECTIVE", None)),
        "trains_in_batches": _is_packed(target),
    }


def _recorded(objective: Any, limit_s: float) -> dict[str, Any]:
    """Return the search space of an objective as the field `search_space`, or `code` and `error` if it cannot be recorded."""
    from tuner.worker.objective_space import (  # imports Optuna, so only when needed
        recorded_space,
        space_fields,
    )

    try:
        return {"search_space": space_fields(recorded_space(objective, limit_s=limit_s))}
    except SpaceRefused as refusal:
        return {"code": refusal.code, "error": str(refusal)[:MAX_TEXT]}


def _takes_no_config(entry: str, target: Any) -> str | None:
    """Return why a function cannot be called with a configuration, or None if it can."""
    if inspect.isclass(target):
        return None
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None
    try:
        signature.bind({})
    except TypeError:
        name = entry.partition(":")[2]
        return f"{name}{signature} cannot be called with one configuration; write it as def {name}(config)"
    return None


def _is_packed(target: Any) -> bool:
    """Return whether a trainable is an instance of `tuner.training.Packed`, which trains several trials as one batch.

    Nothing is imported for this, because the module of that class imports PyTorch. If it was not imported, no instance can exist.
    """
    packed = getattr(sys.modules.get("tuner.training.packed"), "Packed", None)
    return inspect.isclass(packed) and isinstance(target, packed)


def _plain(value: Any) -> Any:
    """Return a dictionary as plain JSON values.

    Return None if it is not a dictionary, not JSON, above `MAX_SUGGESTED` characters, or nested deeper than `MAX_LEVELS`.
    """
    try:
        text = json.dumps(value) if isinstance(value, dict) else "null"
        plain = json.loads(text) if len(text) <= MAX_SUGGESTED else None
    except (TypeError, ValueError, RecursionError):
        return None
    return None if _is_too_deep(plain) else plain


def _is_too_deep(value: Any, level: int = 1) -> bool:
    """Return whether a JSON value is nested deeper than `MAX_LEVELS`. A deep value could exceed the recursion limit of the service."""
    if level > MAX_LEVELS:
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_is_too_deep(item, level + 1) for item in inner)


def _import(request: ProbeRequest, answer: int, output: int) -> NoReturn:
    """Import the trainable in the child, write its description to `answer`, and exit without running exit handlers."""
    become_child(output)
    import_first_from(request.package)
    gc.disable()  # saves a tenth of the processor time of the imports
    with os.fdopen(answer, "wb") as file:
        limit_s = request.limit_s / 2  # leaves time for the import
        description = describe(request.entry, request.package, request.kind, limit_s)
        file.write(json.dumps(description).encode())
    os._exit(0)


@dataclass
class ImportWatch:
    """Waits for the child of a probe, and collects its answer and its output."""

    answer: bytearray = field(default_factory=bytearray)
    printed: bytearray = field(default_factory=bytearray)  # the end of what the child printed
    closed: list[int] = field(default_factory=list)  # pipes that are no longer read
    failure: str | None = None  # which limit the child exceeded; None if none

    def follow(self, pid: int, request: ProbeRequest, answer: int, output: int) -> int | None:
        """Wait for the child and return its exit status, or None if it exceeded a limit. The caller must then kill it."""
        until, looked = time.monotonic() + request.limit_s, time.monotonic()
        while self.failure is None:
            self._receive(answer, output)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                # kill what the child started: its processes would hold the pipes open, and the loop below would wait for them
                kill_own_descendants()
                while len(self.closed) < 2 and time.monotonic() < until + KILL_S:
                    self._receive(answer, output)
                return os.waitstatus_to_exitcode(status)
            now = time.monotonic()
            if now > until:
                self.failure = (
                    f"importing the trainable takes more than {request.limit_s:.0f} s; {FIX_LOADING}"
                )
            elif now - looked > LOOK_S:
                looked = now
                self.failure = _beyond(request)
        return None

    def _receive(self, answer: int, output: int) -> None:
        """Read once from each pipe that has data, so that a child that prints endlessly does not block this process."""
        ready, _, _ = select.select({answer, output}.difference(self.closed), [], [], LOOK_S / 2)
        for pipe in ready:
            data = os.read(pipe, 1 << 16)
            if not data or len(self.answer) > MAX_ANSWER:
                self.closed.append(pipe)
            elif pipe == answer:
                self.answer += data
            else:
                self.printed = (self.printed + data)[-MAX_TEXT:]

    def last_line(self) -> str:
        lines = self.printed.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "the process printed nothing"


def _beyond(request: ProbeRequest) -> str | None:
    match excess(os.getpid(), processes=request.processes, memory_bytes=request.memory_bytes):
        case "memory", _:
            share = f"{request.memory_bytes / GIB:.1f} GiB (TUNER_IMPORT_MEMORY_GIB)"
            return f"importing the trainable takes more memory than {share}; {FIX_LOADING}"
        case _, words:
            return f"importing the trainable failed, because its process {words}"
        case _:
            return None


def answered(request: ProbeRequest) -> dict[str, Any]:
    """Describe the trainable of a request in a child, and return the description, or an `error` if the child failed.

    All processes that the child started are killed.
    """
    answer, answers = os.pipe()
    output, outputs = os.pipe()
    pid = os.fork()
    if pid == 0:
        _import(request, answers, outputs)
    os.close(answers)
    os.close(outputs)
    watch = ImportWatch()
    status = watch.follow(pid, request, answer, output)
    kill_own_descendants()
    if watch.failure is not None:
        return {"error": watch.failure}
    try:
        return dict(json.loads(watch.answer))
    except (TypeError, ValueError, RecursionError):  # user code may have written the answer
        error = f"importing the trainable ended the process with status {status}: {watch.last_line()}"
        return {"error": error[: MAX_TEXT // 2]}


def main() -> None:
    signal_at_parents_death(signal.SIGKILL)
    become_subreaper()
    give_up_privileges()
    # The argument is removed, so that user code that parses its command line gets no arguments.
    request = ProbeRequest(*json.loads(sys.argv.pop()))
    sys.stdout.write(json.dumps(answered(request)) + "\n")


if __name__ == "__main__":
    main()
