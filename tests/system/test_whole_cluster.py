"""Test the whole deployment on several addresses: a job is submitted through one replica and watched through
the other, while a spot worker and the first replica are killed.
"""

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from deploy.processes.folder import Folder
from deploy.processes.manager import UP_WITHIN_S
from tests.system import books
from tests.system.serving import USER_CODE, job, until
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.client import Client, Event
from tuner.cluster.launch import free_ports
from tuner.cluster.processes import MARK
from tuner.schemas.answers import Attempt

pytestmark = [pytest.mark.system, pytest.mark.extended, pytest.mark.timeout(1500)]
LIMIT_S = 400.0
# `deploy.processes` gives up before this limit, and reports which part was late.
UP_LIMIT_S = UP_WITHIN_S + 100


class Whole:
    """The deployment that `python -m deploy.processes up` starts, on addresses and a port that nothing else
    uses.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        rng = Random(os.getpid())
        network = f"127.{rng.randrange(100, 250)}.{rng.randrange(250)}"
        (ray_port,) = free_ports(1)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(USER_CODE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TUNER_ALLOWED_MODULES": "*",
            "TUNER_SPOT_WAIT": "20",
        }
        self._process = self._start("up", "--network", network, "--ray-port", str(ray_port))
        self.output: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _start(self, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "deploy.processes", *words, "--state", str(self.state)]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=self._environment, text=True, **both)  # type: ignore[call-overload,no-any-return]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output.append(line.rstrip())

    def wait(self) -> "Whole":
        def up() -> bool:
            assert self._process.poll() is None, "\n".join(self.output)
            return any("Ctrl-C" in line for line in self.output)

        until("all is up", up, timeout_s=UP_LIMIT_S)
        return self

    def line_of(self, name: str) -> str:
        (line,) = [line for line in self.output if line.strip().startswith(name)]
        return line.strip().removeprefix(name).strip()

    def do(self, *words: str) -> None:
        """Run `kill` or `start` for a part."""
        process = self._start(*words)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, output

    def state_of(self, part: str) -> str:
        return str(json.loads((self.state / "processes.json").read_text())["parts"][part]["state"])

    def marks(self) -> set[str]:
        """Return the marks of all processes that are left of this deployment."""
        marks = {_mark(process) for process in psutil.process_iter()}
        return {mark for mark in marks if mark.startswith(Folder(self.state).mark)}

    def logs(self) -> str:
        paths = sorted((self.state / "logs").glob("*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in paths)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(LIMIT_S)


def _mark(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(MARK, ""))
    except (psutil.Error, OSError):
        return ""


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    deployment = Whole(tmp_path / "state")
    try:
        yield deployment.wait()
    finally:
        deployment.stop()
    assert deployment.marks() == set()
    assert not deployment.state.exists()


class Watcher:
    """Read a job's events until the stream ends."""

    def __init__(self, client: Client, job: str) -> None:
        self.events: list[Event] = []
        self._thread = threading.Thread(target=self._watch, args=(client, job), daemon=True)
        self._thread.start()

    def _watch(self, client: Client, job: str) -> None:
        for event in client.events(job):
            self.events.append(event)

    def ended(self) -> list[Event]:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        return self.events


def test_job_survives_the_loss_of_its_spot_worker_and_its_replica(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = re.search(r"all parts are up after ([\d.]+) s", "\n".join(whole.output))
    assert took
    print(f"the whole deployment is up after {took[1]} s")
    key = Path(whole.line_of("key")).read_text().strip()
    first_replica, two = (Client(url, key) for url in whole.line_of("REST and page").split(", "))
    until("both replicas are ready", lambda: first_replica.is_ready() and two.is_ready())
    name = first_replica.submit(
        job(
            "steady:train",
            budget={"usd": 0.05, "trials": 2},
            fidelity={
                "min": 30,
                "max": 90,
                "reduction_factor": 3,
            },  # takes minutes until the `speed_up` file exists
            algorithm={"scheduler": "asha", "sampler": "random", "seed": 7},
            constants={"step_s": 1.0, "speed_up": str(tmp_path / "speed_up")},
            checkpoint={"interval": 0.5, "keep": 3},
            resources={"market": "spot_with_fallback", "max_concurrent_trials": 1},
        )
    ).id
    watcher = Watcher(two, name)

    lost = until("a trial trains on the spot worker", lambda: _trains(two, name, "spot"), timeout_s=LIMIT_S)
    whole.do("kill", "spot-worker")
    until("it goes on, on demand", lambda: _trains(two, name, "on_demand"), timeout_s=LIMIT_S)
    scraping_is_well(whole.line_of("Prometheus"))
    whole.do("kill", "tuner-1")
    assert not first_replica.is_ready()
    (tmp_path / "speed_up").touch()

    ended = two.wait(name, timeout_s=LIMIT_S)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), f"{ended.detail}\n{whole.logs()}"
    books.check(two, name)
    no_report_is_lost_or_doubled(two, name)
    every_report_came_once(two, name, watcher.ended())
    it_went_on_elsewhere(two, name, lost)
    for variable, text in storage_of(whole).items():
        monkeypatch.setenv(variable, text)
    checkpoints_are_whole(two, name, tmp_path)

    whole.do("start", "tuner-1")
    until("the replica is back", first_replica.is_ready)
    assert first_replica.bill(name) == two.bill(name)
    assert whole.state_of("spot-worker") == "away"


