"""`python -m benchmarks.sizing`: two services on one database, and a job of 10,000 short trials.

The job is submitted to one service and watched through the other. Prints, during the job and at its end, the resources of the job's
driver, the services, the cluster's head and the database. `--database sqlite` uses SQLite. `--simulated` measures a cluster of
1,000 nodes and 10,000 jobs instead; see `benchmarks.sizing_simulated`.
"""

import argparse
import json
import os
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil
from sqlalchemy import func, select, text

from benchmarks import sizing_simulated
from benchmarks.overhead import peer
from benchmarks.sizing_driver import FILE, SITE
from tests import postgres
from tests.system.serving import Served
from tuner.cluster.head import LocalHead
from tuner.cluster.jobs import RayJobs
from tuner.database.database import Database
from tuner.database.tables import reports

WATCH_S, SCRAPE_S, LOOK_S = 1.0, 15.0, 2.0
STEPS = 9
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument(
        "--peer-trials",
        type=int,
        default=1000,
        help="number of trials of plain Ray Tune, for comparison; 0 for none",
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end the job after this time")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--jobs", type=int, default=10_000, help="number of jobs in the simulated cluster")
    args = parser.parse_args()
    if args.simulated:
        sizing_simulated.main(args.jobs)
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="sizing-") as folder,
        database(args.database, Path(folder)) as url,
    ):
        ms = Measured(Path(folder), url).run(args.trials, args.seconds)
    if args.peer_trials:
        peer_ms = 1000 * peer(args.peer_trials, "reuse")
        print(
            f"plain Ray Tune with reused actors, {args.peer_trials:,} trials: {peer_ms:.0f} ms a trial, ratio {ms / peer_ms:.1f}"
        )


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder}/tuner.db"
        return
    with postgres.server(durable=True) as url:
        yield url


class Asking(threading.Thread):
    """Thread that repeats a request and records how long each response took."""

    def __init__(self, what: str, ask: Callable[[], object], every_s: float) -> None:
        super().__init__(daemon=True)
        self._what, self._ask, self._every_s = what, ask, every_s
        self._took_ms: list[float] = []
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._every_s):
            began = time.perf_counter()
            self._ask()
            self._took_ms.append(1000 * (time.perf_counter() - began))

    def stop(self) -> str:
        self._over.set()
        self.join()
        return f"{self._what}: {spread(self._took_ms, 'ms')}, {len(self._took_ms)} times"


@dataclass(frozen=True, slots=True)
class Look:
    """One sample of all resources. Sizes are in bytes; `cpu_s` values are totals so far.

    `head` covers all processes of Ray's head except drivers and workers.
    """

    seconds: float
    trials: int
    reports: int
    driver: int
    driver_cpu_s: float
    services: tuple[int, ...]
    head: int
    control: int
    database: int

    def __str__(self) -> str:
        services = " and ".join(f"{service_bytes / MIB:.0f}" for service_bytes in self.services)
        return (
            f"{self.trials:6,} trials, {self.reports:7,} reports, {self.seconds:5.0f} s: driver {self.driver / MIB:.0f} MiB, "
            f"{self.driver_cpu_s:.0f} s of CPU; services {services} MiB; head {self.head / MIB:.0f} MiB, of which its control service "
            f"{self.control / MIB:.0f}; database {self.database / MIB:.1f} MiB"
        )


