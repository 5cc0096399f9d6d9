"""Run a program as a trial, in a process of its own under the attempt's child.

The program appends a line of JSON to a file after each step, or prints a line that a regular expression matches. While the service
decides about a step, the program and all processes that it started are stopped with SIGSTOP. So the program trains no step before the
service has replied, and its checkpoint directory does not change while it is copied. The processes stay in the child's process group
and are its descendants, so they end with the attempt.
"""

import contextlib
import errno
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.domain.command import arguments, placeholders, words_of
from tuner.domain.environment import INSTALLED
from tuner.training.artifacts import ArtifactFolder, ArtifactLimits, ArtifactRefused, stage
from tuner.training.channel import Channel, Reply, StopTraining, current, scalars
from tuner.training.datasets import VARIABLES as DATASET_VARIABLES
from tuner.worker.limits import is_own
from tuner.worker.process_tree import (
    become_subreaper,
    collect_ended,
    descendants,
    kill_own_descendants,
    signal_name,
)
from tuner.worker.tune_compat import KeptCheckpoint

POLL_S = 0.005
# A program that reports within this time after it was continued may already be writing its next checkpoint when it is stopped. The times of
# its files would not show this, because the kernel rounds them to its clock tick of 1 to 10 ms.
SHORTEST_SAVED_S = 0.01
REAP_S = 1.0  # how often ended orphans are collected; otherwise they would count as processes of the attempt
GRACE_S = 0.5  # from SIGTERM to SIGKILL; shorter than the supervisor's wait for the child
TAIL_BYTES = 2000
MAX_LINE_BYTES = 1 << 16
MAX_READS = 16  # reads of 64 KiB at a time; limited so that a program that prints all the time cannot delay its metrics
PACKAGE_VARIABLE = "TUNER_PACKAGE_DIR"
SCRIPTS = (".py", ".sh", ".r", ".jl", ".pl", ".rb", ".js", ".lua")
# Finds an absolute path in a program's error message. The advice about the program's empty directory does not apply to such a path.
ABSOLUTE = re.compile(r"(^|[\s'\"])/")
NO_FILE = os.strerror(errno.ENOENT)
EMPTY_DIRECTORY = "A program runs in an empty directory of its own: use absolute paths for its data"


class ProgramFailed(Exception):
    """The program could not be started, ended with an error, or reported something that cannot be recorded."""

    def __init__(self, message: str, *, output: str = "") -> None:
        super().__init__(message)
        self.output = output  #: The end of what the program printed.


def run(config: Mapping[str, Any]) -> None:
    """Run the program of a job until it ends, or until the service ends the attempt.

    Args:
        config: The `command`; `metrics_pattern`, a regular expression for lines of its output, or None if it writes metrics to a file;
            `steps`, the number of steps, or None; and `values`, the values of the trial's parameters and the job's constants.
    """
    channel = current()
    assert channel is not None
    become_subreaper()  # so that processes of the program that lose their parent remain descendants of this one
    if channel.begin.variables:
        place = Path(
            tempfile.gettempdir(), "program"
        )  # all ranks on a node use this directory, with the checkpoint in it
        place.mkdir(exist_ok=True)
    else:
        place = Path(tempfile.mkdtemp(prefix="program-"))
    try:
        Program(channel, config, place).run()
    finally:
        kill_own_descendants()
        if not channel.begin.variables:
            shutil.rmtree(place, ignore_errors=True)


