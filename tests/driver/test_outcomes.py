"""Test how attempts end: which failures are the trial's, and which are the machine's or the storage's."""

import pytest

from tuner.domain import events as ev
from tuner.domain.cost import Meter
from tuner.domain.time import Instant
from tuner.domain.trial import Outcome
from tuner.driver.messages import AttemptFailure, WorkerMessage, WorkerState, cause_of, end_of, event_of

AT = Instant(5)


def message(state: WorkerState, kind: str = "", *, has_notice: bool = False) -> WorkerMessage:
    failure = AttemptFailure(kind, "E", "said") if kind else None
    return WorkerMessage("t", 1, state, Meter(), failure=failure, has_notice=has_notice)


@pytest.mark.parametrize(
    ("progress", "end"),
    [
        (message("paused"), "paused"),
        (message("finished"), "completed"),
        (message("ended"), "completed"),
        (message("stopped"), "stopped"),
        (message("preempted"), "preempted"),
        (message("failed"), "failed"),
        (message("failed", "raised"), "failed"),
        (message("failed", "raised", has_notice=True), "failed"),
        (message("failed", "storage"), "lost"),
        (message("failed", "storage", has_notice=True), "preempted"),
        (message("failed", "supervisor"), "lost"),
        (message("failed", "killed"), "failed"),
        (message("failed", "killed", has_notice=True), "preempted"),
        (message("failed", "saving", has_notice=True), "preempted"),
    ],
)
def test_last_message_of_worker_determines_attempt_outcome(progress: WorkerMessage, end: Outcome) -> None:
    assert end_of(progress) == end


def test_cause_is_one_of_the_known_causes() -> None:
    assert cause_of(None) == "worker"
    assert cause_of(AttemptFailure("memory", "", "")) == "memory"
    assert cause_of(AttemptFailure("of another version", "", "")) == "other"


@pytest.mark.parametrize(
    ("end", "event"),
    [
        ("completed", ev.Completed(AT, "t")),
        ("stopped", ev.Stopped(AT, "t")),
        ("failed", ev.Failed(AT, "t", "why")),
        ("lost", ev.Lost(AT, "t", 3, "why", most=100)),
        ("preempted", ev.Preempted(AT, "t", 3, "why")),
        ("paused", ev.Paused(AT, "t", 3)),
    ],
)
def test_each_outcome_has_its_own_event(end: Outcome, event: ev.Event) -> None:
    assert event_of(end, AT, "t", saved=3, reason="why") == event
