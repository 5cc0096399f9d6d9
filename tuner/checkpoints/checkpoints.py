"""Checkpoints in shared storage: files, then a manifest with their sizes and SHA-256 digests.

A directory without a valid manifest is not a checkpoint, so an upload that was interrupted is never restored.
`CheckpointStore` writes, lists, restores and removes the checkpoints of a job. `CheckpointArchive` sends a
checkpoint as a tar file for download.

Layout: `<storage>/<project>/<job>/<trial>/step_<8 digits>-a<attempt>/`. A checkpoint from the middle of a step has the number of
the last finished step, and a name that ends in `-part<number>`. Only the trial's next attempt uses it. In object storage the
chunks of large files are stored next to these directories (`tuner.checkpoints.chunks`).
"""

import contextlib
import hashlib
import json
import logging
import re
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tuner.checkpoints.artifacts import FOLDER as ARTIFACTS
from tuner.checkpoints.chunks import CHUNK_BYTES, ChunkWriter, assemble, chunks_of
from tuner.checkpoints.storage import PARTIAL, Storage, is_corrupt

MANIFEST = "MANIFEST.json"
VERSION = 2  # format version of the manifest
DOWNLOAD_BYTES = 1 << 20  # how much of a download is read at once
Read = Callable[[int, int], bytes]
log = logging.getLogger("tuner.checkpoints")
_NAME = re.compile(r"step_(\d{8})-a(\d+)(?:-part(\d+))?")
_PARTIAL = re.compile(re.escape(PARTIAL) + r"step_\d{8}-a(\d+)(?:-part\d+)?\.")


class CheckpointDamaged(Exception):
    """The checkpoint's files differ from its manifest, or the manifest is invalid."""


class CheckpointUnfit(Exception):
    """User code wrote a checkpoint that must not be stored: it has no files, or files outside of its directory."""


class CheckpointMissing(FileNotFoundError):
    """The checkpoint has no manifest.

    If the checkpoint is known to be durable, either the storage does not show the manifest yet, or the checkpoint was written
    to another storage.
    """


@dataclass(frozen=True, slots=True)
class Published:
    """A durable checkpoint, and how many seconds it took to publish it."""

    step: int
    uri: str
    size_bytes: int
    seconds: float
    part: int = 0  #: See `CheckpointId.part`.


@dataclass(frozen=True, slots=True)
class PartOfStep:
    """A checkpoint from the middle of a step, whose files are in a directory of this machine."""

    step: int  #: The last finished step.
    directory: Path  #: Where the restored files are.
    #: How long the step after `step` was trained before the save, in nanoseconds. For the first step of a trial, this includes the setup.
    trained_ns: int


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """Identifies a directory of a trial that may hold a checkpoint. Only `CheckpointStore.fetch` verifies its files."""

    step: int
    attempt: int
    #: 0 if the checkpoint was saved after `step`. If it was saved in the middle of the next step, this is the number of that save within
    #: the attempt, from 1.
    part: int = 0

    @classmethod
    def named(cls, name: str) -> Self:
        """Parse the name of a checkpoint's directory, such as `step_00000012-a3`, and return the id of the checkpoint."""
        match = _NAME.fullmatch(name)
        assert match is not None, name
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    @property
    def name(self) -> str:
        return f"step_{self.step:08d}-a{self.attempt}" + (f"-part{self.part}" if self.part else "")


