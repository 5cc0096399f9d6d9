"""Test pausing class trainables of plain Ray Tune whose `save_checkpoint` returns a dictionary."""

from typing import Any

MODULE = "tests.worker.tune_class"


def test_numpy_values_survive_a_pause(drive: Any) -> None:
    driver = drive("ArraySteps", MODULE)
    driver.begin(until=2)
    driver.until_state("waiting")
    driver.order("pause")
    assert driver.until_state("paused")["saved_step"] == 2
    driver.begin(until=4, restore=2)
    driver.until_state("waiting")
    assert [r["metrics"]["acc"] for r in driver.reports] == [1, 2, 3, 4]
    assert [r["metrics"]["order"] for r in driver.reports] == ["F"] * 4


def test_unrestorable_value_fails_at_save_and_is_named(drive: Any) -> None:
    driver = drive("Unsaveable", MODULE)
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("pause")
    failed = driver.until_state("failed")
    assert failed["saved_step"] is None
    assert failed["error"]["type"] == "TypeError"
    assert "['history']['last'] is a collections.deque" in failed["error"]["message"]
