"""Watching a job: on a terminal, in a log, until Ctrl-C, over an unreliable connection, and the exit status."""

import io
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from starlette.testclient import TestClient

from tests import fakes
from tests.cli.conftest import Tuner
from tests.fakes import FakeService
from tuner.cli import watch
from tuner.cli.watch import WatchedJob
from tuner.client import Client, Event, Job

SINCE = datetime(2026, 1, 1, 11, 58, 3)
NOTE = "The service has not answered since 11:58:03; trying again. The job runs on without it."
BUDGET = {"usd": 0.5, "gpu_hours": None, "wall_clock": 600.0, "trials": 20, "on_exhausted": "finish"}


class Hands:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def watched_job(*events: Event, clock: Callable[[], float] = lambda: 0.0, mode: str = "max") -> WatchedJob:
    facts = SimpleNamespace(
        id="job_0123456789abcdef",
        name="digits",
        objective={"metric": "val_accuracy", "mode": mode},
        fidelity={"unit": "epoch", "max": 9},
        rungs=[1, 3, 9],
    )
    watched = WatchedJob(cast(Job, facts), clock=clock, today=lambda: datetime(2026, 1, 1, 12, 0, 0))
    for event in events:
        watched.add(event)
    return watched


def report(trial: int, step: int, metric: float | None, micro_usd: int = 0) -> Event:
    cost_usd = micro_usd / 1e6
    return Event(
        "report", {"trial": f"trial_{trial:05d}", "step": step, "metric": metric, "cost_usd": cost_usd}
    )


def row(trial: int, version: int, **changes: Any) -> Event:
    fields = {
        "id": f"trial_{trial:05d}",
        "config": {"lr": 0.01},
        "state": "running",
        "reason": "",
        "steps": 1,
        "attempts": 1,
        "preemptions": 0,
        "updated_at": f"2026-01-01T00:00:00.{version:06d}Z",
    }
    return Event("trial", {**fields, **changes})


def job(state: str = "running", *, used: float = 0.25, **changes: Any) -> Event:
    trials = {"running": 2, "failed": 0}
    progress = {"trials": trials, "steps": 3, "budget_used": used, "running_seconds": 60.0}
    fields = {"state": state, "stop_reason": None, "detail": "", "budget": BUDGET, "progress": progress}
    return Event("job", {**fields, **changes})


def spend(usd: float = 0.125, held: float = 0.01, gpu_hours: float = 0.0) -> Event:
    return Event("spend", {"usd": usd, "gpu_hours": gpu_hours, "held_usd": held})


def drawn(watched: WatchedJob, width: int = 80, height: int = 24, foot: str = "") -> list[str]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=width, height=height)
    console.print(watch.screen(watched, foot))
    return file.getvalue().splitlines()


@pytest.fixture
def client(rest: TestClient) -> Client:
    return Client("http://tuner", fakes.KEY, transport=rest._transport)


@st.composite
def of_trials(draw: st.DrawFn) -> list[Event]:
    """Generate reports and rows of some trials, in the order in which they occur."""
    events: list[Event] = []
    for trial in range(draw(st.integers(1, 5))):
        for step in range(1, draw(st.integers(1, 9)) + 1):
            metric = draw(st.one_of(st.none(), st.floats(-1e6, 1e6)))
            events.append(report(trial, step, metric, micro_usd=len(events) + 1))
        events.append(row(trial, len(events), steps=step, preemptions=draw(st.integers(0, 2))))
    return events


@given(of_trials(), st.randoms(use_true_random=False), st.sampled_from(["max", "min"]), st.integers(0, 40))
def test_repeated_and_reordered_events_give_the_same_state_and_repeated_ones_nothing_new(
    events: list[Event], random: Random, mode: str, back: int
) -> None:
    first, again = watched_job(*events, mode=mode), [*events, *random.choices(events, k=5)]
    random.shuffle(again)
    other = watched_job(*again, mode=mode)
    assert (first.trials, first.leaders, first.latest) == (other.trials, other.leaders, other.latest)
    first.add(job())
    assert [highlight for event in events[-back:] for highlight in first.add(event)] == []


