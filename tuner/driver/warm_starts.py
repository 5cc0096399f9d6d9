"""Warm start: trials of a new job that continue trials of earlier jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tuner.domain.events import Inherited, Suggested
from tuner.domain.ids import trial_number
from tuner.domain.records import INHERITED, WarmStartTrial
from tuner.domain.time import Instant
from tuner.driver.ports import JournalTx


@dataclass(frozen=True)
class WarmStarts:
    """The trials of earlier jobs that this job continues, by the number of this job's trial.

    Their checkpoints must have been copied to this job.
    """

    by_number: Mapping[int, WarmStartTrial] = field(default_factory=dict)

    def proposal(self, trial: str, at: Instant) -> Suggested | None:
        """Return the event by which `trial` gets the configuration and progress of an earlier trial. Return None if it continues none."""
        warm_start = self.by_number.get(trial_number(trial))
        if warm_start is None:
            return None
        rows = warm_start.reports
        reports = ((row.step, row.value, row.violation) for row in rows if row.value is not None)
        inherited = Inherited.of_reports(warm_start.job, warm_start.trial, reports, rows[-1].duration_ns)
        return Suggested(at, trial, dict(warm_start.config), inherited)

    def record(self, tx: JournalTx, suggested: Suggested) -> int:
        """Record the reports and the checkpoint of the earlier trial as those of this job's trial. Return the step of the checkpoint.

        This job pays only for the steps after the checkpoint. Call this in the transaction that records the suggestion, before the
        suggestion is recorded.
        """
        warm_start = self.by_number[trial_number(suggested.trial)]
        tx.put_trial(suggested.trial, "pending", at=suggested.at, config=warm_start.config)
        for row in warm_start.reports:
            tx.put_report(replace(row, trial=suggested.trial, attempt=INHERITED))
        tx.put_checkpoint(warm_start.checkpoint)
        return warm_start.checkpoint.step


NO_WARM_STARTS = WarmStarts()
