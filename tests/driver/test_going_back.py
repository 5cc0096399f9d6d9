"""Test attempts that start from an older checkpoint because theirs is damaged, and attempts that are refused
because the machine goes away.
"""

import pytest

from tests.driver.looping import Job
from tuner.domain.cost import Meter
from tuner.domain.time import NS, Instant
from tuner.driver.messages import AttemptFailure, SavedPart, StepReport, WorkerMessage


def test_damaged_checkpoint_is_not_restored_again() -> None:
    """Otherwise the next driver would wait for the damaged checkpoint, or return it as the best."""
    job = Job()
    job.trains(2, 5, 9)
    assert job.journal.newest_checkpoints() == {job.trial: 9}
    assert job.world.begun[job.trial].restore_step == 9
    job.loop.progress(WorkerMessage(job.trial, 3, "running", Meter(), from_step=5))
    assert job.journal.newest_checkpoints() == {job.trial: 5}
    job.trains(3, 6)
    assert job.journal.newest_checkpoints() == {job.trial: 6}
    assert job.world.begun[job.trial].restore_step == 6


def test_trial_that_restarts_from_scratch_has_no_checkpoint() -> None:
    job = Job()
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter(), from_step=0))
    assert job.journal.newest_checkpoints() == {}


def test_attempt_refused_by_leaving_worker_restarts_immediately() -> None:
    """Several attempts may be refused on a machine that goes away."""
    job = Job()
    trial = job.loop.state.trial(job.trial)
    before = trial.preemptions, trial.preemptions_without_progress
    for attempt in range(2, 7):
        refused = WorkerMessage(
            job.trial,
            attempt,
            "paused",
            Meter({"idle": NS}),
            failure=AttemptFailure("notice", "", "goes"),
            has_notice=True,
        )
        job.loop.progress(refused)
        begun = job.world.begun[job.trial]
        assert (begun.attempt, begun.restore_step, begun.not_before_ns) == (attempt + 1, 1, 0)
    assert (trial.preemptions, trial.preemptions_without_progress) == before


def test_training_saved_in_the_middle_of_a_step_is_neither_lost_nor_free() -> None:
    """Attempt 2 reports step 2, saves in the middle of step 3, and is preempted. Attempt 3 finishes step 3."""
    job = Job()
    meter = Meter({"restore": NS, "train": 5 * NS})
    report = StepReport(2, {"acc": 0.5}, True, Meter({"train": 2 * NS}), Instant(1))
    job.loop.progress(WorkerMessage(job.trial, 2, "preempted", meter, (report,), part=SavedPart(2, 4 * NS)))
    with job.journal.transaction() as tx:
        posted = tx.posted(job.trial, 2)
    rate = job.loop.state.rate
    assert posted["lost"] == rate.cost(NS)
    assert posted["train"].usd.micro_usd == pytest.approx(rate.cost(4 * NS).usd.micro_usd, abs=1)
    begun = job.world.begun[job.trial]
    assert (begun.attempt, begun.restore_step, begun.reported_step) == (3, 2, 2)
    assert job.journal.newest_checkpoints() == {job.trial: 1}
    report = StepReport(3, {"acc": 0.5}, True, Meter({"train": NS}), Instant(2))
    job.loop.progress(
        WorkerMessage(job.trial, 3, "running", report.meter, (report,), from_step=2, carried_ns=2 * NS)
    )
    with job.journal.transaction() as tx:
        reached = tx.reached(job.trial, 3)
    # 2 s of the first step with its setup, 2 s of the second, 2 s of the third before the notice and 1 s after it.
    assert reached is not None
    assert reached[1] == 7 * NS
    assert job.loop.state.trial(job.trial).trained_ns == 6 * NS


def test_preemption_after_a_save_in_the_middle_of_a_step_has_brought_progress() -> None:
    """With three preemptions in a row without progress, a trial leaves spot."""
    job = Job()
    trial, meter = job.loop.state.trial(job.trial), Meter({"restore": NS, "train": NS})
    counts = []
    for attempt, part in ((2, None), (3, SavedPart(1, NS)), (4, SavedPart(1, NS)), (5, None)):
        job.loop.progress(WorkerMessage(job.trial, attempt, "preempted", meter, part=part))
        counts.append(trial.preemptions_without_progress)
    assert counts == [1, 0, 0, 1]


def test_driver_that_died_continues_from_a_checkpoint_it_did_not_record() -> None:
    job = Job()
    report = StepReport(3, {"acc": 0.5}, True, Meter({"train": NS}), Instant(2))
    job.loop.progress(
        WorkerMessage(job.trial, 2, "running", report.meter, (report,), from_step=2, carried_ns=NS)
    )
    assert job.loop.leases[job.trial].from_step == job.loop.saved[job.trial] == 2
