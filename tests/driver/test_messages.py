"""Test that only values that every database accepts are recorded, for any report of user code."""

import math

import pytest

from tests.driver.looping import actor_message
from tuner.domain.cost import Meter
from tuner.domain.time import Instant
from tuner.driver.messages import NAME_CHARS, NAMES_KEPT, StepReport, WorkerMessage, end_of
from tuner.worker.orders import WorkerState

REPORT = {"step": 1, "resumable": True, "meter": {}, "at_ns": 0, "last": False}


def parse(state: WorkerState = "running", **more: object) -> WorkerMessage:
    return WorkerMessage.parse(actor_message("trial_00000", 1, state, **more))


@pytest.mark.parametrize(
    ("reported", "value"),
    [
        (0.5, 0.5),
        (10**400, math.inf),
        (-(10**400), -math.inf),
        ("Infinity", math.inf),
        ("high", None),
        (True, None),
    ],
)
def test_objective_value_is_a_number_or_none(reported: object, value: float | None) -> None:
    (report,) = parse(reports=[{**REPORT, "metrics": {"acc": reported}}]).reports
    assert report.value("acc") == value


def test_report_says_whether_user_code_has_returned() -> None:
    reports = parse(reports=[{**REPORT, "metrics": {}, "last": last} for last in (False, True)]).reports
    assert [report.last for report in reports] == [False, True]


def test_invalid_characters_in_text_are_replaced() -> None:
    broken = "caf\udce9\0"
    error = {"kind": "raised", "type": "OSError", "message": broken, "traceback": broken}
    progress = parse(reports=[{**REPORT, "metrics": {broken: broken}}], error=error)
    assert progress.reports[0].metrics == {"caf?": "caf?"}
    assert progress.failure is not None
    assert (progress.failure.message, progress.failure.traceback) == ("caf?", "caf?")


@pytest.mark.parametrize(
    ("kind", "end", "leaving"),
    [
        ("storage", "lost", "preempted"),
        ("killed", "failed", "preempted"),
        ("saving", "failed", "preempted"),
        ("raised", "failed", "failed"),
        ("memory", "failed", "failed"),
        ("exited", "failed", "failed"),
    ],
)
def test_failure_during_shutdown_counts_as_preemption(kind: str, end: str, leaving: str) -> None:
    error = {"kind": kind, "type": "", "message": "", "traceback": ""}
    assert end_of(parse(state="failed", error=error)) == end
    assert end_of(parse(state="failed", error=error, leaving=True)) == leaving


def test_names_of_metrics_are_cut_to_fit_an_error_message() -> None:
    metrics = {f"{number:02}{'x' * 100}": 0.5 for number in range(NAMES_KEPT + 5)}
    names = StepReport(1, metrics, True, Meter(), Instant(1)).names()
    assert names == tuple(name[:NAME_CHARS] for name in list(metrics)[:NAMES_KEPT])
