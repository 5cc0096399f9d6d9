"""The processes under test: services, Ray and its nodes, the database and the storage. Starts, lists, heals and
stops them.
"""

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil

from tests.chaos.clock import Clock
from tests.chaos.disk import Disk
from tests.chaos.history import History
from tests.chaos.parts import BUCKET, Kept, Postgres, Storage, until
from tests.system.serving import USER_CODE, Served, children, line
from tuner.client import Client
from tuner.cluster.cluster_file import ClusterFile
from tuner.cluster.head import LocalHead
from tuner.cluster.launch import free_ports
from tuner.cluster.processes import kill_marked

START_S = 180.0
PRICES = "local=0.10,local/spot=0.04"


class Deployment:
    """A deployment.

    With `with_postgres`: PostgreSQL and S3 behind proxies, and separate nodes in addition to Ray's head.
    Without it: SQLite, a folder, and a service with its own Ray.
    """

    def __init__(
        self, folder: Path, history: History, *, with_postgres: bool, services: int, seed: int
    ) -> None:
        self.home, self._history, self._folder = folder / "home", history, folder
        self.home.mkdir()
        self.head = LocalHead(self.home)
        self.clock = Clock(folder)
        self.disk = Disk(folder / "disk", self._writers)
        self.troubles = self.faults = 0
        self.database: Postgres | None = None
        self.storage: Storage | None = None
        self.cluster: Kept | None = None
        self.services: list[Kept] = []
        self.urls = [f"http://127.0.0.1:{port}" for port in free_ports(services)]
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._with_postgres, self._rng = with_postgres, Random(seed)
        # The environment of user code contains nothing of ours except its import path. That path therefore
        # marks all processes of this run.
        self._code = folder / "code"
        shutil.copytree(USER_CODE, self._code, ignore=shutil.ignore_patterns("__pycache__"))

    # From start to end

    def start(self) -> None:
        environment = {**self.clock.environment, "TUNER_SLICE": "5", "PYTHONPATH": str(self._code)}
        if self._with_postgres:
            self.database = Postgres(self.disk.folder, self._folder, self._history, self.calm)
            self.storage = Storage(lambda length: self._rng.randrange(length))
            until("the database answers", self.database.kept.ready.is_set, START_S)
            environment |= self.storage.environment
            environment |= {"TUNER_DATABASE_URL": self.database.url, "TUNER_STORAGE": f"s3://{BUCKET}/jobs"}
        else:
            environment["TUNER_DATABASE_URL"] = f"sqlite:///{self.disk.folder}/tuner.db"
            environment["TUNER_STORAGE"] = str(self.disk.folder / "storage")
        self.served = Served(self.home, prices=PRICES, gpus=2, **environment)
        if self._with_postgres:
            nodes = ("--spot", "1", "--on-demand", "1", "--gpus-per-node", "1")
            words = ("cluster", "--json", *nodes, "--replace-after", "2s")
            self.cluster = self._kept("cluster", words, {}, self._has_nodes)
            until("the nodes have joined", self.cluster.ready.is_set, START_S)
        for number, url in enumerate(self.urls):
            port = {"TUNER_PORT": url.rpartition(":")[2]}
            self.services.append(self._kept("service", ("serve",), port, lambda n=number: self._answers(n)))
            until("the service is ready", self.services[-1].ready.is_set, START_S)

    def _kept(self, name: str, words: tuple[str, ...], changed: dict[str, str], is_ready) -> Kept:  # type: ignore[no-untyped-def]
        def start() -> "subprocess.Popen[bytes]":
            with (self._folder / f"{name}.log").open("ab") as log:
                return subprocess.Popen(
                    [sys.executable, "-m", "tuner.cli.main", *words],
                    env={**self.served.environment, **changed},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

        return Kept(name, start, is_ready, self._history, self.calm)

    def client(self, number: int) -> Client:
        return Client(self.urls[number % len(self.urls)], self._key())

    def _key(self) -> str:
        path = self.home / "api_key"
        return path.read_text().strip() if path.exists() else "none yet"

    def _answers(self, number: int) -> bool:
        asked = http.client.HTTPConnection(self.urls[number].removeprefix("http://"), timeout=5)
        with contextlib.closing(asked), suppress(OSError, http.client.HTTPException):
            asked.request("GET", "/readyz")
            return asked.getresponse().status == 200
        return False

    def _has_nodes(self) -> bool:
        kept = ClusterFile(self.home).read()
        return kept is not None and all(node.state == "alive" for node in kept.nodes)

    def heal(self) -> None:
        """End all faults."""
        for part in (self.database, self.storage):
            if part is not None:
                part.proxy.heal()
        if self.storage is not None:
            self.storage.heal()
        self.disk.free()
        self.clock.jump(0)
        for process in [*self.ours(), *self._writers()]:
            with suppress(psutil.Error):
                process.resume()
        for preemption in self._leaving:
            preemption.wait(60)

    def stop(self) -> None:
        """Stop all processes that were started, in any state."""
        self.heal()
        for kept in [*self.services, *([self.cluster] if self.cluster else [])]:
            kept.stop()
        kill_marked(f"{self.head.tag}-")
        self.head.stop()
        if self.database is not None:
            self.database.stop()
        if self.storage is not None:
            self.storage.stop()
        self.disk.remove()

    def calm(self, but: Kept | None = None) -> int | None:
        """Return the number of faults so far if no fault is active and every part except `but` is ready;
        otherwise return None.
        """
        parts = [*self.services, *([self.cluster] if self.cluster else [])]
        parts += [self.database.kept] if self.database else []
        is_calm = not self.troubles and all(part.ready.is_set() for part in parts if part is not but)
        return self.faults if is_calm else None

    # Processes

    def ours(self) -> list[psutil.Process]:
        """Return all processes of this run except PostgreSQL and S3."""
        mark = os.fsencode(self._code)
        return [process for pid in psutil.pids() if pid != os.getpid() and (process := _of(pid, mark))]

    def victims(self, kind: str) -> list[psutil.Process]:
        """Return the processes of a kind, in an order that does not depend on when they started."""
        match kind:
            case "service":
                return [service_process for kept in self.services if (service_process := kept.running())]
            case "database":
                return self.database.processes()[:1] if self.database else []
            case "head":
                return self._head()[:1]
        processes = (
            self._workers()
            if kind == "worker"
            else [own_process for own_process in self.ours() if _is(kind, own_process)]
        )
        return sorted(processes, key=lambda process: (line(process), process.pid))

    def with_it(self, kind: str, victim: psutil.Process) -> list[psutil.Process]:
        """Return the victim and the processes that die with it: a server's connections, or a head's processes."""
        if kind in ("database", "head"):
            return [victim, *children(victim, recursive=True)]
        return [victim]

    def _workers(self) -> list[psutil.Process]:
        """Return the actors, which are the parents of fork servers."""
        parents = [process.parent() for process in self.ours() if _is("fork server", process)]
        return [
            parent
            for parent in parents
            if parent is not None and parent.pid > 1 and not _is("fork server", parent)
        ]

    def _head(self) -> list[psutil.Process]:
        with suppress(psutil.Error, OSError, ValueError, IndexError):
            return [psutil.Process(self.served.head_pids()[0])]
        return []

    def nodes(self) -> list[str]:
        kept = ClusterFile(self.home).read()
        return sorted(node.name for node in kept.nodes if node.state == "alive") if kept else []

    def preempt(self, node: str, notice_s: int) -> None:
        words = [sys.executable, "-m", "tuner.cli.main", "preempt", node, "--notice", f"{notice_s}s"]
        environment, quiet = {**os.environ, **self.served.environment}, subprocess.DEVNULL
        self._leaving.append(subprocess.Popen(words, env=environment, stdout=quiet, stderr=quiet))

    def _writers(self) -> list[psutil.Process]:
        if self.database is not None:
            return self.database.processes()
        return [
            process for process in self.ours() if _is("driver", process) or "tuner.cli.main" in line(process)
        ]

    def left(self) -> list[str]:
        """Describe the processes that still train or drive a job."""
        processes = [
            process for process in self.ours() if _is("driver", process) or _is("fork server", process)
        ]
        return [f"{process.pid}: {line(process)[:200]}" for process in processes]


def _is(kind: str, process: psutil.Process) -> bool:
    words = line(process)
    match kind:
        case "driver":
            return "python" in words.partition(" ")[0] and "-m tuner.service.driver" in words
        case "fork server":
            return "tuner.worker.fork_server" in words
        case "raylet":
            return words.partition(" ")[0].endswith("/raylet")
        case "gcs":
            return words.partition(" ")[0].endswith("/gcs_server")
    raise ValueError(f"nobody is a {kind!r}")


def _of(pid: int, mark: bytes) -> psutil.Process | None:
    """Return the process if it is alive and its environment contains `mark`."""
    with suppress(psutil.Error, OSError):
        if mark in Path(f"/proc/{pid}/environ").read_bytes():
            process = psutil.Process(pid)
            return process if process.status() != psutil.STATUS_ZOMBIE else None
    return None


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)