def _attempts(client: Client, name: str) -> list[tuple[str, Attempt]]:
    """Return each attempt with its trial, oldest first."""
    attempts = [(t.id, a) for t in client.trials(name) for a in client.trial(name, t.id).attempt_list]
    return sorted(attempts, key=lambda pair: pair[1].began_at)


def _trains(client: Client, name: str, market: str) -> tuple[str, Attempt] | None:
    """Return the trial and attempt that runs in this market and has reported, or None."""
    shown = client.job(name)
    assert shown.ended_at is None, shown.detail
    for trial, attempt in _attempts(client, name):
        steps = len(client.trial(name, trial).curve)
        if attempt.market == market and attempt.end is None and steps > attempt.from_step + 1:
            return trial, attempt
    return None


def no_report_is_lost_or_doubled(client: Client, name: str) -> None:
    for trial in client.trials(name):
        curve = client.trial(name, trial.id).curve
        assert [point.step for point in curve] == list(range(1, trial.steps + 1))


def every_report_came_once(client: Client, name: str, events: list[Event]) -> None:
    """Check that the client of the remaining replica received each report once, with increasing event ids."""
    received = [(event.data["trial"], event.data["step"]) for event in events if event.type == "report"]
    curves = [(t.id, p.step) for t in client.trials(name) for p in client.trial(name, t.id).curve]
    assert sorted(received) == sorted(curves)
    numbers = [event.id for event in events if event.id is not None]
    assert numbers == sorted(set(numbers))
    assert events[-1].data["state"] == "succeeded"


def it_went_on_elsewhere(client: Client, name: str, lost: tuple[str, Attempt]) -> None:
    """Check that the lost trial continued from its newest checkpoint on an on-demand machine."""
    trial, before = lost
    attempts = [attempt for whose, attempt in _attempts(client, name) if whose == trial]
    (ended,) = [same_attempt for same_attempt in attempts if same_attempt.attempt == before.attempt]
    assert ended.end in ("preempted", "lost"), ended
    # In between are attempts that waited for a spot machine and got none.
    after = [
        later_attempt
        for later_attempt in attempts
        if later_attempt.attempt > before.attempt and later_attempt.to_step > later_attempt.from_step
    ]
    assert after[0].market == "on_demand"
    assert 0 < after[0].from_step <= ended.to_step
    assert after[0].node != ended.node


def scraping_is_well(prometheus: str) -> None:
    """Check that Prometheus scrapes both replicas and evaluates every rule without an error."""

    def query_prometheus(path: str) -> Any:
        with urllib.request.urlopen(f"{prometheus}/api/v1/{path}", timeout=60) as answer:
            return json.load(answer)["data"]

    def are_up() -> bool:
        return [target["health"] for target in query_prometheus("targets")["activeTargets"]] == ["up", "up"]

    def rules_are_ok() -> bool:
        rules = [rule for group in query_prometheus("rules")["groups"] for rule in group["rules"]]
        assert not [rule for rule in rules if rule["health"] == "err"], rules
        return len(rules) > 20 and all(rule["health"] == "ok" for rule in rules)

    until("Prometheus has scraped both replicas", are_up)
    until("Prometheus has evaluated every rule", rules_are_ok)


def storage_of(whole: Whole) -> dict[str, str]:
    kept = dict(line.split("=", 1) for line in (whole.state / ".env").read_text().splitlines())
    parts = json.loads((whole.state / "processes.json").read_text())["parts"]
    return {
        "AWS_ENDPOINT_URL": f"http://{parts['storage']['address']}:9000",
        "AWS_ACCESS_KEY_ID": "tuner",
        "AWS_SECRET_ACCESS_KEY": kept["STORAGE_PASSWORD"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def checkpoints_are_whole(client: Client, name: str, folder: Path) -> None:
    """Check the stored checkpoints against their own digests."""
    store = CheckpointStore("s3://tuner/checkpoints", "default", name)
    newest = {trial.id: trial.steps for trial in client.trials(name)}
    for trial, steps in newest.items():
        checkpoints = store.ids(trial)
        assert checkpoints, trial
        assert checkpoints[0].step == steps, (trial, checkpoints)
        for checkpoint in checkpoints:
            assert (
                store.fetch(trial, checkpoint, folder / f"{trial}-{checkpoint.name}") / "state.pt"
            ).exists()
