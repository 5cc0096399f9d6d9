"""The supervisor of one worker. It starts a child for each attempt, answers the child's reports, measures it, and ends it with the lease.

This is plain Python, without Ray. The actor's thread calls `order` and `step`. Reader threads, the watchdog's threads and the
publisher threads run at the same time. One lock, `Supervisor._changed`, guards the state that they share: the attempt and its processes.
The other classes of a supervisor are given this lock as `changed`. No code waits for a child while it holds the lock: a reply is sent only
if the child's channel has room for it.
"""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.training.channel import begin_message
from tuner.worker import endings
from tuner.worker.attempt import RunningAttempt
from tuner.worker.background import background
from tuner.worker.limits import UserCodeLimits
from tuner.worker.metering import ReadLog, SharedTime, Stopwatch
from tuner.worker.orders import AttemptMessage, BeginOrder, NodeOrder, Order
from tuner.worker.packages import Stored
from tuner.worker.process_tree import become_subreaper
from tuner.worker.processes import AttemptProcesses, ForkedRanks
from tuner.worker.publishing import Uploads
from tuner.worker.rank_ends import RankEnds
from tuner.worker.rank_messages import FirstRank, OtherRanks
from tuner.worker.ranks import OtherNodes, RankGroup
from tuner.worker.replies import waits_for_driver
from tuner.worker.restoring import Restorer
from tuner.worker.results import has_news, result_of
from tuner.worker.sampling import UsageSampler
from tuner.worker.scratch import AttemptDirectories, Scratch, new_directory, wipe
from tuner.worker.server_handle import ForkServer, Servers, SlotServer
from tuner.worker.watchdog import NoticeSource, Watchdog

HEARTBEAT_S = 1.0
FLUSH_S = 0.2
# An attempt is also billed for the time before it: on a reused worker, since the previous attempt ended, but at most MAX_GAP_NS, and on a
# new worker, since the worker began to cost money, but at most MAX_START_NS.
MAX_GAP_NS = 1_000_000_000
MAX_START_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class SharedWorker:
    """What the supervisors of the slots of a worker share."""

    time: SharedTime
    servers: Servers  #: Keeps the worker's fork server, from which those of the slots are forked.
    statuses: Mapping[int, int]  #: The exit statuses of that server's children, by process.
    #: The path of the socket to which children of a `tuner.training.Packed` trainable connect. None if there is none.
    batch_socket: str | None
    variables: Mapping[str, str]  #: Environment variables of the slots' fork servers.


