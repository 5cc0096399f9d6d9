"""The notice board of a node: its preemption notices in small files.

All processes on the node can read the files without a network or a server. There is one directory per node, named by
the node's id, and one file per notice. Files are replaced atomically.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tuner.cluster.notices.notice import Notice


class NodeBoard:
    """Read and write the notices of the nodes of one machine.

    All processes of the machine must use the same `folder`. Several processes may call the methods at the same time. Methods that write
    raise OSError if the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._machines = folder.with_name(f"{folder.name}_machines")

    def announce(self, node_id: str, notice: Notice) -> None:
        """Write a notice.

        If a notice with this id exists, replace it only if the new deadline is earlier. A later deadline need not be a real change: for
        some notices, the deadline is computed from the current time, so it becomes later each time the same notice is read.
        """
        board = self._folder / node_id
        board.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError, ValueError, TypeError):
            if _read(board / _name(notice.id)).deadline <= notice.deadline:
                return
        draft = board / f".{_name(notice.id)}.{os.getpid()}"
        draft.write_text(json.dumps(asdict(notice)))
        draft.replace(board / _name(notice.id))

    def withdraw(self, node_id: str, notice_id: str) -> None:
        """Remove a notice. Do nothing if it does not exist."""
        (self._folder / node_id / _name(notice_id)).unlink(missing_ok=True)

    def describe(self, node_id: str, facts: Mapping[str, str]) -> None:
        """Write the facts that the cloud reports about the node's machine, such as its type, region and market."""
        self._machines.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._machines / f".{node_id}.{os.getpid()}"
        draft.write_text(json.dumps(dict(facts)))
        draft.replace(self._machines / node_id)

    def described(self, node_id: str) -> Mapping[str, str]:
        """Return the facts about the node's machine, or an empty mapping if there are none."""
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads((self._machines / node_id).read_text())
            if isinstance(facts, dict) and all(isinstance(word, str) for word in facts.values()):
                return facts
        return {}

    def earliest_notice(self, node_id: str) -> Notice | None:
        """Return the notice with the earliest deadline, or None if there is no notice.

        Without a notice this takes a few microseconds.
        """
        notices = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder / node_id):
                # Skip a file that was removed meanwhile or does not come from this class.
                with contextlib.suppress(OSError, ValueError, TypeError):
                    notices.append(_read(Path(entry.path)))
        return min(notices, key=lambda notice: (notice.deadline, notice.id), default=None)


def _read(path: Path) -> Notice:
    notice = Notice(**json.loads(path.read_text()))
    if path.name != _name(notice.id) or not isinstance(notice.deadline, int):
        raise ValueError(f"{path.name} is not the name of a notice")
    return notice


def _name(notice_id: str) -> str:
    return hashlib.sha256(notice_id.encode()).hexdigest()[:16]
