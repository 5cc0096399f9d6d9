"""The state of a watched job is a function of its events, and its display fits the screen."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tuner.cli.watch.screen import ScreenSize, View, lines, summary
from tuner.cli.watch.state import (
    FirstLimit,
    Highlight,
    JobState,
    RungCount,
    SpendRate,
    StaticFacts,
    first_limit,
)

FACTS = StaticFacts("job_0123456789abcdef", "digits", "val_accuracy", True, "epoch", 9, (1, 3, 9), 0.05)
BUDGET = {"usd": 0.5, "gpu_hours": None, "wall_clock": 600.0, "trials": 20, "on_exhausted": "finish"}
EventData = tuple[str, Mapping[str, Any]]


def report(trial: int, step: int, metric: float | None, micro_usd: int = 0) -> EventData:
    return "report", {
        "trial": f"trial_{trial:05d}",
        "step": step,
        "metric": metric,
        "cost_usd": micro_usd / 1e6,
    }


def row(trial: int, version: int, **changes: Any) -> EventData:
    fields = {
        "id": f"trial_{trial:05d}",
        "config": {"lr": 0.01},
        "state": "running",
        "reason": "",
        "steps": 1,
        "metric": 0.5,
        "cost_usd": 0.001,
        "attempts": 1,
        "preemptions": 0,
        "updated_at": f"2026-01-01T00:00:00.{version:06d}Z",
    }
    return "trial", {**fields, **changes}


def job(state: str = "running", **changes: Any) -> EventData:
    progress = {
        "trials": {"running": 2, "failed": 0},
        "steps": 3,
        "budget_used": 0.25,
        "running_seconds": 60.0,
    }
    fields = {"state": state, "stop_reason": None, "detail": "", "budget": BUDGET, "progress": progress}
    return "job", {**fields, **changes}


def spend(usd: float = 0.125, held: float = 0.01) -> EventData:
    return "spend", {"usd": usd, "gpu_hours": 0.0, "held_usd": held}


def seen(*events: EventData, facts: StaticFacts = FACTS) -> JobState:
    job_state = JobState(facts)
    for kind, data in events:
        job_state.add(kind, data)
    return job_state


def messages(*events: EventData) -> list[str]:
    job_state = JobState(FACTS)
    return [happening.text for kind, data in events for happening in job_state.add(kind, data)]


METRICS = st.one_of(st.none(), st.floats(-1e6, 1e6))


@st.composite
def of_trials(draw: st.DrawFn) -> list[EventData]:
    """Generate reports and rows of some trials, in the order in which they occur."""
    events: list[EventData] = []
    for trial in range(draw(st.integers(1, 5))):
        for step in range(1, draw(st.integers(1, 9)) + 1):
            events.append(report(trial, step, draw(METRICS), micro_usd=len(events) + 1))
        events.append(row(trial, len(events), steps=step, preemptions=draw(st.integers(0, 2))))
    return events


@given(of_trials(), st.randoms(use_true_random=False), st.booleans())
def test_repeated_and_reordered_events_give_the_same_state(
    events: list[EventData], random: Random, maximise: bool
) -> None:
    facts = StaticFacts("j", "n", "m", maximise, "epoch", 9, (1, 3, 9), 0.05)
    once, again = seen(*events, facts=facts), [*events, *random.choices(events, k=5)]
    random.shuffle(again)
    other = seen(*again, facts=facts)
    assert (once.trials, once.best, once.leaders(9), once.rung_counts()) == (
        other.trials,
        other.best,
        other.leaders(9),
        other.rung_counts(),
    )


@given(of_trials(), st.integers(0, 40))
def test_restarted_stream_reports_nothing_twice(events: list[EventData], back: int) -> None:
    job_state = JobState(FACTS)
    for kind, data in events:
        job_state.add(kind, data)
    assert [happening for kind, data in events[-back:] for happening in job_state.add(kind, data)] == []


def test_leaders_are_ranked_by_their_best_reported_value() -> None:
    job_state = seen(report(0, 1, 0.5, 1), report(1, 1, 0.9, 2), report(1, 2, 0.7, 3), report(2, 1, None, 4))
    assert [(leader.trial, leader.step) for leader in job_state.leaders(5)] == [
        ("trial_00001", 1),
        ("trial_00000", 1),
    ]
    assert job_state.leaders(1) == [job_state.best]


def test_reports_of_a_higher_stage_of_the_proxies_come_first() -> None:
    job_state = JobState(replace(FACTS, stage_ends=(1, 3)))
    happenings = [
        happening.text
        for kind, data in (
            report(0, 1, 0.9, 1),
            report(1, 1, 0.8, 2),
            report(0, 2, 0.5, 3),
            report(2, 1, 0.95, 4),
            report(1, 2, 0.6, 5),
        )
        for happening in job_state.add(kind, data)
        if happening.kind == "best"
    ]
    assert happenings == [
        "best val_accuracy 0.9 by trial_00000 at epoch 1",
        "best val_accuracy 0.5 by trial_00000 at epoch 2",
        "best val_accuracy 0.6 by trial_00001 at epoch 2",
    ]
    assert [(leader.trial, leader.step) for leader in job_state.leaders(5)] == [
        ("trial_00001", 2),
        ("trial_00000", 2),
        ("trial_00002", 1),
    ]


def test_stages_are_those_of_the_job() -> None:
    fidelity = {"unit": "epoch", "min": 1, "max": 27, "reduction_factor": 3}
    shown = {
        "id": "j",
        "name": "n",
        "objective": {"metric": "m", "mode": "max"},
        "rungs": [],
        "price": {"trial_usd_per_hour": 0.05},
    }
    proxies = {"resolution": [16, 24, 32]}
    with_proxies = StaticFacts.of({**shown, "fidelity": {**fidelity, "proxies": proxies}})
    without = StaticFacts.of({**shown, "fidelity": {**fidelity, "proxies": None}})
    assert (with_proxies.stage_ends, without.stage_ends) == ((1, 3), ())


def test_rungs_count_trials_that_reached_and_passed_them() -> None:
    job_state = seen(report(0, 1, 0.5), report(0, 2, 0.5), report(0, 3, 0.5), report(1, 1, 0.1))
    assert job_state.rung_counts() == [RungCount(1, 2, 1), RungCount(3, 1, 0), RungCount(9, 0, 0)]


def test_bests_promotions_preemptions_failures_and_states_are_reported() -> None:
    assert messages(
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
    ) == [
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


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 10**6)), max_size=20), st.floats(0, 1e5))
def test_spend_rate_is_unknown_or_positive(samples: list[tuple[float, int]], running_s: float) -> None:
    pace, at = SpendRate(), 0.0
    for wait, micro in samples:
        at += wait
        pace.note(at, micro / 1e6)
    rate = pace.usd_per_hour(at, running_s)
    assert rate is None or rate > 0


def test_spend_rate_is_that_of_the_last_minutes() -> None:
    pace = SpendRate()
    for at in range(0, 1000, 10):
        pace.note(at, 1.0 + max(0, at - 500) * 0.01)
    assert pace.usd_per_hour(990, running_s=5000) == pytest.approx(36.0, rel=0.01)


def test_limit_that_is_reached_first_is_named() -> None:
    spent = {"usd": 0.25, "gpu_hours": 1.0}
    assert first_limit(BUDGET, spent, 60.0, 0.5) == FirstLimit("wall clock", 540.0)
    assert first_limit({**BUDGET, "wall_clock": None}, spent, 60.0, 0.5) == FirstLimit("money", 1800.0)
    hours = {**BUDGET, "usd": None, "wall_clock": None, "gpu_hours": 3.0}
    assert first_limit(hours, spent, 60.0, 0.5) == FirstLimit("GPU-hours", 120.0)
    assert first_limit({**hours, "gpu_hours": None}, spent, 60.0, 0.5) is None


@given(
    st.one_of(st.just([]), of_trials()),
    st.integers(1, 250),
    st.integers(1, 100),
    st.booleans(),
    st.integers(0, 30),
)
def test_screen_fits_any_terminal_size(
    events: list[EventData], width: int, height: int, is_told: bool, count: int
) -> None:
    job_state = seen(*events, *([job(), spend(0.4)] if is_told else []))
    happenings = [("12:00:00", Highlight("best", "né " * 100))] * count
    view = View(
        job_state, 60.0, 0.3, FirstLimit("money", 90.0), "14:00", "x" * 300, happenings, "lost", "foot"
    )
    shown = lines(view, ScreenSize(width, height, ascii_only=True))
    assert len(shown) <= height
    assert all(cell_len(line.plain) <= width and "\n" not in line.plain for line in shown)


def test_screen_of_eighty_by_twenty_four_shows_everything() -> None:
    events = [
        report(trial, step, trial / 10 + step / 100, trial * 9 + step)
        for trial in range(6)
        for step in (1, 2)
    ]
    job_state = seen(*events, *(row(trial, trial) for trial in range(6)), job(), spend())
    happenings = [
        ("12:00:00", Highlight("preempted", f"trial_0000{i} preempted at epoch {i}")) for i in range(9)
    ]
    view = View(
        job_state, 60.0, 7.5, FirstLimit("money", 180.0), "14:00", "$0.10 for more", happenings, "", "Ctrl-C"
    )
    shown = "\n".join(line.plain for line in lines(view, ScreenSize(80, 24)))
    for word in (
        "$0.125 of $0.50, $0.01 held",
        "█",
        "▒",
        "1:00 min of 10:00 min",
        "2 of 20: 2 running",
        "$7.50 an hour: money lasts 3:00 min more, until 14:00",
        "$0.10 for more",
        "promoted",
        "trial_00005",
        "trial_00008 preempted",
        "lr=0.01",
        "Ctrl-C",
    ):
        assert word in shown, word
    assert summary(view) == (
        "$0.125 of $0.50 spent; 2 trials, 2 running; best val_accuracy 0.52; money lasts 3:00 min more"
    )
