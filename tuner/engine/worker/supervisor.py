"""The supervisor of one worker: gives a child its work and its answers, measures it, and ends it when its lease does.

Plain Python, without Ray. `order` and `step` are called by the actor's thread; a reader, a watchdog and a publisher have
threads of their own, and one lock guards what they share.
"""

import contextlib
import json
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tuner.engine.checkpoints import CheckpointStore, Published
from tuner.engine.packages.stored import Stored
from tuner.engine.scratch import Scratch, anew, wipe
from tuner.engine.worker import endings
from tuner.engine.worker.attempt import Attempt
from tuner.engine.worker.limits import Limits
from tuner.engine.worker.logs import LogPump
from tuner.engine.worker.meter import Stopwatch
from tuner.engine.worker.publishing import Publisher, background, older_than, publish, restored
from tuner.engine.worker.sampling import Sampler, look
from tuner.engine.worker.server_handle import ForkServer
from tuner.engine.worker.serving import Servers
from tuner.engine.worker.watchdog import NoticeSource, Watchdog
from tuner.training.channel import MAX_MESSAGE_BYTES, begin_message, reply_message

HEARTBEAT_S = 1.0
FLUSH_S = 0.2
EXIT_GRACE_S = 1.0
SAVE_GRACE_S = 30.0
# Beyond these, a worker that waited is nobody's.
MAX_GAP_NS = 1_000_000_000
MAX_START_NS = 10_000_000_000


