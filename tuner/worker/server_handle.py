"""The supervisor's handle of a fork server: start it, fork children, clean up after attempts, replace a dead server, and end it.

`Servers` keeps the fork server of a worker. On a worker that runs several attempts at once, `SlotServer` is the fork server of one slot,
which is a fork of the worker's fork server.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from tuner.domain.environment import Environment
from tuner.training.datasets import READ_LOG
from tuner.worker.background import background
from tuner.worker.environment import environment_of
from tuner.worker.limits import HUGE_PAGES, TUNABLES, UserCodeLimits
from tuner.worker.metering import READS
from tuner.worker.packages import Stored, unpack
from tuner.worker.process_tree import kill_descendants, kill_other_children
from tuner.worker.scratch import new_directory

READY_TIMEOUT_S = 600.0
CLEAN_TIMEOUT_S = 10.0
# The server may first import torch._dynamo, which takes two seconds on a quiet machine.
FORK_TIMEOUT_S = 60.0


class ServerProcess(Protocol):
    """The process of a fork server."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the process is alive."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return the exit status. Raise `subprocess.TimeoutExpired` after `timeout` seconds."""

    def kill(self) -> None:
        """Kill the process."""


class ForkedProcess:
    """A process that another fork server has forked. That server collects its exit status.

    Args:
        pid: The id of the process.
        statuses: The exit statuses that the other fork server reports, by process.
    """

    def __init__(self, pid: int, statuses: Mapping[int, int]) -> None:
        self._pid, self._statuses = pid, statuses
        self._ends: int | None = None  # a file descriptor that can be read once the process has ended
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._ends = os.pidfd_open(pid)

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        """Return the exit status, or None while the process is alive. The status is that of a kill if the other server has not reported it."""
        return self._statuses.get(self._pid, -signal.SIGKILL) if self._has_ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired("fork server", timeout or 0)
        return self._statuses.get(self._pid, -signal.SIGKILL)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _has_ended(self, timeout_s: float | None) -> bool:
        if self._ends is None:
            return True
        waiting = select.poll()
        waiting.register(self._ends, select.POLLIN)
        return bool(waiting.poll(None if timeout_s is None else timeout_s * 1000))

    def __del__(self) -> None:
        if self._ends is not None:
            os.close(self._ends)


class ForkServer:
    """Controls one fork server.

    Args:
        process: Its process, which leads a process group of its own.
        control: One end of the socket whose other end the server reads.
        on_exit: Called as `on_exit(pid, code)` from this object's thread when a child exits. A negative code is the number of a signal.
        variables: The environment variables that user code gets.
    """

    def __init__(
        self,
        process: ServerProcess,
        control: socket.socket,
        on_exit: Callable[[int, int], None],
        variables: Mapping[str, str],
    ) -> None:
        self.environment: Environment | None = None  # None until it has been determined
        self.variables = variables
        self._process, self._control, self._on_exit = process, control, on_exit
        self._answers: list[dict[str, int]] = []
        self._answered = threading.Condition()
        self._asking = threading.Lock()  # held from a request for a process until its answer
        threading.Thread(target=self._listen, name="fork-server", daemon=True).start()

    @classmethod
    def start(
        cls,
        entry: str,
        on_exit: Callable[[int, int], None],
        limits: UserCodeLimits,
        tmp: Path,
        *,
        package: str,
        constants: Mapping[str, object],
    ) -> "ForkServer":
        """Start a fork server in a new process.

        Args:
            entry: The trainable to import, or empty for none.
            on_exit: Called when a child exits, as above.
            limits: The limits on user code.
            tmp: The directory for temporary files of user code while it is imported. It is in the worker's directory.
            package: The folder that `entry` comes from, or empty.
            constants: The constants of the job, for the data that its trials share.
        """
        variables = limits.environment(os.environ, sys.path)
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with tempfile.TemporaryFile("w+") as stdin:
            json.dump(dict(constants), stdin)
            stdin.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-m", "tuner.worker.fork_server", str(theirs.fileno()), entry, package],
                pass_fds=[theirs.fileno()],
                env={
                    TUNABLES: HUGE_PAGES,
                    # All attempts share what `torch.compile` has compiled. By default it would be in the TMPDIR of each.
                    "TORCHINDUCTOR_CACHE_DIR": str(tmp.parent / "inductor"),
                    **variables,
                    "TMPDIR": str(tmp),
                    READ_LOG: str(tmp.parent / READS),
                },
                start_new_session=True,
                stdin=stdin,
            )
        theirs.close()
        limits.hold(process.pid)
        return cls(process, control, on_exit, variables)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit status of the server, negative for a signal. None while the server is alive."""
        return self._process.poll()

    @property
    def ready(self) -> bool:
        """Whether the server has imported the modules that it preloads."""
        with self._answered:
            return self._find("ready") is not None

    def fork(self, cwd: Path, output_fd: int, *, wanted: Callable[[], bool]) -> tuple[int, Connection]:
        """Wait until the server is ready, and have it fork a child. Return the child's process id and the supervisor's end of its channel.

        Args:
            cwd: The child's working directory.
            output_fd: The pipe for the child's output.
            wanted: Called while the server is not ready. The wait ends if it returns False.

        Raises:
            OSError: The server is gone, does not answer, or was not ready within ten minutes, or `wanted` returned False.
        """
        self.await_ready(wanted)
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._start({"fork": str(cwd)}, theirs.fileno(), output_fd)
        return pid, Connection(ours.detach())

    def fork_slot(
        self,
        variables: Mapping[str, str],
        on_exit: Callable[[int, int], None],
        statuses: Mapping[int, int],
        *,
        wanted: Callable[[], bool],
    ) -> "ForkServer":
        """Wait until the server is ready, and have it fork the fork server of a slot. Return that server, which is ready at once.

        Args:
            variables: Environment variables of the slot.
            on_exit: Called when a child of the slot's server exits.
            statuses: The exit statuses that this server has passed to its own `on_exit`, by process.
            wanted: Called while this server is not ready. The wait ends if it returns False.

        Raises:
            OSError: As in `fork`.
        """
        self.await_ready(wanted)
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = ForkedProcess(self._start({"slot": dict(variables)}, theirs.fileno()), statuses)
        server = ForkServer(process, control, on_exit, self.variables)
        server._answers.append({"ready": 1})
        return server

    def start_batch(self, entry: str, listener: socket.socket) -> int:
        """Have the server, which must be ready, fork the batch process of the trainable `entry`, and return the process id.

        The process accepts connections at `listener`.

        Raises:
            OSError: The server is gone or does not answer.
        """
        return self._start({"batch": entry}, listener.fileno())

    def await_ready(self, wanted: Callable[[], bool]) -> None:
        """Wait until the server is ready. Raise OSError as described at `fork`."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.ready:
            if time.monotonic() > deadline:
                self.kill()
            if not wanted() or time.monotonic() > deadline:
                raise OSError(
                    f"the fork server was not ready within {READY_TIMEOUT_S:.0f} s; make the import of the trainable's module faster"
                )
            with self._answered:
                self._answered.wait_for(lambda: not self.alive or self._find("ready") is not None, 0.1)
            if not self.alive:
                raise OSError("the fork server ended")

    def _start(self, request: Mapping[str, object], *descriptors: int) -> int:
        """Send a request that starts a process, with file descriptors for the process, and return the process id."""
        with self._asking:
            socket.send_fds(self._control, [json.dumps(request).encode()], list(descriptors))
            try:
                return self._wait_for("pid", timeout_s=FORK_TIMEOUT_S)
            except OSError:
                self.kill()  # a late answer would be taken for that of the next request
                raise

    def kill(self) -> None:
        """Kill the server and its process group at once, for example if it hangs in user code that it imports."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def clean(self) -> bool:
        """Kill all processes that attempts left behind, and return whether none is left. Before the server is ready, it has no children.

        User code runs as the same user and can stop or block the server. If the server does not answer, kill its descendants and then
        the server.
        """
        if not self.ready or not self.alive:
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        try:
            self._control.send(json.dumps({"clean": True}).encode(), socket.MSG_DONTWAIT)
            return bool(self._wait_for("clean", timeout_s=CLEAN_TIMEOUT_S))
        except OSError:
            is_clean = kill_descendants(self.pid)
            self.kill()
            return is_clean

    def close(self) -> None:
        """End the server, which kills its descendants first. Kill it if it does not end within 3 s."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)  # user code may have stopped it
        try:
            self._process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            kill_descendants(self.pid)
            self._process.kill()
            self._process.wait()
        self._control.close()

    def _wait_for(self, word: str, *, timeout_s: float) -> int:
        """Wait for the next answer of the server with the key `word`, and return its value. Raise OSError if no answer comes."""
        with self._answered:
            self._answered.wait_for(lambda: not self.alive or self._find(word) is not None, timeout_s)
            answer = self._find(word)
            if answer is None:
                raise OSError("the fork server does not answer" if self.alive else "the fork server ended")
            self._answers.remove(answer)
            return answer[word]

    def _find(self, word: str) -> dict[str, int] | None:
        return next((answer for answer in self._answers if word in answer), None)

    def _listen(self) -> None:
        while True:
            try:
                waiting = select.poll()  # unlike select(2), it takes any number of open files
                waiting.register(self._control, select.POLLIN)
                waiting.poll()
                data = self._control.recv(1 << 16)
            except (OSError, ValueError):
                data = b""
            message = json.loads(data) if data else {}
            if "exited" in message:
                self._on_exit(message["exited"], message["code"])
            with self._answered:
                if message and "exited" not in message:
                    self._answers.append(message)
                self._answered.notify_all()
            if not data:
                return


class SlotServer:
    """The fork server of one slot, for a worker that runs several attempts at once.

    It is forked from the worker's fork server when the slot's first attempt begins, and again if it has died.

    Args:
        servers: Keeps the worker's fork server.
        statuses: The exit statuses of the worker's fork servers, by process.
        on_exit: Called as `on_exit(pid, code)` when a child of the slot exits.
        home: The directory of the slot's supervisor.
        variables: Environment variables that differ from those of the worker's fork server.
    """

    def __init__(
        self,
        servers: "Servers",
        statuses: Mapping[int, int],
        on_exit: Callable[[int, int], None],
        home: Path,
        variables: Mapping[str, str],
    ) -> None:
        self._servers, self._statuses, self._on_exit = servers, statuses, on_exit
        self._variables = {
            "TMPDIR": str(new_directory(home / "tmp")),
            READ_LOG: str(home / READS),
            **variables,
        }
        self._own: ForkServer | None = None  # None until the slot's first attempt begins
        self._forking = threading.Lock()  # an attempt that was stopped may still wait for its fork

    def fork(self, cwd: Path, output_fd: int, *, wanted: Callable[[], bool]) -> tuple[int, Connection]:
        """Do the same as `ForkServer.fork`, with the fork server of the slot."""
        with self._forking:
            if not wanted():
                raise OSError("the attempt has ended")
            if self._own is None or not self._own.alive:
                self._own = self._servers.living().fork_slot(
                    self._variables, self._on_exit, self._statuses, wanted=wanted
                )
            return self._own.fork(cwd, output_fd, wanted=wanted)

    @property
    def pid(self) -> int:
        """The process id of the slot's fork server. 0 until there is one."""
        return 0 if self._own is None else self._own.pid

    @property
    def alive(self) -> bool:
        return self._own is None or self._own.alive

    @property
    def exit_code(self) -> int | None:
        return None if self._own is None else self._own.exit_code

    @property
    def ready(self) -> bool:
        return self._own is not None

    @property
    def environment(self) -> Environment | None:
        return self._servers.current.environment

    def living(self) -> "SlotServer":
        """Return this server. `fork` starts another process if the last one is dead."""
        return self

    @property
    def current(self) -> "SlotServer":
        return self

    def kill(self) -> None:
        """Kill the slot's fork server. Do nothing before there is one: other slots wait for the worker's fork server."""
        if self._own is not None:
            self._own.kill()

    def clean(self) -> bool:
        return self._own is None or self._own.clean()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()