class CheckpointStore:
    """The checkpoints of one job. If the storage fails, methods raise the exceptions of its client library."""

    def __init__(self, url: str, project: str, job: str) -> None:
        self._storage, self._project, self._job = Storage(url), project, job
        self._chunks: dict[tuple[str, int], ChunkWriter] = {}

    def publish(
        self, trial: str, attempt: int, step: int, source: Path, *, part: int = 0, part_ns: int = 0
    ) -> Published:
        """Make the files of `source` durable as the trial's checkpoint of `step`.

        The directory `source` is removed on success.

        Args:
            trial: The trial.
            attempt: The number of the attempt that saved the checkpoint.
            step: The last finished step.
            source: The directory with the files.
            part: 0 if the checkpoint was saved after `step`. If it was saved in the middle of the next step, the number of that save within
                the attempt, from 1.
            part_ns: How long the next step was trained before such a save, in nanoseconds. Not used if `part` is 0.

        Raises:
            CheckpointUnfit: `source` has no files.
        """
        began = time.monotonic()
        # User code may have copied another checkpoint with its manifest. This checkpoint gets its own.
        (source / MANIFEST).unlink(missing_ok=True)
        files = [_describe(source, file) for file in sorted(source.rglob("*")) if file.is_file()]
        if not files:
            raise CheckpointUnfit(f"{source} has no files to store; write the checkpoint's files there")
        chunks = self._chunks_by(trial, attempt)
        in_chunks = [file for file in files if chunks.is_chunked(file["bytes"])]
        for file in in_chunks:
            file["pieces"] = chunks.put(source / file["path"])
        manifest = {
            "version": VERSION,
            "job": self._job,
            "trial": trial,
            "attempt": attempt,
            "step": step,
            "created_at_ns": time.time_ns(),
            "files": files,
            **({"part": part, "part_ns": part_ns} if part else {}),
        }
        where = (self._project, self._job, trial, CheckpointId(step, attempt, part).name)
        last, elsewhere = (MANIFEST, json.dumps(manifest).encode()), {file["path"] for file in in_chunks}
        self._storage.put_directory(source, last, *where, without=elsewhere)
        chunks.next_turn()
        size = sum(file["bytes"] for file in files)
        return Published(step, self._storage.path(*where), size, time.monotonic() - began, part)

    def _chunks_by(self, trial: str, attempt: int) -> ChunkWriter:
        new = ChunkWriter(self._storage, attempt, self._project, self._job, trial)
        return self._chunks.setdefault((trial, attempt), new)

    def connect(self) -> None:
        """Connect to a remote storage in advance. Its client takes about a second to start, which would delay the first save.

        Errors are ignored, because the first save raises them again.
        """
        if not self._storage.is_local:
            with contextlib.suppress(Exception):  # each kind of storage has errors of its own
                self._storage.names(self._project, self._job)

    def is_lasting(self, error: Exception) -> bool:
        """Return whether an error of the storage is expected to last too long for retries to help."""
        return self._storage.is_lasting(error)

    def ids(self, trial: str) -> list[CheckpointId]:
        """Return the ids of the trial's checkpoints of finished steps, newest first. The checkpoints may be incomplete."""
        return [checkpoint_id for checkpoint_id in self._all_ids(trial) if not checkpoint_id.part]

    def _all_ids(self, trial: str) -> list[CheckpointId]:
        return _ids(self._storage.names(self._project, self._job, trial))

    def has(self, trial: str, checkpoint: CheckpointId) -> bool:
        """Return whether the checkpoint has a valid manifest. Its files are not checked."""
        try:
            return bool(self._manifest(trial, checkpoint))
        except (CheckpointDamaged, CheckpointMissing):
            return False

    def fetch(self, trial: str, checkpoint: CheckpointId, into: Path) -> Path:
        """Copy the files of a checkpoint to the directory `into` of this machine, verify the copies, and return `into`.

        The caller may change the copies: user code that gets them cannot damage the stored checkpoint by mistake.

        Raises:
            CheckpointMissing: There is no manifest.
            CheckpointDamaged: The files differ from the manifest, or the manifest is invalid.
        """
        manifest = self._manifest(trial, checkpoint)
        try:
            return self._fetch_files(trial, checkpoint, manifest, into)
        except CheckpointDamaged:
            if self._storage.is_local:
                raise
        # Try once more, because a byte may have been corrupted during the download.
        return self._fetch_files(trial, checkpoint, manifest, into)

    def archive(self, trial: str, checkpoint: CheckpointId) -> "CheckpointArchive":
        """Return a checkpoint as a tar file for download. The files are read only when the tar file is read.

        Raises:
            CheckpointMissing: There is no manifest.
            CheckpointDamaged: The manifest is invalid, or a file is missing or has another size.
        """
        manifest, place = self._manifest(trial, checkpoint), self._where(trial, checkpoint)
        for file in manifest["files"]:
            if chunks_of(file):
                continue  # the digest in a chunk's name identifies its content, so sizes are not checked
            try:
                size = self._storage.size(*place, str(file["path"]))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise CheckpointDamaged(f"{checkpoint.name}: {file['path']} is missing") from error
            if size != file["bytes"]:
                raise CheckpointDamaged(
                    f"{checkpoint.name}: {file['path']} has {size} bytes, not {file['bytes']}"
                )
        data = self._storage.read(*place, MANIFEST)
        return CheckpointArchive(self._storage, place, manifest, data)

    def files(self, trial: str) -> dict[str, "StoredFile"]:
        """Return the files of all checkpoints of a trial that have a valid manifest, by path.

        If several checkpoints have a file with the same path, return that of the newest step.
        """
        by_path: dict[str, StoredFile] = {}
        for checkpoint in reversed(self.ids(trial)):
            try:
                manifest = self._manifest(trial, checkpoint)
            except (CheckpointDamaged, CheckpointMissing):
                continue
            for file in manifest["files"]:
                by_path[file["path"]] = _stored_file(self._storage, self._where(trial, checkpoint), file)
        return by_path

    def _fetch_files(
        self, trial: str, checkpoint: CheckpointId, manifest: dict[str, Any], into: Path
    ) -> Path:
        try:
            whole = [str(file["path"]) for file in manifest["files"] if not chunks_of(file)]
            self._storage.get_files(whole, into, *self._where(trial, checkpoint))
            for file in manifest["files"]:
                if chunks := chunks_of(file):
                    assemble(self._storage, chunks, into / file["path"], self._project, self._job, trial)
                described = _describe(into, into / file["path"])
                if described != {name: file.get(name) for name in described}:
                    raise CheckpointDamaged(f"{checkpoint.name}: {file['path']} is damaged")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise CheckpointDamaged(f"{checkpoint.name}: a file is missing: {error}") from error
        return into

    def _manifest(self, trial: str, checkpoint: CheckpointId) -> dict[str, Any]:
        """Return a checkpoint's manifest.

        Raises:
            CheckpointMissing: There is no manifest.
            CheckpointDamaged: The manifest is invalid.
        """
        try:
            data = self._storage.read(*self._where(trial, checkpoint), MANIFEST)
        except FileNotFoundError as error:
            raise CheckpointMissing(
                f"{self._storage.path(*self._where(trial, checkpoint))} has no manifest: the checkpoint is incomplete, was removed, or is "
                "not visible in the storage yet"
            ) from error
        except (IsADirectoryError, NotADirectoryError) as error:
            raise CheckpointDamaged(f"{checkpoint.name}: its manifest is not a file") from error
        try:
            manifest: dict[str, Any] = json.loads(data)
            version, place = (
                manifest["version"],
                [*(manifest[word] for word in ("job", "trial", "step", "attempt")), manifest.get("part", 0)],
            )
            names = [_path_of(file) for file in manifest["files"]]
            in_chunks = [chunks_of(file) for file in manifest["files"]]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointDamaged(f"{checkpoint.name}: its manifest cannot be read: {error!r}") from error
        if version != VERSION:
            raise CheckpointDamaged(
                f"{checkpoint.name}: its manifest has version {version}, but this release reads version {VERSION}"
            )
        if place != [self._job, trial, checkpoint.step, checkpoint.attempt, checkpoint.part]:
            raise CheckpointDamaged(f"{checkpoint.name}: its manifest is that of another checkpoint, {place}")
        if not names or not all(map(_is_within, names)):
            raise CheckpointDamaged(
                f"{checkpoint.name}: its manifest names no files, or files outside the checkpoint"
            )
        if self._storage.is_local and any(in_chunks):
            raise CheckpointDamaged(
                f"{checkpoint.name}: its manifest names chunks, but a local folder stores whole files"
            )
        return manifest

    def _where(self, trial: str, checkpoint: CheckpointId) -> tuple[str, ...]:
        return self._project, self._job, trial, checkpoint.name

    def newest_valid(
        self,
        trial: str,
        into: Path,
        *,
        at_most: int,
        expected: CheckpointId | None = None,
        last_try: bool = False,
    ) -> tuple[int, Path] | None:
        """Return the newest intact checkpoint up to step `at_most`, or None if there is none.

        Damaged checkpoints are skipped. If the storage fails while a checkpoint is read, the error of the storage is raised instead. That
        checkpoint may be intact, and an attempt that continued from an older checkpoint would remove it.

        Args:
            trial: The trial.
            into: The directory to which the files are copied.
            at_most: The newest step to consider.
            expected: A checkpoint that is known to be durable. It is tried first, even if a delayed listing
                does not show it yet. Other checkpoints of the same step are tried later, because they may belong
                to another trial with the same id, which was lost when the database was restored from a backup.
            last_try: Whether the caller will not retry. `expected` is then skipped too if its manifest is missing,
                and so are checkpoints that fail the storage's own checksum.

        Returns:
            The step, and the directory with the files.

        Raises:
            CheckpointMissing: `expected` has no manifest, and its step has no other checkpoint. Not raised if
                `last_try` is True.
        """
        first: set[CheckpointId] = set() if expected is None else {expected}
        others = {checkpoint for checkpoint in self.ids(trial) if checkpoint.step <= at_most} - first
        again = {checkpoint.step for checkpoint in others}
        for checkpoint in [*first, *sorted(others, reverse=True)]:
            try:
                return checkpoint.step, self.fetch(trial, checkpoint, into / checkpoint.name)
            except Exception as error:
                missing = isinstance(error, CheckpointMissing)
                lags = missing and checkpoint == expected and checkpoint.step not in again
                damaged = isinstance(error, CheckpointDamaged | CheckpointMissing) and not lags
                if not (damaged or (last_try and (lags or is_corrupt(error)))):
                    raise
                log.warning("a damaged checkpoint of %s is skipped: %s: %s", trial, checkpoint.name, error)
        return None

    def newest_part(
        self, trial: str, into: Path, *, attempt: int, first: int, last: int
    ) -> PartOfStep | None:
        """Return the newest intact checkpoint from the middle of a step, or None if there is none.

        Only checkpoints whose last finished step is between `first` and `last`, inclusive, are considered. Damaged ones are skipped.
        If the storage fails, its error is raised.

        Args:
            trial: The trial.
            into: The directory to which the files are copied.
            attempt: The attempt that continues from the checkpoint. Checkpoints of this and later attempts belong to another trial with
                the same id, or to later attempts of this one, which were lost when the database was restored from a backup.
            first: The step of the newest recorded checkpoint. An older checkpoint from the middle of a step is useless, because the
                recorded one contains more training.
            last: The newest step whose report is recorded. If an attempt continued from a checkpoint with a later step, it would not
                train that step again, and the report of that step would stay missing.
        """
        for checkpoint in self._all_ids(trial):
            if checkpoint.part and checkpoint.attempt < attempt and first <= checkpoint.step <= last:
                try:
                    trained_ns = int(self._manifest(trial, checkpoint)["part_ns"])
                    directory = self.fetch(trial, checkpoint, into / checkpoint.name)
                    return PartOfStep(checkpoint.step, directory, trained_ns)
                except (CheckpointDamaged, CheckpointMissing, KeyError, ValueError) as error:
                    log.warning(
                        "a damaged checkpoint of %s is skipped: %s: %s", trial, checkpoint.name, error
                    )
        return None

    def prune(
        self, trial: str, attempt: int, *, newest: int, keep: int, protect: frozenset[int] = frozenset()
    ) -> None:
        """Remove the trial's checkpoints that are no longer needed.

        The newest `keep` intact checkpoints up to step `newest` are kept, and the checkpoints of the steps
        in `protect`. A checkpoint beyond `newest` is removed: an earlier attempt saved it, but the driver died
        before recording it. Unfinished uploads of earlier attempts are removed too.

        At most one intact checkpoint from the middle of a step is kept. Its last finished step must be at least `newest` or be in `protect`.
        If there are several, the newest one of the latest attempt is kept. An earlier attempt whose driver died may have trained
        further, but its checkpoint is removed.

        Checkpoints of attempts after `attempt` are kept. The checkpoint that `attempt` published as `newest`
        is kept as well, even if its manifest is not visible yet.
        """
        names = self._storage.names(self._project, self._job, trial)
        kept: list[CheckpointId] = []
        own = [checkpoint for checkpoint in _ids(names) if checkpoint.attempt <= attempt]
        parts = (
            checkpoint
            for checkpoint in sorted(own, key=lambda checkpoint: checkpoint.attempt, reverse=True)
            if checkpoint.part and (checkpoint.step >= newest or checkpoint.step in protect)
        )
        newest_part = next((checkpoint for checkpoint in parts if self.has(trial, checkpoint)), None)
        for checkpoint in own:
            if checkpoint.part:
                wanted = checkpoint == newest_part
            else:
                known = checkpoint.step <= newest or checkpoint.step in protect
                wanted = checkpoint == CheckpointId(newest, attempt) or (
                    known
                    and (
                        sum(not kept_checkpoint.part for kept_checkpoint in kept) < keep
                        or checkpoint.step in protect
                    )
                    and self.has(trial, checkpoint)
                )
            if wanted:
                kept.append(checkpoint)
            else:
                self._storage.remove(*self._where(trial, checkpoint), first=MANIFEST)
        for name in names:
            match = _PARTIAL.match(name)
            if match and int(match[1]) < attempt:
                self._storage.remove(self._project, self._job, trial, name)
        # A delayed listing may show the chunks of a checkpoint but not the checkpoint. So remove chunks only if the listing has all
        # checkpoints that must be kept.
        if {newest, *protect} - {0} <= {checkpoint.step for checkpoint in kept}:
            self._prune_chunks(trial, attempt, names, kept)

    def _prune_chunks(self, trial: str, attempt: int, names: list[str], kept: list[CheckpointId]) -> None:
        folders = [name for name in names if name.startswith("pieces-")]
        if not folders:
            return
        manifests = [self._manifest(trial, checkpoint) for checkpoint in kept]
        named = [chunk for manifest in manifests for file in manifest["files"] for chunk in chunks_of(file)]
        self._chunks_by(trial, attempt).remove_all_but(named, folders)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Consecutive bytes of a file for download. The offsets of `read(start, stop)` count from the segment's beginning."""

    size: int
    read: Read


