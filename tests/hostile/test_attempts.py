"""Attacks of user code on its supervisor, with a real fork server and real processes, without a Ray cluster."""

import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.engine.driving import SECOND, Driver
from tests.system.user_code.hostile import ATTACKS, ON_THE_WORKER
from tuner.engine.messages import ENDED
from tuner.engine.worker.supervisor import Supervisor

ENTRY = "tests.system.user_code.hostile:train"
LEASE_S = 3.0
#: How much later than the lease's end the result may arrive, and the last process be gone.
LATE_S = 2.0
#: State of the attempt and a word of its error, by attack. The others end with their lease.
ENDS = {
    "jams_the_channel": ("failed", "without reading the reply"),
    "floods_with_reports": ("failed", "report"),
    "floods_with_reports_from_threads": ("failed", "report"),
    "reports_beyond_the_last_step": ("failed", "its last step is 9"),
    "skips_steps": ("failed", "reported step 3 after step 0"),
    "reports_a_step_twice": ("failed", "reported step 1 after step 1"),
    "reports_a_huge_step": ("failed", "its last step is 9"),
    "reports_a_step_of_a_thousand_digits": ("failed", "a very large number"),
    "reports_a_negative_step": ("failed", "step is -1"),
    "reports_a_step_that_is_text": ("failed", "step is '1'"),
    "reports_a_step_that_is_true": ("failed", "step is True"),
    "invents_a_phase": ("failed", "kind is 'nothing', not one of"),
    "says_that_it_is_idle": ("failed", "kind is 'idle', not one of"),
    "sends_a_phase_that_is_a_list": ("failed", "kind is ['train']"),
    "floods_with_phases": ("failed", "messages without a report"),
    "invents_a_message": ("failed", "unknown type 'promote'"),
    "replays_a_reply": ("failed", "message whose t is None"),
    "sends_no_type": ("failed", "unknown type None"),
    "sends_no_json": ("failed", "not JSON"),
    "sends_a_list": ("failed", "not a JSON object but a list"),
    "sends_deeply_nested_json": ("failed", "not JSON"),
    "reports_a_bare_nan": ("failed", "which is not JSON"),
    "reports_nested_metrics": ("failed", "reported metric 'score' as a dict"),
    "reports_a_list_of_metrics": ("failed", "not an object but a list"),
    "fails_with_an_invented_kind": ("failed", "kind is 'storage'"),
    "fails_with_too_much_text": ("failed", "message is not a text"),
    "says_that_it_ended_and_goes_on": ("ended", ""),
    "sends_an_empty_frame": ("failed", "not JSON"),
    "announces_a_gigabyte": ("failed", "more than 1048576 bytes"),
    "announces_a_negative_length": ("failed", "not JSON"),
    "announces_an_exabyte": ("failed", "more than 1048576 bytes"),
    "sends_descriptors": ("failed", "not a JSON object"),
    "leaves_the_channel_to_a_daemon": ("failed", "exit status 0"),
    "runs_its_clock_ahead": ("ended", ""),
    "stops_its_clock": ("ended", ""),
    "sends_a_clock_that_is_text": ("failed", "t is 'now'"),
    "announces_many_checkpoints": ("failed", "checkpoint"),
    "announces_a_checkpoint_of_no_step": ("failed", "checkpoint of step 7"),
    "announces_a_checkpoint_elsewhere": ("ended", ""),
    "announces_a_checkpoint_of_pipes": ("ended", ""),
    "saves_files_with_hostile_names": ("ended", ""),
    "deletes_the_staging_folder": ("ended", ""),
    "deletes_the_workers_folder": ("ended", ""),
    "saves_on_a_full_disk": ("ended", ""),
    "kills_the_fork_server": ("failed", "fork server of the trial's process ended (SIGKILL)"),
    "survives_its_parent": ("failed", "fork server of the trial's process ended (SIGKILL)"),
    "leaves_an_orphan_without_a_fork_server": (
        "failed",
        "fork server of the trial's process ended (SIGKILL)",
    ),
    "leaves_daemons": ("ended", ""),
    "leaves_threads": ("ended", ""),
    "closes_standard_streams": ("ended", ""),
    "exits_with_a_huge_status": ("failed", "exit"),
    "raises_an_unprintable_error": ("failed", ""),
    "raises_an_error_with_surrogates": ("failed", ""),
    "swallows_the_stop": ("failed", ""),
}
ALONE = [name for name in ATTACKS if name not in ON_THE_WORKER]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One worker for all attacks, as a real one is used for attempt after attempt."""
    found = Driver(tmp_path_factory.mktemp("storage"), ENTRY, Supervisor(ENTRY, owns_process=True))
    found.begin(config={"attack": "well"}, until=None)
    assert found.until_state("ended")["state"] == "ended"
    yield found
    found.let_go()
    found.supervisor.close()


def run(driver: Driver, attack: str) -> tuple[dict[str, Any], float]:
    """Run an attack; return the last result and for how many seconds the attempt existed, seen from outside."""
    began = time.monotonic()
    driver.begin(config={"attack": attack}, until=None, lease_s=LEASE_S)
    while True:
        result = driver.supervisor.step()
        if result["state"] in ENDED:
            return result, time.monotonic() - began


def left_over(driver: Driver) -> list[psutil.Process]:
    """Return living descendants of this process but the fork server. It adopts orphans, since it has a supervisor that owns it."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.pid != driver.supervisor.server.pid and process.status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize("attack", ALONE)
def test_an_attack_ends_with_its_lease_at_the_latest_and_is_billed_for_its_time(
    driver: Driver, attack: str
) -> None:
    result, lived_s = run(driver, attack)
    gone_by = time.monotonic() + LATE_S
    state, word = ENDS.get(attack, ("paused", "the time that was paid for ended"))
    message = (result["error"] or {}).get("message", "")
    assert (result["state"], word in message) == (state, True), result["error"]
    assert lived_s <= LEASE_S + LATE_S
    billed_s = sum(result["meter"].values()) / SECOND
    assert billed_s <= LEASE_S
    # The attempt is billed from its order until its end is known; clearing up is not billed.
    assert billed_s >= min(lived_s, LEASE_S) * 0.95 - LATE_S
    while left := left_over(driver):
        assert time.monotonic() < gone_by, left
        time.sleep(0.02)


def test_the_worker_serves_a_good_trial_after_all_attacks(driver: Driver) -> None:
    driver.begin(config={"attack": "well"}, until=None)
    ended = driver.until_state("ended")
    assert ended["error"] is None
    assert [report["step"] for report in driver.reports[-3:]] == [1, 2, 3]
