"""Find out which steps of an attempt are the best, so that their checkpoints are saved and kept.

The supervisor's lock guards this state. The module does no I/O.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.objective import stage_of, violation
from tuner.training.channel import Reply
from tuner.worker.orders import BeginOrder

# The key by which reports are compared: first the stage of the proxies with which the step was trained, then the score. Scores of different
# stages are not comparable.
StagedScore = tuple[int, float]
WORST: StagedScore = (0, -math.inf)


@dataclass
class BestSteps:
    """The best steps of one attempt, of its trial and of its job. All scores have the sign with which a higher score is better."""

    order: BeginOrder  # the order that began the attempt
    best: tuple[StagedScore, int] | None = None  # score and step of the trial's best checkpoint
    # the step whose state the child keeps in memory, because it is the job's best
    kept_step: int | None = None
    saving_step: int | None = None  # the job's best step, from the order to save its state until it is stored
    improved: bool = False  # whether the report that waits for a reply is the job's best
    _job_best: StagedScore = WORST  # the best report of the job that the driver has sent
    _own_best: StagedScore = WORST  # the best report of this attempt
    _scores: dict[int, StagedScore] = field(default_factory=dict)  # by step
    # steps of older checkpoints that must not be deleted, because one of them may be the best
    _spared: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Read the best checkpoint of earlier attempts and the job's best score from the order."""
        best = self.order.get("best")
        self.best = (self._staged(best[1], best[0]), best[1]) if best else None
        self.learn_job_best(self.order.get("job_best"))

    def reported(self, step: int, metrics: Mapping[str, Any], *, resumable: bool) -> None:
        """Record the score of a report, and whether it is the best of the job so far.

        A score that equals the job's best counts as the best. The job's best may be this trial's own report of the same step, from an
        attempt that was lost before it stored the checkpoint. An infeasible report is never the best one, so it needs no checkpoint.
        """
        value = metrics.get(self.order.get("metric", ""))
        is_feasible = violation(self.order.get("constraints", ()), metrics) == 0
        if not is_feasible or not isinstance(value, int | float):
            return
        staged = self._scores[step] = self._staged(step, value if self.order.get("mode") == "max" else -value)
        self.improved = resumable and staged >= self._job_best and staged > self._own_best
        self._own_best = max(self._own_best, staged)

    def _staged(self, step: int, score: float) -> StagedScore:
        return (stage_of(step, self.order.get("rungs", ())) if self.order.get("proxies") else 0), score

    def learn_job_best(self, score: float | None) -> None:
        """Note the job's best score. If this attempt's best score is worse, the child need not store the state of its own best step.

        `score` is None if the job has no score yet, or if it has proxies (less data or smaller images at lower rungs).
        """
        if score is not None:
            self._job_best = max(self._job_best, (0, score))
            if self._job_best > self._own_best:
                self.kept_step, self.saving_step, self.improved = None, None, False

    def answered(self, step: int, reply: Reply) -> None:
        """Note the reply to the report of `step`, or to a question in the step after it."""
        if reply.keep:
            self.kept_step, self.saving_step = step, None
        elif reply.save and self.improved:
            self.kept_step, self.saving_step = None, step
        elif reply.flush:
            self.kept_step, self.saving_step = None, self.kept_step
        self.improved = False

    def save_ended(self, step: int) -> None:
        """Record that the state of `step` was stored, or could not be written or stored."""
        if self.kept_step == step:
            self.kept_step = None
        if self.saving_step == step:
            self.saving_step = None

    @property
    def is_unsaved(self) -> bool:
        """Whether this attempt has the job's best state, and that state is not stored yet."""
        return self.improved or self.kept_step is not None or self.saving_step is not None

    def protected(self, step: int, part: int, recorded: int) -> frozenset[int]:
        """Return the steps whose checkpoints must not be deleted, however old they are, once a checkpoint of `step` is stored.

        These are the step of the best checkpoint, and `recorded`, from which the trial would resume if its driver died now. If the attempt
        found newer checkpoints damaged, older steps are returned, too, because one of them may be the best. The new checkpoint may be
        the best one, unless it is from the middle of the next step (`part` is not 0). If scores are equal, the earliest step is the best,
        as in the job's results.
        """
        score = None if part else self._scores.get(step)
        if score is not None and (self.best is None or (score, -step) > (self.best[0], -self.best[1])):
            self.best = score, step
        self._scores = {s: value for s, value in self._scores.items() if s > step or value == self._own_best}
        return self._spared | {recorded, *(() if self.best is None else (self.best[1],))}

    def restored_from(self, step: int, older: frozenset[int]) -> None:
        """Record that the attempt continues from the restored checkpoint of `step`.

        If this step is older than the one that the driver ordered, newer checkpoints are damaged and the best one may be among them.
        Only the driver knows which remaining checkpoint is the best, and it sends that step with the next attempt's order. Until then no
        checkpoint of the steps `older` is deleted.
        """
        if step < (self.order["restore_step"] or 0):
            self._spared = older
            self.best = self.best if self.best is not None and self.best[1] <= step else None
