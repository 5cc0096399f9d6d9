"""Test workers that run several attempts at once, with real fork servers and children."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.waiting import is_dead, until
from tests.worker.driving import LEASE_S, SECOND
from tuner.worker.metering import SharedTime
from tuner.worker.process_tree import descendants
from tuner.worker.slots import Slots

ENTRY = "tests.worker.slot_cases:"
STEPS = 9


class PackedWorker:
    """A worker with several slots, driven as a driver does. `results` has all results of each trial."""

    def __init__(self, entry: str, slots: int, storage: Path) -> None:
        self.entry, self._storage = entry, storage
        self.born_ns = time.monotonic_ns()
        self.slots = Slots(
            slots, self.entry, package=None, constants=None, born_ns=self.born_ns, notice=lambda: None
        )
        self.results: dict[str, list[dict[str, Any]]] = {}

    def begin(
        self, trial: str, *, lease_s: float = LEASE_S, memory_limit_bytes: int | None = None, **config: Any
    ) -> None:
        order = {"order": "begin", "project": "default", "job": "job_1", "trial": trial, "attempt": 1}
        order["memory_limit_bytes"] = memory_limit_bytes
        order |= {"entry": self.entry, "config": config, "target_step": None, "max_step": None}
        order |= {"lease_ns": int(lease_s * SECOND), "storage": str(self._storage), "restore_step": None}
        self.slots.order({**order, "keep": 2})

    def stop(self, trial: str) -> None:
        self.slots.order({"order": "stop", "trial": trial})

    def until(self, what: Callable[[], object]) -> None:
        """Step until `what` is true."""
        deadline = time.monotonic() + 120
        while not what():
            assert time.monotonic() < deadline, self.results
            for result in self.slots.step():
                self.results.setdefault(result["trial"], []).append(result)

    def last(self, trial: str) -> dict[str, Any]:
        return self.results.get(trial, [{"state": "", "reports": []}])[-1]

    def ended(self, *trials: str) -> bool:
        return all(self.last(trial)["state"] not in ("", "running", "waiting") for trial in trials)

    def steps(self, trial: str) -> int:
        return sum(len(result["reports"]) for result in self.results.get(trial, []))

    def metrics(self, trial: str) -> list[dict[str, Any]]:
        return [report["metrics"] for result in self.results[trial] for report in result["reports"]]

    def billed_ns(self, trial: str) -> int:
        return sum(self.last(trial)["meter"].values())


@pytest.fixture
def worker_of(tmp_path: Path) -> Iterator[Callable[..., PackedWorker]]:
    made: list[PackedWorker] = []

    def start(case: str, slots: int = 2) -> PackedWorker:
        made.append(PackedWorker(case if ":" in case else ENTRY + case, slots, tmp_path))
        return made[-1]

    yield start
    for worker in made:
        worker.slots.close()
    assert not [pid for pid in descendants(os.getpid()) if _is_of_user_code(pid)]


def _is_of_user_code(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "fork_server" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


CHANGES = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 7)), max_size=60)


@given(CHANGES)
def test_shares_add_up_to_the_time_of_the_worker(changes: list[tuple[int, int]]) -> None:
    """Each change is the time since the last one, and the attempt that begins or ends then."""
    now, busy, ended = 0, 0, 0
    shared = SharedTime(0, lambda: now)
    joined, given_ns, exact = dict[int, int](), dict[int, int](), dict[int, Fraction]()
    for length, attempt in changes:
        busy += length if joined else 0
        for each in joined:
            given_ns[each] += shared.share_ns(now, now + length)
            exact[each] += Fraction(length, len(joined))
        now += length
        if attempt in joined:
            assert abs(given_ns[attempt] - exact.pop(attempt)) <= len(changes)
            shared.leave(joined.pop(attempt))
            ended += given_ns.pop(attempt)
        else:
            joined[attempt] = shared.join(now)
            given_ns[attempt], exact[attempt] = 0, Fraction(0)
    # Each share is rounded down to whole nanoseconds.
    assert 0 <= busy - ended - sum(given_ns.values()) <= 8 * len(changes)


def test_two_attempts_share_the_time_of_their_worker(worker_of: Callable[..., PackedWorker]) -> None:
    worker = worker_of("waits")
    worker.begin("a", wait_s=0.1)
    worker.begin("b", wait_s=0.1)
    worker.until(lambda: worker.ended("a", "b"))
    ended_ns = time.monotonic_ns()
    assert [worker.steps(trial) for trial in "ab"] == [STEPS, STEPS]
    # Both ran nearly all of the time. If each was billed its own time, the sum would be nearly twice as long as that.
    assert worker.billed_ns("a") + worker.billed_ns("b") <= ended_ns - worker.born_ns


def test_attempt_that_stays_alone_is_billed_all_of_the_time(worker_of: Callable[..., PackedWorker]) -> None:
    worker = worker_of("waits")
    worker.begin("a", wait_s=0.2)
    worker.until(lambda: worker.ended("a"))
    assert worker.billed_ns("a") >= STEPS * 0.2 * SECOND


def test_end_of_one_attempt_leaves_the_other_alone(worker_of: Callable[..., PackedWorker]) -> None:
    worker = worker_of("waits")
    worker.begin("a", wait_s=30)
    worker.begin("b", wait_s=0.2)
    worker.until(lambda: worker.steps("b") >= 2)
    worker.stop("a")
    worker.until(lambda: worker.ended("a", "b"))
    assert worker.last("a")["state"] == "stopped"
    assert worker.last("b")["state"] == "ended"
    worker.begin("c", wait_s=0)
    worker.until(lambda: worker.ended("c"))
    assert worker.slots.are_free


def test_lease_counts_the_time_of_the_worker(worker_of: Callable[..., PackedWorker]) -> None:
    """Two attempts with leases of 1.5 s last about 3 s together. Alone, the first would have had 1.5 s."""
    worker = worker_of("waits")
    worker.begin("warm", wait_s=0)
    worker.until(lambda: worker.ended("warm"))
    began = time.monotonic()
    worker.begin("a", wait_s=60, lease_s=1.5)
    worker.begin("b", wait_s=60, lease_s=1.5)
    worker.until(lambda: worker.ended("a", "b"))
    assert [worker.last(trial)["state"] for trial in "ab"] == ["paused", "paused"]
    assert [worker.billed_ns(trial) <= 1.5 * SECOND for trial in "ab"] == [True, True]
    assert time.monotonic() - began > 2.5


def test_processes_that_an_attempt_leaves_behind_are_killed(
    worker_of: Callable[..., PackedWorker], tmp_path: Path
) -> None:
    """An attempt starts a process in a session of its own and kills its own fork server. The other attempt continues."""
    worker = worker_of("kills_its_server")
    worker.begin("a", kills=True, pid_file=str(tmp_path / "left"))
    worker.begin("b", kills=False)
    worker.until(lambda: worker.ended("a", "b"))
    assert worker.last("a")["state"] == "failed"
    assert worker.last("b")["state"] == "ended"
    left = int((tmp_path / "left").read_text())
    until(lambda: _has_ended(left))
    worker.begin("c", kills=False)
    worker.until(lambda: worker.ended("c"))
    assert worker.last("c")["state"] == "ended"


def _has_ended(pid: int) -> bool:
    try:
        return is_dead(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def test_packed_trials_train_in_one_process_while_any_of_them_runs(
    worker_of: Callable[..., PackedWorker],
) -> None:
    """Each trial has less memory than the imports of all of them take together, because only its own processes count."""
    worker = worker_of("tests.worker.slot_cases:packed", 4)
    trials = [f"t{number}" for number in range(4)]
    for number, trial in enumerate(trials):
        worker.begin(trial, lr=0.01 * (number + 1), memory_limit_bytes=500 << 20)
    worker.until(lambda: all(worker.steps(trial) >= 3 for trial in trials))
    steps = worker.steps(trials[1])
    worker.stop(trials[0])
    worker.until(lambda: worker.ended(trials[0]) and worker.steps(trials[1]) > steps)
    trained_by = {int(worker.metrics(trial)[-1]["process"]) for trial in trials}
    assert len(trained_by) == 1, "the batch process trained all of them"
    for trial in trials[1:]:
        worker.stop(trial)
    worker.until(lambda: worker.ended(*trials))
    # Nobody pays for the batch process any more.
    until(lambda: not psutil.pid_exists(next(iter(trained_by))))
    worker.begin("later", lr=0.1)
    worker.until(lambda: worker.steps("later") >= 2)
    assert int(worker.metrics("later")[-1]["process"]) not in trained_by


def test_trial_that_hangs_in_the_batch_process_does_not_stop_later_trials(
    worker_of: Callable[..., PackedWorker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After the trial was stopped, the batch process is found to hang and killed. The other trial continues in its own process."""
    monkeypatch.setattr("tuner.worker.slots.ANSWER_S", 0.5)
    worker = worker_of("tests.worker.slot_cases:packed", 3)
    worker.begin("a", lr=0.1)
    worker.until(lambda: worker.steps("a") >= 2)
    worker.begin("hangs", lr=0.1, hangs=str(tmp_path / "hangs"))
    worker.until((tmp_path / "hangs").exists)
    worker.stop("hangs")
    steps = worker.steps("a")
    worker.until(lambda: worker.ended("hangs") and worker.steps("a") > steps + 2)
    worker.begin("b", lr=0.1)
    worker.until(lambda: worker.steps("b") >= 2)
    assert worker.metrics("b")[-1]["process"] != worker.metrics("a")[-1]["process"]


