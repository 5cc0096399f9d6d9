"""Run several attempts of a job on one worker at the same time (`pack` in the job's resources).

Each slot has a supervisor of its own, with its own child, fork server and directory, and runs one attempt at a time. The slots share the
worker's CPUs and GPUs, and its time: see `SharedTime`. All leases and meters of the slots are in this worker time.

Trials of a `tuner.training.Packed` trainable are trained as one batch. Their children connect to a socket of the worker. The first
connection starts the worker's batch process, which trains for all of them. It is killed as soon as no attempt runs, because
nobody would pay for it.
"""

import contextlib
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from tuner.worker import endings
from tuner.worker.limits import UserCodeLimits
from tuner.worker.metering import SharedTime
from tuner.worker.packages import Stored
from tuner.worker.process_tree import become_subreaper, descendants, kill_own_descendants, resource_use
from tuner.worker.publishing import background
from tuner.worker.scratch import Scratch
from tuner.worker.server_handle import ForkedProcess, Servers
from tuner.worker.supervisor import HEARTBEAT_S, MAX_START_NS, SharedWorker, Supervisor
from tuner.worker.watchdog import WATCH_S, NoticeSource

MEMORY_LOOK_S = (
    0.25  # how often the memory of the batch process, and of a fork server that still imports, is measured
)


class Slot:
    """One place of a worker for an attempt. A thread asks its supervisor for messages.

    Args:
        supervisor: The supervisor of the slot.
        messages: Receives each message of the supervisor, with this slot. If the supervisor raises an exception, it receives that.
        lock: Guards the other attributes.
    """

    def __init__(self, supervisor: Supervisor, messages: "Messages", lock: threading.Lock) -> None:
        self.supervisor, self._messages, self._lock = supervisor, messages, lock
        self._go = threading.Event()  # set when the supervisor is to be asked for its next message
        self._waits = False  # whether an attempt runs, and the driver has yet to record its last message
        self.trial: str | None = None  #: The trial of the attempt that runs. None from its last message on.
        background("slot", self._run)

    def begin(self, order: dict[str, Any]) -> None:
        """Begin an attempt. Call it under the lock."""
        self.supervisor.order(order)
        self.trial = order["trial"]
        self._go.set()

    def recorded(self) -> None:
        """Note that the driver has recorded the slot's last message. Call it under the lock."""
        if self._waits:
            self._waits = False
            self._go.set()

    def _run(self) -> None:
        while True:
            self._go.wait()
            self._go.clear()
            try:
                message: dict[str, Any] | Exception = self.supervisor.step()
            except Exception as error:
                message = error
            with self._lock:
                self._waits = self.supervisor.attempt is not None
                if not self._waits:
                    self.trial = None
                self._messages.put((self, message))


Messages = queue.SimpleQueue[tuple[Slot, dict[str, Any] | Exception]]


