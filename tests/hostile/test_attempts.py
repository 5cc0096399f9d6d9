"""Attacks of user code on its supervisor, with a real fork server and real processes, without a Ray cluster."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.worker_program import LATE_S, LEASE_S
from tests.system.user_code.hostile import ATTACKS, ON_THE_WORKER

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
    "fills_the_database": ("failed", "bytes of metrics as JSON, of which 200000 were left"),
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
    "fails_with_too_much_text": ("failed", "message is not a string"),
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
    "announces_a_checkpoint_elsewhere": ("failed", "cannot be stored"),
    "announces_a_checkpoint_of_pipes": ("failed", "cannot be stored"),
    "saves_files_with_hostile_names": ("ended", ""),
    "deletes_the_staging_folder": ("ended", ""),
    "deletes_the_workers_folder": ("ended", ""),
    "saves_on_a_full_disk": ("ended", ""),
    "kills_the_fork_server": ("failed", "because the fork server that started it ended (SIGKILL"),
    "survives_its_parent": ("failed", "because the fork server that started it ended (SIGKILL"),
    "leaves_an_orphan_without_a_fork_server": (
        "failed",
        "because the fork server that started it ended (SIGKILL",
    ),
    "leaves_daemons": ("ended", ""),
    "leaves_threads": ("ended", ""),
    "closes_standard_streams": ("ended", ""),
    "exits_with_a_huge_status": ("failed", "exit"),
    "raises_an_unprintable_error": ("failed", "_Unprintable has no text"),
    "raises_an_error_with_surrogates": ("failed", ""),
    "restarts_its_training_loop": ("failed", "an earlier training of this trial has already reported steps"),
    "dies_in_the_middle_of_a_message": ("failed", "was killed by SIGKILL"),
}
COMPUTE_A_SECOND = ("runs_its_clock_ahead", "stops_its_clock")
ALONE = [name for name in ATTACKS if name not in ON_THE_WORKER]


class Worker:
    """One worker for all attacks, as a real one is used for attempt after attempt."""

    def __init__(self, folder: Path) -> None:
        self.attacks: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.worker_program", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, attack: str) -> dict[str, Any]:
        """Return what became of an attack. See `tests.hostile.worker_program.run`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{attack}\n")
        self._process.stdin.flush()
        outcome: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.attacks.append(outcome)
        return outcome

    def summary(self) -> str:
        """Describe the extremes of all attacks so far."""
        late_s = max(outcome["lived_s"] for outcome in self.attacks) - LEASE_S
        unbilled_s = max(min(outcome["lived_s"], LEASE_S) - outcome["billed_s"] for outcome in self.attacks)
        return (
            f"{len(self.attacks)} attacks on one worker: processes ended at most {late_s:.2f} s after a lease of {LEASE_S} s; "
            f"at most {unbilled_s:.2f} s of a lease was not billed"
        )

    def close(self) -> None:
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    attacked = Worker(tmp_path_factory.mktemp("hostile"))
    yield attacked
    print(f"\n{attacked.summary()}")
    attacked.close()


@pytest.mark.parametrize("attack", ALONE)
def test_attack_ends_by_the_end_of_its_lease_and_is_billed(worker: Worker, attack: str) -> None:
    outcome = worker.run(attack)
    state, word = ENDS.get(attack, ("paused", "the worker time that was paid for) ended"))
    assert (outcome["state"], word in outcome["message"]) == (state, True), outcome
    assert outcome["lived_s"] <= LEASE_S + LATE_S
    # The attempt is billed until its end is known, and for a second at most that its worker was idle before.
    assert outcome["billed_s"] <= min(LEASE_S, 1.05 * outcome["lived_s"] + 1)
    if state == "paused":
        assert outcome["billed_s"] >= 0.95 * LEASE_S
    if attack in COMPUTE_A_SECOND:
        assert outcome["billed_s"] >= 0.95, "a child's clock lowers no bill"
    assert outcome["left"] == []


def test_worker_runs_a_normal_trial_after_all_attacks(worker: Worker) -> None:
    outcome = worker.run("well")
    assert (outcome["state"], outcome["message"], outcome["steps"]) == ("ended", "", [1, 2, 3])
