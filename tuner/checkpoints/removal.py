"""Remove the checkpoints and artifacts of a trial.

Manifests and indexes are removed before the files that they name. If the removal is interrupted, what is left is not a
checkpoint or an artifact any more, and a repeated call removes the rest.
"""

import re

from tuner.checkpoints.artifacts import FOLDER as ARTIFACTS
from tuner.checkpoints.checkpoints import MANIFEST
from tuner.checkpoints.storage import PARTIAL, Storage

# Directories of a trial that belong to one attempt.
_CHECKPOINT = re.compile(r"step_\d{8}-a(\d+)(?:-part\d+)?")
_OTHERS = re.compile(rf"pieces-a(\d+)-\d|{re.escape(PARTIAL)}step_\d{{8}}-a(\d+)(?:-part\d+)?\..*")
_INDEX = re.compile(r"a(\d+)\.json")
_ARTIFACT = re.compile(r"a(\d+)-s\d+-.+")


def remove_trial_files(storage: Storage, up_to_attempt: int, *trial: str) -> None:
    """Remove the checkpoints and artifacts that the first attempts of a trial stored. Logs are kept.

    If the storage does not answer, its own error is raised, and the call can be repeated.

    Args:
        storage: The storage.
        up_to_attempt: The last attempt whose files are removed. A later attempt belongs to a job that was resumed meanwhile.
        trial: Project, job and trial.
    """
    names = storage.names(*trial)
    checkpoints = [name for name in names if _is_of(_CHECKPOINT, name, up_to_attempt)]
    for name in checkpoints:
        storage.remove(*trial, name, MANIFEST)
    for name in [*checkpoints, *(name for name in names if _is_of(_OTHERS, name, up_to_attempt))]:
        storage.remove(*trial, name)
    if ARTIFACTS in names:
        _remove_artifacts(storage, up_to_attempt, *trial, ARTIFACTS)


def _remove_artifacts(storage: Storage, up_to_attempt: int, *folder: str) -> None:
    names = storage.names(*folder)
    for name in names:
        if _is_of(_INDEX, name, up_to_attempt):
            storage.remove(*folder, name)
    if any(_INDEX.fullmatch(name) and not _is_of(_INDEX, name, up_to_attempt) for name in names):
        return  # a later attempt may still list files of earlier ones
    for name in names:
        if _is_of(_ARTIFACT, name, up_to_attempt):
            storage.remove(*folder, name)


def _is_of(pattern: re.Pattern[str], name: str, up_to_attempt: int) -> bool:
    match = pattern.fullmatch(name)
    return match is not None and int(next(group for group in match.groups() if group)) <= up_to_attempt