class Measured:
    """Head, services and job in one folder, on one database."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._database = folder, Database(url)
        self._file = folder / "driver.jsonl"
        (folder / "head").mkdir()
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SITE)
        self._head = LocalHead(folder / "head", cpus=2, gpus=0)
        self._url = url

    def run(self, trials: int, seconds_max: float) -> float:
        """Run the job, and return the milliseconds per trial."""
        head = self._head.find_or_start()
        self._roots = [psutil.Process(pid) for pid in head.pids]
        self._jobs = RayJobs(self._head.dashboard(head))
        self._served: list[Served] = []
        try:
            key = secrets.token_hex(16)
            for name in ("one", "other"):
                self._served.append(self._service(self._folder / name, key, head.dashboard_url).start())
            return self._follow(trials, seconds_max)
        finally:
            for served in self._served:
                served.stop()
            self._database.dispose()
            self._head.stop()

    def _service(self, home: Path, key: str, dashboard: str) -> Served:
        home.mkdir()
        (home / "api_key").write_text(key)
        (home / "api_key").chmod(0o600)
        settings = {
            "TUNER_DATABASE_URL": self._url,
            "TUNER_STORAGE": str(self._folder / "storage"),
            "TUNER_RAY_ADDRESS": dashboard,
            "TUNER_OPTUNA_STORAGE": "off",
            "RAY_AUTH_TOKEN": self._head.token,
            "PYTHONPATH": os.pathsep.join([str(self._folder / "site"), os.getcwd()]),
            FILE: str(self._file),
        }
        return Served(home, **settings)

    def _follow(self, trials: int, seconds_max: float) -> float:
        first, other = self._served
        job = first.submit(
            "benchmarks.noop:train",
            constants={"steps": STEPS},
            fidelity={"min": 1, "max": STEPS, "reduction_factor": 3},
            budget={"usd": 100, "trials": trials},
            algorithm={"scheduler": "asha", "sampler": "random"},
            resources={"max_concurrent_trials": 2},
        ).id
        empty = self._size()
        watching = [
            Asking("GET /v1/jobs/{job}", self._get(other, f"/v1/jobs/{job}"), WATCH_S),
            Asking("GET /metrics", self._get(other, "/metrics"), SCRAPE_S),
            Asking("Ray's answer how a driver is", lambda: self._jobs.status(f"{job}-1"), WATCH_S),
        ]
        for thread in watching:
            thread.start()
        looks, began, due = list[Look](), time.monotonic(), 0
        while (shown := other.client.job(job)).state in ("queued", "running"):
            counted = shown.progress.trials
            ended = counted["completed"] + counted["stopped"] + counted["failed"]
            look = self._look(job, time.monotonic() - began, ended, shown.progress.steps)
            if look is not None:
                looks.append(look)
                if ended >= due:
                    print(look, flush=True)
                    due = (ended // max(100, trials // 10) + 1) * max(100, trials // 10)
            if time.monotonic() - began > seconds_max:
                first.client.cancel(job)
            time.sleep(LOOK_S)
        seconds = time.monotonic() - began
        print(looks[-1])
        summaries = [thread.stop() for thread in watching]
        ended_as = other.client.job(job)
        assert ended_as.stop_reason in ("trials", "cancelled"), ended_as.detail
        ended = sum(ended_as.progress.trials.values())
        self._print_summary(looks, seconds, ended, self._size() - empty)
        print("\n".join(summaries))
        print(f"load at the end {os.getloadavg()[0]:.1f}")
        return 1000 * seconds / ended

    def _get(self, served: Served, path: str) -> Callable[[], object]:
        headers = {"Authorization": f"Bearer {(served.home / 'api_key').read_text()}"}
        client = httpx2.Client(base_url=served.client.url, headers=headers, timeout=60)
        return lambda: client.get(path).raise_for_status()

    def _look(self, job: str, seconds: float, trials: int, count: int) -> Look | None:
        """Return a sample of all resources, or None while the job has no driver."""
        head, driver = {}, None
        for process in [*self._roots, *self._roots[0].children(recursive=True)]:
            line = command_of(process)
            if "tuner.service.driver" in line:
                driver = process if job in line and not line.startswith("/bin/sh") else driver
            elif not is_of_a_worker(process, line):
                head[process.pid] = (process, line)
        try:
            used = driver.cpu_times() if driver is not None else None
            if driver is None or used is None:
                return None
            rss = driver.memory_info().rss
        except psutil.Error:
            return None
        control = sum(rss_of(process) for process, line in head.values() if "gcs_server" in line)
        services = tuple(rss_of(psutil.Process(served.process.pid)) for served in self._served)
        whole = sum(rss_of(process) for process, _ in head.values())
        cpu_s = used.user + used.system
        return Look(seconds, trials, count, rss, cpu_s, services, whole, control, self._size())

    def _size(self) -> int:
        size = "pg_database_size(current_database())"
        pages = "(SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size())"
        with self._database.read() as db:
            return int(db.execute(text(f"SELECT {pages if self._database.is_sqlite else size}")).scalar_one())

    def _print_summary(self, looks: Sequence[Look], seconds: float, trials: int, bytes_added: int) -> None:
        with self._database.read() as db:
            count = db.execute(select(func.count()).select_from(reports)).scalar_one()
        warm = next((look for look in looks if look.trials >= trials / 10), looks[0])
        last = looks[-1]
        growth = (last.driver - warm.driver) / max(1, last.trials - warm.trials)
        driver = [look.driver for look in looks]
        print(
            f"{trials:,} trials and {count:,} reports in {seconds:.0f} s: {1000 * seconds / trials:.1f} ms a trial, "
            f"{1000 * seconds / count:.1f} ms a report"
        )
        print(
            f"driver: {driver[0] / MIB:.0f} MiB at first, {last.driver / MIB:.0f} at last, {max(driver) / MIB:.0f} at most; after the "
            f"first tenth {1000 * growth / MIB:.1f} MiB a thousand trials; {1000 * last.driver_cpu_s / count:.1f} ms of CPU a report"
        )
        print(f"database: {bytes_added / MIB:.1f} MiB, {bytes_added / count:,.0f} bytes a report")
        notes = [json.loads(line) for line in self._file.read_text().splitlines()]
        for name, part in (("first", notes[:1]), ("last", notes[-1:]), ("all", notes)):
            took = [ns / 1e6 for note in part for ns in note["transactions_ns"]]
            print(f"transactions of the journal, {name} {len(took):,}: {spread(took, 'ms')}")


def spread(values: Sequence[float], unit: str) -> str:
    ordered = sorted(values)
    if not ordered:
        return "never"
    return (
        f"median {statistics.median(ordered):.1f} {unit}, 99 of 100 within {ordered[len(ordered) * 99 // 100]:.1f}, "
        f"slowest {ordered[-1]:.1f}"
    )


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def rss_of(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def is_of_a_worker(process: psutil.Process, line: str) -> bool:
    """Return whether the process is a worker or descends from one, such as its fork server and that server's children."""
    ours = ("ray::", "default_worker.py", "fork_server")
    if any(word in line for word in ours):
        return True
    try:
        return any(any(word in command_of(parent) for word in ours) for parent in process.parents()[:3])
    except psutil.Error:
        return True


if __name__ == "__main__":
    main()
