"""List and read the artifacts of a trial: the files that it reported with its metrics."""

from dataclasses import dataclass

from tuner.checkpoints.artifacts import Artifact, ArtifactDamaged, TrialArtifacts
from tuner.checkpoints.storage import explained
from tuner.domain.errors import NotFound, Unavailable
from tuner.domain.time import Instant
from tuner.service.answers import trial_of
from tuner.service.bootstrap import Service
from tuner.store import jobs, stored_files

OTHER = "application/octet-stream"
# Content types by file extension. All other artifacts are sent as `OTHER`: user code chooses names and contents, so a browser
# must never interpret an artifact as a page or a script. SVG is missing because an SVG image may contain scripts.
IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
MOST_CHARS = 100


@dataclass(frozen=True, slots=True)
class ArtifactView:
    """A file that a trial reported."""

    name: str
    step: int
    size_bytes: int
    sha256: str
    at: Instant
    content_type: str  #: One of `IMAGES`, or `OTHER`.

    @property
    def is_image(self) -> bool:
        return self.content_type != OTHER


def artifacts_of(service: Service, job: str, trial: str) -> list[ArtifactView]:
    """Return the artifacts of a trial, ordered by name.

    Raises:
        NotFound: The job or the trial does not exist, or the list of its artifacts is damaged.
        Unavailable: The storage does not answer.
    """
    return [_view(stored_artifact) for _, stored_artifact in sorted(_stored(service, job, trial)[1].items())]


def artifact(service: Service, job: str, trial: str, name: str) -> tuple[ArtifactView, bytes]:
    """Return one artifact and its content.

    Raises:
        NotFound: The job, the trial or the artifact does not exist, or the artifact's file is missing or damaged.
        Unavailable: The storage does not answer.
    """
    stored, artifacts = _stored(service, job, trial)
    if name not in artifacts:
        raise NotFound(
            f"{trial} has no artifact {name[:MOST_CHARS]!r}; it has {', '.join(sorted(artifacts)) or 'none'}"
        )
    try:
        return _view(artifacts[name]), stored.read(artifacts[name])
    except ArtifactDamaged as error:
        raise NotFound(str(error)) from error
    except Exception as error:  # every storage backend raises its own error types
        raise Unavailable(f"the artifact {name} of {trial} cannot be read: {explained(error)}") from error


def _stored(service: Service, job: str, trial: str) -> tuple[TrialArtifacts, dict[str, Artifact]]:
    with service.database.read() as db:
        trial_of(db, jobs.get(db, job, service.project), trial)
        gone = stored_files.removal_of(db, job, trial)
    stored = TrialArtifacts(service.settings.storage, service.project, job, trial)
    try:
        # Files whose removal is ordered are not listed, because they may be deleted at any moment.
        files = stored.list()
        return stored, {name: file for name, file in files.items() if gone is None or file.attempt > gone}
    except ArtifactDamaged as error:
        raise NotFound(f"the artifacts of {trial} cannot be read: {error}") from error
    except Exception as error:  # every storage backend raises its own error types
        raise Unavailable(f"the artifacts of {trial} cannot be read: {explained(error)}") from error


def _view(artifact: Artifact) -> ArtifactView:
    extension = f".{artifact.name.rpartition('.')[2].lower()}"
    return ArtifactView(
        artifact.name,
        artifact.step,
        artifact.size_bytes,
        artifact.sha256,
        Instant(artifact.at_ns),
        IMAGES.get(extension, OTHER),
    )
