"""Run several attempts of a job on one worker at the same time (`pack` in the job's resources).

Each slot has a supervisor of its own, with its own child, fork server and directory, and runs one attempt at a time. The slots share the
worker's CPUs and GPUs, and its time: see `SharedTime`. All leases and meters of the slots are in this worker time.

Trials of a `tuner.training.Packed` trainable are trained as one batch. Their children connect to a socket of the worker. The first
connection starts the worker's batch process, which trains for all of them. It is killed as soon as no attempt runs, because
nobody would pay for it.
"""

import contextlib
import logging
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection

from tuner.training.channel import PING
from tuner.worker import endings
from tuner.worker.background import background
from tuner.worker.limits import UserCodeLimits
from tuner.worker.metering import SharedTime
from tuner.worker.orders import AttemptMessage, BeginOrder, Order
from tuner.worker.packages import Stored
from tuner.worker.process_tree import (
    become_subreaper,
    descendants,
    kill_own_descendants,
    proportional_bytes,
    resource_use,
)
from tuner.worker.scratch import Scratch
from tuner.worker.server_handle import ForkedProcess, Servers
from tuner.worker.supervisor import HEARTBEAT_S, MAX_START_NS, SharedWorker, Supervisor
from tuner.worker.watchdog import LIMITS_EVERY, WATCH_S, NoticeSource

ANSWER_S = 30.0  # longer than a batch of the largest models that are worth packing takes
log = logging.getLogger("tuner.worker")


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
        self.waits = False  #: Whether an attempt runs, and the driver has yet to record its last message.
        self.trial: str | None = None  #: The trial of the attempt that runs. None from its last message on.
        background("slot", self._run)

    def begin(self, order: BeginOrder) -> None:
        """Begin an attempt. Call it under the lock."""
        self.supervisor.order(order)
        self.trial = order["trial"]
        self._go.set()

    def recorded(self) -> None:
        """Note that the driver has recorded the slot's last message. Call it under the lock."""
        if self.waits:
            self.waits = False
            self._go.set()

    def _run(self) -> None:
        while True:
            self._go.wait()
            self._go.clear()
            try:
                message: AttemptMessage | Exception = self.supervisor.step()
            except Exception as error:
                message = error
            with self._lock:
                self.waits = self.supervisor.attempt is not None
                if not self.waits:
                    self.trial = None
                self._messages.put((self, message))


Messages = queue.SimpleQueue[tuple[Slot, AttemptMessage | Exception]]


