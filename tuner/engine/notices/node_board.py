"""Where a node's notices are put up for everything that runs on it: small files, which need neither a network nor anybody alive.

One directory a node, by its id, one file a notice. A file appears whole or not at all.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from tuner.domain.time import Instant, seconds_ns
from tuner.engine.notices.feed import wall_clock
from tuner.engine.notices.notice import Notice

# How long a node is taken to have left where nobody said: the shortest of the clouds' notices, less the way to its workers.
UNTOLD_S = 15.0


class NodeBoard:
    """The boards of the nodes of one machine, which all who run there have to find in the same `folder`. Methods raise OSError
    where it cannot be written, and may be called by several processes at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._machines = folder.with_name(f"{folder.name}_machines")

    def announce(self, node_id: str, notice: Notice) -> None:
        """Puts up a notice. One that hangs there under this id stays if its deadline is no later: who says it again may have counted
        anew. One that does not end the node is for nobody here: it is left out."""
        if not notice.ends_node:
            return
        if notice.deadline is None:
            notice = replace(notice, deadline=Instant(wall_clock() + seconds_ns(UNTOLD_S)))
        board = self._folder / node_id
        board.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError, ValueError, TypeError):
            if (_read(board / _name(notice.id)).deadline or 0) <= (notice.deadline or 0):
                return
        draft = board / f".{_name(notice.id)}.{os.getpid()}"
        draft.write_text(json.dumps(asdict(notice)))
        draft.replace(board / _name(notice.id))

    def withdraw(self, node_id: str, notice_id: str) -> None:
        """Takes one down; what does not hang there is no error."""
        (self._folder / node_id / _name(notice_id)).unlink(missing_ok=True)

    def describe(self, node_id: str, facts: Mapping[str, str]) -> None:
        """Says what the cloud told of the node's machine."""
        self._machines.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._machines / f".{node_id}.{os.getpid()}"
        draft.write_text(json.dumps(dict(facts)))
        draft.replace(self._machines / node_id)

    def described(self, node_id: str) -> Mapping[str, str]:
        """Empty where nothing was said."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self._machines / node_id).read_text())
            if isinstance(found, dict) and all(isinstance(word, str) for word in found.values()):
                return found
        return {}

    def standing(self, node_id: str) -> Notice | None:
        """The notice by which the node ends first, with a deadline; None where none hangs there. Takes some microseconds then."""
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder / node_id):
                # Taken down meanwhile, or put there by somebody else: no notice.
                with contextlib.suppress(OSError, ValueError, TypeError):
                    found.append(_read(Path(entry.path)))
        return min(found, key=lambda notice: (notice.deadline, notice.id), default=None)


def _read(path: Path) -> Notice:
    notice = Notice(**json.loads(path.read_text()))
    if path.name != _name(notice.id) or not isinstance(notice.deadline, int):
        raise ValueError(f"{path.name} is none of ours")
    return notice


def _name(notice_id: str) -> str:
    return hashlib.sha256(notice_id.encode()).hexdigest()[:16]
