"""The state that the supervisor keeps of one attempt: what its child has sent, what is to be sent to the driver, and how it ends.

The supervisor's lock guards everything here. Nothing here does I/O. `replies` decides from this state, and `results` makes the driver's
results of it.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tuner.checkpoints.checkpoints import Published
from tuner.cluster.notices.notice import Notice
from tuner.domain.environment import Environment
from tuner.training.channel import BeginMessage, Reply
from tuner.worker import endings
from tuner.worker.best_steps import BestSteps
from tuner.worker.child_channel import (
    MAX_BETWEEN_REPORTS,
    AskMessage,
    InvalidMessage,
    ReportMessage,
    check_metrics_room,
    check_step,
)
from tuner.worker.metering import Stopwatch, UsageMeter
from tuner.worker.orders import BeginOrder, EndState, FailureFields, ReportFields
from tuner.worker.ranks import RankEnd
from tuner.worker.saved_states import Position, SavedStates
from tuner.worker.saves import Saves
from tuner.worker.step_times import StepTimes

DriverCommand = Literal["continue", "pause", "finish", "stop"]


@dataclass
class RunningAttempt:
    """The state of one attempt."""

    order: BeginOrder
    watch: Stopwatch
    lease_ns: int
    target_step: int | None  # the step up to which the driver lets the attempt run now
    max_step: int | None  # the last step of the trial
    directory: Path  # of the files of this attempt alone
    # Whether the directory was removed, so that a late thread must remove what it adds to it.
    is_cleared: bool = False
    times: StepTimes = field(init=False)
    states: SavedStates = field(default_factory=SavedStates)
    best_steps: BestSteps = field(init=False)
    use: UsageMeter = field(default_factory=UsageMeter)

    # What the child begins with
    restored: int = 0  # the step of the checkpoint that the attempt continues from; 0 if none
    from_step: int | None = None  # `restored`, once the child has begun; sent to the driver
    staging: Path | None = None  # where the child may leave checkpoints
    # the path of the teacher's checkpoint and the teacher's configuration
    teacher: dict[str, Any] | None = None
    batch_socket: str | None = None  # where the worker's batch process listens, if attempts share the worker

    # What the child has sent
    step: int = 0  # the newest reported step
    # the last finished step, if its report or a question in the step after it waits for a reply
    awaiting_reply: int | None = None
    asks: bool = False  # whether the message that waits for a reply is a question in the middle of a step
    reported_at: int = 0  # when the newest report came, on the monotonic clock
    resumable: bool = False  # whether the child can save a checkpoint of the newest step
    has_returned: bool = False  # whether user code had returned when the child sent the newest report
    messages_since_report: int = 0
    metrics_bytes: int = 0  # the size of the metrics of all reports, as JSON
    unstored: int = 0  # reports with artifacts that the publisher has not finished
    # Whether artifacts are dropped while earlier ones are being stored, because the last ones could not be stored or took too long
    drops_artifacts: bool = False
    reported_bytes: int = 0  # the size of all artifacts that the publisher has read
    # Why the newest checkpoint that the publisher has finished could not be stored. None if it was stored.
    not_stored: FailureFields | None = None

    # What is to be sent to the driver
    reports: list[ReportFields] = field(default_factory=list)
    environment: Environment | None = None  # to be sent with the next result
    described: bool = False  # whether the environment was sent, or will be sent with the next result
    announced_leaving: bool = False  # whether the last result reported the machine's preemption notice
    announced_waiting: bool = False  # whether the last result reported that the child waits for the driver
    # ends of ranks that may have caused a failure; the other nodes send those of their ranks to node 0
    rank_ends: list[RankEnd] = field(default_factory=list)

    # How it ends
    last_command: DriverCommand = "continue"  # the driver's last command
    notice: Notice | None = None  # the preemption notice of the machine
    # Whether the child was ordered to stop because its lease ends: in the middle of a step, or while it waits for the driver
    lease_is_over: bool = False
    state: EndState | None = None  # how the attempt ended; None while it runs
    error: FailureFields | None = None

    def __post_init__(self) -> None:
        self.times = StepTimes(self.watch, Saves.of(self.order, time.monotonic_ns()))
        self.best_steps = BestSteps(self.order)

    @property
    def trial(self) -> str:
        return str(self.order["trial"])

    @property
    def number(self) -> int:
        return int(self.order["attempt"])

    @property
    def nodes(self) -> int:
        return int(self.order.get("nodes", 1))

    @property
    def node(self) -> int:
        """The number of this supervisor's node among those of the attempt, from 0."""
        return int(self.order.get("node", 0))

    @property
    def may_have_part(self) -> bool:
        """Whether an earlier attempt may have saved a checkpoint in the middle of a step."""
        return self.number > 1 and self.order.get("reported_step") is not None

    def begin(self, staging: Path, restored: Path | None) -> BeginMessage:
        """Return the message that starts the child, and note the child's first step and its staging directory."""
        self.from_step, self.staging = self.restored, staging
        return BeginMessage(
            self.trial,
            self.number,
            self.order["entry"],
            self.order["config"],
            str(staging),
            restore=str(restored) if restored else None,
            first_step=self.restored,
            max_step=self.order["max_step"],
            resources=self.order.get("resources", {}),
            echo=bool(self.order.get("echo")),
            seed=self.order.get("seed"),
            kind=self.order.get("kind"),
            metric=self.order.get("metric"),
            artifact_room=self.order.get("artifact_room"),
            rungs=self.order.get("rungs", ()),
            proxies=self.order.get("proxies"),
            teacher=self.teacher,
            usd_per_hour=self.order.get("usd_per_hour"),
            serving_metrics=self.order.get("serving_metrics", ()),
            batch_socket=self.batch_socket,
        )

    def left_ns(self) -> int:
        return self.lease_ns - self.watch.total_ns()

    def count_message(self) -> None:
        """Count a message of the child. Raise InvalidMessage if it sends more than `MAX_BETWEEN_REPORTS` without a report."""
        self.messages_since_report += 1
        if self.messages_since_report > MAX_BETWEEN_REPORTS:
            raise InvalidMessage(f"sent more than {MAX_BETWEEN_REPORTS} messages without a report")

    def reported(self, message: ReportMessage) -> None:
        """Note a report of the child, which waits for the reply before it trains again.

        Raises:
            InvalidMessage: The step is not the next one, the previous report has no reply yet, or the job has no room for the metrics.
        """
        at, step, in_first_step = message.at, message.step, self.step == self.restored
        if self.awaiting_reply is not None:
            raise InvalidMessage(
                f"sent another report before it received the reply to its report of step {self.awaiting_reply}"
            )
        check_step(step, last_step=self.step, max_step=self.max_step)
        self.metrics_bytes += len(json.dumps(message.metrics))
        check_metrics_room(self.metrics_bytes, self.order.get("metrics_room"))
        self.messages_since_report = 0
        self.use.add_reported(message.usage, trained_ns=self.watch.of("train"), of_share=self.watch.of_share)
        self.times.reported(at, in_first_step=in_first_step)
        self.step, self.awaiting_reply, self.resumable, self.reported_at = step, step, message.resumable, at
        self.has_returned = message.last
        self.best_steps.reported(step, message.metrics, resumable=self.resumable)
        reading = self.watch.reading(self.lease_ns, at)
        self.reports.append(
            {
                "step": step,
                "metrics": message.metrics,
                "resumable": self.resumable,
                "meter": reading,
                "at_ns": time.time_ns(),
                "last": self.has_returned,
            }
        )

    def note_question(self, message: AskMessage) -> None:
        """Note that the child has asked, in the middle of a step, whether to save now.

        Raises:
            InvalidMessage: The child still waits for the reply to an earlier message.
        """
        if self.awaiting_reply is not None:
            raise InvalidMessage(
                "asked in the middle of a step whether to save, before it received the reply to an earlier message"
            )
        if self.times.asked(message.at):
            # questions at the expected interval do not flood the channel, so do not count them
            self.messages_since_report -= 1
        self.awaiting_reply, self.asks, self.resumable = self.step, True, True

    def waited_for_data(self, waits: bool) -> None:
        """Record whether the child waits for a dataset (see `StepTimes.waited_for_data`)."""
        in_first_step = self.step == self.restored and self.awaiting_reply is None
        self.times.waited_for_data(waits, in_first_step=in_first_step)

    def restored_from(self, step: int, older: frozenset[int] = frozenset(), carried_ns: int = 0) -> None:
        """Record that the attempt continues from the restored checkpoint of `step`.

        Args:
            step: The step of the restored checkpoint.
            older: The steps of all older checkpoints.
            carried_ns: How long the next step was trained before the checkpoint was saved, in nanoseconds.
        """
        self.times.carried_ns = carried_ns
        self.restored = self.step = step
        self.states.restored_from(step)
        self.best_steps.restored_from(step, older)

    def protected(self, step: int, part: int) -> frozenset[int]:
        """Return the steps whose checkpoints must not be deleted once that of `step` is stored (see `BestSteps.protected`)."""
        return self.best_steps.protected(step, part, self.states.recorded)

    def save_failed(self, step: int, detail: str) -> None:
        """Record that the child could not write the checkpoint of `step`. `detail` says why."""
        self.best_steps.save_ended(step)
        if self.states.save_failed(step):
            self.close_unsaved(endings.not_written(detail))
        self.close_if_best_is_saved()

    def made_durable(self, published: Published) -> None:
        """Record that a checkpoint is stored."""
        if (published.step, published.part) >= self.states.ordered:
            self.times.saves.made_durable(time.monotonic_ns())
        self.use.saved(published.size_bytes)
        self.states.made_durable(published)

    def answered(self, reply: Reply) -> None:
        """Update the state for a reply to the waiting report or question. The caller sends the reply right after this call."""
        assert self.awaiting_reply is not None
        step, self.awaiting_reply, self.announced_waiting = self.awaiting_reply, None, False
        position = step, 0
        if not self.asks:
            self.times.answered_report(save=reply.save)
        else:
            self.asks = False
            self.times.answered_question()
            if reply.save:
                position = self._ordered_part(step)
        self.watch.switch("checkpoint" if reply.stop and (reply.save or reply.flush) else "train")
        self.states.answered(position, reply, self.best_steps.kept_step)
        self.best_steps.answered(step, reply)

    def _ordered_part(self, step: int) -> Position:
        """Record that a save is ordered in the middle of the step after `step`. Return the position of the state to save."""
        self.messages_since_report = 0  # the save causes further messages, which must not count as flooding
        part = self.times.ordered_part(in_first_step=step == self.restored, from_scratch=not step)
        self.states.parts.append(part)
        return step, len(self.states.parts)

    def returned(self) -> None:
        """Record that user code has returned. The attempt ends now, or once the checkpoints that the child announced are stored."""
        if not self.states.returned():
            if self.not_stored is None:
                self.end("ended")
            else:
                self.close_unsaved(self.not_stored)
            return
        self.awaiting_reply = None
        self.watch.switch("checkpoint")

    def close(self) -> None:
        """End the attempt in the state that the driver ordered, or as ended if user code has returned.

        If the driver ordered no end, the attempt ends as preempted if the machine has a preemption notice. Otherwise its lease ended in
        the middle of a step, or while the child waited for the driver, and the attempt ends as paused.
        """
        match self.last_command:
            case _ if self.states.ends_by_itself:
                self.end("ended")
            case "finish":
                self.end("finished")
            case "pause":
                self.end("paused")
            case "stop":
                self.end("stopped")
            case "continue" if self.lease_is_over and self.notice is None:
                self.end("paused")
            case "continue":
                self.leave()

    def close_if_best_is_saved(self) -> None:
        """End the attempt if it was ordered to stop and only had to save the job's best state first. Call this when a save has ended."""
        if self.last_command == "stop" and not self.best_steps.is_unsaved:
            self.close()

    def close_unsaved(self, failure: FailureFields) -> None:
        """End an attempt whose last checkpoint could not be stored.

        The attempt fails, unless the driver ordered it to stop: a stopped trial does not need the checkpoint.
        """
        if self.last_command == "stop":
            self.close()
        else:
            self.end("failed", failure)

    def leave(self, state: Literal["preempted", "paused"] = "preempted") -> None:
        """End the attempt because its machine has a preemption notice.

        `state` is `paused` if the notice may have come before the attempt began.
        """
        self.end(state, endings.machine_leaves(self.notice.text if self.notice else ""))

    def end(self, state: EndState, error: FailureFields | None = None) -> None:
        """Set the state and the error with which the attempt ends. Do nothing if it has already ended."""
        if self.state is None:
            self.state, self.error = state, error

    def describe(self, environment: Environment | None) -> None:
        """Add the environment to the next result, once per attempt, as soon as the environment is known and the attempt has a child."""
        if not self.described and self.from_step is not None and environment is not None:
            self.described, self.environment = True, environment.with_seed(self.order.get("seed"))
