"""Describe a trainable by importing it in a process of its own, because the import runs user code."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any, Protocol

from tuner.domain.errors import Fault, Invalid, Unavailable
from tuner.domain.job import entry_faults
from tuner.domain.text import storable
from tuner.domain.usage import count_of
from tuner.service.cluster import import_path
from tuner.worker import program
from tuner.worker.limits import MAX_LEVELS, ProbeRequest, UserCodeLimits
from tuner.worker.scratch import Scratch

PROBE_TIMEOUT_S = 60.0
CLEARS_S = 20.0  # time limit for a probe to end the processes that the trainable started
# How long a request waits until another probe has ended. It must not wait longer, because it occupies a thread of the service.
ROOM_S = 5.0
AT_ONCE = 4  # maximum number of probes at the same time, because each is a process that may import PyTorch
# Maximum number of requests that wait for probes of other requests. Together with those that probe they occupy half of the 40 threads that
# answer requests. The wait has no shorter limit than the probe, because clients do not repeat a request for as long as an import may take.
WAITING = 16
MAX_CHARACTERS = 4000  # of each text of a description


@dataclass(frozen=True)
class Described:
    """The description of a trainable, or the reason why it cannot be tuned."""

    trainable: str
    doc: str = ""
    search_space: Mapping[str, Any] | None = None  #: Suggested by the trainable's author.
    objective: Mapping[str, Any] | None = None  #: Suggested by the trainable's author.
    error: str | None = None  #: Why it cannot be tuned; None if it can.
    #: Error code of the reason why the search space of an objective cannot be recorded; None if it can be recorded.
    code: str | None = None
    import_ns: int = 0  #: CPU time of the import; 0 if not known.
    trains_in_batches: bool = False  #: Whether it is an instance of `tuner.training.Packed`, which trains several trials as one batch.

    @classmethod
    def parse(cls, trainable: str, plain: Mapping[str, Any]) -> "Described":
        """Build the description from the answer of a process that runs user code. Values that no answer of the service can have are dropped."""
        texts = {name: plain.get(name) for name in ("doc", "error", "code")}
        texts = {
            name: storable(text, MAX_CHARACTERS) if isinstance(text, str) else None
            for name, text in texts.items()
        }
        return cls(
            trainable,
            texts["doc"] or "",
            _suggestion(plain.get("search_space")),
            _suggestion(plain.get("objective")),
            texts["error"],
            texts["code"],
            count_of(plain.get("import_ns")) or 0,
            plain.get("trains_in_batches") is True,
        )


def _suggestion(value: object) -> Mapping[str, Any] | None:
    """Return a JSON object in which all texts are storable. Return None for any other value."""
    try:
        return _storable_json(value) if isinstance(value, dict) else None
    except ValueError:
        return None


def _storable_json(value: Any, level: int = 1) -> Any:
    """Return a JSON value with storable texts. Raise ValueError if it has a number that is not finite, or is nested too deep."""
    if level > MAX_LEVELS or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("cannot be part of an answer")
    match value:
        case str():
            return storable(value)
        case list():
            return [_storable_json(item, level + 1) for item in value]
        case dict():
            return {storable(name): _storable_json(item, level + 1) for name, item in value.items()}
        case _:
            return value


class Prober(Protocol):
    def describe(self, entry: str, package: Path | None = None, *, kind: str = "") -> Described:
        """Describe a trainable. If it cannot be tuned, the returned `error` says why, and no exception is raised.

        Args:
            entry: The trainable, as `module:attribute`.
            package: Folder of the package that contains the trainable. None means a module of this machine.
            kind: `optuna` to run the objective and record its search space.

        Raises:
            Unavailable: Too many other trainables are being described, or too many callers wait for descriptions.
        """


@dataclass
class SubprocessProber:
    """Describe trainables in subprocesses. Thread-safe.

    The description of a module is kept until its file changes. Failures are not kept. Descriptions from packages are kept indefinitely,
    because the name of a package's folder is its digest. If two callers ask for the same trainable at the same time, it is imported once.
    """

    limits: UserCodeLimits = field(default_factory=UserCodeLimits)
    _looks: dict[Hashable, "Future[Described]"] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _room: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(AT_ONCE))
    _waiting: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(WAITING))

    def describe(self, entry: str, package: Path | None = None, *, kind: str = "") -> Described:
        digest = None if package is None else package.name
        at = digest or _place(entry)
        key, mine = (entry, digest, kind, at), Future[Described]()
        with self._lock:
            look = self._looks.setdefault(key, mine)
        if look is not mine:
            return look.result() if look.done() else self._awaited(look)
        try:
            if not self._room.acquire(timeout=ROOM_S):
                raise Unavailable(f"{AT_ONCE} other trainables are being imported; try again in a minute")
            try:
                mine.set_result(_probe(entry, self.limits, package, kind))
            finally:
                self._room.release()
        except BaseException as error:
            mine.set_exception(error)
        if at is None or mine.exception() or mine.result().error:
            with self._lock:
                del self._looks[key]
        return mine.result()

    def _awaited(self, look: "Future[Described]") -> Described:
        """Wait until another caller has described the trainable."""
        if not self._waiting.acquire(blocking=False):
            raise Unavailable(
                f"{WAITING} other requests wait for imports of trainables; try again in a minute"
            )
        try:
            return look.result()
        finally:
            self._waiting.release()


def _place(entry: str) -> Hashable | None:
    """Return the path, time of change and size of the module file of a trainable, by which changes are noticed. Return None without such a file."""
    file = source_of(entry.partition(":")[0])
    if file is None:
        return None
    facts = file.stat()
    return (file, facts.st_mtime_ns, facts.st_size)


def _probe(entry: str, limits: UserCodeLimits, package: Path | None, kind: str) -> Described:
    """Run a probe, which imports a trainable and may run an objective, in a process and a temporary directory of its own.

    The probe enforces the limits on the import, and ends all processes that it started.
    """
    bounds = (PROBE_TIMEOUT_S, limits.processes, limits.import_bytes)
    question = ProbeRequest(entry, *bounds, package="" if package is None else str(package), kind=kind)
    scratch = Scratch("probe")
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner.worker.probe", question.text()],
        env={
            **limits.environment(os.environ, import_path()),
            "TMPDIR": str(scratch.path),
            "CUDA_VISIBLE_DEVICES": "",  # the GPUs of the service's machine belong to jobs that pay for them
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    limits.hold(process.pid)
    try:
        output, errors = process.communicate(timeout=PROBE_TIMEOUT_S + CLEARS_S)
        return Described.parse(entry, dict(json.loads(output)))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Described(entry, error=f"importing it takes more than {PROBE_TIMEOUT_S:.0f} s")
    except (ValueError, TypeError, RecursionError):  # user code may have written the answer
        tail = (errors.strip() or "it printed nothing").splitlines()[-1]
        return Described(
            entry, error=f"importing it ended the process with status {process.returncode}: {tail}"[:2000]
        )
    finally:
        scratch.close()


def source_of(module: str) -> Path | None:
    """Return the file of a module without importing anything, or None if it is not a plain file on the import path."""
    parts = module.split(".")
    for root in [*import_path(), *sys.path]:
        base = Path(root or ".", *parts)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None


def is_allowed(entry: str, allowed: Sequence[str]) -> bool:
    module = entry.partition(":")[0]
    return any(prefix == "*" or module == prefix or module.startswith(f"{prefix}.") for prefix in allowed)


def module_faults(entry: str, allowed: Sequence[str]) -> list[Fault]:
    """Return a fault if the module of the trainable `entry` is not allowed by `TUNER_ALLOWED_MODULES`."""
    if is_allowed(entry, allowed):
        return []
    detail = f"only modules from {', '.join(allowed)} may be tuned here; the operator can allow others with TUNER_ALLOWED_MODULES"
    return [Fault("/trainable", detail)]


def command_faults(command: str, roots: Sequence[str], *, where: str) -> list[Fault]:
    """Return a fault if the program or the script of a command does not exist.

    Args:
        command: The command, whose syntax has been checked.
        roots: The directories with the user's files.
        where: How the error message names these directories.
    """
    detail = program.fault(command, roots, where)
    return [] if detail is None else [Fault("/command", detail)]


def recorded_space(objective: Callable[[Any], Any]) -> dict[str, Any]:
    """Run an Optuna objective in this process, and return its search space in the form of a job file.

    Raises:
        SpaceRefused: The search space cannot be recorded.
    """
    from tuner.worker import objective_space  # imports Optuna, so only when needed

    return objective_space.space_fields(objective_space.recorded_space(objective))


def described(prober: Prober, entry: str, allowed: Sequence[str], kind: str = "") -> Described:
    """Import a trainable, and describe it. If `kind` is `optuna`, run the objective and record its search space.

    Raises:
        Invalid: `entry` is not written as `module:function`, or its module is not allowed here.
    """
    if faults := entry_faults(entry) or module_faults(entry, allowed):
        raise Invalid(*faults)
    return prober.describe(entry, kind=kind)
