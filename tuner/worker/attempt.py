"""The state that the supervisor keeps of one attempt: the child's messages, how far it may train, and the
results for the driver.

The supervisor's lock guards everything here. Nothing here does I/O.
"""

import json
import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tuner.checkpoints.checkpoints import Published
from tuner.cluster.notices.notice import Notice
from tuner.domain.environment import Environment
from tuner.domain.objective import stage_of, violation
from tuner.domain.preemption_policy import in_time
from tuner.training.channel import ASK_S, BeginMessage, Reply
from tuner.worker import endings
from tuner.worker.child_channel import (
    MAX_BETWEEN_REPORTS,
    AskMessage,
    InvalidMessage,
    PhaseMessage,
    ReportMessage,
    SavedMessage,
    check_metrics_room,
    check_saved_step,
    check_step,
)
from tuner.worker.metering import Stopwatch, UsageMeter
from tuner.worker.orders import (
    AttemptMessage,
    BeginOrder,
    EndState,
    FailureFields,
    PartFields,
    ReportFields,
    SavedFields,
    WorkerState,
)
from tuner.worker.ranks import RankEnd
from tuner.worker.saves import Saves

DriverCommand = Literal["continue", "pause", "finish", "stop"]
MARGIN_NS = 20_000_000
# A child whose lease runs out waits this long for the driver before it saves. The driver usually answers within a fifth of this time.
ANSWERS_WITHIN_NS = 100_000_000
# How many reports may wait to be sent. A child with very short steps then waits for its reply, because the driver records all reports of
# one result in one transaction.
MAX_UNSENT_REPORTS = 100
# How many announced checkpoints may wait to be stored. The supervisor orders a save only after the previous one was stored, so only user
# code that saves without an order reaches this limit.
MAX_UNPUBLISHED = 4
# How many reports may have artifacts that are not stored yet. A child that reports files faster than they are stored has to wait.
MAX_UNSTORED = 2
ASK_NS = int(ASK_S * 1e9)
# The key by which reports are compared: first the stage of the proxies with which the step was trained, then the score. Scores of different
# stages are not comparable.
StagedScore = tuple[int, float]
WORST: StagedScore = (0, -math.inf)
# Which state a checkpoint holds: the last finished step, and the number of the save in the middle of the next step. The number is 0 if the
# checkpoint was saved between two steps. A higher position is newer.
Position = tuple[int, int]