class Servers:
    """Keeps a fork server for one trainable, and replaces it when it is dead.

    If the trainable comes from a package, each new server fetches, checks and unpacks the package again. The package is on the import
    path of the server and its children only.
    """

    def __init__(
        self,
        entry: str,
        package: Stored | None,
        on_exit: Callable[[int, int], None],
        limits: UserCodeLimits,
        home: Path,
        constants: Mapping[str, object],
    ) -> None:
        self._constants = constants
        self._entry, self._package, self._on_exit = entry, package, on_exit
        self._limits, self._home = limits, home
        self._error: Exception | None = None
        self._renewing, self._is_discarded = threading.Lock(), False
        self.current = self._new(entry)

    def living(self) -> ForkServer:
        """Return the fork server. If it is dead, start a new one first.

        If the package could not be fetched or unpacked, raise the exception that fetching or unpacking raised.
        """
        with self._renewing:
            if self._error is not None:
                self.current.close()
                self.current = self._new(self._entry)
            elif not self.current.alive:
                # A server that died before it was ready may have been killed by the imports of user code. The new server does not preload
                # the trainable, so that the child imports it and reports the error.
                preloads = self.current.ready or self._is_discarded
                self._is_discarded = False
                self.current = self._new(self._entry if preloads else "")
            if self._error is not None:
                raise self._error
            return self.current

    def discard(self) -> None:
        """Kill the fork server. The next one preloads the trainable, too."""
        with self._renewing:
            self._is_discarded = True
            self.current.kill()

    def kill_strays(self, kept: Collection[int]) -> None:
        """Kill all children of this process except the fork server and those in `kept`."""
        with self._renewing:
            kill_other_children({self.current.pid, *kept})

    def _new(self, entry: str) -> ForkServer:
        """Start a fork server. If the package cannot be unpacked, start it without the trainable. `living` then raises the error."""
        package, self._error = "", None
        if self._package is not None:
            try:
                package = str(unpack(self._package, self._home / "package"))
            except Exception as error:  # each kind of storage has errors of its own
                self._error, entry = error, ""
        tmp = new_directory(self._home / "tmp")
        server = ForkServer.start(
            entry, self._on_exit, self._limits, tmp, package=package, constants=self._constants
        )
        roots = [package] if package else os.environ.get("PYTHONPATH", "").split(os.pathsep)
        # In a thread, because the digest reads all files that the trainable imports.
        background("environment", self._describe, server, roots)
        return server

    def _describe(self, server: ForkServer, roots: list[str]) -> None:
        server.environment = environment_of(self._entry, roots, server.variables)