class Slots:
    """The slots of a worker.

    Args:
        count: How many attempts run at once.
        entry: The trainable, `module:attribute`.
        package: The package that `entry` comes from.
        constants: The constants of the job.
        born_ns: When this worker began to cost money, in nanoseconds on the monotonic clock.
        notice: As in `Supervisor`.
    """

    def __init__(
        self,
        count: int,
        entry: str,
        *,
        package: Stored | None,
        constants: Mapping[str, object] | None,
        born_ns: int,
        notice: NoticeSource,
    ) -> None:
        become_subreaper()
        self._scratch, self._entry = Scratch("slots"), entry
        limits, statuses = UserCodeLimits.from_env(os.environ), dict[int, int]()
        servers = Servers(entry, package, statuses.__setitem__, limits, self._scratch.path, constants or {})
        self._batch = BatchProcess(self, entry, servers, statuses, self._scratch)
        born_ns = max(born_ns, time.monotonic_ns() - MAX_START_NS)
        self._shared = SharedWorker(SharedTime(born_ns), servers, statuses, self._batch.address)
        self._messages: Messages = queue.SimpleQueue()
        self._sent = list[Slot]()  # the slots whose messages were returned last
        self._lock = threading.Lock()
        self._slots = [
            Slot(Supervisor(entry, notice=notice, shared=self._shared), self._messages, self._lock)
            for _ in range(count)
        ]
        self._batch.start()

    def order(self, message: dict[str, Any]) -> None:
        """Carry out one order of the driver, as `Supervisor.order` does. An order for a trial that runs no attempt here is ignored.

        Raises:
            RuntimeError: An attempt is to begin, but all slots run attempts.
        """
        with self._lock:
            slot = next((slot for slot in self._slots if slot.trial == message["trial"]), None)
            if message["order"] != "begin":
                if slot is not None:
                    slot.supervisor.order(message)
                return
            free = next((slot for slot in self._slots if slot.trial is None), None)
            if free is None or slot is not None:
                raise RuntimeError(
                    f"an attempt of {message['trial']} cannot begin: the trial runs already, or all slots are taken"
                )
            free.begin(message)

    @property
    def are_free(self) -> bool:
        """Whether no attempt runs, and all messages about attempts were returned."""
        with self._lock:
            return self._messages.empty() and all(slot.trial is None for slot in self._slots)

    def step(self) -> list[dict[str, Any]]:
        """Return the messages of all slots that have one. Wait up to `HEARTBEAT_S` for the first. The list may be empty.

        Call it again only when the driver has recorded the messages of the last call. If a supervisor raised an exception, raise that.
        """
        with self._lock:
            for slot in self._sent:
                slot.recorded()
            self._sent = []
        messages = list[dict[str, Any]]()
        with contextlib.suppress(queue.Empty):
            while True:
                slot, message = self._messages.get(timeout=0 if messages else HEARTBEAT_S)
                if isinstance(message, Exception):
                    raise message
                self._sent.append(slot)
                messages.append(message)
        return messages

    def memory_limit(self) -> int | None:
        """Return how much memory the attempts that run may use together, in bytes. None if it is not limited or no attempt runs."""
        for slot in self._slots:
            if (attempt := slot.supervisor.attempt) is not None:
                limit = attempt.order.get("memory_limit_bytes")
                return None if limit is None else len(self._slots) * int(limit)
        return None

    @property
    def run_any(self) -> bool:
        """Whether an attempt runs that has not ended."""
        attempts = [slot.supervisor.attempt for slot in self._slots]
        return any(attempt is not None and attempt.state is None for attempt in attempts)

    def close(self) -> None:
        for slot in self._slots:
            slot.supervisor.close()
        self._batch.close()
        self._shared.servers.current.close()
        kill_own_descendants(without=self._shared.servers.current.pid)
        self._scratch.close()


class BatchProcess:
    """Starts the batch process of a worker when a child connects to its socket, and kills it when no attempt runs.

    The worker's fork server is killed, too, if it still imports the trainable when the last attempt ends, or uses too much memory for it.

    Args:
        slots: The slots of the worker.
        entry: The trainable.
        servers: Keeps the fork server of the worker.
        statuses: The exit statuses of the fork server's children, by process.
        scratch: The directory of the worker.
    """

    def __init__(
        self, slots: Slots, entry: str, servers: Servers, statuses: Mapping[int, int], scratch: Scratch
    ) -> None:
        self._slots, self._entry, self._servers, self._statuses = slots, entry, servers, statuses
        self._process: ForkedProcess | None = None
        self.address = str(scratch.path / "batch")  #: The path of the socket.
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(64)
        self._over = threading.Event()

    def start(self) -> None:
        """Start the thread that watches the socket."""
        self._thread = background("batch", self._watch)

    def _watch(self) -> None:
        looked_s, was_needed = time.monotonic(), False
        while not self._over.wait(WATCH_S):
            self._forget_if_ended()
            is_needed, server = self._slots.run_any, self._servers.current
            if self._process is None and is_needed and select.select([self._listener], [], [], 0)[0]:
                with contextlib.suppress(OSError):  # the server is dead; the next fork of a child replaces it
                    self._process = ForkedProcess(
                        server.start_batch(self._entry, self._listener), self._statuses
                    )
            elif self._process is not None and not is_needed:
                self._kill()
            if was_needed and not is_needed and not server.ready:
                server.kill()
            was_needed = is_needed
            if time.monotonic() - looked_s > MEMORY_LOOK_S:
                looked_s = time.monotonic()
                if self._process is not None and self._uses_too_much(self._process.pid):
                    self._kill()
                if not server.ready and self._uses_too_much(server.pid):
                    server.kill()

    def _uses_too_much(self, pid: int) -> bool:
        limit = self._slots.memory_limit()
        return limit is not None and resource_use([pid, *descendants(pid)]).memory_bytes > limit

    def _forget_if_ended(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._process = None

    def _kill(self) -> None:
        if self._process is not None:
            endings.kill_group(self._process.pid)
            with contextlib.suppress(Exception):
                self._process.wait(1.0)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._kill()
        self._listener.close()
