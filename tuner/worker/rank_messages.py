"""Read the messages of an attempt's ranks on this node, and reply to them.

Rank 0 reports and saves for all ranks. The other ranks only have to be kept going, and their ends noticed. Each rank has a reader thread.
"""

import logging
import threading
import time
from dataclasses import asdict
from pathlib import Path

from tuner.training.channel import reply_message
from tuner.worker import endings
from tuner.worker.attempt import RunningAttempt
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
from tuner.worker.processes import AttemptProcesses, RankProcess
from tuner.worker.publishing import Uploads
from tuner.worker.rank_ends import RankEnds
from tuner.worker.ranks import RankEnd
from tuner.worker.replies import reply_to, waits_for_best
from tuner.worker.sampling import sample_usage

log = logging.getLogger("tuner.worker")
# A child waits for each reply, so it reads the reply at once, unless another of its threads holds the GIL.
REPLY_UNREAD_S = 30.0
REPLY_UNREAD = "does not read the replies to its reports"
GOES_ON = "continued after it was ordered to stop, without saving; do not catch StopTraining"


def is_too_late(attempt: RunningAttempt, message: ChildMessage) -> bool:
    """Return whether to ignore a message, because user code has returned, or because the child reports or asks again after it wrote the
    attempt's last checkpoint.

    Code that runs after the order to stop, such as a `finally` block, may report.

    Raises:
        InvalidMessage: The child reports or asks although it was ordered to save and stop, and has not saved.
    """
    if attempt.states.ends_by_itself:
        return True
    if not attempt.states.closing or not isinstance(message, ReportMessage | AskMessage):
        return False
    if not attempt.states.last_is_written:
        raise InvalidMessage(GOES_ON)
    return True


class FirstRank:
    """Acts on the messages of rank 0, and replies to its reports and questions.

    Args:
        changed: The supervisor's lock and condition.
        processes: The processes of the current attempt on this node.
        uploads: Stores what rank 0 saves and reports.
        ends: Fails the attempt if the rank ends.
    """

    def __init__(
        self,
        changed: threading.Condition,
        processes: AttemptProcesses,
        uploads: Uploads,
        ends: RankEnds,
    ) -> None:
        self._changed, self._processes, self._uploads, self._ends = changed, processes, uploads, ends

    def read(self, attempt: RunningAttempt, process: RankProcess) -> None:
        """Receive messages until the channel closes or a message is invalid. Runs in the reader thread."""
        try:
            while True:
                data = process.channel.receive()
                with self._changed:
                    if attempt.state is None:
                        attempt.count_message()
                        message = parse(data, now_ns=time.monotonic_ns())
                        if not is_too_late(attempt, message):
                            self._receive(attempt, message)
                    self._changed.notify_all()
        except InvalidMessage as invalid:
            with self._changed:
                self._processes.fail(attempt, endings.protocol_broken(str(invalid)))
        except (EOFError, OSError):
            self.on_silence(attempt, process)

    def _receive(self, attempt: RunningAttempt, message: ChildMessage) -> None:
        match message:
            case PhaseMessage():
                attempt.times.phase(message)
                sample_usage(attempt, self._processes.pids, self._processes.memory_sharers)
            case ReportMessage():
                self._on_report(attempt, message)
            case AskMessage():
                attempt.note_question(message)
                self.reply_if_due(attempt)
            case SavedMessage(step, path, part):
                attempt.states.note_written(message, last_step=attempt.step)
                self._uploads.submit_checkpoint(attempt, step, Path(path), part)
            case SaveFailedMessage(step, detail):
                log.warning("%s: the trial could not save step %d: %s", attempt.trial, step, detail)
                attempt.save_failed(step, detail)
            case EndedMessage():
                attempt.returned()
            case FailedMessage():
                self._ends.raised(attempt, 0, endings.user_code_raised(message), message.at)

    def _on_report(self, attempt: RunningAttempt, message: ReportMessage) -> None:
        channel = self._processes.first_channel
        if channel is not None and channel.unread:
            raise InvalidMessage("sent a report without reading the reply to its previous report")
        sample_usage(attempt, self._processes.pids, self._processes.memory_sharers)
        attempt.reported(message)
        if message.artifacts:
            self._uploads.submit_artifacts(attempt, message.step, message.artifacts, self._on_artifacts)
        self.reply_if_due(attempt)

    def _on_artifacts(self, attempt: RunningAttempt, refusal: str) -> None:
        if refusal:
            self._processes.fail(attempt, endings.artifacts_refused(refusal))
        elif attempt.state is None:
            self.reply_if_due(attempt)

    def reply_if_due(self, attempt: RunningAttempt) -> None:
        """Reply to the report that waits for a reply, if the reply is due.

        Never wait for the child. Call it under the lock.
        """
        if waits_for_best(attempt):
            attempt.watch.switch("checkpoint")
            return
        reply, channel = reply_to(attempt), self._processes.first_channel
        if reply is None or channel is None:
            return
        attempt.answered(reply)
        if not channel.send(reply_message(**asdict(reply))):
            self._processes.fail(attempt, endings.protocol_broken(REPLY_UNREAD))
        elif reply.stop and not reply.save and not reply.flush:
            attempt.close()

    def fail_if_reply_unread(self, attempt: RunningAttempt) -> None:
        """Fail the attempt if its child left a reply unread for too long. Call it under the lock."""
        channel = self._processes.first_channel
        if channel is not None and channel.unread_s() > REPLY_UNREAD_S:
            self._processes.fail(attempt, endings.protocol_broken(REPLY_UNREAD))

    def on_silence(self, attempt: RunningAttempt, process: RankProcess, last_words: int = 0) -> None:
        """Fail an attempt whose rank 0 closed its channel or exited. Do nothing if its last message or checkpoint ends it normally.

        `last_words` is that of `AttemptProcesses.await_end`.
        """
        with self._changed:
            code = self._processes.await_end(attempt, process, last_words)
            # If the attempt is closing, its last checkpoint is being stored, and the attempt then ends normally.
            if not attempt.states.last_is_written:
                failure = self._processes.failure_of_exit(code)
                if attempt.nodes > 1:
                    self._ends.note(attempt, RankEnd(0, time.monotonic_ns(), failure))
                else:
                    attempt.end("failed", failure)
            self._changed.notify_all()


