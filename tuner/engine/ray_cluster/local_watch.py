"""The watcher for notices that is kept beside a local head: one for this machine, however many of the cluster's nodes are on it."""

import contextlib
import fcntl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tuner.engine.ray_cluster.head import Head
from tuner.engine.ray_cluster.launch import ray_environment
from tuner.engine.ray_cluster.processes import mark_of, marked
from tuner.engine.ray_node.watch import NO_CLOUD

AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Metadata:
    """`cloud`: detect, aws, gcp, azure or none. `url`: where its metadata service is, if not where clouds have it."""

    cloud: str = "detect"
    url: str = ""


class LocalWatch:
    """One thread. Like the head it outlives who started it; its mark begins with the head's, so that it ends with the head. Where
    this machine has no cloud it finds that out within seconds, and ends."""

    def __init__(self, home: Path, token_path: Path, metadata: Metadata) -> None:
        self._home, self._token_path, self._metadata = home, token_path, metadata
        self._mark = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._not_before = 0.0

    def keep(self, head: Head) -> None:
        """Starts it where the head has none, and again where it ended. Cheap enough for every second."""
        if self._metadata.cloud == "none" or not self._is_wanted(head) or time.monotonic() < self._not_before:
            return
        self._not_before = time.monotonic() + AGAIN_S
        with (self._home / "watch.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # a service and a `tuner cluster` of one home have one head
            found = next(marked(self._mark), None)
            self._pid = self._start(head) if found is None else found.pid

    def _is_wanted(self, head: Head) -> bool:
        mark = f"{head.session}-watch"
        if mark != self._mark:
            self._reap()
            self._mark, self._process, self._pid, self._not_before = mark, None, 0, 0.0
        if self._process is not None and self._process.poll() == NO_CLOUD:
            return False
        return mark_of(self._pid) != mark if self._pid else True

    def _reap(self) -> None:
        """It was killed with its head."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)

    def _start(self, head: Head) -> int:
        self._reap()
        options = ["--address", head.address, "--cloud", self._metadata.cloud]
        if self._metadata.url:
            options += ["--metadata-url", self._metadata.url]
        with (self._home / "watch.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tuner.engine.ray_node.watch", *options],
                env=ray_environment(self._mark, self._token_path),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for whoever keeps the head
            )
        return self._process.pid