class Program:
    """One run of a program, with its metrics and checkpoints."""

    def __init__(self, channel: Channel, config: Mapping[str, Any], place: Path) -> None:
        self._channel, self._config = channel, config
        self._is_first_rank = channel.begin.rank == 0
        self._checkpoint, self._metrics = place / "checkpoint", place / f"metrics-{channel.begin.rank}.jsonl"
        self._artifacts_dir = place / "artifacts"
        self._artifacts_dir.mkdir(exist_ok=True)
        self._artifacts = ArtifactFolder(self._artifacts_dir)
        self._artifact_limits = ArtifactLimits(channel.begin.artifact_room)
        self._first_step = self._step = channel.begin.first_step
        self._kept = KeptCheckpoint(channel)
        self._tail, self._line = bytearray(), bytearray()
        self._printed: list[bytes] = []  # complete lines of the output that were not searched yet
        # how many bytes of the metrics file were read, and the last line of them
        self._read_bytes, self._last_line = 0, b""
        # whether the checkpoint of the last reported step must be saved when the program ends
        self._unsaved = False
        pattern = config["metrics_pattern"]
        self._pattern = re.compile(pattern) if pattern is not None else None
        values_file = place / "config.json"
        self._metrics.touch()
        self._metrics_inode = self._metrics.stat().st_ino
        if channel.begin.rank_on_node == 0:
            self._restore()
            unfinished = place / "config.json.unfinished"
            unfinished.write_text(json.dumps(config["values"]))
            unfinished.rename(values_file)
        while not values_file.exists():  # the first rank of the node has not restored the checkpoint yet
            time.sleep(POLL_S)
        self._process = self._started(values_file)
        self._continued_at = time.monotonic()  # when the program was started, or continued after a report
        self._collected_at = self._continued_at  # when ended orphans were collected

    def _restore(self) -> None:
        begin = self._channel.begin
        if begin.restore:
            self._channel.phase("restore")
            shutil.copytree(begin.restore, self._checkpoint)
            if begin.echo:
                self._kept.copy(self._step, self._checkpoint, Reply(stop=False, save=True))
        self._checkpoint.mkdir(exist_ok=True)
        self._channel.phase("train")

    def _started(self, values_file: Path) -> "subprocess.Popen[bytes]":
        begin, steps = self._channel.begin, self._config["steps"]
        package = os.environ.get(PACKAGE_VARIABLE, "")
        words = located_words(words_of(self._config["command"]), [package] if package else own_roots())
        given = {"seed": begin.seed or 0, **({} if steps is None else {"steps": steps})}
        command = list(arguments(words, {**given, **self._config["values"]}))
        environment = {
            # Leave out the service's own variables, which `tuner train` may have from the user's shell.
            **{
                name: value
                for name, value in os.environ.items()
                if not is_own(name) or name in DATASET_VARIABLES
            },
            "RAY_USAGE_STATS_ENABLED": "0",
            # Leave out the directories of this Python. The program may run with another version, which could not use them.
            "PYTHONPATH": os.pathsep.join(own_roots()),
            "PATH": search_path(os.environ.get("PATH", os.defpath)),
            "TUNER_METRICS": str(self._metrics),
            "TUNER_CHECKPOINT_DIR": str(self._checkpoint),
            "TUNER_ARTIFACTS_DIR": str(self._artifacts_dir),
            "TUNER_CONFIG": str(values_file),
            "TUNER_STEP": str(self._step),
            "TUNER_STEPS": "" if steps is None else str(steps),
            "TUNER_SEED": str(given["seed"]),
            "TUNER_TEACHER_DIR": begin.teacher["path"] if begin.teacher else "",
        }
        program = shutil.which(command[0], path=environment["PATH"]) or command[0]
        try:
            return subprocess.Popen(
                [program, *command[1:]],
                env=environment,
                cwd=package or None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except PermissionError as error:
            raise ProgramFailed(
                f"{program} is not executable; run it with its interpreter, for example: bash {command[0]}"
            ) from error
        except (OSError, ValueError) as error:
            raise ProgramFailed(f"{program} cannot be started: {error}") from error

    def run(self) -> None:
        """Report the program's steps until it ends.

        Raises:
            StopTraining: The service ended the attempt. The program has been sent SIGTERM.
            ProgramFailed: The program failed.
        """
        try:
            ended = False
            while not ended:
                # Check for the end before reading, so that everything that the program wrote before it ended is read.
                ended = self._process.poll() is not None
                self._take_output(0 if ended else POLL_S)
                self._report_new(last=ended)
                if time.monotonic() - self._collected_at >= REAP_S:
                    self._collect_orphans()
        except BaseException:
            self._end()
            raise
        self._check_end()
        self._kept.flush()
        if self._unsaved and self._step != self._channel.begin.max_step and self._has_checkpoint():
            self._kept.copy(self._step, self._checkpoint, Reply(stop=True, save=True))

    def _check_end(self) -> None:
        code = self._process.returncode
        output = self._tail.decode(errors="replace").strip()
        last = output.splitlines()[-1] if output else ""
        printed = f"; it printed last: {last}" if last else "; it printed nothing"
        if NO_FILE in last and not ABSOLUTE.search(last) and not os.environ.get(PACKAGE_VARIABLE):
            printed += f". {EMPTY_DIRECTORY}"
        if code:
            how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit status {code}"
            raise ProgramFailed(f"the program {how}{printed}", output=output)
        if self._step == 0 and self._is_first_rank:
            where = "append lines of JSON to the file that TUNER_METRICS names, or set metrics_pattern"
            if self._pattern is not None:
                where = f"no line of its output matches {self._pattern.pattern}"
            raise ProgramFailed(f"the program ended without a metric: {where}{printed}", output=output)

    # Metrics

    def _take_output(self, wait_s: float) -> None:
        """Copy the program's output to this process's output. If it has printed nothing new, wait up to `wait_s` seconds for output."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        for _ in range(MAX_READS):
            if not select.select([output], [], [], wait_s)[0]:
                return
            data = os.read(output, 1 << 16)
            if not data:
                time.sleep(
                    wait_s
                )  # the program closed its output, but may still run, so do not check again at once
                return
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
            self._tail += data
            del self._tail[:-TAIL_BYTES]
            if self._pattern is not None:
                *lines, rest = re.split(rb"[\r\n]+", bytes(self._line) + data)
                self._printed += lines
                self._line = bytearray(rest[-MAX_LINE_BYTES:])
            wait_s = 0

    def _report_new(self, *, last: bool) -> None:
        """Report the steps that the program has finished since the last call. Stop the program with SIGSTOP meanwhile.

        `last` says whether the program has ended, so that its last line counts even if the line is not complete. Do nothing on ranks
        other than 0. Their programs continue until they wait for the program of rank 0.
        """
        if not self._is_first_rank:
            return
        steps = self._new_steps(last=last)
        if not steps:
            return
        ran_s = time.monotonic() - self._continued_at
        self._stop()
        self._take_output(0)
        steps += self._new_steps(last=last)
        self._collect_orphans()
        # If the program has finished several steps, no checkpoint is saved: its directory has the state of an unknown step.
        saves = len(steps) == 1 and (last or ran_s >= SHORTEST_SAVED_S) and self._has_checkpoint()
        for metrics in steps:
            self._report(metrics, saves=saves)
        _signal_all(signal.SIGCONT, reversed(descendants(os.getpid())))
        self._continued_at = time.monotonic()

    def _new_steps(self, *, last: bool) -> list[dict[str, Any]]:
        if self._pattern is not None:
            lines, self._printed = self._printed, []
            if last and self._line:
                lines, self._line = [*lines, bytes(self._line)], bytearray()
            matches = (self._pattern.search(line.decode(errors="replace")) for line in lines)
            return [_of_groups(match.groupdict()) for match in matches if match is not None]
        data = self._new_metrics()
        lines = data[: len(data) if last else data.rfind(b"\n") + 1].splitlines(keepends=True)
        if lines:
            self._read_bytes += sum(map(len, lines))
            self._last_line = lines[-1]
        return [_of_json(line.strip()) for line in lines if line.strip()]

    def _new_metrics(self) -> bytes:
        """Return what the program has appended to its metrics file after the lines that were already read.

        Raises:
            ProgramFailed: The program removed, replaced or shortened the file, or changed lines that were read, so steps may be lost.
        """
        try:
            with self._metrics.open("rb") as file:
                is_same_file = os.fstat(file.fileno()).st_ino == self._metrics_inode
                file.seek(self._read_bytes - len(self._last_line))
                data = file.read()
        except OSError:
            is_same_file = False
        if not is_same_file:
            raise ProgramFailed("the program removed its metrics file; only append to it")
        # Compare the last line again. It differs if the program has rewritten the file from the start, even at the old length.
        if not data.startswith(self._last_line):
            raise ProgramFailed(
                "the program shortened its metrics file; open it for appending (mode 'a')",
            )
        return data[len(self._last_line) :]

    def _report(self, metrics: dict[str, Any], *, saves: bool) -> None:
        if not self._is_new(metrics.pop("step", None)):
            return
        self._step += 1
        self._unsaved = False
        artifacts = self._staged_artifacts()
        reply = self._channel.report(self._step, scalars(metrics), resumable=saves, artifacts=artifacts)
        if reply.flush:
            self._kept.flush()
        if reply.save or reply.keep:
            self._kept.copy(self._step, self._checkpoint, reply)
        if reply.stop:
            raise StopTraining(0)
        self._unsaved = saves and not reply.save

    def _staged_artifacts(self) -> list[str]:
        """Copy the program's new and changed artifacts to the staging directory for the supervisor, and return their names."""
        changed = self._artifacts.changed()
        if changed:
            try:
                files = self._artifact_limits.read(changed)
            except ArtifactRefused as refused:
                raise ProgramFailed(f"a file in TUNER_ARTIFACTS_DIR cannot be stored: {refused}") from refused
            stage(Path(self._channel.begin.staging), self._step, files)
        return list(changed)

    def _is_new(self, step: Any) -> bool:
        """Return whether a report is of a new step. `step` is the step number in the report, or None if it has none.

        A program that continues from a checkpoint older than its last step trains some steps again. Their reports are ignored.

        Raises:
            ProgramFailed: The number is neither that of the next step nor that of a repeated step.
        """
        expected = self._step + 1
        if step is None or step == expected:
            return True
        if isinstance(step, int | float) and 0 < step <= self._first_step and self._step == self._first_step:
            return False
        raise ProgramFailed(
            f"the program reported step {step!r} where step {expected} was expected; write one line for each step, with all its metrics, "
            "and number the steps 1, 2, 3 and so on, or leave the step number out"
        )

    def _has_checkpoint(self) -> bool:
        """Return whether the directory holds a checkpoint that the program has not changed since its last report.

        Call it while the processes are stopped. If the program prints its metrics instead of writing them to a file, the time of its last
        report is not known. Only a file that is still open for writing then counts as a change.
        """
        files = list(self._checkpoint.rglob("*"))
        if not files or any(
            _writes_below(pid, self._checkpoint.resolve()) for pid in descendants(os.getpid())
        ):
            return False
        if self._pattern is not None:
            return True
        reported_ns = self._metrics.stat().st_mtime_ns
        with contextlib.suppress(FileNotFoundError):
            return all(path.lstat().st_mtime_ns <= reported_ns for path in (self._checkpoint, *files))
        return False

    # Processes

    def _stop(self) -> None:
        """Send SIGSTOP to the program and all processes that it started, including those that it starts meanwhile."""
        stopped = set[int]()
        while new := [pid for pid in descendants(os.getpid()) if pid not in stopped]:
            _signal_all(signal.SIGSTOP, new)
            stopped.update(new)

    def _collect_orphans(self) -> None:
        collect_ended(without=self._process.pid)
        self._collected_at = time.monotonic()

    def _end(self) -> None:
        """Send SIGTERM to all processes of the program, and wait up to `GRACE_S`. The caller then sends SIGKILL to the remaining ones."""
        processes = descendants(os.getpid())
        _signal_all(signal.SIGTERM, processes)
        _signal_all(signal.SIGCONT, processes)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)


