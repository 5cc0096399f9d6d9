"""The state of a job: everything that a decision may depend on.

A `State` belongs to one run loop. `decide` changes it in place and returns it, so that a job of ten thousand trials is not
copied at every report.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.budget import Budget
from tuner.domain.events import Limit
from tuner.domain.ids import trial_id
from tuner.domain.job import BUDGET_LIMITS, JobSpec, JobState, StopReason
from tuner.domain.money import ZERO, Money, Price, Rate
from tuner.domain.space import Config
from tuner.domain.trial import TrialState
from tuner.tuning.rungs import Rung, ladder

Status = Literal[
    "new", "running", "pausing", "finishing", "stopping", "paused", "completed", "stopped", "failed"
]
ACTIVE: frozenset[Status] = frozenset({"running", "pausing", "finishing", "stopping"})
PUBLIC: dict[Status, TrialState] = {
    "new": "pending",
    "running": "running",
    "pausing": "running",
    "finishing": "running",
    "stopping": "running",
    "paused": "paused",
    "completed": "completed",
    "stopped": "stopped",
    "failed": "failed",
}


# The statuses of trials that are not trained to their last step.
ENDS_EARLY = ("stopping", "stopped", "failed")
NO_RANK = (-1, 0.0, float("-inf"))


@dataclass(slots=True)
class TrialRecord:
    """The progress of one trial."""

    number: int
    config: Config
    target_step: int | None  #: The step that the trial may run to. None if it may run to its end.
    status: Status = "new"
    steps: int = 0  #: The highest step that it reported.
    value: float | None = None  #: The latest value of the objective's metric.
    violation: float = 0.0  #: The total violation of the job's constraints in the report of `value`.
    resumable: bool = True  #: Whether a checkpoint of the latest report can be saved.
    #: Whether user code had returned before the latest report, and this report has the objective's metric.
    has_returned: bool = False
    ends_as: Literal["stopped", "failed"] = "stopped"  #: The final status of a trial that is being stopped.
    reason: str = ""  #: Why the trial was stopped or failed.
    #: Number of attempts in a row that were lost before they reported anything, or after a report of step `steps`. A report of a new step
    #: resets it to 0. The loss of an attempt that was still repeating steps below `steps` does so too.
    losses: int = 0
    #: Number of attempts in a row that were lost without a report of a new step and without a newer checkpoint.
    losses_without_progress: int = 0
    saved: int = 0  #: The step of the newest checkpoint when the latest attempt ended.
    preemptions: int = 0  #: How many attempts of the trial were preempted.
    preemptions_without_progress: int = (
        0  #: Number of preemptions in a row without a newer checkpoint, not even one within a step.
    )
    kept: int = 0  #: The step of the newest checkpoint at the latest preemption.
    #: A user promoted the trial. Until it reaches its target step, it resumes before other trials, even if the finish reserve forbids it.
    by_user: bool = False
    was_preempted: bool = False  #: The trial was preempted and resumes before other trials.
    last_report: int | None = None  #: The last step that the current attempt reported.
    last_step_unsaved: bool = (
        False  #: The trial has to run its last step again, because this step was not saved.
    )
    trained_ns: int = 0  #: Training time of its steps, each step counted once.
    pace_ns: int = 0  #: Running mean of the training time of a step, weighted towards recent steps.
    gain_score: float = float(
        "-inf"
    )  #: The trial's score when it last improved by at least the `min_gain` of the trial limits.
    gain_step: int = 0  #: The step of `gain_score`.
    #: Number of the trial whose configuration this one trains again. None if the search suggested the trial.
    repeats: int | None = None
    seed: int = 0  #: The number that is added to the job's seed.
    other_metrics: tuple[
        str, ...
    ] = ()  #: Names of the metrics that the trial reported when a needed metric was missing.

    @property
    def id(self) -> str:
        return trial_id(self.number)

    @property
    def ready(self) -> bool:
        """Return whether the trial waits to run: it may run further than it has, or must run its last step again."""
        if self.status not in ("new", "paused"):
            return False
        return self.target_step is None or self.steps < self.target_step or self.last_step_unsaved


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ends. From then on, no attempt starts. The job's state becomes `state` once no attempt runs."""

    state: JobState
    reason: StopReason | None
    detail: str = ""
    reopens: bool = False  #: The job resumes by itself when its window opens next.
    waits_for: str = ""  #: The shared budget, or the project's quota, that the job waits for.

    @property
    def is_from_reports(self) -> bool:
        """Return whether reports of trials caused the ending. A later pause request or a restart does not undo such an ending."""
        return self.reason in ("target", "plateau", "worth", "error")

    @property
    def limit(self) -> bool:
        """Return whether the job's budget caused the ending. A new budget undoes such an ending."""
        return self.reason in BUDGET_LIMITS


