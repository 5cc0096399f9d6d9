"""Processes that restart whenever they end, as under systemd or Docker, and the external ones: PostgreSQL and
S3.
"""

import http.client
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import psutil

from tests import postgres
from tests.chaos.history import History
from tests.chaos.proxy import Proxy
from tests.system.serving import children
from tests.worker.object_storage import Proxy as HttpProxy
from tests.worker.object_storage import moto_server
from tuner.cluster.launch import free_ports

RETRY_S = 0.1
BUCKET = "chaos"


class Calm(Protocol):
    """Return the number of faults so far if nothing but this part is down or harmed; otherwise return None."""

    def __call__(self, but: "Kept") -> int | None: ...


class Kept:
    """A process and the thread that keeps it running. It restarts the process at once when it ends, and retries
    a failed start.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], "subprocess.Popen[bytes]"],
        is_ready: Callable[[], bool],
        history: History,
        calm: Calm,
    ) -> None:
        self.name, self._start, self._is_ready = name, start, is_ready
        self._history, self._calm = history, calm
        self._over = threading.Event()
        self.ready = threading.Event()
        self._began = history.now()
        self.process = start()
        self._killed = False
        self._faults: int | None = None
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._over.is_set():
            if self.process.poll() is not None:
                self._anew()
            elif not self.ready.is_set() and self._is_ready():
                self._now_ready()
            self._over.wait(0.05)

    def _anew(self) -> None:
        if self.ready.is_set():
            self.ready.clear()
            self._began = self._history.write("ended", part=self.name, status=self.process.returncode)
            self._killed, self._faults = self.process.returncode == -9, self._calm(self)
        else:
            self._over.wait(RETRY_S)
        self.process = self._start()

    def _now_ready(self) -> None:
        self.ready.set()
        self._history.write(
            "ready",
            part=self.name,
            seconds=round(self._history.now() - self._began, 3),
            killed=self._killed,
            alone=self._faults is not None and self._faults == self._calm(self),
        )

    def running(self) -> psutil.Process | None:
        try:
            return psutil.Process(self.process.pid)
        except psutil.Error:
            return None

    def stop(self, timeout_s: float = 60.0) -> None:
        self._over.set()
        self._thread.join()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Postgres:
    """A PostgreSQL server that recovers from kill -9. `url` goes through `proxy`; `direct` does not."""

    def __init__(self, folder: Path, logs: Path, history: History, calm: Calm) -> None:
        bindir = postgres.programs()
        assert bindir is not None, "PostgreSQL's programs are missing (Debian: apt install postgresql)"
        self._bindir, self._log = bindir, logs / "postgres.log"
        self._data = folder / "pg" / "data"
        (folder / "pg").mkdir()
        self._who = {"user": postgres.NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
        if self._who:
            shutil.chown(folder / "pg", postgres.NOBODY)
        made = ["--username", "tuner", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C"]
        self._run("initdb", "--pgdata", str(self._data), *made)
        (self.port,) = free_ports(1)
        self.proxy = Proxy(self.port)
        self.kept = Kept("database", self._start, self._is_ready, history, calm)
        self.url = f"postgresql://tuner@127.0.0.1:{self.proxy.port}/postgres"
        self.direct = f"postgresql://tuner@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *words: str) -> None:
        with self._log.open("ab") as log:
            subprocess.run(
                [str(self._bindir / program), *words],
                cwd="/",
                check=True,
                stdout=log,
                stderr=log,
                **self._who,  # type: ignore[call-overload]
            )

    def _start(self) -> "subprocess.Popen[bytes]":
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": ""}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [str(self._bindir / "postgres"), "-D", str(self._data), *words],
                cwd="/",
                stdout=log,
                stderr=log,
                **self._who,  # type: ignore[call-overload]
            )

    def _is_ready(self) -> bool:
        words = ["-h", "127.0.0.1", "-p", str(self.port), "-t", "1"]
        return subprocess.run([str(self._bindir / "pg_isready"), *words], capture_output=True).returncode == 0

    def processes(self) -> list[psutil.Process]:
        """Return the server first, then its connections' processes."""
        server = self.kept.running()
        return [] if server is None else [server, *children(server, recursive=True)]

    def stop(self) -> None:
        # Do not wait for open connections.
        self.kept._over.set()
        self.kept._thread.join()
        if self.kept.process.poll() is None:
            self.kept.process.send_signal(3)
        self.kept.process.wait(60)
        self.proxy.close()


class Storage:
    """S3 served by moto. An HTTP proxy in front of it can answer with errors, and a TCP proxy in front of that
    can harm connections.
    """

    def __init__(self, position: Callable[[int], int]) -> None:
        self._stack = ExitStack()
        port = self._stack.enter_context(moto_server())
        self.http = HttpProxy(port)
        self.proxy = Proxy(self.http.server_address[1], position=position)
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        asked.request("PUT", f"/{BUCKET}")
        assert asked.getresponse().status == 200
        asked.close()

    def answer(self, status: int) -> None:
        """Answer every request with `status` until healed."""
        for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
            self.http.fault("answer", method, "", times=1_000_000, status=status)

    def heal(self) -> None:
        self.http.faults.clear()

    def stop(self) -> None:
        self.proxy.close()
        self.http.close()
        self._stack.close()


def until(condition: str, holds: Callable[[], bool], timeout_s: float) -> float:
    """Wait until the condition holds, and return the seconds it took. Raise TimeoutError after `timeout_s`."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > timeout_s:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {condition}")
        time.sleep(0.1)
    return time.monotonic() - began