class OtherRanks:
    """Acts on the messages of the ranks on this node other than 0.

    Args:
        changed: The supervisor's lock and condition.
        processes: The processes of the current attempt on this node.
        ends: Fails the attempt if a rank ends.
    """

    def __init__(self, changed: threading.Condition, processes: AttemptProcesses, ends: RankEnds) -> None:
        self._changed, self._processes, self._ends = changed, processes, ends

    def read(self, attempt: RunningAttempt, process: RankProcess) -> None:
        """Receive messages until the channel closes or a message is invalid. Runs in the reader thread."""
        try:
            while True:
                data = process.channel.receive()
                with self._changed:
                    if attempt.state is None:
                        self._receive(attempt, process, parse(data, now_ns=time.monotonic_ns()))
                    self._changed.notify_all()
        except InvalidMessage as invalid:
            with self._changed:
                self._processes.fail(
                    attempt, endings.of_rank(process.rank, endings.protocol_broken(str(invalid)))
                )
        except (EOFError, OSError):
            self.on_silence(attempt, process)

    def _receive(self, attempt: RunningAttempt, process: RankProcess, message: ChildMessage) -> None:
        """Act on a message of a rank other than 0.

        Only the end of the rank matters. The reply to a report or a question is always to continue: each step also needs rank 0, so this
        rank cannot train any further once rank 0 stops.
        """
        process.check(message)
        match message:
            case ReportMessage() | AskMessage():
                if not process.channel.send(reply_message(stop=False, save=False)):
                    raise InvalidMessage(REPLY_UNREAD)
            case EndedMessage():
                process.returned = True
            case FailedMessage():
                failure = endings.user_code_raised(message)
                self._ends.raised(attempt, process.rank, endings.of_rank(process.rank, failure), message.at)
            case PhaseMessage() | SavedMessage() | SaveFailedMessage():
                pass

    def on_silence(self, attempt: RunningAttempt, process: RankProcess, last_words: int = 0) -> None:
        """Fail an attempt if a rank other than 0 exited. Do nothing if user code returned there, or if the attempt is being stopped.

        `last_words` is that of `AttemptProcesses.await_end`.
        """
        with self._changed:
            code = self._processes.await_end(attempt, process, last_words, lambda: process.returned)
            is_stopped = attempt.states.closing and (code == 0 or attempt.states.last_is_written)
            if not process.returned and not is_stopped:
                failure = endings.of_rank(process.rank, self._processes.failure_of_exit(code))
                if attempt.nodes > 1:
                    self._ends.note(attempt, RankEnd(process.rank, time.monotonic_ns(), failure, code))
                else:
                    self._processes.fail(attempt, failure)
