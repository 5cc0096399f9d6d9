"""The checkpoints of earlier jobs that a job goes on from become its own before its trials begin: copied, verified, and out of
reach of whatever the earlier jobs still remove."""

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

HEIRS_MAX = 10  # those that would be promoted first; the others' results count all the same
GRID_MAX = 10_000
log = logging.getLogger("tuner.driver")


@dataclass(frozen=True)
class Copier:
    """`turned` is called between copies: the driver lives."""

    storage: str
    project: str
    job: str
    turned: Callable[[], None] = lambda: None

    def take(self, number: int, heritage: Heritage) -> Heritage | None:
        """With the checkpoint as trial `number` has it; None where it is gone, or damaged."""
        self.turned()
        kept, trial = heritage.checkpoint, trial_id(number)
        mine = CheckpointStore(self.storage, self.project, self.job)
        theirs = CheckpointStore(self.storage, self.project, heritage.job)
        try:
            with tempfile.TemporaryDirectory(prefix="tuner-heir-") as folder:
                into = Path(folder) / "checkpoint"
                files = theirs.fetch(heritage.trial, Found(kept.step, kept.attempt), into)
                if Found(kept.step, BEFORE) in mine.found(trial):  # by a driver that died since
                    mine.fetch(trial, Found(kept.step, BEFORE), Path(folder) / "there")
                    return replace(heritage, checkpoint=replace(kept, trial=trial, attempt=BEFORE))
                copy = shutil.copytree(
                    files, Path(folder) / "copy"
                )  # `files` may be theirs, and `publish` takes away
                published = mine.publish(trial, BEFORE, kept.step, copy)
        except Exception as error:  # each kind of storage has errors of its own
            log.warning("%s begins from nothing: %s of %s: %s", trial, heritage.trial, heritage.job, error)
            return None
        size, seconds = published.size_bytes, published.seconds
        copied = replace(
            kept, trial=trial, attempt=BEFORE, uri=published.uri, size_bytes=size, seconds=seconds
        )
        return replace(heritage, checkpoint=copied)


def heirs_of(
    spec: JobSpec, sampler: Sampler, found: Iterable[Heritage], *, begun: int, copier: Copier
) -> Heirs:
    """The best first, from trial 0 on; on a grid each at its own place. `begun`: so many trials have begun already."""
    found = list(found)
    numbers = _places(sampler, found) if spec.algorithm.sampler == "grid" else dict(enumerate(found))
    taken = {n: copier.take(n, heritage) for n, heritage in numbers.items() if n >= begun}
    return Heirs({n: heritage for n, heritage in taken.items() if heritage is not None})


def _places(sampler: Sampler, found: list[Heritage]) -> dict[int, Heritage]:
    places: dict[int, Heritage] = {}
    for number in range(GRID_MAX):
        config = sampler.suggest(number)
        if config is None or len(places) == len(found):
            break
        same = next((heritage for heritage in found if heritage.config == config), None)
        places |= {} if same is None else {number: same}
    return places
