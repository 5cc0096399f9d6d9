"""Run the watch process of a local head: it watches for preemption notices of this machine and passes them on.

One watch process serves all of the cluster's nodes on the machine.
"""

import contextlib
import fcntl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tuner.cluster.head import Head
from tuner.cluster.launch import ray_environment
from tuner.cluster.notice_watch import NO_CLOUD
from tuner.cluster.processes import mark_of, marked

RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class Metadata:
    """Where to find the metadata service of this machine's cloud, which gives preemption notices."""

    cloud: str = "detect"  #: detect, aws, gcp, azure or none.
    url: str = ""  #: The URL of the service. Empty for the cloud's usual one.


class LocalWatch:
    """Start the process that watches for preemption notices of this machine, and restart it if it ends.

    Only one thread may use this object. Like the head, the watch process outlives the process that started it. It is
    killed together with the head, because the session name in its environment begins with that of the head.
    On a machine that is not in a cloud, the watch process ends within seconds and is not restarted.
    """

    def __init__(self, home: Path, token_path: Path, metadata: Metadata) -> None:
        self._home, self._token_path, self._metadata = home, token_path, metadata
        self._mark = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._not_before = 0.0

    def keep(self, head: Head) -> None:
        """Start the watch process if it does not run, unless it has found that the machine is in no cloud.

        This is cheap enough to call every second.
        """
        if self._metadata.cloud == "none" or not self._is_wanted(head) or time.monotonic() < self._not_before:
            return
        self._not_before = time.monotonic() + RETRY_S
        with (self._home / "watch.lock").open("w") as file:
            fcntl.flock(
                file, fcntl.LOCK_EX
            )  # a service and a `tuner cluster` may share the head; only one may start the process
            process = next(marked(self._mark), None)
            self._pid = self._start(head) if process is None else process.pid

    def _is_wanted(self, head: Head) -> bool:
        mark = f"{head.session}-watch"
        if mark != self._mark:
            self._reap()
            self._mark, self._process, self._pid, self._not_before = mark, None, 0, 0.0
        if self._process is not None and self._process.poll() == NO_CLOUD:
            return False
        return mark_of(self._pid) != mark if self._pid else True

    def _reap(self) -> None:
        """Collect the exit status of a watch process that was killed with its head."""
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
                [sys.executable, "-m", "tuner.cluster.notice_watch", *options],
                env=ray_environment(self._mark, self._token_path),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must reach only the process that keeps the head
            )
        return self._process.pid
