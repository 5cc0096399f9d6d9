"""Copy checkpoints of earlier jobs before the trials that continue from them begin (warm start).

The copies are verified and belong to the new job, so the earlier jobs may remove their own checkpoints
afterwards.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.domain.ids import trial_id
from tuner.domain.job import JobSpec
from tuner.domain.records import Heritage
from tuner.engine.checkpoints import CheckpointStore, Found
from tuner.engine.heirs import BEFORE, Heirs
from tuner.tuning.samplers import Sampler

HEIRS_MAX = 10  # the most trials to continue, best first; the sampler learns from the others too
GRID_MAX = 10_000
log = logging.getLogger("tuner.driver")


@dataclass(frozen=True)
class Copier:
    """Copy checkpoints of earlier jobs to one job."""

    storage: str
    project: str
    job: str
    turned: Callable[[], None] = lambda: None  #: Called before each copy, to show that the driver is alive.

    def take(self, number: int, heritage: Heritage) -> Heritage | None:
        """Copy the checkpoint for trial `number`.

        Return the earlier trial with the copy, or None if its checkpoint is missing or damaged.
        """
        self.turned()
        kept, trial = heritage.checkpoint, trial_id(number)
        mine = CheckpointStore(self.storage, self.project, self.job)
        theirs = CheckpointStore(self.storage, self.project, heritage.job)
        try:
            with tempfile.TemporaryDirectory(prefix="tuner-heir-") as folder:
                into = Path(folder) / "checkpoint"
                files = theirs.fetch(heritage.trial, Found(kept.step, kept.attempt), into)
                # copied by an earlier driver, which has died
                if Found(kept.step, BEFORE) in mine.found(trial):
                    mine.fetch(trial, Found(kept.step, BEFORE), Path(folder) / "there")
                    return replace(heritage, checkpoint=replace(kept, trial=trial, attempt=BEFORE))
                # `files` may belong to the earlier job, and `publish` removes its source.
                copy = shutil.copytree(files, Path(folder) / "copy")
                published = mine.publish(trial, BEFORE, kept.step, copy)
        except Exception as error:  # each kind of storage has errors of its own
            log.warning(
                "%s starts from scratch, because the checkpoint of %s of %s cannot be copied: %s",
                trial,
                heritage.trial,
                heritage.job,
                error,
            )
            return None
        size, seconds = published.size_bytes, published.seconds
        copied = replace(
            kept, trial=trial, attempt=BEFORE, uri=published.uri, size_bytes=size, seconds=seconds
        )
        return replace(heritage, checkpoint=copied)


def heirs_of(
    spec: JobSpec, sampler: Sampler, found: Iterable[Heritage], *, begun: int, copier: Copier
) -> Heirs:
    """Choose the earlier trials to continue, and copy their checkpoints.

    The best are continued first, from trial 0 on. On a grid, each continues as the trial of the grid point
    with its configuration. The first `begun` trials are skipped, because they have begun already.
    """
    found = list(found)
    numbers = _places(sampler, found) if spec.algorithm.sampler == "grid" else dict(enumerate(found))
    taken = {n: copier.take(n, heritage) for n, heritage in numbers.items() if n >= begun}
    return Heirs({n: heritage for n, heritage in taken.items() if heritage is not None})


def _places(sampler: Sampler, found: list[Heritage]) -> dict[int, Heritage]:
    """Return the earlier trials by the number of the grid point with the same configuration."""
    places: dict[int, Heritage] = {}
    for number in range(GRID_MAX):
        config = sampler.suggest(number)
        if config is None or len(places) == len(found):
            break
        same = next((heritage for heritage in found if heritage.config == config), None)
        places |= {} if same is None else {number: same}
    return places
