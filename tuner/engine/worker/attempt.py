"""One attempt as its supervisor sees it: what the child said, what it may do, and what there is to tell the driver.

Everything here is guarded by the supervisor's lock and does no I/O.
"""

import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tuner.domain.environment import Environment
from tuner.engine.notices import Notice
from tuner.engine.parting import in_time
from tuner.engine.worker import endings
from tuner.engine.worker.child_messages import (
    MAX_BETWEEN_REPORTS,
    InvalidMessage,
    PhaseMessage,
    ReportMessage,
    SavedMessage,
    check_saved_step,
    check_step,
)
from tuner.engine.worker.meter import Stopwatch
from tuner.engine.worker.saves import Saves
from tuner.engine.worker.using import Use
from tuner.training.channel import Begin, Reply

Wanted = Literal["go", "pause", "finish", "stop"]
MARGIN_NS = 20_000_000
# A driver records all reports of a message in one transaction. A child with very short steps waits until they were sent.
MAX_UNSENT_REPORTS = 100
# Each save is asked for after the one before was stored. Only user code that ignores this announces several.
MAX_UNPUBLISHED = 4


@dataclass
class Attempt:
    """`held` is the step whose report waits for an answer; `saved_step` the newest that the child wrote a checkpoint of,
    `durable` the newest whose checkpoint is in shared storage, and `recorded` the newest of those that the driver recorded.
    `job_best` is the job's best score when the driver last sent one, and `own_best` the best of this attempt.
    `from_step`: that with which its child began; `notice`: by which the machine goes; `outage_ns`: what the child waited for
    a storage that failed."""

    order: dict[str, Any]
    watch: Stopwatch
    lease_ns: int
    until: int | None
    max_step: int | None
    restored: int = 0
    from_step: int | None = None
    warming_ns: int = 0
    outage_ns: int = 0
    durable: int = 0
    told: int = 0
    recorded: int = 0
    wanted: Wanted = "go"
    held: int | None = None
    resumable: bool = False
    saving: bool = False
    saved_step: int = 0
    ordered_step: int = 0  # the newest step of which the child was asked for a checkpoint at once
    kept_step: int | None = (
        None  # the step whose state the child keeps in memory, because it is the job's best
    )
    improved: bool = False  # whether the held report is the job's best
    job_best: float = -math.inf
    own_best: float = -math.inf
    closing: bool = False
    closes_with: int = 0  # the step of the checkpoint with which the attempt ends; 0 if it ends without one
    state: str | None = None
    error: dict[str, str] | None = None
    step: int = 0
    reports: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    step_ns: deque[int] = field(default_factory=lambda: deque(maxlen=3))
    stepped_at: int = 0
    saves: Saves = field(init=False)
    notice: Notice | None = None
    told_leaving: bool = False
    told_waiting: bool = False
    scores: dict[int, float] = field(default_factory=dict)
    spared: frozenset[int] = frozenset()
    best: tuple[float, int] | None = None
    use: Use = field(default_factory=Use)
    messages_since_report: int = 0
    unpublished: int = 0  # checkpoints that the child announced and the publisher has not finished
    staging: Path | None = None  # where the child may leave checkpoints
    environment: Environment | None = None  # to be sent with the next result
    described: bool = False  # the environment was sent, or is about to be

    def __post_init__(self) -> None:
        """`best` is the score and step of the best checkpoint that earlier attempts left."""
        found = self.order.get("best")
        self.best = (found[0], found[1]) if found else None
        self.learn_job_best(self.order.get("job_best"))
        self.saves = Saves.of(self.order, time.monotonic_ns())

    @property
    def trial(self) -> str:
        return str(self.order["trial"])

    @property
    def number(self) -> int:
        return int(self.order["attempt"])

    def begin(self, staging: Path, restored: Path | None) -> Begin:
        """What the child is told to do."""
        self.from_step, self.staging = self.restored, staging
        return Begin(
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
        )

    def forked(self) -> None:
        """The worker was warm enough for the attempt to have a process."""
        self.warming_ns = self.watch.reading(self.lease_ns).get("setup", 0)

    def outage(self, ns: int) -> None:
        """So long the storage failed, or will be waited for, which counts where nothing else is done meanwhile."""
        if self.watch.kind in ("restore", "checkpoint"):
            self.outage_ns += ns

    def left_ns(self) -> int:
        return self.lease_ns - self.watch.total_ns()

    def count_message(self) -> None:
        """Count a message of the child. Raise InvalidMessage if it sends far more between two reports than a step needs."""
        self.messages_since_report += 1
        if self.messages_since_report > MAX_BETWEEN_REPORTS:
            raise InvalidMessage(f"sent more than {MAX_BETWEEN_REPORTS} messages without a report")

    def phase(self, message: PhaseMessage) -> None:
        """Note what the child does from now on."""
        self.watch.switch(message.kind, message.at)
        self.saves.phase(message.kind, message.at)
        if message.kind == "train" and not self.stepped_at:
            self.stepped_at = message.at

    def reported(self, message: ReportMessage) -> None:
        """Note a report. The child must not train until it has the reply.

        Raises:
            InvalidMessage: The step is not the next one, or the report before has no reply yet.
        """
        at, step = message.at, message.step
        if self.held is not None:
            raise InvalidMessage(f"sent another report before it had the reply to that of step {self.held}")
        check_step(step, last_step=self.step, max_step=self.max_step)
        self.messages_since_report = 0
        self.use.told(message.usage, trained_ns=self.watch.of("train"))
        if self.stepped_at:
            self.step_ns.append(self.saves.stepped(max(0, at - self.stepped_at)))
        self.watch.switch("idle", at)
        self.step, self.held, self.resumable = step, step, message.resumable
        value = message.metrics.get(self.order.get("metric", ""))
        if isinstance(value, int | float):
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

    def _scored(self, step: int, score: float) -> None:
        """Note whether the report is the job's best. A score that equals the job's best counts, as it may be of the same step of
        an attempt that was lost before its checkpoint was stored."""
        self.scores[step] = score
        self.improved = self.resumable and score >= self.job_best and score > self.own_best
        self.own_best = max(self.own_best, score)

    def learn_job_best(self, score: float | None) -> None:
        """Note the job's best score. If it is better than this attempt's, no state of the attempt needs to be kept."""
        if score is not None:
            self.job_best = max(self.job_best, score)
            if self.job_best > self.own_best:
                self.kept_step, self.improved = None, False

    def protected(self, step: int) -> frozenset[int]:
        """Return the steps whose checkpoints stay, however old: the best one, with that of `step` considered, and the one from
        which the trial would go on if its driver died now. Of equal ones the first is the best, as in the job's answers."""
        score = self.scores.get(step)
        if score is not None and (
            self.best is None or score > self.best[0] or (score == self.best[0] and step < self.best[1])
        ):
            self.best = (score, step)
        self.scores = {s: value for s, value in self.scores.items() if s > step or value == self.own_best}
        return self.spared | {self.recorded, *(() if self.best is None else (self.best[1],))}

    def went_on_from(self, step: int, older: frozenset[int]) -> None:
        """`older` are the steps of all checkpoints before it. Where this is not the one that was asked for, the best may be among
        the damaged ones. Then which of the others is the best only the driver knows, who says so to the next attempt."""
        self.restored = self.durable = self.told = self.recorded = self.step = step
        if step < (self.order["restore_step"] or 0):
            self.spared = older
            self.best = self.best if self.best is not None and self.best[1] <= step else None

    def need_ns(self) -> int:
        """The lease that the next step and a save need beyond what is left; 0 where it is enough."""
        expected = max(self.step_ns, default=0) * 11 // 10
        return max(0, expected + self.saves.durable_ns + MARGIN_NS - self.left_ns()) if self.step_ns else 0

    def at_stop(self) -> bool:
        """Whether the step that is held is as far as the trial may go."""
        stops = [stop for stop in (self.until, self.max_step) if stop is not None]
        return self.held is not None and any(self.held >= stop for stop in stops)

    def closed_by(self, step: int) -> bool:
        """Return whether the checkpoint of `step` is the one that the attempt is to end with."""
        return self.closing and step >= self.closes_with

    def saved(self, message: SavedMessage) -> None:
        """Note that the child wrote a checkpoint, which is to be published.

        Raises:
            InvalidMessage: The child cannot have that checkpoint, or announces checkpoints faster than they are stored.
        """
        check_saved_step(message.step, last_step=self.step)
        if self.unpublished >= MAX_UNPUBLISHED:
            raise InvalidMessage(
                f"announced a checkpoint while {self.unpublished} earlier ones were being stored"
            )
        self.saved_step = message.step
        self.unpublished += 1

    def answer(self) -> Reply | None:
        """Return the reply to the held report, or None if the child has to wait for it.

        The checkpoint of the job's best step is always stored. If saving each step is cheap, the best is saved at once. Otherwise the
        child keeps a copy in memory, and writes it when a later step is not better.
        """
        if self.held is None:
            return None
        flush = self.kept_step is not None and not self.improved
        if self.wanted == "stop":
            return Reply(stop=True, save=self.improved, flush=flush)
        if self.wanted != "go" or self.notice is not None:
            # The time of a notice belongs to the newest checkpoint.
            save = self.resumable and self.held > self.durable
            return Reply(stop=True, save=save, flush=flush and self.notice is None)
        if self.waits_for_driver() or len(self.reports) >= MAX_UNSENT_REPORTS:
            return None
        if self._save_is_due():
            return Reply(stop=False, save=True, keep=False, flush=False)
        return Reply(stop=False, save=False, keep=self.improved, flush=flush and not self.saving)

    def waits_for_driver(self) -> bool:
        """Return True if the child may only continue when the driver says so."""
        ends = self.wanted != "go" or self.notice is not None
        return self.held is not None and not ends and (self.at_stop() or self.need_ns() > 0)

    def _save_is_due(self) -> bool:
        ready = self.resumable and not self.saving and bool(self.step_ns)
        if not ready:
            return False
        longest = max(self.step_ns)
        return self.saves.due(longest, time.monotonic_ns()) or (self.improved and self.saves.cheap(longest))

    def has_unsaved_best(self) -> bool:
        """Return whether the child waits for a reply, and the job's best has no checkpoint yet."""
        return self.held is not None and (self.improved or self.kept_step is not None)

    def answered(self, reply: Reply) -> None:
        """Note that the reply to the held report was sent."""
        assert self.held is not None
        step, self.held, self.told_waiting = self.held, None, False
        self.stepped_at = time.monotonic_ns()
        self.saves.answered(self.stepped_at, save=reply.save)
        writes = reply.save or reply.flush
        self.saving = self.saving or writes
        self.watch.switch("checkpoint" if reply.stop and writes else "train")
        self.closing = reply.stop
        if reply.stop:
            self.closes_with = step if reply.save else self.kept_step or 0
            self.saved_step = 0  # what the child announced before this reply is not what it ends with
        if reply.save:
            self.ordered_step = step
        if reply.keep:
            self.kept_step = step
        elif reply.flush or (reply.save and self.improved):
            self.kept_step = None
        self.improved = False

    def made_durable(self, step: int) -> None:
        """Note that the checkpoint of `step` is stored."""
        self.durable = max(step, self.durable)
        if step >= self.ordered_step:
            self.saves.made_durable(time.monotonic_ns())

    def close(self) -> None:
        """It was told to stop, and is saved."""
        match self.wanted:
            case "finish":
                self.end("finished")
            case "pause":
                self.end("paused")
            case "stop":
                self.end("stopped")
            case "go":
                self.leave()

    def leave(self, state: Literal["preempted", "paused"] = "preempted") -> None:
        """Its machine goes, so it ends here."""
        self.end(state, endings.machine_goes(self.notice.text if self.notice else ""))

    def cannot_gain(self) -> bool:
        """Whether the machine goes before anything more could be saved. What is being saved is waited for, as long as there is
        time; a report that came in time is answered, and so ends the attempt, elsewhere."""
        if self.notice is None or self.held is not None or self.closing:
            return False
        left_ns = (self.notice.deadline or 0) - time.time_ns()
        if self.saving and left_ns > 0:
            return False
        if self.watch.kind in ("setup", "restore") or (self.step > self.restored and not self.resumable):
            return True
        left_of_step = self.stepped_at + max(self.step_ns) - time.monotonic_ns() if self.step_ns else None
        return not in_time(
            left_ns, step_ns=left_of_step, save_ns=self.saves.saving.durable_ns if self.saves.saving else None
        )

    def end(self, state: str, error: dict[str, str] | None = None) -> None:
        """The first end counts."""
        if self.state is None:
            self.state, self.error = state, error

    def result(self, state: str) -> dict[str, Any]:
        """What the driver is told; reports and checkpoints are told once."""
        self.told, self.recorded = self.durable, self.told  # who asks again has recorded what was told before
        self.told_leaving = self.notice is not None
        reports, self.reports = self.reports, []
        checkpoints, self.checkpoints = self.checkpoints, []
        environment, self.environment = self.environment, None
        return {
            "trial": self.trial,
            "attempt": self.number,
            "state": state,
            "reports": reports,
            "checkpoints": checkpoints,
            "meter": self.watch.reading(self.lease_ns),
            "need_ns": self.need_ns() if state == "waiting" and not self.at_stop() else 0,
            "saved_step": self.durable or None,
            "warming_ns": self.warming_ns,
            "leaving": self.notice is not None,
            "from_step": self.from_step,
            "outage_ns": self.outage_ns,
            "usage": self.use.reading(),
            "environment": None if environment is None else environment.message(),
            "error": self.error if state == self.state else None,
        }
