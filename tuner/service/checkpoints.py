"""Choose a stored checkpoint of a trial and read its files for a download."""

from tuner.checkpoints.checkpoints import (
    CheckpointArchive,
    CheckpointDamaged,
    CheckpointId,
    CheckpointMissing,
    CheckpointStore,
    StoredFile,
)
from tuner.checkpoints.storage import explained
from tuner.database.database import Connection
from tuner.domain.errors import NotFound, Unavailable
from tuner.service.answers import trial_of
from tuner.service.bootstrap import Service
from tuner.store import answers, jobs
from tuner.store.answers import DurableCheckpoint
from tuner.store.jobs import JobRow

# An error message lists at most this many file names, and at most this many characters of a requested name.
MOST_NAMES = 20
MOST_CHARS = 200


def open_checkpoint(
    service: Service, job: str, trial: str, step: int | None
) -> tuple[DurableCheckpoint, CheckpointArchive]:
    """Return a trial's checkpoint and its files as one tar file.

    Args:
        step: The step of the checkpoint. None means the best checkpoint, as `choose` defines it.

    Raises:
        NotFound: The job, the trial or the checkpoint does not exist, or its files are gone or damaged.
        Unavailable: The storage does not answer.
    """
    with service.database.read() as db:
        chosen = choose(db, jobs.get(db, job, service.project), trial, step)
    store = CheckpointStore(service.settings.storage, service.project, job)
    try:
        return chosen, store.archive(trial, CheckpointId(chosen.step, chosen.attempt))
    except (CheckpointDamaged, CheckpointMissing) as error:
        raise NotFound(f"the checkpoint of step {chosen.step} of {trial} cannot be read: {error}") from error
    except Exception as error:  # every storage backend raises its own error types
        raise Unavailable(
            f"the checkpoint of step {chosen.step} of {trial} cannot be read: {explained(error)}"
        ) from error


def file_of(archive: CheckpointArchive, path: str) -> StoredFile:
    """Return one file of a checkpoint.

    Raises:
        NotFound: The checkpoint has no such file. The error lists its files.
    """
    for file in archive.files:
        if file.path == path:
            return file
    names = ", ".join(file.path for file in archive.files[:MOST_NAMES])
    raise NotFound(f"the checkpoint has no file {path[:MOST_CHARS]!r}; it has {names}")


def choose(db: Connection, row: JobRow, trial: str, step: int | None) -> DurableCheckpoint:
    """Return a trial's checkpoint of `step`, or its best checkpoint if `step` is None.

    The best checkpoint is the one whose report violates the constraints least. Ties are broken by the better metric, then
    the earlier step. If the job trains early steps in a cheaper way (`fidelity.proxies`), a checkpoint of a later, more
    expensive stage comes before one of an earlier stage, regardless of the metric. If no checkpoint has a report with a
    value, the last checkpoint is the best.

    Raises:
        NotFound: The job has no such trial, or the trial has no such checkpoint.
    """
    spec = row.spec
    trial_of(db, row, trial)
    stored = answers.checkpoints_of(db, row.id, trial)
    if not stored:
        raise NotFound(
            f"{trial} has no checkpoint: none has been stored yet, {spec.trainable} does not save checkpoints, or the files were deleted"
        )
    if step is not None:
        chosen = next((checkpoint for checkpoint in stored if checkpoint.step == step), None)
        if chosen is None:
            steps = ", ".join(str(checkpoint.step) for checkpoint in stored)
            raise NotFound(f"{trial} has no checkpoint of step {step}; steps with a checkpoint: {steps}")
        return chosen
    scored = [
        (-saved.violation, spec.rank(saved.step, saved.value), -saved.step, saved)
        for saved in stored
        if saved.value is not None and saved.violation is not None
    ]
    return max(scored)[3] if scored else stored[-1]
