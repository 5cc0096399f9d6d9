"""The supervisor of one worker. It starts a child for each attempt, replies to the child's reports, measures it, and ends it with the lease.

This is plain Python, without Ray. The actor's thread calls `order` and `step`. A reader thread, the watchdog's threads and the
publisher threads run at the same time. One lock guards the state that they share. No code waits for a child while it holds the
lock: a reply is sent only if the child's channel has room for it.
"""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tuner.training.channel import begin_message, reply_message
from tuner.worker import endings
from tuner.worker.attempt import RunningAttempt
from tuner.worker.background import background
from tuner.worker.child_channel import (
    AskMessage,
    ChildMessage,
    EndedMessage,
    FailedMessage,
    InvalidMessage,
    PhaseMessage,
    ReportMessage,
    SavedMessage,
    SaveFailedMessage,
    parse,
)
from tuner.worker.limits import UserCodeLimits
from tuner.worker.metering import ReadLog, SharedTime, Stopwatch
from tuner.worker.orders import AttemptMessage, BeginOrder, FailureFields, NodeOrder, Order
from tuner.worker.packages import Stored
from tuner.worker.process_tree import become_subreaper
from tuner.worker.processes import AttemptProcesses, ForkedRanks, RankProcess
from tuner.worker.publishing import Uploads
from tuner.worker.ranks import OtherNodes, RankEnd, RankGroup
from tuner.worker.restoring import Restorer
from tuner.worker.sampling import UsageSampler, sample_usage
from tuner.worker.scratch import AttemptDirectories, Scratch, new_directory, wipe
from tuner.worker.server_handle import ForkServer, Servers, SlotServer
from tuner.worker.watchdog import NoticeSource, Watchdog

