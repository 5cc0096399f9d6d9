"""Copy checkpoints of earlier jobs before the trials that continue from them begin (warm start).

The copies are verified and belong to the new job, so the earlier jobs may remove their own checkpoints
afterwards.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.checkpoints.checkpoints import CheckpointId, CheckpointStore
from tuner.domain.ids import trial_id
from tuner.domain.job import JobSpec
from tuner.domain.records import INHERITED, WarmStartTrial
from tuner.driver.warm_starts import WarmStarts
from tuner.tuning.samplers import Sampler

WARM_STARTS_MAX = 10  # how many earlier trials are continued at most, the best ones; the sampler learns from all earlier trials
GRID_MAX = 10_000
log = logging.getLogger("tuner.driver")


@dataclass(frozen=True)
class Copier:
    """Copy checkpoints of earlier jobs to the job `job`."""

    storage: str
    project: str
    job: str
    turned: Callable[[], None] = lambda: None  #: Called before each copy, to show that the driver is alive.

    def copy(self, number: int, warm_start: WarmStartTrial) -> WarmStartTrial | None:
        """Copy the checkpoint of an earlier trial for this job's trial `number`.

        Return `warm_start` with the copy as its checkpoint, or None if the earlier checkpoint cannot be copied.
        """
        self.turned()
        kept, trial = warm_start.checkpoint, trial_id(number)
        mine = CheckpointStore(self.storage, self.project, self.job)
        theirs = CheckpointStore(self.storage, self.project, warm_start.job)
        try:
            with tempfile.TemporaryDirectory(prefix="tuner-warm-start-") as folder:
                into = Path(folder) / "checkpoint"
                files = theirs.fetch(warm_start.trial, CheckpointId(kept.step, kept.attempt), into)
                # An earlier driver of this job may already have made the copy. If so, fetch the copy, which verifies its files.
                if CheckpointId(kept.step, INHERITED) in mine.ids(trial):
                    mine.fetch(trial, CheckpointId(kept.step, INHERITED), Path(folder) / "there")
                    return replace(warm_start, checkpoint=replace(kept, trial=trial, attempt=INHERITED))
                published = mine.publish(trial, INHERITED, kept.step, files)
        except Exception as error:  # each kind of storage has errors of its own
            log.warning(
                "%s starts from scratch, because the checkpoint of %s of %s cannot be copied: %s",
                trial,
                warm_start.trial,
                warm_start.job,
                error,
            )
            return None
        size, seconds = published.size_bytes, published.seconds
        copied = replace(
            kept, trial=trial, attempt=INHERITED, uri=published.uri, size_bytes=size, seconds=seconds
        )
        return replace(warm_start, checkpoint=copied)


def warm_starts_of(
    spec: JobSpec, sampler: Sampler, earlier: Iterable[WarmStartTrial], *, begun: int, copier: Copier
) -> WarmStarts:
    """Choose the earlier trials to continue, and copy their checkpoints.

    `earlier` is in order, the best trial first. Trial 0 of this job continues the first of them, trial 1 the second, and so on. With the
    sampler `grid`, an earlier trial is continued by the trial of the grid point with the same configuration. The first `begun` trials of
    this job are skipped, because they have begun already.
    """
    earlier = list(earlier)
    numbers = _places(sampler, earlier) if spec.algorithm.sampler == "grid" else dict(enumerate(earlier))
    taken = {n: copier.copy(n, warm_start) for n, warm_start in numbers.items() if n >= begun}
    return WarmStarts({n: warm_start for n, warm_start in taken.items() if warm_start is not None})


def _places(sampler: Sampler, warm_starts: list[WarmStartTrial]) -> dict[int, WarmStartTrial]:
    """Find the earlier trials whose configurations are in the grid.

    The keys of the result are the numbers of this job's trials that get the same configurations.
    """
    places: dict[int, WarmStartTrial] = {}
    for number in range(GRID_MAX):
        config = sampler.suggest(number)
        if config is None or len(places) == len(warm_starts):
            break
        same = next((warm_start for warm_start in warm_starts if warm_start.config == config), None)
        places |= {} if same is None else {number: same}
    return places
