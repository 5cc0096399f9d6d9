"""The processes of an attempt on this node: start them, kill them, and find out how they ended."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tuner.worker import endings
from tuner.worker.attempt import RunningAttempt
from tuner.worker.child_channel import (
    MAX_BETWEEN_REPORTS,
    AskMessage,
    ChannelEnd,
    ChildMessage,
    InvalidMessage,
    ReportMessage,
)
from tuner.worker.logs import LogPump
from tuner.worker.orders import FailureFields
from tuner.worker.process_tree import kill_descendants, kill_own_descendants
from tuner.worker.ranks import RankGroup
from tuner.worker.server_handle import ForkServer, Servers, SlotServer


@dataclass
class RankProcess:
    """One process of an attempt."""

    rank: int
    pid: int
    channel: ChannelEnd
    # These are counted only for ranks other than 0, whose reports are ignored, because rank 0 reports the same steps.
    returned: bool = False  # whether user code returned
    messages: int = 0  # how many it has sent since its last report or question

    def check(self, message: ChildMessage) -> None:
        """Count a message. Raise InvalidMessage if the process floods the supervisor."""
        # After these messages the process waits for the reply, so it cannot flood.
        waits = isinstance(message, ReportMessage | AskMessage)
        self.messages = 0 if waits else self.messages + 1
        if self.messages > MAX_BETWEEN_REPORTS:
            raise InvalidMessage(f"sent more than {MAX_BETWEEN_REPORTS} messages without a report")
        if waits and self.channel.unread:
            raise InvalidMessage("sent a message without reading the reply to its previous message")


@dataclass
class ForkedRanks:
    """The processes of one attempt, and the pipe to which they print."""

    log: LogPump
    ranks: list[RankProcess] = field(default_factory=list)

    @classmethod
    def fork(
        cls, server: ForkServer | SlotServer, attempt: RunningAttempt, group: RankGroup, cwd: Path
    ) -> Self:
        """Fork the ranks of this node. They wait for the message that begins the attempt.

        Raises:
            OSError: The server is gone or does not answer, or the attempt ended before the server was ready.
        """
        forked = cls(LogPump(attempt.order))
        try:
            for rank in group.ranks:
                pid, connection = server.fork(cwd, forked.log.write_fd, wanted=lambda: attempt.state is None)
                forked.ranks.append(RankProcess(rank, pid, ChannelEnd(connection)))
        except BaseException:
            forked.log.started()
            forked.discard()
            raise
        forked.log.started()
        return forked

    def discard(self) -> None:
        """Kill the processes, because the attempt does not begin."""
        for process in self.ranks:
            endings.kill_group(process.pid)
            process.channel.close()
        self.log.close()


class AttemptProcesses:
    """The processes of the current attempt on this node, and the fork server that starts them.

    The supervisor's lock guards the state. `kill` and `kill_all` also work without the lock.

    Args:
        changed: The supervisor's lock and condition.
        servers: Keeps the fork server.
        owns_process: Whether all children of this process belong to the supervisor (see `Supervisor`).
    """

    def __init__(
        self, changed: threading.Condition, servers: Servers | SlotServer, *, owns_process: bool
    ) -> None:
        self._changed, self._servers, self._owns_process = changed, servers, owns_process
        self.ranks: list[RankProcess] = []  #: The processes that the fork server started, one for each rank.
        self._log: LogPump | None = None
        self._exits: dict[int, int] = {}  # exit statuses, by process
        self.is_clean = True  #: Whether all processes of the ended attempts could be killed.

    @property
    def server(self) -> ForkServer | SlotServer:
        return self._servers.current

    def living_server(self) -> ForkServer | SlotServer:
        """Return the fork server. If it is dead, start a new one first (see `Servers.living`)."""
        return self._servers.living()

    @property
    def are_in_slot(self) -> bool:
        """Whether the supervisor is one of several on its worker, which share the fork server's imports."""
        return isinstance(self._servers, SlotServer)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.ranks]

    @property
    def first_channel(self) -> ChannelEnd | None:
        """The channel of rank 0. None on other nodes than node 0, and before the attempt has processes."""
        return next((process.channel for process in self.ranks if process.rank == 0), None)

    @property
    def memory_sharers(self) -> list[int]:
        """The process whose memory of imports and prepared data counts as memory of the attempt: the fork server, unless slots share it."""
        return [self.server.pid] if self.server.pid and not self.are_in_slot else []

    def take(self, forked: ForkedRanks) -> None:
        """Make these the processes of the current attempt. Call it under the lock."""
        self.ranks, self._log = forked.ranks, forked.log

    def note_exit(self, pid: int, code: int) -> RankProcess | None:
        """Note the exit status of a process, and return the rank that it was. Return None if it was none. Call it under the lock."""
        self._exits[pid] = code
        return next((process for process in self.ranks if process.pid == pid), None)

    def await_end(
        self,
        attempt: RunningAttempt,
        process: RankProcess,
        last_words: int,
        is_known: Callable[[], object] = lambda: False,
    ) -> int | None:
        """Wait until the end of a process is known, and return its exit status, or None if the status is not known. Call it under the lock.

        Args:
            attempt: The attempt. If it ends, the wait ends.
            process: A process that closed its channel or exited.
            last_words: How many times to wait up to `EXIT_GRACE_S` for messages that it sent before it exited.
            is_known: Returns a true value if the exit status is not needed.
        """
        for _ in range(last_words):
            over = self._changed.wait_for(lambda: attempt.state is not None, endings.EXIT_GRACE_S)
            if over or not process.channel.has_data:
                break
        endings.wait_status(
            self._changed, lambda: attempt.state or is_known() or process.pid in self._exits, self.server
        )
        return self._exits.get(process.pid)

    def failure_of_exit(self, code: int | None) -> FailureFields:
        """Describe the end of a process that exited with this status, or with an unknown status."""
        log = self._log.last() if self._log else ""
        return endings.exited(code, self.server.exit_code, log)

    def fail(self, attempt: RunningAttempt, failure: FailureFields) -> None:
        """Fail the attempt and kill its processes. Call it under the lock.

        Do nothing if the attempt has ended, because the current processes may belong to a later attempt.
        """
        if attempt.state is None:
            attempt.end("failed", failure)
            self.kill()
            self._changed.notify_all()

    def fail_if_server_died(self, attempt: RunningAttempt) -> None:
        """Fail the attempt if its fork server is dead. Call it under the lock.

        The kernel kills the child when its fork server dies. Another process that user code started may still hold the channel open,
        so the reader may never see the end of the channel.
        """
        pids = self.pids
        if pids and self.server.exit_code is not None and not attempt.states.last_is_written:
            self.fail(attempt, self.failure_of_exit(self._exits.get(pids[0])))

    def or_fail(
        self, work: Callable[..., None], attempt: RunningAttempt, *args: object, **more: object
    ) -> None:
        """Call `work(attempt, ...)`, and fail the attempt if it raises an exception. Threads that supervise an attempt run this.

        Otherwise the thread would end silently, and an attempt that has ended could be billed until it is taken for hanging.
        """
        try:
            work(attempt, *args, **more)
        except Exception as error:
            with self._changed:
                self.fail(attempt, endings.supervisor_failed(error))

    def kill(self) -> None:
        """Kill the process groups of all ranks. This never waits and needs no lock."""
        for pid in self.pids:
            if pid not in self._exits:
                endings.kill_group(pid)

    def kill_import(self) -> None:
        """Kill the fork server if it is not ready, because it may be running user code that it imports."""
        if not self.server.ready:
            self.server.kill()

    def kill_all(self) -> None:
        """Kill the ranks and all processes that they started, in any session. This needs neither the lock nor a living fork server."""
        self.kill()
        if self.pids:
            kill_descendants(self.server.pid)
            self._kill_orphans()

    def _kill_orphans(self) -> bool:
        """Kill the processes that a dead fork server left behind, and return whether none is left. Do nothing while the server is alive.

        User code may have killed the server.
        """
        if self._owns_process and not self.server.alive:
            return kill_own_descendants(without=self.server.pid)
        return True

    def clean_up(self, attempt: RunningAttempt) -> None:
        """Kill all processes of an attempt that has ended. First give a child that exits by itself `EXIT_GRACE_S`."""
        with self._changed:
            if attempt.error is None and attempt.state != "stopped":
                self._changed.wait_for(
                    lambda: not self.pids or self.pids[0] in self._exits, endings.EXIT_GRACE_S
                )
            self.kill()
        self.is_clean = self.server.clean() and self.is_clean
        self.is_clean = self._kill_orphans() and self.is_clean

    def forget(self) -> None:
        """Close the channels and the log of an attempt whose processes were killed."""
        with self._changed:
            ranks, self.ranks = self.ranks, []
            log, self._log = self._log, None
            self._exits.clear()
        for process in ranks:
            process.channel.close()
        if log is not None:
            log.close()

    def close(self) -> None:
        """End the fork server, after the processes of the attempt were killed."""
        with self._changed:
            log, self._log = self._log, None
        self.server.close()
        self._kill_orphans()
        # Close it after the server, because a process that the child left behind may print until the server has killed it.
        if log is not None:
            log.close()