class Supervisor:
    def __init__(
        self,
        entry: str,
        *,
        package: Stored | None = None,
        constants: Mapping[str, object] | None = None,
        born_ns: int | None = None,
        notice: NoticeSource = lambda: None,
        owns_process: bool = False,
        others: OtherNodes | None = None,
        shared: SharedWorker | None = None,
    ) -> None:
        """Create the supervisor of a worker, and start the fork server that imports the trainable.

        Args:
            entry: The trainable, `module:attribute`.
            package: The package that `entry` comes from.
            constants: The constants of the job. Data that depends only on them is prepared once for all attempts.
            born_ns: When this worker began to cost money, in nanoseconds on the monotonic clock. None means now.
            notice: Called every 50 ms. Returns the preemption notice of this machine, with its deadline, or None. Must not raise.
            owns_process: Whether all children of this process belong to the supervisor, so that it may kill
                them all after an attempt. The process then also adopts orphans: processes of user code whose
                fork server was killed.
            others: The other nodes, if this supervisor is on node 0 of attempts on several nodes.
            shared: What this supervisor shares with others, if its worker runs several attempts at once. `package`, `constants` and
                `born_ns` are then not used.
        """
        if owns_process:
            become_subreaper()
        now = time.monotonic_ns()
        self._last_end_ns = now if born_ns is None else max(born_ns, now - MAX_START_NS)
        self._changed = threading.Condition()  # the lock of the module's docstring, notified of each change
        limits = UserCodeLimits.from_env(os.environ)
        self._scratch = Scratch("worker")
        home = self._scratch.path
        self._reads = ReadLog(home)
        self._shared = shared
        servers: Servers | SlotServer
        if shared is None:
            servers = Servers(entry, package, self._on_exit, limits, home, constants or {})
        else:
            servers = SlotServer(shared.servers, shared.statuses, self._on_exit, home, shared.variables)
        self.processes = AttemptProcesses(self._changed, servers, owns_process=owns_process)
        self._attempt: RunningAttempt | None = None
        self._others = others or OtherNodes()
        self._directories = AttemptDirectories(home)
        self._restorer = Restorer(self._changed, home)
        self._uploads = Uploads(self._changed)
        self._rank_ends = RankEnds(self._changed, self.processes, self._others)
        self._first_rank = FirstRank(self._changed, self.processes, self._uploads, self._rank_ends)
        self._other_ranks = OtherRanks(self._changed, self.processes, self._rank_ends)
        self._watchdog = Watchdog(self._changed, self.processes, self._first_rank, notice, limits)
        self._sampler = UsageSampler(self._changed, self.processes, lambda: self._attempt)
        self._starter: threading.Thread | None = None
        self._answered_at = 0.0
        self._fresh = True

    # Commands of the driver

    def order(self, message: Order) -> None:
        """Carry out one order of the driver, such as a `BeginOrder`. An order for an attempt that has ended is ignored.

        Raises:
            ValueError: `message["order"]` is unknown.
            RuntimeError: An attempt is to begin, but `step` has not returned the last result of the previous one.
        """
        if message["order"] == "begin":
            self._begin(message)
            return
        with self._changed:
            attempt = self._attempt
            if attempt is None or attempt.state is not None:
                return
            match message["order"]:
                case "continue":
                    attempt.target_step, attempt.announced_waiting = message["target_step"], False
                    attempt.best_steps.learn_job_best(message["job_best"])
                    attempt.lease_ns = max(attempt.lease_ns, message["lease_ns"])
                    self._others.renew(attempt.lease_ns)
                case "pause" | "finish":
                    attempt.last_command = message["order"]
                case "stop" if message.get("keep_best") and attempt.best_steps.is_unsaved:
                    # The child saves the state when it reports or asks next, and the attempt ends when the state is stored.
                    attempt.last_command = "stop"
                case "stop":
                    attempt.end("stopped")
                    self.processes.kill()
                    self.processes.kill_import()
                case unknown:
                    raise ValueError(f"unknown order {unknown!r}")
            self._first_rank.reply_if_due(attempt)
            self._changed.notify_all()

    def receive_from_first_node(self, message: NodeOrder) -> None:
        """Carry out an order of node 0 about the attempt that runs on this node: extend the attempt's lease, or end the attempt."""
        with self._changed:
            attempt = self._attempt
            if attempt is None:
                return
            if message["order"] == "renew":
                attempt.lease_ns = max(attempt.lease_ns, message["lease_ns"])
            else:
                attempt.end(message["state"], message["error"])
                if message["error"] is not None or message["state"] == "stopped":
                    self.processes.kill()  # a rank that ended normally gets the time to exit by itself
                self.processes.kill_import()
            self._changed.notify_all()

    def receive_from_other_node(self, trial: str, number: int, result: Mapping[str, Any]) -> None:
        """Act on what another node reports about the attempt that runs on both (see `RankEnds.receive`).

        Args:
            trial: The trial.
            number: The number of the attempt.
            result: The fields `state`, `error` and `rank_ends` of the result of the other node's `step` method.
        """
        with self._changed:
            attempt = self._attempt
            if attempt is not None and (attempt.trial, attempt.number) == (trial, number):
                self._rank_ends.receive(attempt, result)

    def _begin(self, order: BeginOrder) -> None:
        now, free_since = time.monotonic_ns(), self._last_end_ns
        if self._shared is not None:
            free_since = self._shared.time.free_since_ns or now
            self._fresh = self._shared.time.is_fresh
        gap = min(now - free_since, MAX_START_NS if self._fresh else MAX_GAP_NS, order["lease_ns"] // 2)
        # All nodes share one lease. So on nodes other than node 0, count the used part of the lease, which node 0 sends with the order.
        gap = order.get("used_ns", gap)
        kept, self._fresh = not self._fresh, False
        watch = self._stopwatch("idle" if kept else "setup", now - gap)
        watch.switch("setup")
        attempt = RunningAttempt(
            order, watch, order["lease_ns"], order["target_step"], order["max_step"], self._directories.new()
        )
        attempt.batch_socket = None if self._shared is None else self._shared.batch_socket
        with self._changed:
            if self._attempt is not None:
                # Otherwise replies to the child of the previous attempt would go to the new child, because `processes` has only one attempt.
                raise RuntimeError(
                    f"an attempt cannot begin: attempt {self._attempt.number} of {self._attempt.trial} has not ended; "
                    "call `step` until it returns the final result of that attempt"
                )
            self._attempt = attempt
        self._watchdog.start(attempt, kept=kept)
        self._sampler.start()
        if attempt.state is None:
            self._starter = background("starter", self._start, attempt)

    def _stopwatch(self, kind: str, began_ns: int) -> Stopwatch:
        if self._shared is None:
            return Stopwatch(kind, began_ns)
        return Stopwatch(kind, self._shared.time.join(began_ns), self._shared.time.share_ns)

    def _start(self, attempt: RunningAttempt) -> None:
        """Restore the checkpoint and start the child.

        Runs in its own thread, so that an order to stop takes effect while a checkpoint is fetched or user code is imported.
        """
        try:
            store = self._uploads.open(attempt.order)
            checkpoint = self._restorer.checkpoint(attempt, store)
            if not attempt.node:
                self._begin_on_others(attempt, checkpoint)
            self._restorer.give_teacher(attempt)
            if attempt.state is None:
                self._start_child(attempt, checkpoint)
        except Exception as error:  # each kind of storage has errors of its own
            with self._changed:
                attempt.end("failed", endings.not_begun(error))
                self._changed.notify_all()
        finally:
            # The attempt may have ended while this thread was in a call that could not be interrupted.
            with self._changed:
                is_late = attempt.is_cleared
            if is_late:
                wipe(attempt.directory)

    def _begin_on_others(self, attempt: RunningAttempt, checkpoint: Path | None) -> None:
        """Begin the attempt on its other nodes, which continue from the checkpoint that this node has restored."""
        with self._changed:
            if attempt.nodes > 1 and attempt.state is None:
                name = checkpoint.name if checkpoint is not None else None
                lease_ns, used_ns = attempt.lease_ns, attempt.watch.total_ns()
                self._others.begin(
                    {**attempt.order, "lease_ns": lease_ns, "used_ns": used_ns, "checkpoint": name}
                )

    def _start_child(self, attempt: RunningAttempt, checkpoint: Path | None) -> None:
        cwd = new_directory(attempt.directory / "cwd")
        staging = new_directory(attempt.directory / "staging")
        server, group = self.processes.living_server(), RankGroup.of(attempt.order)
        try:
            forked = ForkedRanks.fork(server, attempt, group, cwd)
        except BaseException:
            with self._changed:
                # The order that ended the attempt may have come before this thread started the server.
                if self._attempt is attempt and attempt.state is not None and not server.ready:
                    server.kill()
            raise
        with self._changed:
            # do not begin if the attempt was stopped, or its lease ended, while it was starting
            if attempt.state is not None:
                forked.discard()
                return
            attempt.times.forked(attempt.lease_ns)
            self.processes.take(forked)
            begin = attempt.begin(staging, checkpoint)
        for process in forked.ranks:
            read = self._other_ranks.read if process.rank else self._first_rank.read
            background("reader", self.processes.or_fail, read, attempt, process)
        # Send without the lock: a child that does not read blocks this call until the lease ends.
        for process in forked.ranks:
            variables = group.variables(process.rank)
            process.channel.send_waiting(
                begin_message(replace(begin, rank=process.rank, variables=variables))
            )

    def _on_exit(self, pid: int, code: int) -> None:
        with self._changed:
            process, attempt = self.processes.note_exit(pid, code), self._attempt
            self._changed.notify_all()
        if attempt is None or process is None:
            return
        # In a thread of its own, because this waits for the child's last messages, and processes that the child left behind may hold its
        # channel open.
        on_silence = self._other_ranks.on_silence if process.rank else self._first_rank.on_silence
        background("mourner", self.processes.or_fail, on_silence, attempt, process, last_words=5)

    @property
    def attempt(self) -> RunningAttempt | None:
        return self._attempt

    @property
    def server(self) -> ForkServer | SlotServer:
        return self.processes.server

    @property
    def is_clean(self) -> bool:
        """Whether all processes of the ended attempts could be killed."""
        return self.processes.is_clean

    # Answers to the driver

    def step(self) -> AttemptMessage:
        """Wait up to `HEARTBEAT_S` for something to report about the attempt, then return a result for the driver.

        Wait for a shorter time if the lease ends soon (`heartbeat_s`).

        If the attempt has ended, kill its processes, wait for saves in progress, and return its final result.

        Raises:
            RuntimeError: No attempt was begun.
        """
        attempt = self._attempt
        if attempt is None:
            raise RuntimeError("no attempt was begun; send the order `begin` before calling `step`")
        with self._changed:
            self._changed.wait_for(lambda: has_news(attempt), heartbeat_s(attempt.left_ns()))
            if attempt.state is None and attempt.reports:
                pause = FLUSH_S - (time.monotonic() - self._answered_at)
                self._changed.wait_for(
                    lambda: attempt.state is not None or attempt.awaiting_reply is not None,
                    max(0, pause),
                )
            self._answered_at = time.monotonic()
            if attempt.state is None:
                attempt.announced_waiting = waits_for_driver(attempt)
                attempt.describe(self.server.environment)
                self._count_reads(attempt)
                result = result_of(attempt, "waiting" if attempt.announced_waiting else "running")
                # The child may wait because too many reports were unsent until now.
                self._first_rank.reply_if_due(attempt)
                return result
        self._clear(attempt)
        with self._changed:
            attempt.describe(self.server.environment)
            self._count_reads(attempt)
            assert attempt.state is not None
            result = result_of(attempt, attempt.state)
            if self._shared is not None:
                self._shared.time.leave(attempt.watch.began_ns)
            self._attempt, self._last_end_ns = None, time.monotonic_ns()
            return result

    def _count_reads(self, attempt: RunningAttempt) -> None:
        """Count the datasets that were downloaded for the attempt, and the time that it waited for them. Call it under the lock.

        Datasets that the fork server prepared for all attempts count for the first attempt.
        """
        reads = self._reads.take()
        if reads is not None:
            attempt.use.datasets(reads)
            attempt.waited_for_data(reads.waits)

    def _clear(self, attempt: RunningAttempt) -> None:
        """Clean up after an attempt that has ended: kill its processes, wait for its uploads, and remove its directory."""
        with self._changed:
            assert attempt.state is not None
            self._others.end(attempt.state, attempt.error)
        if self._starter is not None:
            self._starter.join(endings.EXIT_GRACE_S)
        self.processes.clean_up(attempt)
        self._uploads.settle(attempt)
        with self._changed:
            attempt.is_cleared = True
        self._directories.remove(attempt.directory)
        self.processes.forget()

    def close(self) -> None:
        """End the attempt, its child and the fork server, and delete the scratch directory."""
        with self._changed:
            if self._attempt is not None:
                self._attempt.end("stopped")
            self.processes.kill()
        self._sampler.close()
        self.processes.close()
        self._reads.close()
        self._directories.settle(endings.EXIT_GRACE_S)
        self._scratch.close()


def heartbeat_s(left_ns: int) -> float:
    """Return the time until the next heartbeat of an attempt, in seconds. `left_ns` is the rest of its lease, in nanoseconds.

    The time is a third of the rest of the lease, but at least `FLUSH_S` and at most `HEARTBEAT_S`. The driver renews a lease once it
    hears that half of the lease is used, so it must hear from a short lease more than once.
    """
    return min(HEARTBEAT_S, max(FLUSH_S, left_ns / 3e9))
