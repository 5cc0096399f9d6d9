"""The supervisor of one worker. It starts a child for each attempt, replies to the child's reports, measures it, and ends it with the lease.

This is plain Python, without Ray. The actor's thread calls `order` and `step`. A reader thread, the watchdog's threads and the
publisher threads run at the same time. One lock guards the state that they share. No code waits for a child while it holds the
lock: a reply is sent only if the child's channel has room for it.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tuner.training.channel import begin_message, reply_message
from tuner.worker import endings
from tuner.worker.attempt import RunningAttempt
from tuner.worker.background import Publisher, background
from tuner.worker.child_channel import (
    AskMessage,
    ChannelEnd,
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
from tuner.worker.logs import LogPump
from tuner.worker.metering import ReadLog, SharedTime, Stopwatch
from tuner.worker.orders import AttemptMessage, BeginOrder, FailureFields, NodeOrder, Order
from tuner.worker.packages import Stored
from tuner.worker.process_tree import become_subreaper, kill_descendants, kill_own_descendants
from tuner.worker.publishing import Uploads
from tuner.worker.ranks import OtherNodes, Peer, RankEnd, RankGroup
from tuner.worker.restoring import Restorer
from tuner.worker.sampling import UsageSampler, sample_usage
from tuner.worker.scratch import Scratch, new_directory, wipe
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
        self._owns_process = owns_process
        if owns_process:
            become_subreaper()
        now = time.monotonic_ns()
        self._last_end_ns = now if born_ns is None else max(born_ns, now - MAX_START_NS)
        self._changed = threading.Condition()
        self._limits = UserCodeLimits.from_env(os.environ)
        self._watchdog = Watchdog(self, self._changed, notice, self._limits)
        self._sampler = UsageSampler(self, self._changed)
        self._scratch = Scratch("worker")
        self._home = self._scratch.path
        self._exits: dict[int, int] = {}
        self._reads = ReadLog(self._home)
        self._shared = shared
        self._servers: Servers | SlotServer
        if shared is None:
            self._servers = Servers(entry, package, self._on_exit, self._limits, self._home, constants or {})
        else:
            self._servers = SlotServer(
                shared.servers, shared.statuses, self._on_exit, self._home, shared.variables
            )
        self._attempt: RunningAttempt | None = None
        self._others = others or OtherNodes()
        self._channel: ChannelEnd | None = None
        self._pump: LogPump | None = None
        self._restorer = Restorer(self._changed, self._home)
        self._uploads = Uploads(self._changed)
        self._remover = Publisher()  # removes the directories of ended attempts
        self._starter: threading.Thread | None = None
        self._pid = 0
        self._peers: list[Peer] = []  # the processes of the attempt that are not rank 0
        self._answered_at = 0.0
        self._fresh = True
        self._numbers = count(1)  # of the directories of attempts
        self.is_clean = True  #: Whether all processes of the ended attempts could be killed.

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
                    self.kill()
                    if not self.server.ready:
                        self.server.kill()
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
                    self.kill()  # a rank that ended normally gets the time to exit by itself
                if not self.server.ready:  # the server may be running user code that it imports
                    self.server.kill()
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
        # A short name, because sockets of user code are in this directory, and the length of their paths is limited.
        directory = self._home / f"a{next(self._numbers)}"
        attempt = RunningAttempt(
            order, watch, order["lease_ns"], order["target_step"], order["max_step"], directory
        )
        attempt.batch_socket = None if self._shared is None else self._shared.batch_socket
        with self._changed:
            if self._attempt is not None:
                # Otherwise replies to the child of the previous attempt would go to the new child, because both use `_channel`.
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
        server = self._servers.living()
        pump, group = LogPump(attempt.order), RankGroup.of(attempt.order)
        forked = list[tuple[int, Connection]]()
        try:
            for _ in group.ranks:
                forked.append(server.fork(cwd, pump.write_fd, wanted=lambda: attempt.state is None))
        except BaseException:
            pump.started()
            pump.close()
            _discard(forked)
            with self._changed:
                # The order that ended the attempt may have come before this thread started the server.
                if self._attempt is attempt and attempt.state is not None and not server.ready:
                    server.kill()
            raise
        pump.started()
        with self._changed:
            # do not begin if the attempt was stopped, or its lease ended, while it was starting
            if attempt.state is not None:
                _discard(forked)
                pump.close()
                return
            attempt.forked()
            processes = [Peer.of(rank, *process) for rank, process in zip(group.ranks, forked, strict=True)]
            first = processes[0] if group.node == 0 else None
            self._pump, self._peers = pump, [peer for peer in processes if peer is not first]
            if first is not None:
                self._pid, self._channel = first.pid, first.channel
            begin = attempt.begin(staging, checkpoint)
        for process in processes:
            if process is first:
                background("reader", self.or_fail, self._read, attempt, process.channel)
            else:
                background("reader", self.or_fail, self._read_peer, attempt, process)
        # Send without the lock: a child that does not read blocks this call until the lease ends.
        for process in processes:
            variables = group.variables(process.rank)
            process.channel.send_waiting(
                begin_message(replace(begin, rank=process.rank, variables=variables))
            )

    # Messages from the child

    def _read(self, attempt: RunningAttempt, channel: ChannelEnd) -> None:
        try:
            while True:
                data = channel.receive()
                with self._changed:
                    if attempt.state is None:
                        attempt.count_message()
                        self._receive(attempt, parse(data, now_ns=time.monotonic_ns()))
                    self._changed.notify_all()
        except InvalidMessage as invalid:
            with self._changed:
                self._fail(attempt, endings.protocol_broken(str(invalid)))
        except (EOFError, OSError):
            self._on_silence(attempt)

    def _receive(self, attempt: RunningAttempt, message: ChildMessage) -> None:
        match message:
            case PhaseMessage():
                attempt.phase(message)
                sample_usage(attempt, self.pids, self.memory_sharers)
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

    def _read_peer(self, attempt: RunningAttempt, peer: Peer) -> None:
        try:
            while True:
                data = peer.channel.receive()
                with self._changed:
                    if attempt.state is None:
                        self._receive_from_peer(attempt, peer, parse(data, now_ns=time.monotonic_ns()))
                    self._changed.notify_all()
        except InvalidMessage as invalid:
            with self._changed:
                self._fail(attempt, endings.of_rank(peer.rank, endings.protocol_broken(str(invalid))))
        except (EOFError, OSError):
            self._on_peer_silence(attempt, peer)

    def _receive_from_peer(self, attempt: RunningAttempt, peer: Peer, message: ChildMessage) -> None:
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
                peer.ended = True
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
        if self._peers:
            self._changed.wait_for(lambda: attempt.state is not None, CAUSE_S)
        # If the attempt is closing, its last checkpoint is being stored, and the attempt then ends normally.
        if not (self._peers and attempt.closed_by(attempt.saved_at)):
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
            background("cause", self.or_fail, self._fail_by_cause, attempt)
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
                self._fail(attempt, min(attempt.rank_ends, key=lambda end: end.order).failure)

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
                self.kill()
            self._changed.notify_all()

    def _on_report(self, attempt: RunningAttempt, message: ReportMessage) -> None:
        if self._channel is not None and self._channel.unread:
            raise InvalidMessage("sent a report without reading the reply to its previous report")
        sample_usage(attempt, self.pids, self.memory_sharers)
        attempt.reported(message)
        if message.artifacts:
            self._uploads.submit_artifacts(attempt, message.step, message.artifacts, self._on_artifacts)
        self.reply_if_due(attempt)

    def _on_artifacts(self, attempt: RunningAttempt, refusal: str) -> None:
        if refusal:
            self._fail(attempt, endings.artifacts_refused(refusal))
        elif attempt.state is None:
            self.reply_if_due(attempt)

    def reply_if_due(self, attempt: RunningAttempt) -> None:
        """Reply to the report that waits for a reply, if the reply is due.

        Never wait for the child. Call it under the lock.
        """
        reply, channel = attempt.answer(), self._channel
        if reply is None or channel is None:
            return
        attempt.answered(reply)
        if not channel.send(reply_message(**asdict(reply))):
            self._fail(attempt, endings.protocol_broken(REPLY_UNREAD))
        elif reply.stop and not reply.save and not reply.flush:
            attempt.close()

    def end_if_reply_unread(self, attempt: RunningAttempt) -> None:
        """Fail the attempt if its child left a reply unread for too long. Call it under the lock."""
        if self._channel is not None and self._channel.unread_s() > REPLY_UNREAD_S:
            self._fail(attempt, endings.protocol_broken(REPLY_UNREAD))

    def end_if_server_died(self, attempt: RunningAttempt) -> None:
        """Fail the attempt if its fork server is dead. Call it under the lock.

        The kernel kills the child when its fork server dies. Another process that user code started may still hold the channel open,
        so the reader may never see the end of the channel.
        """
        pids = self.pids
        if pids and self.server.exit_code is not None and not attempt.closed_by(attempt.saved_at):
            log = self._pump.last() if self._pump else ""
            self._fail(attempt, endings.exited(self._exits.get(pids[0]), self.server.exit_code, log))

    def _fail(self, attempt: RunningAttempt, failure: FailureFields) -> None:
        """Fail the attempt and kill its child. Call it under the lock.

        Do nothing if the attempt has ended, because the current child may belong to a later attempt.
        """
        if attempt.state is None:
            attempt.end("failed", failure)
            self.kill()
            self._changed.notify_all()

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
                self._fail(attempt, endings.supervisor_failed(error))

    def _on_exit(self, pid: int, code: int) -> None:
        with self._changed:
            self._exits[pid] = code
            attempt = self._attempt
            peer = next((peer for peer in self._peers if peer.pid == pid), None)
            self._changed.notify_all()
        if attempt is None:
            return
        # In a thread of its own, because this waits for the child's last messages, and processes that the child left behind may hold its
        # channel open.
        if pid == self._pid:
            background("mourner", self.or_fail, self._on_silence, attempt, last_words=5)
        elif peer is not None:
            background("mourner", self.or_fail, self._on_peer_silence, attempt, peer, last_words=5)

    def _on_silence(self, attempt: RunningAttempt, last_words: int = 0) -> None:
        """Fail an attempt whose child closed its channel or exited. Do nothing if the child's last message or
        checkpoint ends the attempt normally.

        Args:
            attempt: The attempt of that child.
            last_words: How many times to wait up to `EXIT_GRACE_S` for messages that the child sent before it exited.
        """
        with self._changed:
            self._await_last_words(attempt, self._channel, last_words)
            endings.wait_status(self._changed, lambda: attempt.state or self._pid in self._exits, self.server)
            # If the attempt is closing, its last checkpoint is being stored, and the attempt then ends normally.
            if not attempt.closed_by(attempt.saved_at):
                log, code = self._pump.last() if self._pump else "", self._exits.get(self._pid)
                failure = endings.exited(code, self.server.exit_code, log)
                if attempt.nodes > 1:
                    self._rank_ended(attempt, RankEnd(0, time.monotonic_ns(), failure))
                else:
                    attempt.end("failed", failure)
            self._changed.notify_all()

    def _on_peer_silence(self, attempt: RunningAttempt, peer: Peer, last_words: int = 0) -> None:
        """Fail an attempt if a rank other than 0 exited. Do nothing if user code returned there, or if the attempt is being stopped."""
        with self._changed:
            self._await_last_words(attempt, peer.channel, last_words)
            endings.wait_status(
                self._changed, lambda: attempt.state or peer.ended or peer.pid in self._exits, self.server
            )
            code = self._exits.get(peer.pid)
            is_stopped = attempt.closing and (code == 0 or attempt.closed_by(attempt.saved_at))
            if not peer.ended and not is_stopped:
                log = self._pump.last() if self._pump else ""
                failure = endings.of_rank(peer.rank, endings.exited(code, self.server.exit_code, log))
                if attempt.nodes > 1:
                    self._rank_ended(attempt, RankEnd(peer.rank, time.monotonic_ns(), failure, code))
                else:
                    self._fail(attempt, failure)

    def _await_last_words(self, attempt: RunningAttempt, channel: ChannelEnd | None, times: int) -> None:
        """Wait up to `times` times `EXIT_GRACE_S` for messages that a process sent before it exited. Call it under the lock."""
        for _ in range(times):
            over = self._changed.wait_for(lambda: attempt.state is not None, endings.EXIT_GRACE_S)
            if over or channel is None or not channel.has_data:
                break

    @property
    def server(self) -> ForkServer | SlotServer:
        return self._servers.current

    @property
    def is_in_slot(self) -> bool:
        """Whether the supervisor is one of several on its worker."""
        return self._shared is not None

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def pids(self) -> list[int]:
        """The processes of the attempt that the fork server started, one for each rank."""
        return [*([self._pid] if self._pid else []), *(peer.pid for peer in self._peers)]

    @property
    def memory_sharers(self) -> list[int]:
        """The process whose memory of imports and prepared data counts as memory of the attempt: the fork server, unless slots share it."""
        return [self.server.pid] if self.server.pid and not self.is_in_slot else []

    @property
    def attempt(self) -> RunningAttempt | None:
        return self._attempt

    def kill(self) -> None:
        """Kill the process groups of all ranks. This never waits and needs no lock."""
        for pid in self.pids:
            if pid not in self._exits:
                endings.kill_group(pid)

    def kill_all(self) -> None:
        """Kill the child and all processes that it started, in any session. This needs neither the lock nor a fork server that is alive."""
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
        """Clean up after an attempt that has ended.

        First give a child that exits by itself `EXIT_GRACE_S`, then kill all processes of the attempt. Wait for saves in progress. Then
        delete the attempt's folders, and close its channels and its log.
        """
        with self._changed:
            assert attempt.state is not None
            self._others.end(attempt.state, attempt.error)
        if self._starter is not None:
            self._starter.join(endings.EXIT_GRACE_S)
        with self._changed:
            if attempt.error is None and attempt.state != "stopped":
                self._changed.wait_for(
                    lambda: not self.pids or self.pids[0] in self._exits, endings.EXIT_GRACE_S
                )
            self.kill()
        self.is_clean = self.server.clean() and self.is_clean
        self.is_clean = self._kill_orphans() and self.is_clean
        self._uploads.settle(attempt)
        self._remove_directory(attempt)
        with self._changed:
            channels = [*([self._channel] if self._channel else []), *(peer.channel for peer in self._peers)]
            pump, self._pump = self._pump, None
            self._channel, self._pid, self._peers = None, 0, []
            self._exits.clear()
        for channel in channels:
            channel.close()
        if pump is not None:
            pump.close()

    def _remove_directory(self, attempt: RunningAttempt) -> None:
        """Remove the directory of an attempt that has ended, in a thread, because it may hold millions of files.

        Rename it first: a save that hung and then continues must find all files or none.
        """
        directory = attempt.directory
        with self._changed:
            attempt.is_cleared = True
        try:
            directory = directory.rename(self._home / f"ended-{time.monotonic_ns()}")
        except FileNotFoundError:  # the attempt has not begun, or user code has removed it
            return
        except OSError:  # user code has made the worker's directory read-only
            pass
        self._remover.submit(wipe, directory)

    def close(self) -> None:
        """End the attempt, its child and the fork server, and delete the scratch directory."""
        with self._changed:
            if self._attempt is not None:
                self._attempt.end("stopped")
            self.kill()
            pump, self._pump = self._pump, None
        self._sampler.close()
        self.server.close()
        self._kill_orphans()
        # Close it after the server, because a process that the child left behind may print until the server has killed it.
        if pump is not None:
            pump.close()
        self._reads.close()
        self._remover.settle(endings.EXIT_GRACE_S)
        self._scratch.close()


def heartbeat_s(left_ns: int) -> float:
    """Return the time until the next heartbeat of an attempt, in seconds. `left_ns` is the rest of its lease, in nanoseconds.

    The time is a third of the rest of the lease, but at least `FLUSH_S` and at most `HEARTBEAT_S`. The driver renews a lease once it
    hears that half of the lease is used, so it must hear from a short lease more than once.
    """
    return min(HEARTBEAT_S, max(FLUSH_S, left_ns / 3e9))


def _discard(forked: list[tuple[int, Connection]]) -> None:
    """Kill processes that were forked for an attempt that does not begin."""
    for pid, connection in forked:
        endings.kill_group(pid)
        connection.close()