class SegmentedFile:
    """A file for download whose bytes are in several places. Any range of bytes can be read without reading the rest."""

    def __init__(self, name: str, segments: Sequence[_Segment]) -> None:
        self._name, self.segments = name, segments
        self.size = sum(segment.size for segment in segments)  #: The size of the file in bytes.

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to `stop`, in chunks of at most one MiB.

        Raises:
            CheckpointDamaged: A stored file is shorter than its manifest says.
        """
        offset = 0
        for segment in self.segments:
            first, last = max(start - offset, 0), min(stop - offset, segment.size)
            while first < last:
                chunk = segment.read(first, min(last, first + DOWNLOAD_BYTES))
                if not chunk:
                    raise CheckpointDamaged(f"{self._name}: a file is shorter than its manifest says")
                yield chunk
                first += len(chunk)
            offset += segment.size


class StoredFile(SegmentedFile):
    """One file of a stored checkpoint, for download."""

    def __init__(self, path: str, segments: Sequence[_Segment], digest: str) -> None:
        super().__init__(path, segments)
        #: `digest` is the hexadecimal SHA-256 of the content, from the manifest.
        self.path, self.digest = path, digest


class CheckpointArchive(SegmentedFile):
    """A stored checkpoint as one tar file.

    The members are the checkpoint's files in the order of its manifest, then the manifest. All times and
    owners are zero, so that the same checkpoint always gives the same bytes and an interrupted download can
    continue.
    """

    def __init__(
        self, storage: Storage, place: tuple[str, ...], manifest: Mapping[str, Any], data: bytes
    ) -> None:
        """Prepare to read a checkpoint as a tar file. The content of its files is read only when the tar file is read.

        `place` is the path of the checkpoint's directory. `data` is the content of the manifest file, and `manifest` is that content, parsed.
        """
        #: The checkpoint's files in the order of its manifest.
        self.files = [_stored_file(storage, place, file) for file in manifest["files"]]
        segments: list[_Segment] = []
        for file in self.files:
            segments += [_header(file.path, file.size), *file.segments, _bytes(_padding(file.size))]
        segments += [_header(MANIFEST, len(data)), _bytes(data), _bytes(_padding(len(data)))]
        super().__init__("/".join(place), [*segments, _bytes(bytes(2 * tarfile.BLOCKSIZE))])
        self.digest = hashlib.sha256(data).hexdigest()  #: Identifies the content of the tar file.


def _stored_file(storage: Storage, place: tuple[str, ...], file: Mapping[str, Any]) -> StoredFile:
    """Return the stored file that `file`, an entry of a manifest, describes. `place` is the checkpoint's directory."""
    size = int(file["bytes"])
    segments = [_Segment(size, _reader(storage, place, file))] if size else []
    return StoredFile(str(file["path"]), segments, str(file["sha256"]))


