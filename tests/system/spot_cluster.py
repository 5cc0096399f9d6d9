"""A cluster started by `tuner cluster`, whose nodes can be preempted in several ways, and what its jobs record
about that.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from tests.system.serving import USER_CODE, Served, line, until
from tuner.cluster.cluster_file import ClusterFile, KeptNode
from tuner.cluster.processes import marked
from tuner.schemas.answers import Attempt


class SpotCluster:
    """A cluster whose home is also the home of the service. `replace_after` is the value of the option of that
    name. Each node has `gpus` logical GPUs.
    """

    def __init__(
        self, home: Path, *, spot: int = 2, on_demand: int = 1, gpus: int = 0, replace_after: str = "2s"
    ) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        settings = {"TUNER_HOME": str(home), "TUNER_CLOUD": "none", "PYTHONPATH": self._import_path()}
        self.environment = {**os.environ, **settings}
        with (home / "cluster.log").open("w") as log:
            self._process = subprocess.Popen(
                self._tuner(
                    "cluster",
                    "--json",
                    "--spot",
                    spot,
                    "--on-demand",
                    on_demand,
                    "--gpus-per-node",
                    gpus,
                    "--replace-after",
                    replace_after,
                ),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.names: dict[str, str] = {}
        self.changes: list[str] = []
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    @staticmethod
    def _import_path() -> str:
        given = os.environ.get("PYTHONPATH", "")
        return os.pathsep.join([str(USER_CODE), *filter(None, [given])])

    def _tuner(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "tuner.cli.main", *map(str, words)]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            state = json.loads(text)
            self.names.update({node["node_id"]: node["name"] for node in state["nodes"] if node["node_id"]})
            self.changes += state["changes"]
            self._ready.set()

    def wait(self) -> "SpotCluster":
        until("the cluster is there", lambda: self._ready.is_set() or self._process.poll() is not None)
        assert self._process.poll() is None, (self.home / "cluster.log").read_text()[-2000:]
        return self

    def nodes(self) -> tuple[KeptNode, ...]:
        kept = ClusterFile(self.home).read()
        assert kept is not None
        return kept.nodes

    def _node(self, name: str) -> KeptNode:
        return next(node for node in self.nodes() if node.name == name)

    def alive(self, *names: str) -> None:
        until(f"{names} are alive", lambda: all(self._node(name).state == "alive" for name in names))

    def preempt(self, name: str, notice: str, stdout: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
        """Start `tuner preempt`, which exits when the node is gone."""
        command = self._tuner("preempt", name, "--notice", notice)
        return subprocess.Popen(command, env=self.environment, stdout=stdout)

    def kill_raylet(self, name: str) -> None:
        """Kill only the raylet, with SIGKILL. Nothing is notified; its workers end when they notice."""
        for process in marked(self._node(name).session):
            if line(process).partition(" ")[0].endswith("/raylet"):
                process.kill()
                return
        raise AssertionError(f"{name} has no raylet")

    def stop(self) -> None:
        """Stop the nodes and the head, and wait until they have ended."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class OnSpot(Served):
    """A service in the home of a cluster. The cluster keeps running when the service stops."""

    def __init__(self, cluster: SpotCluster, **settings: str) -> None:
        super().__init__(cluster.home, prices="", PYTHONPATH=cluster.environment["PYTHONPATH"], **settings)
        self.cluster = cluster

    def attempts(self, job: str) -> list[tuple[str, Attempt]]:
        """Return each attempt with its trial, oldest first."""
        trials = self.client.trials(job)
        attempts = [(t.id, a) for t in trials for a in self.client.trial(job, t.id).attempt_list]
        return sorted(attempts, key=lambda pair: pair[1].began_at)

    def trains(self, job: str, *, since: float = 0.0, but: str = "") -> tuple[str, float] | None:
        """Return the node and the time of the newest report of a running attempt, or None.

        Args:
            since: Ignore reports up to this time, in Unix seconds.
            but: Ignore attempts on this node.
        """
        from datetime import datetime

        assert self.client.job(job).ended_at is None, f"{job} is over"
        for trial in self.client.trials(job):
            if trial.state != "running":
                continue
            shown = self.client.trial(job, trial.id)
            now = next((a for a in shown.attempt_list if a.end is None), None)
            if now is None or now.node is None or self.cluster.names.get(now.node) in (None, but):
                continue
            after = max(since, datetime.fromisoformat(now.began_at).timestamp())
            times = [datetime.fromisoformat(point.at).timestamp() for point in shown.curve]
            fresh = [at for at in times if at > after]
            if fresh:
                return self.cluster.names[now.node], min(fresh)
        return None

    def trains_on(self, job: str, *, since: float = 0.0, but: str = "") -> tuple[str, float]:
        node_and_time: tuple[str, float] = until(
            f"{job} trains elsewhere than on {but!r}", lambda: self.trains(job, since=since, but=but)
        )
        return node_and_time


def left_of(home: Path) -> list[psutil.Process]:
    """Return the processes that a cluster of this home has left behind."""
    from tuner.cluster.head import LocalHead

    return list(marked(f"{LocalHead(home).tag}-"))


def now() -> float:
    return time.time()
