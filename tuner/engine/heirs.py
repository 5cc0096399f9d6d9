"""Trials of a new job that go on where trials of earlier jobs stood."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tuner.domain.events import Inherited, Suggested
from tuner.domain.ids import trial_number
from tuner.domain.records import Heritage
from tuner.domain.time import Instant
from tuner.engine.journal import JournalTx

BEFORE = 0  # the attempt that stands for all that an earlier job did


@dataclass(frozen=True)
class Heirs:
    """By the number of the trial that goes on; the checkpoints are its own already."""

    by_number: Mapping[int, Heritage] = field(default_factory=dict)

    def proposal(self, trial: str, at: Instant) -> Suggested | None:
        """Instead of a sampler's; None: the trial inherits nothing."""
        heritage = self.by_number.get(trial_number(trial))
        if heritage is None:
            return None
        curve = tuple((row.step, row.value) for row in heritage.reports if row.value is not None)
        inherited = Inherited(heritage.job, heritage.trial, curve, heritage.reports[-1].duration_ns)
        return Suggested(at, trial, dict(heritage.config), inherited)

    def record(self, tx: JournalTx, told: Suggested) -> int:
        """What was reported and what it cost, as if this job had done it; what this job pays begins behind it. Answers the step
        from which the trial goes on. Called in the turn that tells of the suggestion, before it does."""
        heritage = self.by_number[trial_number(told.trial)]
        tx.put_trial(told.trial, "pending", at=told.at, config=heritage.config)
        for row in heritage.reports:
            tx.put_report(replace(row, trial=told.trial, attempt=BEFORE))
        tx.put_checkpoint(heritage.checkpoint)
        return heritage.checkpoint.step


NO_HEIRS = Heirs()
