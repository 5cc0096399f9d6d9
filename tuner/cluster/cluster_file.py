"""Write and read the file that lists the nodes of a running local cluster, so that other processes with the same home directory find them."""

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
    """A node of a local cluster, as the cluster file lists it."""

    name: str
    node_id: str  #: Ray's id. Empty while the node starts.
    #: The value of the environment variable `TUNER_RAY_SESSION` in the node's processes. It identifies the processes.
    session: str
    market: str
    instance_type: str
    usd_per_hour: float
    cpus: int
    gpus: int
    state: str


@dataclass(frozen=True, slots=True)
class KeptCluster:
    """A local cluster, as the cluster file describes it."""

    #: The session of the head that was started for this cluster, without CPUs. Empty if the nodes joined an existing
    #: head.
    own_head: str
    nodes: tuple[KeptNode, ...] = ()


class ClusterFile:
    """The cluster file in a home directory.

    Only the process that runs the cluster writes the file. It holds the file's lock, which the system releases even if the
    process is killed. So a held lock means that the cluster runs.
    """

    def __init__(self, home: Path) -> None:
        self._path, self._lock_path = home / "cluster.json", home / "cluster.lock"

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Hold the file's lock during the `with` block, and then remove the file.

        Raise Conflict if another process runs a cluster of this home directory.
        """
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock_path.open("a") as file:
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while not try_lock(file.fileno()):
                # Retry, because `read` in another process also holds the lock for a moment.
                if time.monotonic() > deadline:
                    raise Conflict("a `tuner cluster` of this TUNER_HOME is already running: stop it first")
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
        """Return the cluster that the file describes, even if no process runs it any more.

        Return None if the file is missing or invalid.
        """
        try:
            content = json.loads(self._path.read_text())
            return KeptCluster(content["own_head"], tuple(KeptNode(**node) for node in content["nodes"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def read(self) -> KeptCluster | None:
        """Return the cluster that the file describes if a process runs it now. Otherwise return None."""
        cluster = self.left_behind()
        if cluster is None:
            return None
        try:
            with self._lock_path.open("r") as file:
                return None if try_lock(file.fileno()) else cluster
        except OSError:
            return None


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Try to take the lock of an open file without waiting, and return whether this process has it now.

    With `shared`, other processes may hold the lock too, if they also take it with `shared`.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