class Slots:
    """The slots of a worker.

    Args:
        count: How many attempts run at once.
        entry: The trainable, `module:attribute`.
        package: The package that `entry` comes from.
        constants: The constants of the job.
        born_ns: When this worker began to cost money, in nanoseconds on the monotonic clock.
        notice: As in `Supervisor`.
        cpus: The CPUs of the worker. The processes of an attempt use as many threads as its part of them, and at least one.
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
        cpus: float = 1,
    ) -> None:
        become_subreaper()
        self._scratch = Scratch("slots")
        limits, statuses = UserCodeLimits.from_env(os.environ), dict[int, int]()
        servers = Servers(entry, package, statuses.__setitem__, limits, self._scratch.path, constants or {})
        self._batch = BatchProcess(self, entry, servers, statuses, limits, self._scratch)
        born_ns = max(born_ns, time.monotonic_ns() - MAX_START_NS)
        variables = {"OMP_NUM_THREADS": str(max(1, int(cpus / count)))}
        self._shared = SharedWorker(SharedTime(born_ns), servers, statuses, self._batch.address, variables)
        self._messages: Messages = queue.SimpleQueue()
        self._sent = list[Slot]()  # the slots whose messages were returned last, and whose attempts still run
        self._lock = threading.Lock()
        self._slots = [
            Slot(Supervisor(entry, notice=notice, shared=self._shared), self._messages, self._lock)
            for _ in range(count)
        ]
        self._batch.start()

    def order(self, message: Order) -> None:
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

    def step(self) -> list[AttemptMessage]:
        """Return the messages of all slots that have one. Wait up to `HEARTBEAT_S` for the first. The list may be empty.

        Call it again only when the driver has recorded the messages of the last call. If a supervisor raised an exception, raise that.
        """
        with self._lock:
            for slot in self._sent:
                slot.recorded()
            self._sent = []
        messages = list[AttemptMessage]()
        with contextlib.suppress(queue.Empty):
            while True:
                slot, message = self._messages.get(timeout=0 if messages else HEARTBEAT_S)
                if isinstance(message, Exception):
                    raise message
                if slot.waits:
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
    def server_pids(self) -> list[int]:
        """The processes of the slots' fork servers."""
        return [slot.supervisor.server.pid for slot in self._slots if slot.supervisor.server.pid]

    @property
    def ended(self) -> int:
        """How many attempts have ended."""
        return self._shared.time.ended

    @property
    def is_clean(self) -> bool:
        """Whether all processes of the ended attempts could be killed."""
        return all(slot.supervisor.is_clean for slot in self._slots)

    @property
    def are_busy(self) -> bool:
        """Whether user code may run, because an attempt has not ended."""
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

    It is killed, too, if it exceeds the limits of the worker, or does not answer within `ANSWER_S` after an attempt has ended: one trial may
    hang in it, and the others must not wait for that. Its trials then continue in their own processes.

    The same thread watches the worker's fork server. It is killed if it still imports the trainable when the last attempt ends, or uses too
    much memory for that. If it has died, the processes that it left behind are killed.

    Args:
        slots: The slots of the worker.
        entry: The trainable.
        servers: Keeps the fork server of the worker.
        statuses: The exit statuses of the fork server's children, by process.
        limits: The limits on user code.
        scratch: The directory of the worker.
    """

    def __init__(
        self,
        slots: Slots,
        entry: str,
        servers: Servers,
        statuses: Mapping[int, int],
        limits: UserCodeLimits,
        scratch: Scratch,
    ) -> None:
        self._slots, self._entry, self._servers, self._statuses = slots, entry, servers, statuses
        self._limits, self._root = limits, servers.current
        self._process: ForkedProcess | None = None
        self._was_needed, self._ended = False, 0
        self._over = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self.address: str | None = str(scratch.path / "batch")  #: The path of the socket.
        try:
            self._listener.bind(self.address)
            self._listener.listen(64)
        except OSError:  # the path is too long, so trials train in their own processes
            log.warning(
                "%s is too long for a socket; set TMPDIR to a shorter path to train in batches", self.address
            )
            self.address = None

    def start(self) -> None:
        """Start the thread that watches the socket."""
        self._thread = background("batch", self._watch)

    def _watch(self) -> None:
        looks = 0
        while not self._over.wait(WATCH_S):
            looks += 1
            try:
                self._look()
                if looks % LIMITS_EVERY == 0:
                    self._hold_to_limits()
            except Exception:  # such as too many open files; the next look may succeed
                log.exception("the batch process cannot be watched")

    def _look(self) -> None:
        """Start or kill the batch process if necessary."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        is_needed, ended = self._slots.are_busy, self._slots.ended
        if self._process is not None:
            if not is_needed or (ended != self._ended and not self._answers()):
                self._kill()
        elif is_needed and self._is_wanted():
            server = self._servers.living()
            if server.ready:
                pid = server.start_batch(self._entry, self._listener)
                self._process = ForkedProcess(pid, self._statuses)
        if self._was_needed and not is_needed and not self._servers.current.ready:
            self._servers.discard()
        self._was_needed, self._ended = is_needed, ended

    def _is_wanted(self) -> bool:
        """Return whether a child waits for the batch process."""
        if self.address is None:
            return False
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        return bool(waiting.poll(0))

    def _answers(self) -> bool:
        """Return whether the batch process answers in time."""
        with contextlib.suppress(OSError, EOFError), socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(ANSWER_S)
            stream.connect(str(self.address))
            with Connection(stream.detach()) as connection:
                connection.send_bytes(PING)
                until = time.monotonic() + ANSWER_S
                while not connection.poll(WATCH_S):
                    if time.monotonic() > until or not self._slots.are_busy or self._over.is_set():
                        return False
                return True
        return False

    def _hold_to_limits(self) -> None:
        if self._process is not None and self._exceeds(self._process.pid):
            self._kill()
        server = self._servers.current
        if not server.ready and self._exceeds(server.pid):
            server.kill()
        # This process has adopted the slots' fork servers, and what they leave behind when they die.
        if not self._root.alive:
            self._servers.kill_strays(self._slots.server_pids)

    def _exceeds(self, pid: int) -> bool:
        """Return whether a process and its descendants exceed the limits of the worker."""
        pids, memory_bytes = [pid, *descendants(pid)], self._slots.memory_limit()
        use = resource_use(pids)
        if use.processes > self._limits.processes:
            return True
        may_be_too_large = memory_bytes is not None and use.memory_bytes > memory_bytes
        return may_be_too_large and proportional_bytes(pids) > (memory_bytes or 0)

    def _kill(self) -> None:
        if self._process is not None:
            endings.kill_group(self._process.pid)
            with contextlib.suppress(Exception):
                self._process.wait(1.0)

    def close(self) -> None:
        self._over.set()
        self._thread.join(ANSWER_S)
        self._kill()
        self._listener.close()