def _reader(storage: Storage, place: tuple[str, ...], file: Mapping[str, Any]) -> Read:
    """Return a function that reads a range of a stored file.

    The function may return fewer bytes than the range has, but at least one.
    """
    if chunks := chunks_of(file):

        def read_chunks(start: int, stop: int) -> bytes:
            number, first = divmod(start, CHUNK_BYTES)
            last = min(stop - number * CHUNK_BYTES, CHUNK_BYTES)
            return storage.read_range(first, last, *place[:-1], *chunks[number])

        return read_chunks
    return lambda start, stop: storage.read_range(start, stop, *place, str(file["path"]))


def _bytes(data: bytes) -> _Segment:
    return _Segment(len(data), lambda start, stop: data[start:stop])


def _header(name: str, size: int) -> _Segment:
    header = tarfile.TarInfo(name)
    header.size = size
    return _bytes(header.tobuf(tarfile.PAX_FORMAT))


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _path_of(file: Mapping[str, Any]) -> Path:
    """Return the path in a manifest's entry for a file. Raise TypeError if the path is not a string."""
    path = file["path"]
    if not isinstance(path, str):
        raise TypeError(f"a path in the manifest is a {type(path).__name__}, not text")
    return Path(path)


def _is_within(name: Path) -> bool:
    return bool(name.parts) and ".." not in name.parts and not name.is_absolute() and "\0" not in str(name)


