"""What a local cluster's keeper tells the other processes of its home: that it is there, and which nodes it keeps."""

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tuner.domain.errors import Conflict

LOCK_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class KeptNode:
    """`session` marks its processes; `node_id` is Ray's, empty while it starts."""

    name: str
    node_id: str
    session: str
    market: str
    instance_type: str
    usd_per_hour: float
    cpus: int
    gpus: int
    state: str


@dataclass(frozen=True, slots=True)
class KeptCluster:
    """`own_head`: the session of the head that was started for this cluster, which has no CPUs; empty where the nodes joined
    a head that was there."""

    own_head: str
    nodes: tuple[KeptNode, ...] = ()


class ClusterFile:
    """One of a home. Whoever writes it holds its lock, for as long as the cluster is kept: the system gives the lock back when
    the process ends, in whatever way."""

    def __init__(self, home: Path) -> None:
        self._path, self._lock_path = home / "cluster.json", home / "cluster.lock"

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Meanwhile this process keeps the cluster. Raises Conflict where another one does."""
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock_path.open("a") as file:
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while not _locked(file.fileno()):
                # Whoever asks whether the cluster is kept has the lock for a moment.
                if time.monotonic() > deadline:
                    raise Conflict("a `tuner cluster` of this TUNER_HOME runs already: end it first")
                time.sleep(0.05)
            try:
                yield
            finally:
                self._path.unlink(missing_ok=True)

    def write(self, cluster: KeptCluster) -> None:
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(cluster)))
        draft.replace(self._path)

    def left_behind(self) -> KeptCluster | None:
        """What the file says, whether or not anybody keeps it still."""
        try:
            found = json.loads(self._path.read_text())
            return KeptCluster(found["own_head"], tuple(KeptNode(**node) for node in found["nodes"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def read(self) -> KeptCluster | None:
        """None where nobody keeps a cluster."""
        found = self.left_behind()
        if found is None:
            return None
        try:
            with self._lock_path.open("r") as file:
                return None if _locked(file.fileno()) else found
        except OSError:
            return None


def _locked(descriptor: int) -> bool:
    """Whether this process has the lock now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