def _signal_all(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _writes_below(pid: int, directory: Path) -> bool:
    """Return whether a process has a file below a directory open for writing. Return False if the process is gone."""
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if not os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(f"{directory}/"):
                    continue
                about = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text()
                flags = next(line.split()[1] for line in about.splitlines() if line.startswith("flags:"))
                if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                    return True
    return False


def _of_json(line: bytes) -> dict[str, Any]:
    try:
        parsed_line = json.loads(line)
    except ValueError:
        parsed_line = None
    if not isinstance(parsed_line, dict):
        shown = line[:200].decode(errors="replace")
        raise ProgramFailed(
            f'the program wrote {shown!r} to its metrics; write one JSON object in each line, such as {{"loss": 0.5}}'
        )
    return parsed_line


def _of_groups(groups: Mapping[str, str | None]) -> dict[str, Any]:
    return {name: _number(text) for name, text in groups.items() if text is not None}


def _number(text: str) -> float | int | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


# Files of the program


def located_words(words: Sequence[str], roots: Sequence[str]) -> list[str]:
    """Return the words of a command, with absolute paths for those that name a file of the user's code.

    Args:
        words: The words. The first one is looked up only if it has a slash, as in a shell.
        roots: The directories in which files are looked for.
    """
    return [
        str(file) if (index or "/" in word) and (file := located(word, roots)) is not None else word
        for index, word in enumerate(words)
    ]


def located(word: str, roots: Sequence[str]) -> Path | None:
    """Return the file that a word of a command names below one of the directories `roots`, or None if there is none."""
    if not word or word.startswith(("-", "/")) or ".." in Path(word).parts or placeholders(word):
        return None
    with contextlib.suppress(OSError, ValueError):
        return next(
            (path for root in roots if root and (path := Path(root, word).absolute()).is_file()), None
        )
    return None


def own_roots() -> list[str]:
    """Return the directories with user code: PYTHONPATH without the directories of installed packages and of Python itself."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    python = tuple(os.path.join(prefix, "lib") for prefix in {sys.prefix, sys.base_prefix})
    return [path for path in paths if not path.startswith(python) and not {*INSTALLED} & {*Path(path).parts}]


def search_path(path: str) -> str:
    """Return PATH with the directory of this Python first, so that `python` and installed tools are those that trainables use."""
    return os.pathsep.join([str(Path(sys.executable).parent), path])


def fault(command: str, roots: Sequence[str], where: str) -> str | None:
    """Return why a valid command cannot be run on this machine, or None if its program and its script exist.

    Args:
        command: The command.
        roots: The directories with the user's files.
        where: What to call these directories in the message.
    """
    program, *rest = words_of(command)
    if "/" in program and not program.startswith("/"):
        if located(program, roots) is None:
            return _no_file(program, where)
    elif shutil.which(program, path=search_path(os.environ.get("PATH", os.defpath))) is None:
        return f"the program {program} was not found on the service's machine; install it there, or correct the command"
    script = rest[0] if rest else ""
    is_script = script.lower().endswith(SCRIPTS) and not script.startswith("-") and not placeholders(script)
    if (
        is_script
        and located(script, roots) is None
        and not (script.startswith("/") and os.path.isfile(script))
    ):
        return _no_file(script, where)
    return None


def _no_file(word: str, where: str) -> str:
    if ".." in Path(word).parts:
        return f"{word} is not inside {where}; name a file in it, without .."
    return f"the file {word} was not found in {where}"