def test_leaders_are_ranked_by_their_best_reported_value() -> None:
    watched = watched_job(report(0, 1, 0.5), report(1, 1, 0.9), report(1, 2, 0.7), report(2, 1, None))
    assert [(best.trial, best.step) for best in watched.leaders] == [("trial_00001", 1), ("trial_00000", 1)]


def test_bests_promotions_preemptions_failures_and_states_are_reported() -> None:
    watched, events = (
        watched_job(),
        [
            job("queued"),
            job(),
            report(0, 1, 0.5, 1),
            report(1, 1, 0.4, 2),
            report(0, 2, 0.5, 3),
            report(0, 3, 0.6, 4),
            row(1, 5, preemptions=1),
            row(1, 6, preemptions=2, steps=4),
            row(1, 7, preemptions=2, state="failed", reason="out of memory"),
            job(budget={**BUDGET, "usd": 1.5}),
            job("succeeded", stop_reason="target", budget={**BUDGET, "usd": 1.5}),
        ],
    )
    assert [highlight.text for event in events for highlight in watched.add(event)] == [
        "queued",
        "running",
        "best val_accuracy 0.5 by trial_00000 at epoch 1",
        "trial_00000 promoted beyond epoch 1",
        "best val_accuracy 0.6 by trial_00000 at epoch 3",
        "trial_00001 preempted at epoch 1",
        "trial_00001 preempted at epoch 4 (2 times)",
        "trial_00001 failed: out of memory",
        "the budget is now $1.50, 10:00 min of wall clock, 20 trials",
        "succeeded target",
    ]
    assert [highlight.at for highlight in watched.highlights][:3] == ["", "12:00:00", "12:00:00"]


@pytest.mark.parametrize(
    ("budget", "line"),
    [
        ({}, "$7.50 an hour: money lasts 3:00 min more, until 12:03"),
        ({"wall_clock": 90.0}, "$7.50 an hour: wall clock lasts 30 s more, until 12:00"),
        ({"gpu_hours": 2.0, "wall_clock": None}, "$7.50 an hour: GPU-hours lasts 1:00 min more, until 12:01"),
        ({"usd": None, "wall_clock": None}, "$7.50 an hour"),
    ],
)
def test_rate_names_the_limit_that_is_reached_first(budget: Mapping[str, Any], line: str) -> None:
    watched = watched_job(spend(gpu_hours=1.0), job(budget={**BUDGET, **budget}))
    assert watched.rate_and_end() == line
    watched.add(job("paused"))
    assert watched.rate_and_end() == ""


def test_running_time_advances_between_events_only_while_the_job_runs() -> None:
    clock = Hands()
    watched = watched_job(job(), clock=clock)
    clock.at = 90.0
    assert watched.running_s == 150.0
    watched.add(job("paused"))
    clock.at = 900.0
    assert watched.running_s == 60.0


@given(st.one_of(st.just([]), of_trials()), st.integers(40, 250), st.booleans())
def test_screen_fits_any_width(events: list[Event], width: int, is_running: bool) -> None:
    long = row(9, 1, state="failed", reason="né " * 100)
    watched = watched_job(*events, *([job(), spend(0.4)] if is_running else []), long)
    watched.next_dollar, watched.note = "x" * 300, NOTE
    assert all(cell_len(line) <= width for line in drawn(watched, width, foot="foot"))


def test_screen_of_eighty_columns_shows_everything() -> None:
    events = [report(i, step, i / 10 + step / 100, i * 9 + step) for i in range(6) for step in (1, 2)]
    watched = watched_job(*events, *(row(i, i) for i in range(6)), job(), spend(), row(5, 9, preemptions=1))
    watched.next_dollar = "$0.10 for more"
    lines = drawn(watched, foot="Ctrl-C")
    shown = "\n".join(lines)
    for word in (
        "$0.125 of $0.50, $0.01 held",
        "━",
        "1:00 min of 10:00 min",
        "2 of 20: 2 running",
        "$7.50 an hour: money lasts 3:00 min more, until 12:03",
        "$0.10 for more",
        "trial_00005 preempted",
        "lr=0.01",
        "Ctrl-C",
    ):
        assert word in shown, word
    counts = [line.split() for line in lines if line.startswith(("epoch", "reached", "promoted"))]
    assert counts == [["epoch", "1", "3", "9"], ["reached", "6", "0", "0"], ["promoted", "6", "0", "0"]]


