"""Watching a job: on a terminal, in a log, until Ctrl-C, over an unreliable connection, and the exit status."""

import io
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from tests import fakes
from tests.cli.conftest import Tuner
from tests.cli.test_watch_state import job, report, row, spend
from tests.fakes import FakeService
from tuner.cli import watch
from tuner.cli.watch.follow import JobFollower
from tuner.cli.watch.plain import Log
from tuner.client import Client, Event

SINCE = datetime(2026, 1, 1, 11, 58, 3)
NOTE = "The service has not answered since 11:58:03; trying again. The job continues without the service."


class Hands:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def client(rest: TestClient) -> Client:
    return Client("http://tuner", fakes.KEY, transport=rest._transport)


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def follower(client: Client, done: str, clock: Hands) -> JobFollower:
    return JobFollower(client.job(done), clock=clock, today=lambda: datetime(2026, 1, 1, 12, 0, 0))


def test_ended_job_is_shown_completely_on_a_terminal(client: Client, done: str) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=24, legacy_windows=False)
    follower = JobFollower(client.job(done))
    watch.draw(client, follower, console)
    written = file.getvalue()
    assert "\x1b[?1049h" in written
    last = written.partition("\x1b[?1049l")[2]
    for word in (done, "succeeded", "budget_usd", "of $0.001", "configuration", "trial_0"):
        assert word in last
    best = client.job(done).best_so_far
    assert best is not None
    assert (follower.job.best.trial, follower.job.best.metric) == (best.trial, best.metric)  # type: ignore[union-attr]
    assert len(follower.job.trials) == len(list(client.trials(done)))


def test_control_characters_in_a_failure_reason_are_removed(follower: JobFollower) -> None:
    follower.add(Event(*job()))
    follower.add(Event(*row(2, 2, state="failed", reason="\x1b]0;title\x07\x1b[2Jit raised")))
    file, written = io.StringIO(), list[str]()
    Console(file=file, force_terminal=True, width=80, height=24, color_system=None).print(
        watch._Screen(follower, "")
    )
    Log(follower, written.append).add([highlight for _, highlight in follower.view().highlights])
    for shown in (file.getvalue(), "".join(written)):
        assert "it raised" in shown
        assert "\x1b" not in shown
        assert "\x07" not in shown


def test_ended_job_is_printed_as_lines_without_a_terminal(tuner: Tuner, done: str) -> None:
    result = tuner("watch", done)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0].endswith("succeeded budget_usd")
    assert "of $0.001 spent" in lines[-1]
    events = [json.loads(line) for line in tuner("watch", done, "--json").stdout.splitlines()]
    assert {event["event"] for event in events} == {"report", "trial", "spend", "job"}
    assert events[-1]["data"]["state"] == "succeeded"


def test_log_shows_bests_states_preemptions_failures_and_occasional_progress(
    follower: JobFollower, clock: Hands
) -> None:
    written: list[str] = []
    log = Log(follower, written.append, clock)
    follower.add(Event(*report(7, 1, 0.1)))

    def logged(*events: tuple[str, Any], after_s: float = 1.0) -> list[str]:
        del written[:]
        clock.at += after_s
        for kind, data in events:
            log.add(follower.add(Event(kind, data)))
        log.tick()
        return [line[10:] for line in written]

    def share(used: float) -> tuple[str, Any]:
        return job(
            progress={"trials": {"running": 1}, "budget_used": used, "running_seconds": 1.0, "steps": 1}
        )

    assert logged(spend(0.01), share(0.02)) == ["running"]
    assert logged(report(1, 1, 0.5)) == ["best acc 0.5 by trial_00001 at epoch 1"]
    assert logged(report(2, 1, 0.4), report(1, 2, 0.4)) == []
    assert logged(row(1, 1, preemptions=1)) == ["trial_00001 preempted at epoch 1"]
    assert logged(row(2, 2, state="failed", reason="it raised")) == ["trial_00002 failed: it raised"]
    assert logged(share(0.09)) == []
    (line,) = logged(share(0.13))
    assert line.startswith("$0.01 of $0.50 spent; 1 trial, 1 running; best acc 0.5")
    assert logged(share(0.2)) == []
    paused = job(state="paused", progress=share(0.3)[1]["progress"])
    assert [line[:5] for line in logged(paused)] == ["pause", "$0.01"]
    log.last()
    assert len(written) == 2
    assert logged(share(0.3)) == ["running"]
    assert len(logged(after_s=31)) == 1
    assert logged(after_s=5) == []
    follower.on_connection = log.connection
    for is_there in (True, False, False, True):
        if not is_there:
            follower.silence(SINCE)
        follower.connection(is_there)
    assert [line[10:] for line in written] == [NOTE, "The service answers again."]


