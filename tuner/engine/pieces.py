"""Large files in object storage, in pieces that are named by what they hold: a piece that is there is not stored again.

Layout: `<trial>/pieces-a<attempt>-<turn>/<SHA-256>`. Each attempt has pieces of its own, so that one that was taken for dead
removes none that a later one relies on. Saves take turns: a checkpoint shares no piece with the one before it, so that damage to
one is not damage to both. A piece goes with the last manifest that names it.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.engine.storage import Storage

PIECE_BYTES = 16 << 20
AT_ONCE = 4  # in memory, and on their way
TURNS = 2
_FOLDER = re.compile(r"pieces-a(\d+)-\d")
_NAME = re.compile(r"[0-9a-f]{64}")
Piece = tuple[str, str]
"""Folder and name."""


class Pieces:
    """Those that one attempt of a trial has stored. One thread."""

    def __init__(self, storage: Storage, attempt: int, *trial: str) -> None:
        """`trial`: where its checkpoints lie."""
        self._storage, self._attempt, self._trial = storage, attempt, trial
        self._there: dict[str, set[str]] = {}
        self._turn = 0

    def take(self, size_bytes: int) -> bool:
        """Whether a file of this size is stored in pieces. In a folder none is: there a whole file is linked to, or copied."""
        return not self._storage.is_local and size_bytes > PIECE_BYTES

    def put(self, file: Path) -> dict[str, object]:
        """Stores what is not there yet; answers what a manifest says of the file's pieces. May be tried again."""
        folder = f"pieces-a{self._attempt}-{self._turn}"
        names, new = [], dict[str, bytes]()
        with file.open("rb") as handle:
            while block := handle.read(PIECE_BYTES):
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
        """A manifest that names what was put is there."""
        self._turn = (self._turn + 1) % TURNS

    def remove_all_but(self, named: Iterable[Piece], among: Iterable[str]) -> None:
        """Removes what no manifest names any more, of this attempt and earlier ones; `among` has the trial's directories."""
        kept = set(named)
        for folder in among:
            match = _FOLDER.fullmatch(folder)
            if match is None or int(match[1]) > self._attempt:
                continue
            for name in self._storage.names(*self._trial, folder):
                if (folder, name) not in kept:
                    self._there.get(folder, set()).discard(name)
                    self._storage.remove(*self._trial, folder, name)


def pieces_of(file: Mapping[str, Any]) -> list[Piece]:
    """Of a file in a manifest, in their order; none where it is stored whole. Raises ValueError for what can be no pieces."""
    said = file.get("pieces")
    if said is None:
        return []
    folder, names = str(said["in"]), [str(name) for name in said["names"]]
    if not _FOLDER.fullmatch(folder) or not all(_NAME.fullmatch(name) for name in names):
        raise ValueError(f"{file['path']} has pieces elsewhere")
    return [(folder, name) for name in names]


def put_together(storage: Storage, pieces: Sequence[Piece], into: Path, *trial: str) -> None:
    """Raises FileNotFoundError where one is gone."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with into.open("wb") as file:
        for start in range(0, len(pieces), AT_ONCE):
            group = pieces[start : start + AT_ONCE]
            found = storage.read_files(["/".join(piece) for piece in group], *trial)
            for folder, name in group:
                file.write(found[f"{folder}/{name}"])