@dataclass
class RunningAttempt:
    """The state of one attempt. All scores have the sign with which a higher score is better."""

    order: BeginOrder
    watch: Stopwatch
    lease_ns: int
    target_step: int | None  # the step up to which the driver lets the attempt run now
    max_step: int | None  # the last step of the trial
    directory: Path  # of the files of this attempt alone
    # Whether the directory was removed, so that a late thread must remove what it adds to it.
    is_cleared: bool = False
    restored: int = 0  # the step of the checkpoint that the attempt continues from; 0 if none
    from_step: int | None = None  # `restored`, once the child has begun; sent to the driver
    warming_ns: int = 0  # setup time until the attempt had a child
    # How long the attempt waited for storage that failed, or for datasets while they arrived
    outage_ns: int = 0
    # When the newest line of the `ReadLog` was read, if the line says that the child waits for a dataset; otherwise 0
    data_seen_at: int = 0
    # Whether time counts as setup now, instead of training, because the child waits for a dataset
    data_is_setup: bool = False
    durable: int = 0  # the newest step whose checkpoint is in shared storage
    announced: int = 0  # `durable` when the last result was returned
    recorded: int = 0  # the newest durable step that the driver has recorded
    last_command: DriverCommand = "continue"  # the driver's last command
    # the last finished step, if its report or a question in the step after it waits for a reply
    awaiting_reply: int | None = None
    reported_at: int = 0  # when the newest report came, on the monotonic clock
    asks: bool = False  # whether the message that waits for a reply is a question in the middle of a step
    asked_at: int = 0  # when the child last asked in the middle of a step
    ask_gap_ns: int = 0  # the longest time between two questions; 0 if the child never asked
    resumable: bool = False  # whether the child can save a checkpoint of the newest step
    saving: bool = False  # whether a checkpoint is being written or stored
    saved_at: Position = (0, 0)  # the newest state of which the child has written a checkpoint
    ordered: Position = (0, 0)  # the newest state that the child was ordered to save at once
    # for each ordered save in the middle of a step: the attempt's training time until the save, and `PartOfStep.trained_ns`
    parts: list[tuple[int, int]] = field(default_factory=list)
    # the newest stored checkpoint from the middle of a step, to be sent with the next result
    stored_part: PartFields | None = None
    carried_ns: int = (
        0  # if the attempt began in the middle of a step: how long earlier attempts had trained that step
    )
    reported_train_ns: int = 0  # the attempt's training time at its last report
    # the step whose state the child keeps in memory, because it is the job's best
    kept_step: int | None = None
    improved: bool = False  # whether the report that waits for a reply is the job's best
    job_best: StagedScore = WORST  # the best report of the job that the driver has sent
    own_best: StagedScore = WORST  # the best report of this attempt
    closing: bool = False  # whether the child was ordered to stop
    closes_with: Position = (
        0,
        0,
    )  # the state that the attempt's last checkpoint must hold; zeros without such a checkpoint
    # Whether the child was ordered to stop because its lease ends: in the middle of a step, or while it waits for the driver
    lease_is_over: bool = False
    state: EndState | None = None  # how the attempt ended; None while it runs
    error: FailureFields | None = None
    step: int = 0  # the newest reported step
    reports: list[ReportFields] = field(default_factory=list)
    checkpoints: list[SavedFields] = field(default_factory=list)
    step_ns: deque[int] = field(default_factory=lambda: deque(maxlen=3))  # how long the last three steps took
    stepped_at: int = 0  # when the current step began, on the monotonic clock; 0 before the first step
    setup_at: int = 0  # when the child began to measure latency in the middle of a step; otherwise 0
    saves: Saves = field(init=False)
    notice: Notice | None = None  # the preemption notice of the machine
    announced_leaving: bool = False  # whether the last result reported the machine's preemption notice
    announced_waiting: bool = False  # whether the last result reported that the child waits for the driver
    scores: dict[int, StagedScore] = field(default_factory=dict)  # by step
    # steps of older checkpoints that must not be deleted, because one of them may be the best
    spared: frozenset[int] = frozenset()
    best: tuple[StagedScore, int] | None = None  # score and step of the trial's best checkpoint
    use: UsageMeter = field(default_factory=UsageMeter)
    messages_since_report: int = 0
    unpublished: int = 0  # checkpoints that the child announced and the publisher has not finished
    unstored: int = 0  # reports with artifacts that the publisher has not finished
    reported_bytes: int = 0  # the size of all artifacts that the publisher has read
    metrics_bytes: int = 0  # the size of the metrics of all reports, as JSON
    staging: Path | None = None  # where the child may leave checkpoints
    environment: Environment | None = None  # to be sent with the next result
    # the path of the teacher's checkpoint and the teacher's configuration
    teacher: dict[str, Any] | None = None
    described: bool = False  # whether the environment was sent, or will be sent with the next result
    batch_socket: str | None = None  # where the worker's batch process listens, if attempts share the worker
    # ends of ranks that may have caused a failure; the other nodes send those of their ranks to node 0
    rank_ends: list[RankEnd] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read the best checkpoint of earlier attempts, the job's best score and the save interval from the order that begins the attempt."""
        best = self.order.get("best")
        self.best = (self._staged(best[1], best[0]), best[1]) if best else None
        self.learn_job_best(self.order.get("job_best"))
        self.saves = Saves.of(self.order, time.monotonic_ns())

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

    def forked(self) -> None:
        """Record that the attempt has a child now. The setup time so far was used to prepare the worker, and is kept as `warming_ns`."""
        self.warming_ns = self.watch.reading(self.lease_ns).get("setup", 0)

    def add_outage(self, ns: int) -> None:
        """Count `ns` nanoseconds as a storage outage. Do nothing unless the attempt is restoring or saving a checkpoint instead of training."""
        if self.watch.kind in ("restore", "checkpoint"):
            self.outage_ns += ns

    def waited_for_data(self, waits: bool) -> None:
        """Record whether the child waits for a dataset. Call this when a dataset reader of the child has added a line to the `ReadLog`.

        Before the first report, the time for which the child waits counts as setup and not as hanging. When a line arrives, the time since
        the line before it counts, because some file systems report bytes only every few seconds. A stalled download adds no line, so
        its time does not count. After the first report, no time counts, because the child may read data in advance.
        """
        now, before = time.monotonic_ns(), self.data_seen_at
        is_first_step = self.step == self.restored and self.awaiting_reply is None
        self.data_seen_at = now if waits and is_first_step else 0
        if self.data_seen_at:
            if self.watch.kind == "train":
                self.watch.switch("setup")
                self.data_is_setup = True
            waited_ns = now - before if before else 0
            self.outage_ns += waited_ns
            if self.data_is_setup and self.stepped_at:
                self.stepped_at += waited_ns
        elif self.data_is_setup:
            self.watch.switch("train")
            self.data_is_setup = False

    def left_ns(self) -> int:
        return self.lease_ns - self.watch.total_ns()

    def count_message(self) -> None:
        """Count a message of the child. Raise InvalidMessage if it sends more than `MAX_BETWEEN_REPORTS` without a report."""
        self.messages_since_report += 1
        if self.messages_since_report > MAX_BETWEEN_REPORTS:
            raise InvalidMessage(f"sent more than {MAX_BETWEEN_REPORTS} messages without a report")

    def phase(self, message: PhaseMessage) -> None:
        """Count the time from `message.at` on as the cost kind that the child announced."""
        self.data_is_setup = False
        self.watch.switch(message.kind, message.at)
        self.saves.phase(message.kind, message.at)
        if message.kind == "train" and not self.stepped_at:
            self.stepped_at = message.at
        elif message.kind == "setup" and self.stepped_at:
            self.setup_at = message.at
        elif self.setup_at:  # setup does not count for the duration of the step
            self.stepped_at += message.at - self.setup_at
            self.setup_at = 0

    def reported(self, message: ReportMessage) -> None:
        """Note a report of the child, which waits for the reply before it trains again.

        Raises:
            InvalidMessage: The step is not the next one, the previous report has no reply yet, or the job has no room for the metrics.
        """
        at, step = message.at, message.step
        if self.awaiting_reply is not None:
            raise InvalidMessage(
                f"sent another report before it received the reply to its report of step {self.awaiting_reply}"
            )
        check_step(step, last_step=self.step, max_step=self.max_step)
        self.metrics_bytes += len(json.dumps(message.metrics))
        check_metrics_room(self.metrics_bytes, self.order.get("metrics_room"))
        self.messages_since_report = 0
        self.use.add_reported(message.usage, trained_ns=self.watch.of("train"), of_share=self.watch.of_share)
        if self.stepped_at:
            trained = self.saves.stepped(max(0, at - self.stepped_at))
            self.step_ns.append(trained + (self.carried_ns if self.step == self.restored else 0))
        self.data_is_setup = False
        self.watch.switch("idle", at)
        self.reported_train_ns, self.asked_at = self.watch.of("train"), 0
        self.step, self.awaiting_reply, self.resumable, self.reported_at = step, step, message.resumable, at
        value = message.metrics.get(self.order.get("metric", ""))
        # An infeasible report is never the best one, so it needs no checkpoint.
        is_feasible = violation(self.order.get("constraints", ()), message.metrics) == 0
        if is_feasible and isinstance(value, int | float):
            self._scored(step, value if self.order.get("mode") == "max" else -value)
        reading = self.watch.reading(self.lease_ns, at)
        self.reports.append(
            {
                "step": step,
                "metrics": message.metrics,
                "resumable": self.resumable,
                "meter": reading,
                "at_ns": time.time_ns(),
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
        began = self.asked_at or self.stepped_at
        self.ask_gap_ns = max(self.ask_gap_ns, message.at - began if began else 0, ASK_NS)
        if self.asked_at and message.at - self.asked_at >= ASK_NS // 2:
            # questions at the expected interval do not flood the channel, so do not count them
            self.messages_since_report -= 1
        self.asked_at, self.awaiting_reply, self.asks, self.resumable = message.at, self.step, True, True
        self.data_is_setup = False
        self.watch.switch("idle", message.at)

    def _in_step_ns(self) -> int:
        """Return how long the current step has taken so far in this attempt."""
        return max(0, time.monotonic_ns() - self.stepped_at) if self.stepped_at else 0

    def _staged(self, step: int, score: float) -> StagedScore:
        return (stage_of(step, self.order.get("rungs", ())) if self.order.get("proxies") else 0), score

    def _scored(self, step: int, score: float) -> None:
        """Record the score of a report, and whether it is the best of the job so far.

        A score that equals the job's best counts as the best. The job's best may be this trial's own report of the same step, from an
        attempt that was lost before it stored the checkpoint.
        """
        staged = self.scores[step] = self._staged(step, score)
        self.improved = self.resumable and staged >= self.job_best and staged > self.own_best
        self.own_best = max(self.own_best, staged)

    def learn_job_best(self, score: float | None) -> None:
        """Note the job's best score. If this attempt's best score is worse, the child need not store the state of its own best step.

        `score` is None if the job has no score yet, or if it has proxies (less data or smaller images at lower rungs).
        """
        if score is not None:
            self.job_best = max(self.job_best, (0, score))
            if self.job_best > self.own_best:
                self.kept_step, self.improved = None, False

    def protected(self, step: int, part: int = 0) -> frozenset[int]:
        """Return the steps whose checkpoints must not be deleted, however old they are, once a checkpoint of `step` is stored.

        These are the step of the best checkpoint, and the step from which the trial would resume if its driver died now. If the attempt
        found newer checkpoints damaged, older steps (`spared`) are returned, too, because one of them may be the best. The new checkpoint
        may be the best one, unless it is from the middle of the next step (`part` is not 0). If scores are equal, the earliest step is the
        best, as in the job's results.
        """
        score = None if part else self.scores.get(step)
        if score is not None and (self.best is None or (score, -step) > (self.best[0], -self.best[1])):
            self.best = score, step
        self.scores = {s: value for s, value in self.scores.items() if s > step or value == self.own_best}
        return self.spared | {self.recorded, *(() if self.best is None else (self.best[1],))}

    def restored_from(self, step: int, older: frozenset[int] = frozenset(), carried_ns: int = 0) -> None:
        """Record that the attempt continues from the restored checkpoint of `step`.

        If this step is older than the one that the driver ordered, newer checkpoints are damaged and the best one may be among them.
        Only the driver knows which remaining checkpoint is the best, and it sends that step with the next attempt's order. Until then no
        older checkpoint is deleted.

        Args:
            step: The step of the restored checkpoint.
            older: The steps of all older checkpoints.
            carried_ns: How long the next step was trained before the checkpoint was saved, in nanoseconds.
        """
        self.carried_ns = carried_ns
        self.restored = self.durable = self.announced = self.recorded = self.step = step
        if step < (self.order["restore_step"] or 0):
            self.spared = older
            self.best = self.best if self.best is not None and self.best[1] <= step else None

    def need_ns(self) -> int:
        """Return by how many nanoseconds the lease is too short, or 0 if it is long enough.

        If the child has asked in the middle of a step whether to save, the lease must last until the child has asked again and has saved.
        Otherwise the lease must last for the next step and a save. In this case, return 0 if no step has been measured yet.
        """
        if self.asks:
            needed = 2 * self.ask_gap_ns + 2 * self.saves.durable_ns + MARGIN_NS
        elif self.step_ns:
            needed = max(self.step_ns) * 11 // 10 + self.saves.durable_ns + MARGIN_NS
        else:
            return 0
        return max(0, self.watch.at_most(needed) - self.left_ns())

    def at_stop(self) -> bool:
        """Return whether the child waits for the reply to a report at or beyond the last step that the attempt may currently
        train to.
        """
        stops = [stop for stop in (self.target_step, self.max_step) if stop is not None and not self.asks]
        return self.awaiting_reply is not None and any(self.awaiting_reply >= stop for stop in stops)

    def closed_by(self, position: Position) -> bool:
        """Return whether a stored checkpoint of the state `position` ends the attempt.

        It does if the child was ordered to stop and the state is at least as new as the one that it must save.
        """
        return self.closing and position >= self.closes_with

    def saved(self, message: SavedMessage) -> None:
        """Record that the child wrote a checkpoint, which the publisher will store.

        Raises:
            InvalidMessage: The child cannot have a checkpoint of that step, or it announces checkpoints
                faster than they are stored.
        """
        check_saved_step(message.step, last_step=self.step, part=message.part, parts=len(self.parts))
        if self.unpublished >= MAX_UNPUBLISHED:
            raise InvalidMessage(
                f"announced a checkpoint while {self.unpublished} earlier checkpoints were still being stored"
            )
        self.saved_at = message.step, message.part
        self.unpublished += 1

    def save_failed(self, step: int, detail: str) -> None:
        """Record that the child could not write the checkpoint of `step`. `detail` says why."""
        self.saving = False
        if self.kept_step == step:
            self.kept_step = None  # the copy that the child should have kept could not be written
        if self.closed_by((step, self.closes_with[1])):
            self.close_unsaved(endings.not_written(detail))

    def answer(self) -> Reply | None:
        """Return the reply to the child's report, or to its question whether to save in the middle of a step, or None if no reply is due.

        The state of the job's best step is always stored. If saving each step is cheap, that state is
        saved at once. Otherwise the child keeps a copy of it in memory, and writes the copy to a checkpoint
        when a later step is not better.
        """
        if self.awaiting_reply is None:
            return None
        flush = self.kept_step is not None and not self.improved
        if self.asks:
            return self._answer_in_step(flush=flush)
        if self.last_command == "stop":
            return Reply(stop=True, save=self.improved, flush=flush)
        if self.last_command != "continue" or self.notice is not None:
            # After a notice there may be time for only one save, so save the newest step and not an older best one.
            save = self.resumable and self.awaiting_reply > self.durable
            return Reply(stop=True, save=save, flush=flush and self.notice is None)
        if self._waits_in_vain(self.awaiting_reply):
            self.lease_is_over = True
            return Reply(stop=True, save=True, flush=False)
        if self.waits_for_driver() or len(self.reports) >= MAX_UNSENT_REPORTS or self.unstored > MAX_UNSTORED:
            return None
        if self._save_is_due():
            return Reply(stop=False, save=True, keep=False, flush=False)
        return Reply(stop=False, save=False, keep=self.improved, flush=flush and not self.saving)

    def _answer_in_step(self, *, flush: bool) -> Reply | None:
        """Return the reply to the question whether to save in the middle of a step, or None if the child waits for a longer lease.

        `flush` says whether the child has a copy of its best state in memory, which it should write to a checkpoint.

        If the lease ends soon, the child first waits for its renewal. If the lease is not renewed, the child saves and stops while there is
        still time for a save.
        """
        if self.last_command == "stop":
            return Reply(stop=True, save=False, flush=flush)
        # Other attempts on the worker may end meanwhile, so this is not reduced to the attempt's share.
        self.lease_is_over = self.left_ns() < self.saves.durable_ns + self.ask_gap_ns + MARGIN_NS
        if self.last_command != "continue" or self.notice is not None or self.lease_is_over:
            return Reply(stop=True, save=True, flush=flush and self.notice is None and not self.lease_is_over)
        if self.need_ns() > 0:
            return None
        save = not self.saving and self.saves.due_within(self._in_step_ns(), time.monotonic_ns())
        return Reply(stop=False, save=save, flush=flush and not self.saving and not save)

    def waits_for_driver(self) -> bool:
        """Return True if the child may not continue before the driver raises its target step or renews its lease."""
        ends = self.last_command != "continue" or self.notice is not None
        return self.awaiting_reply is not None and not ends and (self.at_stop() or self.need_ns() > 0)

    def _waits_in_vain(self, step: int) -> bool:
        """Return whether the child waits at a report and its lease, which the driver does not renew, has only just enough time left to save it."""
        if not self.waits_for_driver() or not self.resumable or step <= self.durable:
            return False
        waited_ns = time.monotonic_ns() - self.reported_at
        return waited_ns > ANSWERS_WITHIN_NS and self.left_ns() < self.saves.durable_ns + MARGIN_NS

    def _save_is_due(self) -> bool:
        ready = self.resumable and not self.saving and bool(self.step_ns)
        if not ready:
            return False
        longest = max(self.step_ns)
        return self.saves.due(longest, time.monotonic_ns()) or (
            self.improved and self.saves.is_cheap(longest)
        )

    def has_unsaved_best(self) -> bool:
        """Return whether the child waits for a reply and still holds the job's best state, which is not in a checkpoint yet."""
        return self.awaiting_reply is not None and (self.improved or self.kept_step is not None)

    def answered(self, reply: Reply) -> None:
        """Update the state for a reply to the waiting report or question. The caller sends the reply right after this call."""
        assert self.awaiting_reply is not None
        step, self.awaiting_reply, self.announced_waiting = self.awaiting_reply, None, False
        position = self._answered_in_step(step, reply) if self.asks else self._answered_report(step, reply)
        writes = reply.save or reply.flush
        self.saving = self.saving or writes
        self.watch.switch("checkpoint" if reply.stop and writes else "train")
        self.closing = reply.stop
        if reply.stop:
            self.closes_with = position if reply.save else (self.kept_step or 0, 0)
            # only a checkpoint that the child announces after this reply may end the attempt
            self.saved_at = (0, 0)
        if reply.save:
            self.ordered = position
        if reply.keep:
            self.kept_step = step
        elif reply.flush or (reply.save and self.improved):
            self.kept_step = None
        self.improved = False

    def _answered_report(self, step: int, reply: Reply) -> Position:
        self.stepped_at = time.monotonic_ns()
        self.saves.answered(self.stepped_at, save=reply.save)
        return step, 0

    def _answered_in_step(self, step: int, reply: Reply) -> Position:
        """Note the reply to the question whether to save in the middle of a step.

        If the reply orders a save, note how long the step was trained, and return the position of the state to save. Otherwise return the
        position of the last finished step. The time for which the child waited for the reply does not count as training.
        """
        now, self.asks = time.monotonic_ns(), False
        if self.stepped_at:
            self.stepped_at += now - self.asked_at
        self.asked_at = now
        if not reply.save:
            return step, 0
        self.messages_since_report = (
            0  # the ordered save causes further messages, which must not count as flooding
        )
        trained = self.watch.of("train")
        of_step = trained - self.reported_train_ns
        if (
            step == self.restored
        ):  # the attempt is still in its first step, which earlier attempts may have begun
            begins = not step and not self.carried_ns
            of_step += self.carried_ns + (self.watch.of("setup") if begins else 0)
        self.parts.append((trained, of_step))
        self.saves.ordered_within(self._in_step_ns(), now)
        return step, len(self.parts)

    def made_durable(self, published: Published) -> None:
        """Record that a checkpoint is stored."""
        step, size, seconds = published.step, published.size_bytes, published.seconds
        if (step, published.part) >= self.ordered:
            self.saves.made_durable(time.monotonic_ns())
        self.use.saved(size)
        if published.part:
            self.stored_part = {"step": step, "train_ns": self.parts[published.part - 1][0]}
            return
        self.durable = max(step, self.durable)
        self.checkpoints.append({"step": step, "uri": published.uri, "bytes": size, "seconds": seconds})

    def close(self) -> None:
        """End the attempt in the state that the driver ordered.

        If the driver ordered no end, the attempt ends as preempted if the machine has a preemption notice. Otherwise its lease ended in
        the middle of a step, or while the child waited for the driver, and the attempt ends as paused.
        """
        match self.last_command:
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

    def cannot_gain(self) -> bool:
        """Return True if the machine has a preemption notice and will be gone before the attempt can save anything more.

        Return False while a save is in progress and the deadline has not passed. Also return False while the child waits for a
        reply, because that reply will order the child to stop, and after the child was ordered to stop.
        """
        if self.notice is None or self.awaiting_reply is not None or self.closing:
            return False
        left_ns = self.notice.deadline - time.time_ns()
        if self.saving and left_ns > 0:
            return False
        cannot_save = self.step > self.restored and not self.resumable and not self.ask_gap_ns
        if (self.watch.kind in ("setup", "restore") and not self.setup_at) or cannot_save:
            return True
        left_of_step = self.stepped_at + max(self.step_ns) - time.monotonic_ns() if self.step_ns else None
        if self.ask_gap_ns:  # the child can save at its next question, before the step ends
            left_of_step = min(left_of_step or self.ask_gap_ns, self.ask_gap_ns)
        return not in_time(
            left_ns, step_ns=left_of_step, save_ns=self.saves.saving.durable_ns if self.saves.saving else None
        )

    def end(self, state: EndState, error: FailureFields | None = None) -> None:
        """Set the state and the error with which the attempt ends. Do nothing if it has already ended."""
        if self.state is None:
            self.state, self.error = state, error

    def has_news(self) -> bool:
        """Return whether the driver should be sent a result before the next heartbeat."""
        return (
            self.state is not None
            or bool(self.reports)
            or bool(self.checkpoints)
            or self.stored_part is not None
            or (self.waits_for_driver() and not self.announced_waiting)
            or self.announced_leaving != (self.notice is not None)
            or (self.node > 0 and bool(self.rank_ends))
        )

    def describe(self, environment: Environment | None) -> None:
        """Add the environment to the next result, once per attempt, as soon as the environment is known and the attempt has a child."""
        if not self.described and self.from_step is not None and environment is not None:
            self.described, self.environment = True, environment.with_seed(self.order.get("seed"))

    def result(self, state: WorkerState) -> AttemptMessage:
        """Return the result to send to the driver. Each report and checkpoint is sent once."""
        # The driver requests a result only after it has recorded the previous one, so everything in that result is recorded now.
        self.announced, self.recorded = self.durable, self.announced
        self.announced_leaving = self.notice is not None
        reports, self.reports = self.reports, []
        checkpoints, self.checkpoints = self.checkpoints, []
        environment, self.environment = self.environment, None
        part, self.stored_part = self.stored_part, None
        rank_ends = [end.message(time.monotonic_ns()) for end in self.rank_ends] if self.node else []
        self.rank_ends = [] if self.node else self.rank_ends
        return {
            "trial": self.trial,
            "attempt": self.number,
            "state": state,
            "reports": reports,
            "checkpoints": checkpoints,
            "meter": self.watch.reading(self.lease_ns),
            "need_ns": self.need_ns() if state == "waiting" and not self.at_stop() else 0,
            "saved_step": self.durable or None,
            "part": part,
            "carried_ns": self.carried_ns,
            "warming_ns": self.warming_ns,
            "leaving": self.notice is not None,
            "from_step": self.from_step,
            "outage_ns": self.outage_ns,
            "rank_ends": rank_ends,
            "usage": self.use.reading(),
            "environment": None if environment is None else environment.message(),
            "error": self.error if state == self.state else None,
        }
