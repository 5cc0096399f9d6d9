"""Test attempts that start from an older checkpoint because theirs is damaged, and attempts that are refused
because the machine goes away.
"""

from tests.driver.looping import Job
from tuner.domain.cost import Meter
from tuner.domain.time import NS
from tuner.driver.messages import Progress, Trouble


def test_damaged_checkpoint_is_not_restored_again() -> None:
    """Otherwise the next driver would wait for the damaged checkpoint, or return it as the best."""
    job = Job()
    job.trains(2, 5, 9)
    assert job.journal.newest_checkpoints() == {job.trial: 9}
    assert job.world.begun[job.trial].restore_step == 9
    job.loop.progress(Progress(job.trial, 3, "running", Meter(), from_step=5))
    assert job.journal.newest_checkpoints() == {job.trial: 5}
    job.trains(3, 6)
    assert job.journal.newest_checkpoints() == {job.trial: 6}
    assert job.world.begun[job.trial].restore_step == 6


def test_trial_that_restarts_from_scratch_has_no_checkpoint() -> None:
    job = Job()
    job.loop.progress(Progress(job.trial, 2, "running", Meter(), from_step=0))
    assert job.journal.newest_checkpoints() == {}


def test_attempt_refused_by_leaving_worker_restarts_immediately() -> None:
    """Several attempts may be refused on a machine that goes away."""
    job = Job()
    trial = job.loop.state.trial(job.trial)
    before = trial.preemptions, trial.preemptions_without_progress
    for attempt in range(2, 7):
        refused = Progress(
            job.trial,
            attempt,
            "paused",
            Meter({"idle": NS}),
            trouble=Trouble("notice", "", "goes"),
            leaving=True,
        )
        job.loop.progress(refused)
        begun = job.world.begun[job.trial]
        assert (begun.attempt, begun.restore_step, begun.not_before_ns) == (attempt + 1, 1, 0)
    assert (trial.preemptions, trial.preemptions_without_progress) == before
