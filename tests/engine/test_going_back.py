"""An attempt that went on from an older checkpoint than it was given, as that one is damaged."""

from tests.engine.looping import Job
from tuner.domain.cost import Meter
from tuner.engine.messages import Progress


def test_what_is_damaged_is_asked_for_no_more() -> None:
    """Else the next driver would wait for it as for something that is there, and send it as the best."""
    job = Job()
    job.trains(2, 5, 9)
    assert job.journal.newest_checkpoints() == {job.trial: 9}
    assert job.world.begun[job.trial].restore_step == 9
    job.loop.progress(Progress(job.trial, 3, "running", Meter(), from_step=5))
    assert job.journal.newest_checkpoints() == {job.trial: 5}
    job.trains(3, 6)
    assert job.journal.newest_checkpoints() == {job.trial: 6}
    assert job.world.begun[job.trial].restore_step == 6


def test_one_that_starts_over_has_no_checkpoint_left() -> None:
    job = Job()
    job.loop.progress(Progress(job.trial, 2, "running", Meter(), from_step=0))
    assert job.journal.newest_checkpoints() == {}
