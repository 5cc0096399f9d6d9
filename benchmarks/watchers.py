"""`python -m benchmarks.watchers`: the service's CPU cost of many watchers of one job, and the delay of events.

A real service process runs without Ray, and a writer fills a job through the store at 20 reports a second. Each watcher reads the event
stream over HTTP and sends the requests of the page: the report, the Pareto front and the bill every fifteen seconds; the report and the
front after a new best metric, at most every five seconds; and the forecast for the next dollar every thirty seconds.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import uvicorn

from tests import fakes
from tests.fakes import FakeService
from tuner.api.app import create_app
from tuner.database.database import Database
from tuner.domain.events import Reported
from tuner.domain.money import Cost, Money
from tuner.domain.records import ReportRow
from tuner.domain.time import system_now
from tuner.store.journal import SqlJournal

HOST = "127.0.0.1"
TRIALS = 100
WARM_S = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watchers", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--per-second", type=float, default=20.0)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve is not None:
        serve(asked.serve, asked.port)
        return
    for watchers in asked.watchers:
        print(measure(watchers, asked.seconds, asked.per_second), flush=True)


def serve(home: Path, port: int) -> None:
    service = FakeService(fakes.service_in(home).settings, Database(f"sqlite:///{home}/tuner.db"))
    uvicorn.run(create_app(service), host=HOST, port=port, log_level="error")


def measure(watchers: int, seconds: float, per_second: float) -> str:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, served(Path(folder)) as (process, client):
        job = str(client.post("/v1/jobs", json=fakes.body(budget={"usd": 100})).json()["id"])
        writer = Writer(Path(folder), job, per_second)
        writer.start()
        late: list[float] = []
        try:
            used = asyncio.run(watch(str(client.base_url), job, watchers, seconds, process, late))
        finally:
            writer.stop()
        late.sort()
        middle, high = statistics.median(late), late[len(late) * 95 // 100]
        return (
            f"{watchers:3d} watchers: {100 * used / seconds:5.1f} % of a core; an event takes {1000 * middle:.0f} ms "
            f"(median), {1000 * high:.0f} ms (95 of 100) to its watcher; {len(late)} messages"
        )


@contextmanager
def served(home: Path) -> Iterator[tuple[psutil.Process, httpx2.Client]]:
    fakes.service_in(home).database.dispose()
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.watchers", "--serve", str(home), "--port", str(port)]
    process = subprocess.Popen(command, env=os.environ)
    client = httpx2.Client(base_url=f"http://{HOST}:{port}", headers={"Authorization": f"Bearer {fakes.KEY}"})
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                client.get("/healthz")
                break
            except httpx2.HTTPError:
                time.sleep(0.1)
        yield psutil.Process(process.pid), client
    finally:
        process.send_signal(signal.SIGKILL)  # because it keeps event streams open
        process.wait()


class Writer(threading.Thread):
    """Thread that writes the records of a driver: reports in the order of ASHA trials, each at its time."""

    def __init__(self, home: Path, job: str, per_second: float) -> None:
        super().__init__(daemon=True)
        self._database = Database(f"sqlite:///{home}/tuner.db")
        self._job, self._pause_s, self._over = job, 1 / per_second, threading.Event()

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._database.dispose()

    def run(self) -> None:
        service = FakeService(settings=None, database=self._database)  # type: ignore[arg-type]
        fakes.begin(service, self._job)
        journal = SqlJournal(self._database, self._job, "default", 1, system_now())
        chance, steps, spent = random.Random(0), [0] * TRIALS, 0
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due += self._pause_s
            number = chance.randrange(TRIALS)
            steps[number] += 1
            step, name, at = steps[number], f"trial_{number:05d}", system_now()
            spent += 100
            value = round(1 - 1 / (step + 1) - chance.random() / 10, 6)
            with journal.transaction() as tx:
                tx.put_report(
                    ReportRow(
                        name,
                        1,
                        step,
                        at,
                        value,
                        {"acc": value, "written": time.time()},
                        Cost(Money(step * 100), 0),
                        step * 10**9,
                    )
                )
                tx.append(Reported(at, name, step, value, Money(spent)))
                if step == 1:
                    tx.put_trial(name, "running", at=at, config={"lr": chance.random()})


async def watch(
    url: str, job: str, watchers: int, seconds: float, process: psutil.Process, late: list[float]
) -> float:
    """Return the CPU seconds of the service while all watchers watch."""
    limits = httpx2.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {fakes.KEY}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=60) as client:
        late_now: list[float] = []
        chance = random.Random(0)
        tasks = [
            task for _ in range(watchers) for task in Watcher(client, job, late_now, chance.random()).tasks
        ]
        await asyncio.sleep(WARM_S)
        late_now.clear()
        before = sum(process.cpu_times()[:2])
        await asyncio.sleep(seconds)
        used = sum(process.cpu_times()[:2]) - before
        late.extend(late_now)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return float(used)


class Watcher:
    """Reads a job's events and sends further requests as often as the page does."""

    def __init__(self, client: httpx2.AsyncClient, job: str, late: list[float], at_s: float) -> None:
        """Start watching. Append to `late` each report's delay from its writing (one of its metrics) to its arrival."""
        self._client, self._path, self._late = client, f"/v1/jobs/{job}", late
        self._best: object = None
        self._is_news = asyncio.Event()
        parts = (
            self._follow(),
            self._ask(("report", "pareto", "bill"), 15.0, at_s),
            self._ask(("best",), 30.0, at_s),
        )
        self.tasks = [asyncio.create_task(part) for part in (*parts, self._ask_on_news())]

    async def _follow(self) -> None:
        kind = ""
        async with self._client.stream("GET", f"{self._path}/events") as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    self._take(kind, json.loads(line[6:]))

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "report":
            self._late.append(time.time() - data["metrics"]["written"])
        elif kind == "job" and data["best"] is not None:
            best = data["best"]["trial"], data["best"]["step"]
            if best != self._best:
                self._best = best
                self._is_news.set()

    async def _ask(self, names: tuple[str, ...], every_s: float, at_s: float) -> None:
        await asyncio.sleep(at_s * every_s)
        while True:
            for name in names:
                (await self._client.get(f"{self._path}/{name}")).raise_for_status()
            await asyncio.sleep(every_s)

    async def _ask_on_news(self) -> None:
        while True:
            await self._is_news.wait()
            self._is_news.clear()
            for name in ("report", "pareto"):
                (await self._client.get(f"{self._path}/{name}")).raise_for_status()
            await asyncio.sleep(5.0)


if __name__ == "__main__":
    main()