def test_control_characters_in_a_failure_reason_are_removed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = row(2, 2, state="failed", reason="\x1b]0;title\x07\x1b[2Jit raised")
    monkeypatch.setattr(Client, "events", events_of(job(), spend(), failed))
    file, written = io.StringIO(), list[str]()
    watch.draw(client, watched_job(), Console(file=file, force_terminal=True, width=80, color_system=None))
    watch.log(client, watched_job(), written.append)
    for shown in (file.getvalue(), "".join(written)):
        assert "it raised" in shown
        assert "]0;title\x07" not in shown
        assert "\x1b[2J" not in shown


def test_ended_job_is_shown_completely_on_a_terminal(client: Client, done: str) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, height=24, legacy_windows=False)
    watched = WatchedJob(client.job(done))
    watch.draw(client, watched, console)
    written = file.getvalue()
    assert "\x1b[?1049h" in written
    last = written.partition("\x1b[?1049l")[2]
    for word in (done, "succeeded", "budget_usd", "of $0.001", "configuration", "trial_0"):
        assert word in last
    best = client.job(done).best_so_far
    assert best is not None
    assert (watched.leaders[0].trial, watched.leaders[0].metric) == (best.trial, best.metric)
    assert len(watched.trials) == len(list(client.trials(done)))


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


def events_of(*events: Event | bool, by: Callable[[], None] = lambda: None) -> Callable[..., Iterator[Event]]:
    """Return a replacement for `Client.events`. A boolean says whether the service answers. `by` is called at the end."""

    def stream(_: Client, job_id: str, **callbacks: Any) -> Iterator[Event]:
        for event in events:
            if isinstance(event, Event):
                yield event
            else:
                if not event:
                    callbacks["on_silence"](SINCE)
                callbacks["on_connection"](event)
        by()

    return stream


def test_log_shows_bests_states_preemptions_failures_and_occasional_progress(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        report(7, 1, 0.1),
        spend(0.01),
        job(used=0.02),
        report(1, 1, 0.5),
        report(2, 1, 0.4),
        report(1, 2, 0.4),
        row(1, 1, preemptions=1),
        row(2, 2, state="failed", reason="it raised"),
        job(used=0.09),
        job(used=0.13),
        job(used=0.2),
    ]
    monkeypatch.setattr(Client, "events", events_of(*events, True, False, False, True))
    written: list[str] = []
    watch.log(client, watched_job(), written.append)
    progress = (
        "$0.01 of $0.50 spent; 2 trials, 2 running; best val_accuracy 0.5; $0.60 an hour: wall clock lasts"
    )
    assert [line[10:].partition(" 9:00")[0] for line in written] == [
        "running",
        "best val_accuracy 0.5 by trial_00001 at epoch 1",
        "trial_00001 preempted at epoch 1",
        "trial_00002 failed: it raised",
        progress,
        NOTE,
        "The service answers again.",
        progress,
    ]


def test_screen_notes_since_when_the_service_does_not_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, notes = watched_job(), list[str]()
    monkeypatch.setattr(Client, "events", events_of(job(), False, job(), True, job()))
    for _ in watch._follow(client, watched):
        notes.append(watched.note)
    assert notes == ["", NOTE, ""]


def test_paused_job_is_shown_completely_and_watching_ends(
    tuner: Tuner, rest: TestClient, service: FakeService, client: Client
) -> None:
    paused = fakes.submit(rest, budget={"usd": 0.001, "on_exhausted": "pause"})
    fakes.simulate(service, paused)
    result = tuner("watch", paused)
    assert result.exit_code == 1
    assert "paused budget_usd" in result.stdout
    watched = WatchedJob(client.job(paused))
    watched.complete(client)
    best = client.job(paused).best_so_far
    assert best is not None
    assert watched.leaders[0].metric == best.metric
    assert len(watched.trials) == len(list(client.trials(paused)))


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
    monkeypatch.setattr(Client, "events", events_of(spend(), job(), by=by))
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
    monkeypatch.setattr(Client, "events", events_of(spend(), job(), by=ctrl_c))
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