def _ids(names: list[str]) -> list[CheckpointId]:
    return sorted((CheckpointId.named(name) for name in names if _NAME.fullmatch(name)), reverse=True)


def _describe(root: Path, file: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return {
        "path": file.relative_to(root).as_posix(),
        "bytes": file.stat().st_size,
        "sha256": digest.hexdigest(),
    }


# Remove the checkpoints and artifacts of a trial.

# Patterns of names in a trial's directory. The matching group is the number of the attempt that wrote the files.
_CHECKPOINT = re.compile(r"step_\d{8}-a(\d+)(?:-part\d+)?")
_OTHERS = re.compile(rf"pieces-a(\d+)-\d|{re.escape(PARTIAL)}step_\d{{8}}-a(\d+)(?:-part\d+)?\..*")
_INDEX = re.compile(r"a(\d+)\.json")
_ARTIFACT = re.compile(r"a(\d+)-s\d+-.+")


def remove_trial_files(storage: Storage, up_to_attempt: int, *trial: str) -> None:
    """Remove the checkpoints and artifacts that a trial's attempts up to `up_to_attempt` stored. Logs are kept.

    If a later attempt has reported artifacts, the artifacts of the earlier attempts are kept too, because the index of
    the later attempt may list them.
    If the storage fails, its error is raised, and the call can be repeated.

    Args:
        storage: The storage.
        up_to_attempt: The last attempt whose files are removed. The files of later attempts are kept: these attempts exist if the job was
            resumed meanwhile.
        trial: The ids of project, job and trial, as three arguments.
    """
    names = storage.names(*trial)
    checkpoints = [name for name in names if _is_of(_CHECKPOINT, name, up_to_attempt)]
    # The manifests are removed first, so that no checkpoint looks complete while its files are being removed.
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
        return  # the index of a later attempt may still list files of earlier attempts
    for name in names:
        if _is_of(_ARTIFACT, name, up_to_attempt):
            storage.remove(*folder, name)


def _is_of(pattern: re.Pattern[str], name: str, up_to_attempt: int) -> bool:
    match = pattern.fullmatch(name)
    return match is not None and int(next(group for group in match.groups() if group)) <= up_to_attempt