def test_new_batch_process_starts_after_the_workers_fork_server_was_killed(
    worker_of: Callable[..., PackedWorker],
) -> None:
    worker = worker_of("tests.worker.slot_cases:packed")
    worker.begin("a", lr=0.1)
    worker.until(lambda: worker.steps("a") >= 2)
    os.kill(worker.slots._shared.servers.current.pid, signal.SIGKILL)
    steps = worker.steps("a")
    worker.until(lambda: worker.steps("a") > steps + 2)
    worker.stop("a")
    worker.until(lambda: worker.ended("a"))
    worker.begin("b", lr=0.1)
    worker.until(lambda: worker.steps("b") >= 2)
    assert worker.last("b")["state"] == "running"


def test_begin_is_refused_if_all_slots_are_taken(worker_of: Callable[..., PackedWorker]) -> None:
    worker = worker_of("waits")
    worker.begin("a", wait_s=30)
    worker.begin("b", wait_s=30)
    with pytest.raises(RuntimeError, match="all slots are taken"):
        worker.begin("c", wait_s=30)
    for trial in "ab":
        worker.stop(trial)
    worker.until(lambda: worker.ended("a", "b"))


def test_slots_share_the_imports_of_their_worker(worker_of: Callable[..., PackedWorker]) -> None:
    worker = worker_of("tells_its_imports", 3)
    for trial in "abc":
        worker.begin(trial)
    worker.until(lambda: worker.ended(*"abc"))
    states = {worker.last(trial)["state"] for trial in "abc"}
    imported = {metrics["imported_by"] for trial in "abc" for metrics in worker.metrics(trial)}
    assert states == {"ended"}
    assert len(imported) == 1  # the process id of the worker's fork server