HEARTBEAT_S = 1.0
FLUSH_S = 0.2
# A child waits for each reply, so it reads the reply at once, unless another of its threads holds the GIL.
REPLY_UNREAD_S = 30.0
REPLY_UNREAD = "does not read the replies to its reports"
# After a rank raised an exception, how long to wait for the death of another rank, which may be the cause.
CAUSE_S = 1.0
# How long to wait, on several nodes, until all nodes have answered. A node that does not answer counts as lost before this time is over,
# because `actor.SILENT_S` is shorter.
NODES_ANSWER_S = 60.0
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
        self._changed = threading.Condition()
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
        self._watchdog = Watchdog(self, self._changed, notice, limits)
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
                    attempt.learn_job_best(message["job_best"])
                    attempt.lease_ns = max(attempt.lease_ns, message["lease_ns"])
                    self._others.renew(attempt.lease_ns)
                case "pause" | "finish":
                    attempt.last_command = message["order"]
                case "stop" if message.get("keep_best") and attempt.has_unsaved_best():
                    attempt.last_command = "stop"
                case "stop":
                    attempt.end("stopped")
                    self.processes.kill()
                    self.processes.kill_import()
                case unknown:
                    raise ValueError(f"unknown order {unknown!r}")
            self.reply_if_due(attempt)
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
                # Otherwise replies to the child of the previous attempt would go to the new child, because both use `processes`.
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
            attempt.forked()
            self.processes.take(forked)
            begin = attempt.begin(staging, checkpoint)
        for process in forked.ranks:
            read = self._read_peer if process.rank else self._read
            background("reader", self.processes.or_fail, read, attempt, process)
        # Send without the lock: a child that does not read blocks this call until the lease ends.
        for process in forked.ranks:
            variables = group.variables(process.rank)
            process.channel.send_waiting(
                begin_message(replace(begin, rank=process.rank, variables=variables))
            )

    # Messages from the child

    def _read(self, attempt: RunningAttempt, process: RankProcess) -> None:
        try:
            while True:
                data = process.channel.receive()
                with self._changed:
                    if attempt.state is None:
                        attempt.count_message()
                        self._receive(attempt, parse(data, now_ns=time.monotonic_ns()))
                    self._changed.notify_all()
        except InvalidMessage as invalid:
            with self._changed:
                self.processes.fail(attempt, endings.protocol_broken(str(invalid)))
        except (EOFError, OSError):
            self._on_silence(attempt, process)

    def _receive(self, attempt: RunningAttempt, message: ChildMessage) -> None:
        match message:
            case PhaseMessage():
                attempt.phase(message)
                sample_usage(attempt, self.processes.pids, self.processes.memory_sharers)
            case ReportMessage():
                self._on_report(attempt, message)
            case AskMessage():
                attempt.note_question(message)
                self.reply_if_due(attempt)
            case SavedMessage(step, path, part):
                attempt.saved(message)
                self._uploads.submit_checkpoint(attempt, step, Path(path), part)
            case SaveFailedMessage(step, detail):
                attempt.save_failed(step, detail)
            case EndedMessage():
                attempt.end("ended")
            case FailedMessage():
                self._rank_failed(attempt, 0, endings.user_code_raised(message), message.at)

    def _read_peer(self, attempt: RunningAttempt, peer: RankProcess) -> None:
        try:
            while True:
                data = peer.channel.receive()
                with self._changed:
                    if attempt.state is None:
                        self._receive_from_peer(attempt, peer, parse(data, now_ns=time.monotonic_ns()))
                    self._changed.notify_all()
        except InvalidMessage as invalid:
            with self._changed:
                self.processes.fail(
                    attempt, endings.of_rank(peer.rank, endings.protocol_broken(str(invalid)))
                )
        except (EOFError, OSError):
            self._on_peer_silence(attempt, peer)

    def _receive_from_peer(self, attempt: RunningAttempt, peer: RankProcess, message: ChildMessage) -> None:
        """Act on a message of a rank other than 0.

        Only the end of the rank matters. The reply to a report or a question is always to continue: each step also needs rank 0, so this
        rank cannot train any further once rank 0 stops.
        """
        peer.check(message)
        match message:
            case ReportMessage() | AskMessage():
                if not peer.channel.send(reply_message(stop=False, save=False)):
                    raise InvalidMessage(REPLY_UNREAD)
            case EndedMessage():
                peer.returned = True
            case FailedMessage():
                failure = endings.user_code_raised(message)
                self._rank_failed(attempt, peer.rank, endings.of_rank(peer.rank, failure), message.at)
            case PhaseMessage() | SavedMessage() | SaveFailedMessage():
                pass

    def _rank_failed(self, attempt: RunningAttempt, rank: int, failure: FailureFields, at_ns: int) -> None:
        """Fail the attempt because user code raised an exception. Call it under the lock.

        If a rank is killed or raises an exception, the other ranks raise exceptions too, because they lose the connection to it. So this
        first waits up to `CAUSE_S`: if another thread notices meanwhile that a process was killed or exited, the attempt fails because of
        that. Otherwise it fails with the exception that was sent first. The messages are compared by their times, because the threads
        that receive them may run in any order.
        """
        if attempt.nodes > 1:
            self._rank_ended(attempt, RankEnd(rank, at_ns, failure))
            return
        attempt.rank_ends.append(RankEnd(rank, at_ns, failure))
        has_peers = len(self.processes.ranks) > 1
        if has_peers:
            self._changed.wait_for(lambda: attempt.state is not None, CAUSE_S)
        # If the attempt is closing, its last checkpoint is being stored, and the attempt then ends normally.
        if not (has_peers and attempt.closed_by(attempt.saved_at)):
            attempt.end("failed", min(attempt.rank_ends, key=lambda end: end.order).failure)

    def _rank_ended(self, attempt: RunningAttempt, end: RankEnd) -> None:
        """Note the end of a rank of an attempt on several nodes. Node 0 then fails the attempt. Call it under the lock."""
        is_stopped = attempt.closing and (end.code == 0 or attempt.closed_by(attempt.saved_at))
        # A process that reports an exception exits afterwards, so this may be called twice for its rank. Only the first call counts.
        is_known = any(known.rank == end.rank for known in attempt.rank_ends)
        if attempt.state is not None or is_stopped or is_known:
            return
        attempt.rank_ends.append(end)
        if attempt.node == 0 and len(attempt.rank_ends) == 1:
            background("cause", self.processes.or_fail, self._fail_by_cause, attempt)
        self._changed.notify_all()

    def _fail_by_cause(self, attempt: RunningAttempt) -> None:
        """Fail an attempt on several nodes because of the rank whose end was the cause.

        If a node is lost, the ranks on other nodes fail because they lose the connection to it. Such an attempt ends as lost, not as failed.
        So this first waits until all other nodes have answered, or until the loss of a node has ended the attempt.
        """
        since_s = time.monotonic() + CAUSE_S
        with self._changed:
            self._changed.wait_for(
                lambda: attempt.state is not None or self._others.have_answered(since_s), NODES_ANSWER_S
            )
            if not attempt.closed_by(attempt.saved_at):
                self.processes.fail(attempt, min(attempt.rank_ends, key=lambda end: end.order).failure)

    def receive_from_other_node(self, trial: str, number: int, result: Mapping[str, Any]) -> None:
        """Record that ranks ended on another node. If the attempt ended early on the other node, end it on this node in the same way.

        Args:
            trial: The trial.
            number: The number of the attempt.
            result: The fields `state`, `error` and `rank_ends` of the result of the other node's `step` method.
        """
        with self._changed:
            attempt = self._attempt
            if attempt is None or (attempt.trial, attempt.number) != (trial, number):
                return
            for message in result["rank_ends"]:
                self._rank_ended(attempt, RankEnd.of_message(message, time.monotonic_ns()))
            is_over = result["state"] != "running" and not attempt.closed_by(attempt.saved_at)
            if is_over and attempt.state is None:
                attempt.end(result["state"], result["error"])
                self.processes.kill()
            self._changed.notify_all()

    def _on_report(self, attempt: RunningAttempt, message: ReportMessage) -> None:
        if self.processes.first_channel is not None and self.processes.first_channel.unread:
            raise InvalidMessage("sent a report without reading the reply to its previous report")
        sample_usage(attempt, self.processes.pids, self.processes.memory_sharers)
        attempt.reported(message)
        if message.artifacts:
            self._uploads.submit_artifacts(attempt, message.step, message.artifacts, self._on_artifacts)
        self.reply_if_due(attempt)

    def _on_artifacts(self, attempt: RunningAttempt, refusal: str) -> None:
        if refusal:
            self.processes.fail(attempt, endings.artifacts_refused(refusal))
        elif attempt.state is None:
            self.reply_if_due(attempt)

    def reply_if_due(self, attempt: RunningAttempt) -> None:
        """Reply to the report that waits for a reply, if the reply is due.

        Never wait for the child. Call it under the lock.
        """
        reply, channel = attempt.answer(), self.processes.first_channel
        if reply is None or channel is None:
            return
        attempt.answered(reply)
        if not channel.send(reply_message(**asdict(reply))):
            self.processes.fail(attempt, endings.protocol_broken(REPLY_UNREAD))
        elif reply.stop and not reply.save and not reply.flush:
            attempt.close()

    def end_if_reply_unread(self, attempt: RunningAttempt) -> None:
        """Fail the attempt if its child left a reply unread for too long. Call it under the lock."""
        if (
            self.processes.first_channel is not None
            and self.processes.first_channel.unread_s() > REPLY_UNREAD_S
        ):
            self.processes.fail(attempt, endings.protocol_broken(REPLY_UNREAD))

    def _on_exit(self, pid: int, code: int) -> None:
        with self._changed:
            process, attempt = self.processes.note_exit(pid, code), self._attempt
            self._changed.notify_all()
        if attempt is None or process is None:
            return
        # In a thread of its own, because this waits for the child's last messages, and processes that the child left behind may hold its
        # channel open.
        on_silence = self._on_peer_silence if process.rank else self._on_silence
        background("mourner", self.processes.or_fail, on_silence, attempt, process, last_words=5)

    def _on_silence(self, attempt: RunningAttempt, process: RankProcess, last_words: int = 0) -> None:
        """Fail an attempt whose rank 0 closed its channel or exited. Do nothing if its last message or checkpoint ends the attempt normally.

        `last_words` is that of `AttemptProcesses.await_end`.
        """
        with self._changed:
            code = self.processes.await_end(attempt, process, last_words)
            # If the attempt is closing, its last checkpoint is being stored, and the attempt then ends normally.
            if not attempt.closed_by(attempt.saved_at):
                failure = self.processes.failure_of_exit(code)
                if attempt.nodes > 1:
                    self._rank_ended(attempt, RankEnd(0, time.monotonic_ns(), failure))
                else:
                    attempt.end("failed", failure)
            self._changed.notify_all()

    def _on_peer_silence(self, attempt: RunningAttempt, process: RankProcess, last_words: int = 0) -> None:
        """Fail an attempt if a rank other than 0 exited. Do nothing if user code returned there, or if the attempt is being stopped.

        `last_words` is that of `AttemptProcesses.await_end`.
        """
        with self._changed:
            code = self.processes.await_end(attempt, process, last_words, lambda: process.returned)
            is_stopped = attempt.closing and (code == 0 or attempt.closed_by(attempt.saved_at))
            if not process.returned and not is_stopped:
                failure = endings.of_rank(process.rank, self.processes.failure_of_exit(code))
                if attempt.nodes > 1:
                    self._rank_ended(attempt, RankEnd(process.rank, time.monotonic_ns(), failure, code))
                else:
                    self.processes.fail(attempt, failure)

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
            self._changed.wait_for(attempt.has_news, heartbeat_s(attempt.left_ns()))
            if attempt.state is None and attempt.reports:
                pause = FLUSH_S - (time.monotonic() - self._answered_at)
                self._changed.wait_for(
                    lambda: attempt.state is not None or attempt.awaiting_reply is not None,
                    max(0, pause),
                )
            self._answered_at = time.monotonic()
            if attempt.state is None:
                attempt.announced_waiting = attempt.waits_for_driver()
                attempt.describe(self.server.environment)
                self._count_reads(attempt)
                result = attempt.result("waiting" if attempt.announced_waiting else "running")
                self.reply_if_due(
                    attempt
                )  # the child may wait because too many reports were unsent until now
                return result
        self._clear(attempt)
        with self._changed:
            attempt.describe(self.server.environment)
            self._count_reads(attempt)
            assert attempt.state is not None
            result = attempt.result(attempt.state)
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
