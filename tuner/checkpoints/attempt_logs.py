"""The output of user code, stored next to the trial's checkpoints in one file for each node of an attempt.

Layout: `<storage>/<project>/<job>/<trial>/logs/a<attempt>.log`. This is the log of node 0. Every other
node of the attempt writes `a<attempt>-node<number>.log`. A log begins with a line of JSON that gives the number of bytes printed. The
beginning and the end of the output follow.
"""

import json
import re
import time
from dataclasses import dataclass

from tuner.checkpoints.storage import Storage

FOLDER = "logs"
VERSION = 1
_NAME = re.compile(r"a(\d+)(?:-node(\d+))?\.log")


@dataclass(frozen=True, slots=True)
class Printed:
    """The output of one node of an attempt. Only the beginning (`head`) and the end (`tail`) are kept."""

    total: int  #: Bytes printed.
    head: bytes
    tail: bytes
    complete: bool  #: Whether the attempt has ended and will print nothing more.
    at_ns: int = 0  #: When the log was last written to the storage, in nanoseconds since 1970.

    def since(self, after: int, limit: int) -> tuple[bytes, int, bytes]:
        """Return the kept output that follows the first `after` bytes. If it is longer than `limit` bytes, return only its end.

        The output between `head` and `tail` was not kept. This missing part is the gap.

        Returns:
            The part before the gap, the number of bytes missing in the gap, and the part after the gap. If all output was
            kept, or if the result begins after the gap, the first part is empty, the number is 0, and the last part is the
            whole result.
        """
        tail_at = self.total - len(self.tail)
        gap = tail_at - len(self.head)
        kept, kept_at = (self.tail, tail_at) if gap else (self.head + self.tail, 0)
        later = kept[max(after, self.total - limit, kept_at) - kept_at :]
        room = limit - len(later) if gap else 0
        earlier = self.head[max(after, len(self.head) - room) :] if room > 0 else b""
        return earlier, gap if earlier else 0, later


class TrialLogs:
    """The logs of one trial. If the storage fails, methods raise the exceptions of its client library."""

    def __init__(self, url: str, project: str, job: str, trial: str) -> None:
        self._storage, self._where = Storage(url), (project, job, trial, FOLDER)

    def attempts(self, node: int = 0) -> list[int]:
        """Return the numbers of the attempts that have a log of this node, in ascending order."""
        matches = (_NAME.fullmatch(name) for name in self._storage.names(*self._where))
        return sorted(int(match[1]) for match in matches if match and int(match[2] or 0) == node)

    def write(self, attempt: int, printed: Printed, *, node: int = 0) -> None:
        """Write the log of one node of an attempt, and replace an earlier version."""
        header = {
            "version": VERSION,
            "total": printed.total,
            "head": len(printed.head),
            "complete": printed.complete,
            "at_ns": time.time_ns(),
        }
        data = json.dumps(header).encode() + b"\n" + printed.head + printed.tail
        self._storage.put_file(data, *self._where, _name(attempt, node))

    def read(self, attempt: int, node: int = 0) -> Printed | None:
        """Return the log of one node of an attempt, or None if no log was written, because nothing was printed so far.

        Raise ValueError if the file is not a valid log.
        """
        try:
            data = self._storage.read(*self._where, _name(attempt, node))
        except FileNotFoundError:
            return None
        line, _, kept = data.partition(b"\n")
        try:
            header = json.loads(line)
            if header["version"] != VERSION:
                raise ValueError(
                    f"the log has version {header['version']}, but this release reads version {VERSION}"
                )
            head = int(header["head"])
            return Printed(
                int(header["total"]), kept[:head], kept[head:], bool(header["complete"]), int(header["at_ns"])
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the log of attempt {attempt} cannot be read: {error!r}") from error


def _name(attempt: int, node: int) -> str:
    return f"a{attempt}-node{node}.log" if node else f"a{attempt}.log"