@dataclass(slots=True)
class State:
    spec: JobSpec
    budget: Budget
    concurrency: int
    rate: Rate
    rungs: list[Rung]
    reduction_factor: int
    rules: int = 0  #: The version of the decision rules, as the newest `Launched` names it.
    trials: list[TrialRecord] = field(default_factory=list)
    repeats: int = 0  #: How many of the trials are repeats of a confirmation.
    active: set[int] = field(default_factory=set)  #: Numbers of the trials with a status in `ACTIVE`.
    ready: set[int] = field(default_factory=set)  #: Numbers of the trials that wait to run.
    #: Numbers of the paused trials that have reached their target step.
    waiting: set[int] = field(default_factory=set)
    #: Numbers of the trials that changed since the run loop last recorded the changes.
    changed: set[int] = field(default_factory=set)
    #: Whether attempts may start. False from the start of a driver until the event `ControlRequested`.
    accepting_work: bool = False
    suggesting: bool = False  #: Whether a `Suggest` command has no answer yet.
    confirming: bool = False  #: The search is over. Only repeats of its best trials begin.
    space_exhausted: bool = False  #: The sampler has no more configurations.
    #: The configurations that the user wants to be tried next, in order.
    queue: deque[Config] = field(default_factory=deque)
    requests: int = 0  #: Number of the newest request about a trial that was handled.
    #: The limit that refused a hold. While it is set, no attempt starts. It is cleared when money may have been released or added.
    exhausted_limit: StopReason | Limit | None = None
    #: The shared budget that refused a hold last. Empty if the job's own budget refused it.
    refusing_budget: str = ""
    #: The trials that are skipped because their hold was refused, by number, with the limit that refused it.
    skipped: dict[int, StopReason] = field(default_factory=dict)
    ending: Ending | None = None
    ended: bool = False  #: The command `EndJob` was returned.
    spent: Money = ZERO  #: The job's spend at the newest report with a metric.
    #: The part of `spent` that was spent between a report of a repeat and the report before it.
    spent_on_repeats: Money = ZERO
    #: Number of the trial with the best score so far. A feasible trial is better than any infeasible one.
    leader: int | None = None
    leader_score: float = float("-inf")
    leader_stage: int = 0  #: The stage of the proxies in the report of `leader_score`.
    leader_violation: float = 0.0  #: The violation of the constraints in the report of `leader_score`.
    #: Number of the trial to train to its last step with the rest of the budget: the leader, or the best other trial if the leader has failed or
    #: was stopped. None if no trial has a score that counts for this.
    finisher: int | None = None
    finisher_rank: tuple[int, float, float] = NO_RANK  #: The rank of the finisher, as `rank_of` computes it.
    #: The best score when it last improved by at least the `min_gain` of the plateau rule.
    plateau_score: float = float("-inf")
    plateau_spent: Money = ZERO  #: The job's spend at the report of `plateau_score`.
    worth_from: int = 0  #: With how many results of the search the rule `stop.worth` applies.
    valid_reports: int = 0  #: Number of reports with a finite value of the objective's metric.
    failures: list[str] = field(default_factory=list)  #: Reasons of the failed trials.
    begun: int = 0  #: Number of attempts that were started.
    warmed: int = 0  #: How many of the job's first workers have started, at most `concurrency`.
    #: The time in which these workers prepared themselves. The workers that replace them are not included.
    warming_ns: int = 0
    steps: int = 0  #: Number of steps of all trials, each counted once.
    trained_ns: int = 0  #: Training time of these steps.
    #: For each stage of the proxies, the number of its steps and their training time. Empty without proxies.
    stages: dict[int, tuple[int, int]] = field(default_factory=dict)
    price_ns: int = 0  #: Sum of price (micro-dollars per hour) times nanoseconds, over `trained_ns`.

    @classmethod
    def fresh(cls, spec: JobSpec, *, concurrency: int, rate: Rate) -> "State":
        fidelity = ladder(spec)
        rungs = [Rung(step) for step in fidelity.rungs()]
        queue = deque(spec.first_configs)
        return cls(spec, spec.budget, concurrency, rate, rungs, fidelity.reduction_factor, queue=queue)

    @property
    def max_step(self) -> int | None:
        return self.spec.fidelity.max

    @property
    def mean_price(self) -> Price:
        """Return the mean machine price over all training time. Before any training, return the price in `rate`."""
        return Price(self.price_ns // self.trained_ns) if self.trained_ns else self.rate.price

    @property
    def may_suggest(self) -> bool:
        counted = len(self.trials) - (self.repeats if self.rules >= 1 else 0)
        within = self.budget.trials is None or counted < self.budget.trials
        return within and (bool(self.queue) or not self.space_exhausted)

    def trial(self, trial: str) -> TrialRecord:
        return self.trials[int(trial.removeprefix("trial_"))]

    def rank_of(self, record: TrialRecord, value: float) -> tuple[int, float, float]:
        """Return the stage of a trial, its negative violation, and the score of the value. A trial with a higher rank is better."""
        return self.spec.fidelity.stage(record.steps), -record.violation, self.spec.objective.score(value)

    def has_finished(self, record: TrialRecord) -> bool:
        """Return whether the trial has reported its last step: the last step of the job, or the one with which its user code returned."""
        return record.has_returned or (self.max_step is not None and record.steps >= self.max_step)

    def is_complete(self, record: TrialRecord, saved: int) -> bool:
        """Return whether the trial needs no further attempt if its newest checkpoint is at step `saved`.

        It has reported its last step, and that step was saved, or the trial cannot save checkpoints.
        """
        return self.has_finished(record) and (saved >= record.steps or not record.resumable)

    def set(self, record: TrialRecord, status: Status) -> None:
        """Set the status of a trial and update the indexes of trials. If the finisher ends early, choose another one.

        No other code may change a trial's status.
        """
        record.status = status
        self.changed.add(record.number)
        self.active.discard(record.number)
        self.ready.discard(record.number)
        self.waiting.discard(record.number)
        if status in ACTIVE:
            self.active.add(record.number)
        elif record.ready:
            self.ready.add(record.number)
        elif status == "paused":
            self.waiting.add(record.number)
        if record.number == self.finisher and status in ENDS_EARLY:
            self._choose_finisher()

    def _choose_finisher(self) -> None:
        others = [
            (self.rank_of(other, other.value), -other.number)
            for other in self.trials
            if other.value is not None and other.repeats is None and other.status not in ENDS_EARLY
        ]
        self.finisher, self.finisher_rank = None, NO_RANK
        if others:
            self.finisher_rank, number = max(others)
            self.finisher = -number
