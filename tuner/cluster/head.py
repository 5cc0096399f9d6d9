"""Find the local Ray head that an earlier service process started, or start one.

    find_or_start() ──▶ does the state file name a head of this home that answers? ──yes──▶ use it
                                     │ no
                                     └──▶ kill the remaining processes of earlier heads, start a new head

The head outlives the process that started it, so that a restart of the service interrupts no job.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tuner.cluster.cluster_file import ClusterFile, try_lock
from tuner.cluster.dashboard import Dashboard, RayUnavailable
from tuner.cluster.launch import PORTS, HeadLaunch, free_ports, tail
from tuner.cluster.nodes import nodes
from tuner.cluster.processes import kill_marked, mark_of
from tuner.domain.time import RAY_START_S

BUSY_S = 60.0  # a head that does not answer for this long is replaced, even if all its processes are alive
STOP_TIMEOUT_S = 20.0
# The processes that a head needs: its control service, its scheduler and its HTTP interface.
_PARTS = ("gcs_server", "raylet", "dashboard.py")


@dataclass(frozen=True, slots=True)
class Head:
    """A local head, as the state file in the home directory describes it."""

    session: str
    address: str
    dashboard_url: str
    pids: tuple[int, ...] = ()  #: `ray start` itself and its parts. Empty while the head starts.

    def lives(self) -> bool:
        """Return whether all processes of the head are alive. This takes about 0.3 ms and uses no network."""
        return bool(self.pids) and all(mark_of(pid) == self.session for pid in self.pids)


class LocalHead:
    """The only local head of a home directory, which all processes with this home share.

    Methods may be called from any thread. A lock file prevents two processes from each starting a head.
    """

    def __init__(
        self,
        home: Path,
        *,
        cpus: int | None = None,
        gpus: int | None = None,
        over: threading.Event | None = None,
    ) -> None:
        """Prepare to find or start a head.

        Args:
            home: The directory of the state, log and token files.
            cpus: Logical CPUs of the head's node. None means those of the machine.
            gpus: Logical GPUs of the head's node. None means those of the machine.
            over: Set this event to end a start of the head by this object, and to refuse later starts. A head that has started is not
                ended.
        """
        self._home, self._cpus, self._gpus = home.absolute(), cpus, gpus
        self._cluster = ClusterFile(self._home)
        self._state_path = self._home / "ray.json"
        self._log_path = self._home / "ray.log"
        # While `stop` waits for a start in another process to end, it holds the lock of this file, so that the start makes no second try.
        self._stop_path = self._home / "ray.stop"
        self.token_path = self._home / "ray_token"
        self.tag = hashlib.sha256(f"{os.getuid()}:{self._home}".encode()).hexdigest()[:8]
        # Ray makes its temporary directory accessible to every user, so that directory is created inside a private one. Both names
        # are short, because Ray creates sockets in them and the path of a socket may have at most 107 bytes.
        self._private_dir = Path(f"/tmp/tuner-{self.tag}")
        self.temp_dir = self._private_dir / "ray"
        self._head: Head | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._over, self._is_stopping = over or threading.Event(), threading.Event()

    @property
    def token(self) -> str:
        """The cluster's token, which allows running any code on the cluster. It is created on first use.

        Only the owner of the home directory can read its file.
        """
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(self.token_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
        return self.token_path.read_text()

    def dashboard(self, head: Head) -> Dashboard:
        """Return a new connection to the head's HTTP interface. The caller closes it."""
        return Dashboard(head.dashboard_url, self.token)

    def find_or_start(self) -> Head:
        """Return the head of this home. Start a head if none answers, which takes seconds.

        Raises:
            RayUnavailable: The head did not start, or was stopped meanwhile.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        with self._locked(self._raise_if_stopped):
            head = self._read_state()
            if head and head.lives() and self._answers(head):
                self._head = head
                return head
            # On a busy machine a start can take minutes instead of 3 s. Replacing a head that still starts would only begin the same work
            # again, and `ray start` ends by itself if one of its parts fails.
            deadline = time.monotonic() + RAY_START_S
            try:
                return self._start(deadline)
            except RayUnavailable:
                # Another process may have taken one of the ports before Ray used it. The next try uses other ports.
                if time.monotonic() > deadline or self._why_stopped():
                    raise
            return self._start(deadline)

    def alive(self) -> bool:
        """Return whether the head that this object last found or started still has all its processes.

        This is cheap enough to call every second.
        """
        if self._process is not None:
            self._process.poll()
        return self._head is not None and self._head.lives()

    def stop(self) -> None:
        """End the head of this home, and everything that runs on it, and remove its files in /tmp.

        This also ends a head that another process started, and a start in another thread or process.
        """
        if not self._home.is_dir():
            return
        # Both the event and the lock are in effect only until the start has ended. A later start waits for the end of this method.
        with self._stop_path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._is_stopping.set()
            with self._locked(self._kill_starting):
                self._is_stopping.clear()
                fcntl.flock(file, fcntl.LOCK_UN)
                self._end()

    def running(self) -> Head | None:
        """Return the head of this home if its processes are alive. This does not check whether it answers."""
        state = self._read_state()
        return state if state is not None and state.lives() else None

    def is_for_a_cluster(self) -> bool:
        """Return whether the head was started for a local cluster (`tuner cluster`) that still runs.

        The service must not stop such a head, because the process of the local cluster stops it.
        """
        kept = self._cluster.read()
        return kept is not None and bool(kept.own_head)

    def _end(self) -> None:
        head = self._read_state()
        if head and head.pids and mark_of(head.pids[0]) == head.session:
            # Send the signal only to `ray start`, which then ends the other processes of the head. It hangs if its whole process group
            # gets the signal.
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(head.pids[0])
                process.send_signal(signal.SIGTERM)
                process.wait(STOP_TIMEOUT_S)
        self._clear(keep_logs=False)
        self._state_path.unlink(missing_ok=True)
        self._head = None

    def _answers(self, head: Head) -> bool:
        """Return whether a head answers.

        While all its processes are alive, retry for up to `BUSY_S`: on a busy machine an answer can take longer
        than the timeout of a request, and replacing the head would kill every job on it.
        """
        deadline = time.monotonic() + BUSY_S
        with contextlib.closing(self.dashboard(head)) as dashboard:
            while not _ready(dashboard):
                self._raise_if_stopped()
                if time.monotonic() > deadline or not head.lives():
                    return False
                time.sleep(0.5)
        return True

    def _why_stopped(self) -> str:
        """Return why a start of the head must end. Return "" if it may continue."""
        if self._over.is_set() or self._is_stopping.is_set():
            return "the local Ray head was stopped while it started"
        with contextlib.suppress(FileNotFoundError), self._stop_path.open("r") as stopping:
            if not try_lock(stopping.fileno(), shared=True):
                return "`tuner stop` ended the local Ray head while it started"
        return ""

    def _raise_if_stopped(self) -> None:
        if why := self._why_stopped():
            raise RayUnavailable(why)

    def _kill_starting(self) -> None:
        """Kill the processes of a head that still starts. The process that starts it then notices the end, and releases the lock."""
        head = self._read_state()
        if head is not None and not head.pids:
            kill_marked(head.session)

    def _start(self, deadline: float) -> Head:
        self._raise_if_stopped()
        self._clear()
        self._make_temp_dir()
        _ = self.token
        # In a local cluster, jobs must run on the nodes that can be taken away, so the head itself offers no CPUs and GPUs.
        counts = (0, 0) if self.is_for_a_cluster() else (self._cpus, self._gpus)
        launch = HeadLaunch(
            session=f"{self.tag}-{secrets.token_hex(8)}",
            temp_dir=self.temp_dir,
            token_path=self.token_path,
            ports=free_ports(PORTS),
            cpus=counts[0],
            gpus=counts[1],
        )
        head = Head(launch.session, launch.address, launch.dashboard_url)
        # Write the state before starting the head. If this process crashes during the start, the next process reads the session from the
        # state and removes it.
        self._write_state(head)
        with self._log_path.open("wb") as log:
            process = subprocess.Popen(
                launch.command(),
                env=launch.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._process = process
        self._await(head, process, deadline)
        self._head = Head(head.session, head.address, head.dashboard_url, (process.pid, *_parts(process.pid)))
        self._write_state(self._head)
        return self._head

    def _await(self, head: Head, process: subprocess.Popen[bytes], deadline: float) -> None:
        with contextlib.closing(Dashboard(head.dashboard_url, self.token, timeout_s=5.0)) as dashboard:
            while not _ready(dashboard):
                if why := self._why_stopped():
                    self._clear()
                    raise RayUnavailable(why)
                status = process.poll()
                if status is not None or time.monotonic() > deadline:
                    self._clear()
                    self._raise_if_stopped()  # `stop` in another process may have killed the processes just now
                    ended = "was not ready in time" if status is None else f"ended with status {status}"
                    raise RayUnavailable(f"the local Ray head {ended}: {tail(self._log_path)}")
                time.sleep(0.05)

    def _clear(self, *, keep_logs: bool = True) -> None:
        """Kill the remaining processes of this home's earlier heads and nodes, and remove their files in /tmp.

        With `keep_logs`, the logs of the last head are copied to `home` first, because they may show why the head died.
        """
        kill_marked(f"{self.tag}-")
        if self._process is not None:
            self._process.wait()
            self._process = None
        if keep_logs and self.temp_dir.exists():
            kept = self._home / "ray_logs"
            shutil.rmtree(kept, ignore_errors=True)
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(self.temp_dir / "session_latest" / "logs", kept, symlinks=True)
        shutil.rmtree(self._private_dir, ignore_errors=True)

    def _make_temp_dir(self) -> None:
        """Create a private directory (mode 0700) in /tmp, and Ray's temporary directory in it.

        Another user could have created a directory of this name, because the name can be guessed and every user can write to /tmp.

        Raises:
            RayUnavailable: The directory exists and belongs to another user, is a link, or is accessible to other users.
        """
        self._private_dir.mkdir(mode=0o700, exist_ok=True)
        facts = self._private_dir.lstat()
        if self._private_dir.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise RayUnavailable(
                f"{self._private_dir} belongs to another user or is accessible to other users: remove it"
            )
        self.temp_dir.mkdir(exist_ok=True)

    @contextlib.contextmanager
    def _locked(self, while_waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the lock. Call `while_waiting` repeatedly while another thread or process holds it."""
        with (self._home / "ray.lock").open("w") as file:
            while not try_lock(file.fileno()):
                while_waiting()
                time.sleep(0.05)
            yield

    def _read_state(self) -> Head | None:
        try:
            state = json.loads(self._state_path.read_text())
            return Head(state["session"], state["address"], state["dashboard_url"], tuple(state["pids"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write_state(self, head: Head) -> None:
        draft = self._state_path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(head)))
        draft.replace(self._state_path)


def _ready(dashboard: Dashboard) -> bool:
    """Return whether Ray's control service (GCS) and the dashboard answer and the head's own node has joined."""
    try:
        return dashboard.answers() and any(node.alive for node in nodes(dashboard))
    except RayUnavailable:
        return False


def _parts(pid: int) -> list[int]:
    """Return the process ids of the head's parts (`_PARTS`), which are children of `ray start`.

    Raise RayUnavailable if a part has ended already. `pid` is the process id of `ray start`.
    """
    with contextlib.suppress(psutil.Error):
        commands = {child.pid: child.cmdline()[:3] for child in psutil.Process(pid).children()}
        parts = [pid for pid, words in commands.items() if any(word.endswith(_PARTS) for word in words)]
        if len(parts) == len(_PARTS):
            return parts
    raise RayUnavailable(
        "a process of the local Ray head ended while the head started: see ray.log in TUNER_HOME"
    )
