"""Test that a seed always gives the same faults, and that recoveries are measured from reports."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos import figures
from tests.chaos.history import History, Line, read
from tests.chaos.plan import FAULTS, KINDS, REST_S, STORM_S, chosen, strikes, without_network


@given(st.integers(0, 10**6))
def test_seed_determines_the_faults_and_gives_enough_of_them(seed: int) -> None:
    plan = strikes(seed, 600.0, FAULTS)
    assert plan == strikes(seed, 600.0, FAULTS)
    assert sum(strike.fault.of == "process" for strike in plan) >= 70
    assert all(strike.at_s % (STORM_S + REST_S) <= STORM_S for strike in plan)
    assert [strike.at_s for strike in plan] == sorted(strike.at_s for strike in plan)
    assert all(
        0 <= strike.at_s < 600 and strike.for_s <= strike.fault.longest_s and 0 <= strike.draw < 1
        for strike in plan
    )


def test_seeds_give_different_faults_and_cover_all_of_them() -> None:
    assert strikes(1, 600.0, FAULTS) != strikes(2, 600.0, FAULTS)
    assert {strike.fault for seed in range(20) for strike in strikes(seed, 600.0, FAULTS)} == set(FAULTS)


def test_faults_are_chosen_by_name_and_kind() -> None:
    assert chosen(()) == FAULTS
    assert {fault.name for fault in chosen(("clock", "kill driver"))} == {
        "clock forward",
        "clock back",
        "kill driver",
    }
    assert {fault.of for fault in FAULTS} == set(KINDS)
    assert not [
        fault for fault in without_network(FAULTS) if "database" in fault.name or fault.of == "storage"
    ]
    with pytest.raises(ValueError, match="no fault is called 'floods'"):
        chosen(("floods",))


def test_history_file_round_trips(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    history.write("ask", key="a", budget={"usd": 0.001})
    history.write("ready", part="service", seconds=1.5)
    history.close()
    assert read(history.path) == history.lines
    assert [json.loads(line)["what"] for line in history.path.read_text().splitlines()] == ["ask", "ready"]


def line(at: float, what: str, **facts: object) -> Line:
    return Line(at, what, facts)


def report(at: float, job: str, step: int) -> Line:
    return line(at, "report", job=job, trial="t0", step=step, value=1.0)


def lost(at: float, fault: str, job: str = "", victim: str = "7") -> Line:
    return line(at, "strike", fault=fault, victim=victim, of_job=job)


ATTEMPTS = {("a", "t0", step): 1 + step // 3 for step in range(1, 9)} | {("b", "t0", 1): 1}


def test_recovery_ends_with_the_first_report_of_a_new_attempt() -> None:
    first = report(1, "a", 1)
    driver = [
        first,
        lost(10, "kill driver", "a"),
        report(10.5, "a", 2),
        report(11, "a", 8),
        report(31, "a", 3),
        report(40, "a", 6),
    ]
    assert figures.recoveries(driver, ATTEMPTS) == [21]
    head = [first, report(2, "b", 1), lost(10, "kill head"), report(31, "a", 3)]
    assert figures.recoveries(head, ATTEMPTS) == [21]


def test_overlapping_or_unrelated_fault_gives_no_recovery_of_its_own() -> None:
    first, again = report(1, "a", 1), report(31, "a", 3)
    assert figures.recoveries([first, lost(10, "kill head"), lost(20, "kill head"), again], ATTEMPTS) == [11]
    assert figures.recoveries([first, lost(10, "kill driver", "b"), again], ATTEMPTS) == []
    assert figures.recoveries([first, lost(10, "kill driver", "a", victim=""), again], ATTEMPTS) == []
    over = line(15, "state", job="a", state="succeeded")
    assert figures.recoveries([first, lost(10, "kill head"), over], ATTEMPTS) == []


def test_figures_are_shown_as_observed_values_or_as_not_seen() -> None:
    assert figures.summary_of([]) == "not seen"
    observed = [float(seconds) for seconds in range(1, 21)]
    assert figures.summary_of(observed) == "median 10.5 s, 95 % 19.0 s, longest 20.0 s of 20"


def test_restart_time_counts_only_isolated_kills() -> None:
    lines = [
        line(1, "ready", part="service", seconds=2.5, killed=True, alone=True),
        line(2, "ready", part="service", seconds=9.0, killed=True, alone=False),
        line(3, "ready", part="service", seconds=4.0, killed=False, alone=True),
        line(4, "ready", part="database", seconds=0.5, killed=True, alone=True),
    ]
    assert figures.back(lines, "service") == [2.5]


def test_requests_failing_while_only_the_database_is_down_are_counted() -> None:
    alone = line(20, "ready", part="database", seconds=5.0, killed=True, alone=True)
    failed = [line(at, "failed", status=503) for at in (14, 16, 22, 24)]
    assert figures.unmended([*failed, alone]) == 2
    assert figures.unmended([*failed, line(20, "ready", **{**alone.facts, "alone": False})]) == 0
