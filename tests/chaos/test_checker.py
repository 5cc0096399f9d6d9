"""Test that a correct history passes, and that each violation of a rule is found."""

from dataclasses import replace

import pytest

from tests.chaos.checker import After, Broken, Entry, Found, Report, broken, over
from tests.chaos.history import Line
from tests.system.books import Amount


def seconds(count: int) -> Amount:
    """Return the price of a worker with one GPU for so many seconds, at a micro-dollar per second."""
    return Amount(count, 1000 * count)


WHERE, NEXT = ("t0", 1, 1), ("t0", 1, 2)
JOB = Found(
    "job_a",
    "succeeded",
    limit=seconds(100),
    posted=seconds(70),
    held=Amount(),
    entries=(
        Entry("h1", "hold", None, WHERE, seconds(60)),
        Entry("p1", "post", "train", WHERE, seconds(50)),
        Entry("r1", "release", None, WHERE, seconds(10)),
        Entry("h2", "hold", None, NEXT, seconds(50)),
        Entry("p2", "post", "train", NEXT, seconds(20)),
        Entry("c1", "correct", "train", NEXT, seconds(-5)),
        Entry("c2", "correct", "lost", NEXT, seconds(5)),
        Entry("r2", "release", None, NEXT, seconds(30)),
    ),
    reports=(Report("t0", 1, 1, 0.5), Report("t0", 2, 2, 0.75), Report("t1", 1, 1, None)),
    shown_state="succeeded",
    shown_spend=seconds(70),
    shown_best=("t0", 2, 0.75),
    shown_curves={"t0": [(1, 0.5), (2, 0.75)], "t1": [(1, None)], "t2": []},
)
WELL = After([JOB], [("key", "job_a")])
LINES = [
    Line(0.0, "ask", {"key": "key"}),
    Line(1.0, "submitted", {"key": "key", "job": "job_a"}),
    Line(1.5, "submitted", {"key": "key", "job": "job_a"}),
    Line(2.0, "state", {"job": "job_a", "state": "running"}),
    Line(3.0, "report", {"job": "job_a", "trial": "t0", "step": 1, "value": 0.5}),
    Line(3.0, "report", {"job": "job_a", "trial": "t1", "step": 1, "value": None}),
    Line(4.0, "state", {"job": "job_a", "state": "succeeded"}),
]


def with_changes(**changes: object) -> After:
    return replace(WELL, jobs=[replace(JOB, **changes)])  # type: ignore[arg-type]


def test_correct_history_breaks_no_rule() -> None:
    assert broken(LINES, WELL) == []
    assert over(WELL.jobs) == Amount()


def without(entry: str) -> tuple[Entry, ...]:
    return tuple(ledger_entry for ledger_entry in JOB.entries if ledger_entry.id != entry)


