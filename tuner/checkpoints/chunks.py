"""Store large files in object storage as chunks that are named by their content. An existing chunk is not stored again.

Layout: `<trial>/pieces-a<attempt>-<turn>/<SHA-256>`.

- Each attempt has its own chunks, so an attempt that was wrongly considered dead removes no chunk that a later attempt
  relies on.
- Consecutive saves use different directories (turns). A checkpoint shares no chunk with the checkpoint before it, so a
  damaged chunk never damages both.
- A chunk is removed with the last manifest that names it.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.checkpoints.storage import Storage

CHUNK_BYTES = 16 << 20
AT_ONCE = 4  # chunks of a file that are in memory and in transfer at the same time
TURNS = 2
_FOLDER = re.compile(r"pieces-a(\d+)-\d")
_NAME = re.compile(r"[0-9a-f]{64}")
Chunk = tuple[str, str]
"""The directory and the name of a chunk."""


class ChunkWriter:
    """Stores and removes the chunks of one attempt of a trial. Not thread-safe."""

    def __init__(self, storage: Storage, attempt: int, *trial: str) -> None:
        """Prepare to store chunks. `trial` is the path of the trial's directory in the storage, as several arguments."""
        self._storage, self._attempt, self._trial = storage, attempt, trial
        self._there: dict[str, set[str]] = {}
        self._turn = 0

    def is_chunked(self, size_bytes: int) -> bool:
        """Return whether a file of this size is stored in chunks.

        Local storage has no chunks, because a whole file is linked or copied there.
        """
        return not self._storage.is_local and size_bytes > CHUNK_BYTES

    def put(self, file: Path) -> dict[str, object]:
        """Store the chunks of a file, except those that this object has already stored in the directory of the current turn.

        Return the file's entry for the manifest: the directory and the names of all chunks. The call can be repeated after an error.
        """
        folder = f"pieces-a{self._attempt}-{self._turn}"
        names, new = [], dict[str, bytes]()
        with file.open("rb") as handle:
            while block := handle.read(CHUNK_BYTES):
                names.append(hashlib.sha256(block).hexdigest())
                if names[-1] not in self._there.get(folder, ()):
                    new[names[-1]] = block
                if len(new) == AT_ONCE:
                    new = self._store(folder, new)
        self._store(folder, new)
        return {"in": folder, "names": names}

    def _store(self, folder: str, new: Mapping[str, bytes]) -> dict[str, bytes]:
        if new:
            self._storage.put_files(new, *self._trial, folder)
            self._there.setdefault(folder, set()).update(new)
        return {}

    def next_turn(self) -> None:
        """Switch to the next of the `TURNS` directories for the chunks of the next save. Call it once the last save's manifest is durable."""
        self._turn = (self._turn + 1) % TURNS

    def remove_all_but(self, named: Iterable[Chunk], among: Iterable[str]) -> None:
        """Remove all stored chunks of this and earlier attempts, except those in `named`.

        Args:
            named: The chunks to keep.
            among: The names of all files and directories in the trial's directory. Only directories with chunks of this or an earlier
                attempt are cleaned.
        """
        kept = set(named)
        for folder in among:
            match = _FOLDER.fullmatch(folder)
            if match is None or int(match[1]) > self._attempt:
                continue
            for name in self._storage.names(*self._trial, folder):
                if (folder, name) not in kept:
                    self._there.get(folder, set()).discard(name)
                    self._storage.remove(*self._trial, folder, name)


def chunks_of(file: Mapping[str, Any]) -> list[Chunk]:
    """Return the chunks of a file in order, or an empty list if it is stored whole. `file` is the file's entry in a manifest.

    Raise ValueError if a chunk has an invalid name.
    """
    pieces = file.get("pieces")
    if pieces is None:
        return []
    folder, names = str(pieces["in"]), [str(name) for name in pieces["names"]]
    if not _FOLDER.fullmatch(folder) or not all(_NAME.fullmatch(name) for name in names):
        raise ValueError(f"the names of the chunks of {file['path']} are not valid")
    return [(folder, name) for name in names]


def assemble(storage: Storage, chunks: Sequence[Chunk], into: Path, *trial: str) -> None:
    """Write the file `into` from its chunks. Raise FileNotFoundError if a chunk is missing."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with into.open("wb") as file:
        for start in range(0, len(chunks), AT_ONCE):
            group = chunks[start : start + AT_ONCE]
            data_by_name = storage.read_files(["/".join(chunk) for chunk in group], *trial)
            for folder, name in group:
                file.write(data_by_name[f"{folder}/{name}"])