def test_progress_ends_silently_when_nobody_reads_the_output(
    follower: JobFollower, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)

    def write(_: str) -> None:
        raise BrokenPipeError

    log, before = Log(follower, write, clock), threading.enumerate()
    for event in (spend(0.01), job()):
        follower.add(Event(*event))
    clock.at += 31
    log.run_ticks()
    (ticking,) = [thread for thread in threading.enumerate() if thread not in before]
    ticking.join(240)
    assert not ticking.is_alive()
    assert errors == []


def test_screen_notes_since_when_the_service_does_not_answer(follower: JobFollower) -> None:
    follower.silence(SINCE)
    follower.connection(False)
    assert follower.view().note == NOTE
    follower.connection(True)
    assert follower.view().note == ""


def test_running_time_advances_between_events_only_while_the_job_runs(
    follower: JobFollower, clock: Hands
) -> None:
    follower.add(Event(*spend(0.1)))
    follower.add(Event(*job()))
    clock.at = 90.0
    view = follower.view()
    assert view.running_s == 150.0
    assert view.usd_per_hour == pytest.approx(0.1 / 150 * 3600)
    assert view.limit is not None
    assert (view.limit.limit, view.ends_at) == ("wall clock", "12:07")
    follower.add(Event(*job("paused")))
    clock.at = 900.0
    assert (follower.view().running_s, follower.view().usd_per_hour) == (60.0, None)


def test_paused_job_is_shown_completely_and_watching_ends(
    tuner: Tuner, rest: TestClient, service: FakeService, client: Client
) -> None:
    paused = fakes.submit(rest, budget={"usd": 0.001, "on_exhausted": "pause"})
    fakes.simulate(service, paused)
    result = tuner("watch", paused)
    assert result.exit_code == 1
    assert "paused budget_usd" in result.stdout
    events = tuner("watch", paused, "--json")
    assert events.exit_code == 1
    assert json.loads(events.stdout.splitlines()[-1])["data"]["state"] == "paused"
    follower = JobFollower(client.job(paused))
    follower.complete(client)
    best = client.job(paused).best_so_far
    assert best is not None
    assert follower.job.best is not None
    assert follower.job.best.metric == best.metric


def interrupted(by: Callable[[], None]) -> Callable[..., Iterator[Event]]:
    def events(_: Client, job_id: str, **__: Any) -> Iterator[Event]:
        yield Event("spend", spend()[1])
        yield Event("job", job()[1])
        by()
        yield from ()

    return events


def ctrl_c() -> None:
    raise KeyboardInterrupt


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()


@pytest.mark.parametrize(("by", "status"), [(ctrl_c, 130), (sigterm, 143)])
@pytest.mark.parametrize("words", [["watch"], ["watch", "--json"]])
def test_interrupted_watch_says_how_to_watch_again_and_how_to_cancel(
    tuner: Tuner,
    waiting: str,
    monkeypatch: pytest.MonkeyPatch,
    by: Callable[[], None],
    status: int,
    words: list[str],
) -> None:
    monkeypatch.setattr(Client, "events", interrupted(by))
    before = signal.getsignal(signal.SIGTERM)
    result = tuner(*words, waiting)
    assert result.exit_code == status
    hint = f"The job keeps running. tuner watch {waiting} shows it again; tuner cancel {waiting} ends it."
    assert result.stderr.strip() == hint
    assert signal.getsignal(signal.SIGTERM) is before
    assert tuner("job", waiting).exit_code == 0


def test_interrupted_submit_with_wait_keeps_the_job(
    tuner: Tuner, rest: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(Client, "events", interrupted(ctrl_c))
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(fakes.body(name="left alone")))
    result = tuner("submit", str(file), "--wait")
    assert result.exit_code == 130
    (job_id,) = [item["id"] for item in rest.get("/v1/jobs").json()["items"] if item["name"] == "left alone"]
    assert f"tuner watch {job_id}" in result.stderr


def test_watch_exits_with_status_1_if_the_job_did_not_succeed(tuner: Tuner, waiting: str) -> None:
    tuner("cancel", waiting)
    for more in ([], ["--json"]):
        assert tuner("watch", waiting, *more).exit_code == 1