MORE = (*JOB.entries, Entry("h3", "hold", None, ("t1", 1, 1), seconds(40)))
AFTERWARDS: dict[str, tuple[str, After]] = {
    "an acknowledged job is gone": ("P1 lost", After([], [("key", "job_a")])),
    "a job is there twice": ("P1 lost", replace(WELL, jobs=[JOB, JOB])),
    "a key belongs to another job": ("P1 lost", replace(WELL, keys=[("key", "job_b")])),
    "a key is gone": ("P1 lost", replace(WELL, keys=[])),
    "a job that nobody sent": ("P1 doubled", replace(WELL, jobs=[JOB, replace(JOB, id="job_b")])),
    "a key that nobody sent": ("P1 doubled", replace(WELL, keys=[*WELL.keys, ("other", "job_a")])),
    "a report is gone": ("P2 lost", with_changes(reports=JOB.reports[1:], shown_curves={"t0": [(2, 0.75)]})),
    "a report is there twice": ("P2 doubled", with_changes(reports=(*JOB.reports, JOB.reports[0]))),
    "a report has changed": ("P2 changed", with_changes(reports=(Report("t0", 1, 1, 0.6), *JOB.reports[1:]))),
    "a step was left out": ("P2 lost", with_changes(reports=(*JOB.reports, Report("t0", 4, 2, 0.1)))),
    "another curve is shown": (
        "P2 changed",
        with_changes(shown_curves={"t0": [(1, 0.5)], "t1": [(1, None)]}),
    ),
    "an entry is there twice": ("P3 doubled", with_changes(entries=(*JOB.entries, JOB.entries[-1]))),
    "an entry is gone": ("P3 sums", with_changes(entries=without("c2"))),
    "more is posted than was held": ("P3 sums", with_changes(entries=without("h2"))),
    "a hold was never settled": ("P3 sums", with_changes(entries=without("r2"))),
    "held beyond the budget for a moment": ("P3 overspent", with_changes(limit=Amount(99, 100_000))),
    "GPU time held beyond the budget for a moment": (
        "P3 overspent",
        with_changes(limit=Amount(100, 99_999)),
    ),
    "GPU time spent beyond the budget": ("P3 overspent", with_changes(limit=Amount(100, 69_999))),
    "spent beyond the budget": ("P3 overspent", with_changes(limit=Amount(69, 100_000))),
    "held at its end": (
        "P3 held",
        with_changes(
            entries=MORE, open_holds=((("t1", 1, 1), seconds(40)),), held=seconds(40), limit=seconds(200)
        ),
    ),
    "an open hold without an entry": ("P3 sums", with_changes(open_holds=((WHERE, seconds(1)),))),
    "another bill is shown": ("P3 sums", with_changes(shown_spend=Amount(71, 70_000))),
    "other GPU-hours are shown": ("P3 sums", with_changes(shown_spend=Amount(70, 70_001))),
    "an attempt of a job that is over": ("P4 attempt", with_changes(running=1)),
    "a driver is left": ("P4 process", replace(WELL, processes=["77: python -m tuner.service.driver"])),
    "a job is not over": ("P5 not over", with_changes(state="running", shown_state="running")),
    "a job ended otherwise": ("P6 changed", with_changes(state="failed", shown_state="failed")),
    "another state is shown": ("P6 changed", with_changes(shown_state="running")),
    "a worse one is best": ("P7 best", with_changes(shown_best=("t0", 1, 0.5))),
    "the best was never reported": ("P7 best", with_changes(shown_best=("t0", 2, 0.9))),
    "no best": ("P7 best", with_changes(shown_best=None)),
    "the best where less is better": ("P7 best", with_changes(is_max=False)),
}


def rules(lines: list[Line], after: After) -> set[str]:
    return {violation.rule for violation in broken(lines, after)}


@pytest.mark.parametrize("name", AFTERWARDS)
def test_each_broken_rule_is_reported(name: str) -> None:
    rule, after = AFTERWARDS[name]
    assert rule in rules(LINES, after)


def test_key_with_two_jobs_is_reported() -> None:
    other = Line(5.0, "submitted", {"key": "key", "job": "job_b"})
    assert {"P1 doubled", "P1 lost"} <= rules([*LINES, other], WELL)


def test_state_change_after_the_final_state_is_reported() -> None:
    changed = [*LINES, Line(5.0, "state", {"job": "job_a", "state": "running"})]
    assert rules(changed, WELL) == {"P6 changed"}


def test_report_with_a_different_value_the_second_time_is_reported() -> None:
    report = Line(5.0, "report", {"job": "job_a", "trial": "t0", "step": 1, "value": 0.25})
    assert rules([*LINES, report], WELL) == {"P2 changed"}


def test_processes_of_a_running_job_break_no_rule() -> None:
    after = replace(with_changes(state="running", shown_state="running"), processes=["78: a driver"])
    assert broken(LINES[:-1], after) == [Broken("P5 not over", "job_a", "it is running")]


def test_overspend_is_exact_to_the_micro_dollar_and_the_millisecond() -> None:
    def beyond(limit: Amount) -> Amount:
        return over([replace(JOB, limit=limit, held=seconds(5))])

    assert beyond(seconds(75)) == Amount()
    assert beyond(Amount(74, 75_000)) == Amount(usd=1)
    assert beyond(Amount(75, 74_999)) == Amount(gpu_ms=1)
    assert beyond(seconds(70)) == seconds(5)
