"""Files that a trial reports next to its metrics, such as images and tables.

Layout: `<storage>/<project>/<job>/<trial>/artifacts/`, with the files and one index per attempt, `a<attempt>.json`. The
index is written after the files that it names, so a file that is listed is complete. Each index also names the files that
earlier attempts reported, so the index of the newest attempt lists all artifacts of the trial. If a trial reports a file
name again, the new file replaces the earlier one.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tuner.checkpoints.storage import Storage, explained

FOLDER = "artifacts"
VERSION = 1
log = logging.getLogger("tuner.checkpoints")
_INDEX = re.compile(r"a(\d{1,9})\.json")
_STORED = re.compile(r"a\d{1,9}-s\d{1,9}-[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ArtifactsFull(Exception):
    """The trial would exceed the limit on the number or the total size of its artifacts."""


class ArtifactDamaged(Exception):
    """A stored artifact is missing or differs from what was written, or the index of a trial's artifacts is invalid."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A stored file that a trial reported."""

    name: str  #: The name that the trial gave the file.
    step: int  #: The step of the report.
    size_bytes: int
    sha256: str
    at_ns: int  #: When it was stored, in nanoseconds since 1970.
    stored_as: str  #: The name of the file in the storage, which contains the attempt and the step.

    @property
    def attempt(self) -> int:
        """The number of the attempt that reported this file."""
        return int(self.stored_as[1:].partition("-")[0])


class TrialArtifacts:
    """The artifacts of one trial. If the storage fails, methods raise the exceptions of its client library."""

    def __init__(self, url: str, project: str, job: str, trial: str) -> None:
        self._storage, self._where = Storage(url), (project, job, trial, FOLDER)

    def list(self) -> dict[str, Artifact]:
        """Return all artifacts of the trial by name. Raise ArtifactDamaged if the index is not valid."""
        matches = (_INDEX.fullmatch(name) for name in self._storage.names(*self._where))
        attempts = [int(match[1]) for match in matches if match]
        return self._index(max(attempts)) if attempts else {}

    def add(
        self,
        attempt: int,
        step: int,
        files: Mapping[str, bytes],
        *,
        at_ns: int,
        max_files: int,
        max_bytes: int,
    ) -> dict[str, Artifact]:
        """Store the files of one report, and return all artifacts of the trial by name. The call can be repeated after an error.

        Args:
            attempt: The number of the attempt that reported the files.
            step: The step of the report.
            files: The content of each file by its name.
            at_ns: The current time, in nanoseconds since 1970.
            max_files: How many artifacts the trial may have.
            max_bytes: How many bytes all artifacts of the trial may have together.

        Raises:
            ArtifactsFull: The trial would exceed a limit. Nothing was stored.
        """
        before = self.list()
        added = {
            name: Artifact(
                name,
                step,
                len(data),
                hashlib.sha256(data).hexdigest(),
                at_ns,
                f"a{attempt}-s{step}-{name}",
            )
            for name, data in files.items()
        }
        after = {**before, **added}
        if len(after) > max_files or sum(artifact.size_bytes for artifact in after.values()) > max_bytes:
            raise ArtifactsFull(
                f"the trial would have {len(after)} artifacts of {sum(artifact.size_bytes for artifact in after.values())} bytes in total; "
                f"its limits are {max_files} artifacts and {max_bytes} bytes in total"
            )
        for name, data in files.items():
            self._storage.put_file(data, *self._where, added[name].stored_as, durably=True)
        index = {"version": VERSION, "artifacts": [asdict(artifact) for artifact in after.values()]}
        self._storage.put_file(json.dumps(index).encode(), *self._where, f"a{attempt}.json", durably=True)
        kept = {artifact.stored_as for artifact in after.values()}
        for name in (artifact.stored_as for artifact in before.values() if artifact.stored_as not in kept):
            # A storage that refuses deletions keeps the replaced file, which is not listed. The new files are stored.
            try:
                self._storage.remove(*self._where, name)
            except Exception as error:  # each kind of storage has errors of its own
                log.warning("the replaced artifact %s could not be deleted: %s", name, explained(error))
        return after

    def read(self, artifact: Artifact) -> bytes:
        """Return the content of an artifact. Raise ArtifactDamaged if it is missing or differs from what was written."""
        try:
            size = self._storage.size(*self._where, artifact.stored_as)
            data = (
                self._storage.read(*self._where, artifact.stored_as) if size == artifact.size_bytes else b""
            )
        except FileNotFoundError as error:
            raise ArtifactDamaged(f"the artifact {artifact.name} is missing from the storage") from error
        if len(data) != artifact.size_bytes or hashlib.sha256(data).hexdigest() != artifact.sha256:
            raise ArtifactDamaged(f"the artifact {artifact.name} is damaged in the storage")
        return data

    def _index(self, attempt: int) -> dict[str, Artifact]:
        try:
            index = json.loads(self._storage.read(*self._where, f"a{attempt}.json"))
            if index["version"] != VERSION:
                raise ValueError(
                    f"the index has version {index['version']}, but this release reads version {VERSION}"
                )
            return {artifact.name: artifact for artifact in map(_parsed, index["artifacts"])}
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ArtifactDamaged(f"the index of the artifacts cannot be read: {error!r}") from error


def _parsed(fields: Any) -> Artifact:
    """Convert one entry of an index to an `Artifact`. Raise ValueError if a name or a number is not valid.

    User code can write to the folder of the storage, so an index may contain anything.
    """
    artifact = Artifact(**fields)
    numbers = (artifact.step, artifact.size_bytes, artifact.at_ns)
    if not all(isinstance(number, int) and 0 <= number < 2**63 for number in numbers):
        raise ValueError("step, size_bytes or at_ns is not a whole number from 0 to 2^63 - 1")
    if not _STORED.fullmatch(artifact.stored_as) or not artifact.stored_as.endswith(f"-{artifact.name}"):
        raise ValueError("stored_as is not the name of a stored artifact")
    if not re.fullmatch(r"[0-9a-f]{64}", artifact.sha256):
        raise ValueError("sha256 is not a SHA-256 digest in hexadecimal")
    return artifact