class Supervisor:
    def __init__(
        self,
        entry: str,
        *,
        package: Stored | None = None,
        born_ns: int | None = None,
        notice: NoticeSource = lambda: None,
    ) -> None:
        """`package`: that `entry` comes from. `born_ns`: since when this worker costs money, on the monotonic clock; None: now. `notice`
        is asked every 50 ms by what this machine goes; what it answers has a deadline, and it must not raise."""
        now = time.monotonic_ns()
        self._last_end_ns = now if born_ns is None else max(born_ns, now - MAX_START_NS)
        self._changed = threading.Condition()
        self._limits = Limits.from_env(os.environ)
        self._watchdog = Watchdog(self, self._changed, notice, self._limits)
        self._sampler = Sampler(self, self._changed)
        self._scratch = Scratch("worker")
        self._home = self._scratch.path
        self._exits: dict[int, int] = {}
        self._servers = Servers(entry, package, self._on_exit, self._limits, self._home / "tmp")
        self._attempt: Attempt | None = None
        self._store: CheckpointStore | None = None
        self._connection: Connection | None = None
        self._pump: LogPump | None = None
        self._publisher = Publisher()
        self._starter: threading.Thread | None = None
        self._pid = 0
        self._told_at = 0.0
        self._fresh = True

    # Orders of the driver

    def order(self, message: dict[str, Any]) -> None:
        """One order; those for an attempt that is over change nothing."""
        if message["order"] == "begin":
            self._begin(message)
            return
        with self._changed:
            attempt = self._attempt
            if attempt is None or attempt.state is not None:
                return
            match message["order"]:
                case "go":
                    attempt.until, attempt.told_waiting = message["until"], False
                    attempt.lease_ns = max(attempt.lease_ns, message["lease_ns"])
                case "pause" | "finish":
                    attempt.wanted = message["order"]
                case "stop":
                    attempt.end("stopped")
                    self.kill()
                    if not self.server.ready:
                        self.server.kill()
                case unknown:
                    raise ValueError(f"there is no order {unknown!r}")
            self.reply_if_due(attempt)
            self._changed.notify_all()

    def _begin(self, order: dict[str, Any]) -> None:
        now = time.monotonic_ns()
        gap = min(
            now - self._last_end_ns, MAX_START_NS if self._fresh else MAX_GAP_NS, order["lease_ns"] // 2
        )
        kept, self._fresh = not self._fresh, False
        watch = Stopwatch("idle" if kept else "setup", now - gap)
        watch.switch("setup")
        attempt = Attempt(order, watch, order["lease_ns"], order["until"], order["max_step"])
        with self._changed:
            self._attempt = attempt
        self._watchdog.start(attempt, kept=kept)
        self._sampler.start()
        if attempt.state is None:
            self._starter = background("starter", self._start, attempt)

    def _start(self, attempt: Attempt) -> None:
        """In a thread of its own, so that an order to stop is heard while a checkpoint is fetched or user code imported."""
        try:
            order, is_new = attempt.order, self._store is None
            self._store = CheckpointStore(order["storage"], order["project"], order["job"])
            if is_new:
                background("storage", self._store.connect)
            checkpoint = self._restore(attempt, self._store)
            if attempt.state is None:
                self._start_child(attempt, checkpoint)
        except Exception as error:  # each kind of storage has errors of its own
            with self._changed:
                attempt.end("failed", endings.not_begun(error))
                self._changed.notify_all()

    def _restore(self, attempt: Attempt, store: CheckpointStore) -> Path | None:
        """The newest whole checkpoint up to the step that the driver knows of."""
        if not attempt.order["restore_step"]:
            return None
        with self._changed:
            attempt.watch.switch("restore")
        found = restored(store, attempt, self._restore_dir(attempt))
        older = older_than(found[0], store, attempt) if found is not None else frozenset()
        with self._changed:
            attempt.watch.switch("setup")
            if found is not None:
                attempt.went_on_from(found[0], older)
        return found[1] if found else None

    def _restore_dir(self, attempt: Attempt) -> Path:
        return self._home / f"restore-{attempt.trial}-a{attempt.number}"

    def _start_child(self, attempt: Attempt, checkpoint: Path | None) -> None:
        cwd = anew(self._home / "cwd")
        # Of its own: a save of the attempt before that hangs should find nothing, when it goes on, rather than this one's files.
        staging = anew(self._home / "staging", f"{attempt.trial}-a{attempt.number}")
        server = self._servers.living()
        pump = LogPump(attempt.order)
        try:
            pid, connection = server.fork(
                {"cwd": str(cwd)}, pump.write_fd, wanted=lambda: attempt.state is None
            )
        except BaseException:
            pump.started()
            pump.close()
            raise
        pump.started()
        with self._changed:
            if attempt.state is not None:  # it was stopped, or its lease ended, while it began
                endings.kill_group(pid)
                connection.close()
                pump.close()
                return
            attempt.forked()
            self._pid, self._connection, self._pump = pid, connection, pump
            connection.send_bytes(begin_message(attempt.begin(staging, checkpoint)))
        background("reader", self._read, attempt, connection)

    # What the child says

    def _read(self, attempt: Attempt, connection: Connection) -> None:
        try:
            while True:
                message = json.loads(connection.recv_bytes(MAX_MESSAGE_BYTES))
                with self._changed:
                    self._hear(attempt, message)
                    self._changed.notify_all()
        except (EOFError, OSError, ValueError):
            self._on_silence(attempt)

    def _hear(self, attempt: Attempt, message: dict[str, Any]) -> None:
        match message["type"]:
            case "phase":
                attempt.phase(message["kind"], message["t"])
                look(attempt, self._pid)
            case "report":
                look(attempt, self._pid)
                attempt.reported(message)
                self.reply_if_due(attempt)
            case "saved":
                attempt.saved_step = message["step"]
                self._publisher.submit(self._publish, attempt, message["step"], Path(message["path"]))
            case "save_failed":
                attempt.saving = False
                if attempt.closed_by(message["step"]):
                    attempt.end("failed", endings.not_written(message["detail"]))
            case "ended":
                attempt.end("ended")
            case "failed":
                attempt.end("failed", endings.told(message))
            case _:
                pass  # a word of a newer child

    def reply_if_due(self, attempt: Attempt) -> None:
        reply = attempt.answer()
        if reply is None or self._connection is None:
            return
        attempt.answered(reply)
        with contextlib.suppress(OSError):
            self._connection.send_bytes(reply_message(**reply))
        if reply["stop"] and not reply["save"]:
            attempt.close()

    def _on_exit(self, pid: int, code: int) -> None:
        with self._changed:
            self._exits[pid] = code
            attempt = self._attempt if pid == self._pid else None
            self._changed.notify_all()
        if attempt is not None:  # what it left behind may hold its channel open
            background("mourner", self._on_silence, attempt, last_words=5)

    def _on_silence(self, attempt: Attempt, last_words: int = 0) -> None:
        """The child closed its channel: it is over, or about to be. One that said nothing of its end exited without a word."""
        with self._changed:
            for _ in range(last_words):
                over = self._changed.wait_for(lambda: attempt.state is not None, EXIT_GRACE_S)
                if over or not endings.unread(self._connection):
                    break
            endings.wait_status(self._changed, lambda: attempt.state or self._pid in self._exits, self.server)
            if not attempt.closed_by(attempt.saved_step):  # else its last checkpoint is on its way
                code = self._exits.get(self._pid, 0)
                attempt.end("failed", endings.exited(code, self._pump.last() if self._pump else ""))
            self._changed.notify_all()

    # Saving

    def _publish(self, attempt: Attempt, step: int, path: Path) -> None:
        """Runs in the publisher's thread: a checkpoint is durable when its manifest is."""
        assert self._store is not None
        with self._changed:
            protect = attempt.protected(step)
        published, problem = publish(self._store, attempt, step, path, protect)
        with self._changed:
            self._published(attempt, step, published, problem)
            self._changed.notify_all()

    def _published(self, attempt: Attempt, step: int, published: Published | None, problem: str) -> None:
        attempt.saving = False
        if published is not None:
            attempt.made_durable(step)
            size, seconds = published.size_bytes, published.seconds
            attempt.use.saved(size)
            attempt.checkpoints.append(
                {"step": step, "uri": published.uri, "bytes": size, "seconds": seconds}
            )
        if attempt.state is not None or not attempt.closed_by(step):
            return
        if published is None:
            attempt.end("failed", endings.not_stored(step, problem))
        else:
            attempt.close()

    @property
    def server(self) -> ForkServer:
        return self._servers.current

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def attempt(self) -> Attempt | None:
        return self._attempt

    def kill(self) -> None:
        if self._pid and self._pid not in self._exits:
            endings.kill_group(self._pid)

    # Answers to the driver

    def step(self) -> dict[str, Any]:
        """Waits until there is something to tell, a second at most. Raises RuntimeError where nothing was begun."""
        attempt = self._attempt
        if attempt is None:
            raise RuntimeError("there is no attempt under way, nor will there be one where the machine goes")
        with self._changed:
            self._changed.wait_for(lambda: self._news(attempt), HEARTBEAT_S)
            if attempt.state is None and attempt.reports:
                pause = FLUSH_S - (time.monotonic() - self._told_at)
                self._changed.wait_for(
                    lambda: attempt.state is not None or attempt.held is not None, max(0, pause)
                )
            self._told_at = time.monotonic()
            if attempt.state is None:
                waiting = attempt.held is not None
                attempt.told_waiting = waiting
                return attempt.result("waiting" if waiting else "running")
        self._clear(attempt)
        with self._changed:
            result = attempt.result(str(attempt.state))
            self._attempt, self._last_end_ns = None, time.monotonic_ns()
            return result

    def _news(self, attempt: Attempt) -> bool:
        return (
            attempt.state is not None
            or bool(attempt.reports)
            or bool(attempt.checkpoints)
            or (attempt.held is not None and not attempt.told_waiting)
            or attempt.told_leaving != (attempt.notice is not None)
        )

    def _clear(self, attempt: Attempt) -> None:
        """Gives a child that ends by itself a moment, kills whatever is left, and waits for saves under way, as long as they
        are paid for and not for ever."""
        if self._starter is not None:
            self._starter.join(EXIT_GRACE_S)
        with self._changed:
            if attempt.error is None and attempt.state != "stopped":
                self._changed.wait_for(lambda: self._pid in self._exits or not self._pid, EXIT_GRACE_S)
            self.kill()
        self.server.clean()
        paid_s = 0.0 if attempt.state == "stopped" else attempt.left_ns() / 1e9
        self._publisher.settle(max(EXIT_GRACE_S, min(paid_s, SAVE_GRACE_S)))
        for folder in (self._restore_dir(attempt), self._home / "cwd"):
            wipe(folder)
        with self._changed:
            connection, pump = self._connection, self._pump
            self._connection, self._pump, self._pid = None, None, 0
            self._exits.clear()
        if connection is not None:
            connection.close()
        if pump is not None:
            pump.close()

    def close(self) -> None:
        """Ends everything: the child, its server, the directory."""
        with self._changed:
            if self._attempt is not None:
                self._attempt.end("stopped")
            self.kill()
            pump, self._pump = self._pump, None
        if pump is not None:
            pump.close()
        self._sampler.close()
        self._servers.close()
        self._scratch.close()
