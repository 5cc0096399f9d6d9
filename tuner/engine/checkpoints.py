"""Checkpoints in shared storage: files, then a manifest with their sizes and SHA-256. What has no valid manifest does not exist.

Layout: `<storage>/<project>/<job>/<trial>/step_<8 digits>-a<attempt>/`.
"""

import hashlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

from tuner.engine.storage import PARTIAL, Storage

MANIFEST = "MANIFEST.json"
_NAME = re.compile(r"step_(\d{8})-a(\d+)")
_PARTIAL = re.compile(re.escape(PARTIAL) + r"step_\d{8}-a(\d+)\.")


class CheckpointDamaged(Exception):
    """A checkpoint's files are not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Published:
    """A durable checkpoint, and how long it took to become that."""

    step: int
    uri: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A directory that may hold a checkpoint; `fetch` tells."""

    step: int
    attempt: int
    name: str


class CheckpointStore:
    """The checkpoints of one job. Raises OSError where the storage does not answer."""

    def __init__(self, url: str, project: str, job: str) -> None:
        self._storage, self._project, self._job = Storage(url), project, job

    def publish(self, trial: str, attempt: int, step: int, source: Path) -> Published:
        """Makes the files of `source` durable as the trial's checkpoint of `step`; `source` is gone afterwards."""
        began = time.monotonic()
        files = [_describe(source, file) for file in sorted(source.rglob("*")) if file.is_file()]
        manifest = {
            "version": 1,
            "job": self._job,
            "trial": trial,
            "attempt": attempt,
            "step": step,
            "created_at_ns": time.time_ns(),
            "files": files,
        }
        name = f"step_{step:08d}-a{attempt}"
        where = (self._project, self._job, trial, name)
        self._storage.put_directory(source, (MANIFEST, json.dumps(manifest).encode()), *where)
        size = sum(int(str(file["bytes"])) for file in files)
        return Published(step, self._storage.path(*where), size, time.monotonic() - began)

    def found(self, trial: str) -> list[Found]:
        """Newest first."""
        return _found(self._storage.names(self._project, self._job, trial))

    def fetch(self, trial: str, found: Found, into: Path) -> Path:
        """The verified files on this machine. Raises CheckpointDamaged."""
        where = (self._project, self._job, trial, found.name)
        try:
            manifest = json.loads(self._storage.read(*where, MANIFEST))
            names = [str(file["path"]) for file in manifest["files"]]
            if manifest["version"] != 1 or any(".." in Path(n).parts or Path(n).is_absolute() for n in names):
                raise CheckpointDamaged(f"{found.name}: not a manifest")
            directory = self._storage.get_directory(names, into, *where)
            for file in manifest["files"]:
                if _describe(directory, directory / file["path"]) != file:
                    raise CheckpointDamaged(f"{found.name}: {file['path']} is damaged")
        except (FileNotFoundError, KeyError, TypeError, ValueError) as error:
            raise CheckpointDamaged(f"{found.name}: {error}") from error
        return directory

    def newest_valid(self, trial: str, into: Path, *, at_most: int) -> tuple[int, Path] | None:
        """The newest checkpoint up to step `at_most` that is whole, skipping damaged ones; None where there is none."""
        for found in self.found(trial):
            if found.step <= at_most:
                try:
                    return found.step, self.fetch(trial, found, into / found.name)
                except CheckpointDamaged:
                    continue
        return None

    def prune(
        self, trial: str, attempt: int, *, newest: int, keep: int, protect: frozenset[int] = frozenset()
    ) -> None:
        """Removes all but the `keep` newest whole ones up to step `newest`, and those of protected steps. Beyond it lies what
        an earlier attempt saved whose driver died before it knew; half a checkpoint is left by a worker that died. What
        later attempts than `attempt` wrote stays."""
        names, kept = self._storage.names(self._project, self._job, trial), 0
        for found in _found(names):
            if found.attempt > attempt:
                continue
            known = found.step <= newest or found.step in protect
            if known and self._has_manifest(trial, found) and (kept < keep or found.step in protect):
                kept += 1
            else:
                self._storage.remove(self._project, self._job, trial, found.name)
        for name in names:
            match = _PARTIAL.match(name)
            if match and int(match[1]) < attempt:
                self._storage.remove(self._project, self._job, trial, name)

    def _has_manifest(self, trial: str, found: Found) -> bool:
        return MANIFEST in self._storage.names(self._project, self._job, trial, found.name)


def _found(names: list[str]) -> list[Found]:
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    return sorted((Found(int(m[1]), int(m[2]), m[0]) for m in matches), reverse=True)


def _describe(root: Path, file: Path) -> dict[str, object]:
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return {
        "path": file.relative_to(root).as_posix(),
        "bytes": file.stat().st_size,
        "sha256": digest.hexdigest(),
    }
