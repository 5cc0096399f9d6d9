"""Test a worker's supervisor with a real fork server and real children, but without a Ray cluster."""

import os
import re
import threading
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import psutil
import pytest

from tests.worker.driving import LEASE_S, SECOND, parsed
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.domain.environment import Environment
from tuner.service import training_alone
from tuner.worker import endings, restoring, supervisor
from tuner.worker.attempt import RunningAttempt
from tuner.worker.child import import_fix
from tuner.worker.processes import AttemptProcesses
from tuner.worker.server_handle import ForkServer

PLAIN = "tests.worker.plain_cases"


def test_trial_waits_at_its_rung_pauses_and_resumes_in_another_process(drive: Any) -> None:
    driver = drive("counts")
    waiting = driver.run_to(3)
    assert [r["metrics"]["acc"] for r in driver.reports] == [1, 2, 3]
    assert waiting["need_ns"] == 0
    paused = driver.end("pause")
    assert paused["saved_step"] == 3
    assert [c["step"] for c in paused["checkpoints"]] == [3]
    driver.run_to(5, restore=3)
    assert [(r["step"], r["metrics"]["acc"]) for r in driver.reports[3:]] == [(4, 4), (5, 5)]
    assert driver.reports[0]["metrics"]["pid"] != driver.reports[-1]["metrics"]["pid"]


def test_attempt_cannot_begin_before_the_previous_one_has_ended(drive: Any) -> None:
    driver = drive("counts")
    driver.run_to(1)
    with pytest.raises(RuntimeError, match="attempt 1 of trial_00000 has not ended"):
        driver.begin(target_step=2)
    driver.order("continue", target_step=2, lease_ns=LEASE_S * SECOND)
    assert driver.until_state("waiting")["attempt"] == 1
    assert driver.reports[-1]["step"] == 2


def test_promoted_trial_continues_without_pause_and_saves_its_last_step(drive: Any, tmp_path: Path) -> None:
    driver = drive("counts")
    driver.run_to(1)
    driver.order("continue", target_step=9, lease_ns=LEASE_S * SECOND)
    driver.until_state("waiting")
    assert driver.reports[-1]["step"] == 9
    finished = driver.end("finish")
    assert finished["saved_step"] == 9
    store = CheckpointStore(str(tmp_path / "storage"), "default", "job_1")
    newest = store.newest_valid("trial_00000", tmp_path / "here", at_most=9)
    assert newest is not None
    assert newest[0] == 9


def test_time_before_the_first_step_is_billed_as_setup(drive: Any) -> None:
    driver = drive("loads_first")
    waits = driver.run_to(1)
    since_then = time.monotonic_ns() - driver.reports[0]["metrics"]["loaded_at"]
    assert waits["meter"]["setup"] > SECOND // 2
    assert waits["meter"].get("train", 0) < since_then


def test_measuring_latency_is_billed_as_setup_and_does_not_lengthen_the_step(drive: Any) -> None:
    driver = drive("counts")
    meter = driver.run_to(1, serving_metrics=["latency_ms"])["meter"]
    assert driver.reports[0]["metrics"]["latency_ms"] > 0
    assert meter["setup"] > SECOND, "to build the module takes a second"
    assert driver.step_ns[0] <= meter["train"]


def test_seeded_trial_is_reproducible_outside_of_the_service(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    driver = drive("draws", fresh=True)
    driver.run_to(2, seed=7)
    recorded = Environment.parse(driver.environment)
    assert recorded is not None
    assert recorded.seed == 7
    assert recorded.threads == driver.reports[0]["metrics"]["threads"]
    assert recorded.versions["torch"] == metadata.version("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", str(recorded.threads))
    assert training_alone.prepare(driver.entry, recorded, threads=recorded.threads, seed=7) == []
    trained = []
    training = training_alone.LocalTraining(entry=driver.entry, config={}, steps=2, seed=7)
    training_alone.train(training, on_report=lambda _, metrics: trained.append(metrics))
    assert trained == [report["metrics"] for report in driver.reports]
    changed = replace(recorded, code="another", versions={**recorded.versions, "torch": "0.1"})
    assert [line.partition(" ")[0] for line in changed.differences(recorded)] == ["torch", "the"]


@pytest.mark.parametrize(
    ("case", "module"),
    [
        ("splits", "tests.worker.cases"),
        ("tune_splits", "tests.worker.tune_cases"),
        ("SplitSteps", "tests.worker.tune_cases"),
    ],
)
def test_resumed_trial_repeats_its_random_split_but_not_the_numbers_of_its_steps(
    drive: Any, case: str, module: str
) -> None:
    driver = drive(case, module)
    driver.promoted_twice(4, seed=7)
    assert len({report["metrics"]["valid"] for report in driver.reports}) == 1
    assert len({report["metrics"]["drawn"] for report in driver.reports}) == 4


def test_own_seed_of_a_ray_tune_function_applies_after_a_resume(drive: Any) -> None:
    driver = drive("tune_splits_after_own_seed", "tests.worker.tune_cases")
    driver.promoted_twice(4, seed=7)
    assert len({report["metrics"]["valid"] for report in driver.reports}) == 1


def test_hanging_trial_stops_on_request(drive: Any) -> None:
    driver = drive("hangs")
    driver.begin()
    assert driver.supervisor.step()["state"] == "running"
    assert driver.end("stop")["error"] is None


def test_attempt_that_begins_late_leaves_the_directories_of_the_next_alone(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that was stopped may still be preparing its directories when the next one begins."""
    prepares, goes_on, prepare = threading.Event(), threading.Event(), supervisor.new_directory

    def prepare_late(*path: Any) -> Path:
        if not prepares.is_set():
            prepares.set()
            goes_on.wait(60)
        return prepare(*path)

    monkeypatch.setattr(supervisor, "new_directory", prepare_late)
    driver = drive("counts")
    driver.begin()
    late = driver.supervisor._starter
    assert prepares.wait(60)
    driver.end("stop")
    driver.run_to(1)
    attempt, pid = driver.supervisor.attempt, driver.reports[-1]["metrics"]["pid"]
    goes_on.set()
    late.join()
    assert attempt.staging.is_dir()
    assert os.path.isdir(os.readlink(f"/proc/{pid}/cwd"))
    assert driver.end("pause")["saved_step"] == 1
    assert not [
        path for path in driver.supervisor._scratch.path.iterdir() if re.fullmatch(r"a\d+", path.name)
    ]


def test_lease_end_stops_a_hanging_child(drive: Any) -> None:
    driver = drive("hangs")
    driver.begin(lease_s=1)
    ended = driver.until_state("paused")
    assert ended["error"]["kind"] == "lease"
    assert sum(ended["meter"].values()) == SECOND


def test_driver_hears_of_a_short_lease_in_time_to_renew_it() -> None:
    """A worker that imports a trainable for seconds sends nothing but heartbeats. Three of them must come before the lease ends."""
    left_s = 1.5
    for _ in range(3):
        left_s -= supervisor.heartbeat_s(round(left_s * SECOND))
    assert left_s > supervisor.FLUSH_S
    assert supervisor.heartbeat_s(LEASE_S * SECOND) == supervisor.HEARTBEAT_S
    assert supervisor.heartbeat_s(-SECOND) == supervisor.FLUSH_S


def test_a_child_waits_for_a_lease_that_its_next_step_needs(drive: Any, tmp_path: Path) -> None:
    driver = drive("counts")
    gate = tmp_path / "gate"
    driver.begin(target_step=9, config={"step_s": 0.5, "gated": 2, "gate": str(gate)})
    driver.reported(1)
    assert min(driver.step_ns) >= SECOND // 2
    driver.takes(LEASE_S)
    gate.touch()
    waiting = driver.until_state("waiting")
    assert driver.reports[-1]["step"] == 2
    assert waiting["need_ns"] > 0
    driver.order("continue", target_step=3, lease_ns=10 * LEASE_S * SECOND)
    driver.until_state("waiting")
    assert driver.reports[-1]["step"] == 3
    stopped = driver.end("stop")
    assert {"setup", "train", "idle"} <= set(stopped["meter"])
    assert stopped["meter"]["train"] >= 3 * 0.5 * SECOND


def test_child_that_waits_for_the_driver_in_vain_saves_before_its_lease_ends(drive: Any) -> None:
    """The driver may be away for longer than the rest of a lease, for example while its database restarts."""
    driver = drive("counts")
    driver.run_to(2)
    driver.saves_take(60.0)
    lease_ns = driver.lease_ends_in(61.0)
    ended = driver._step_until(lambda result: result["state"] == "paused", "paused")
    assert ended["error"] is None
    assert ended["saved_step"] == 2
    assert sum(ended["meter"].values()) <= lease_ns


FAILURES = [
    ("raises", "raised", "the data is not there"),
    ("opens_a_relative_file", "raised", "data/train.npy'. Each trial starts in an empty directory"),
    ("opens_a_file_that_only_the_user_has", "raised", "train.npy'. The path must exist on each machine"),
    (
        "misspells_a_parameter",
        "raised",
        "'learning rate'. If the trainable looks this key up in its config: the job has no",
    ),
    ("fills_the_gpu", "memory", "the GPU ran out of memory; use a smaller batch"),
    ("exits", "exited", "exit status 3"),
    ("exits_politely", "exited", "exit status 4"),
    ("kills_itself", "killed", "SIGKILL"),
    ("kills_itself_in_real_time", "killed", "signal 40"),
    ("raises_without_output", "raised", "the data is not there"),
    ("raises_unprintably", "raised", "Unprintable has no text: its __str__ raised RuntimeError"),
    ("no_such_function", "import", "no_such_function"),
    ("not_callable", "import", "not a function"),
    ("not_awaited", "import", "is an async function"),
    ("reports_an_object", "metrics", "acc"),
    ("reports_hugely", "metrics", "too large"),
]


@pytest.mark.parametrize(("case", "kind", "word"), FAILURES)
def test_user_code_failure_is_reported_with_kind_and_message(
    drive: Any, case: str, kind: str, word: str
) -> None:
    driver = drive(case)
    driver.begin()
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == kind
    assert word in failed["error"]["message"]
    driver.begin()  # the worker survives it
    assert driver.until_state("failed")["attempt"] == 2


def test_fork_server_that_a_real_time_signal_killed_is_described() -> None:
    assert "ended (signal 40)" in endings.exited(None, -40, "")["message"]


@pytest.mark.parametrize(
    ("case", "failing"),
    [
        ("exits", (endings, "exited")),
        ("hangs", (endings, "limit_exceeded")),
        ("hangs", (AttemptProcesses, "kill_all")),
    ],
    ids=["reader and mourner", "watchdog", "lease"],
)
def test_error_in_a_thread_of_the_supervisor_fails_the_attempt(
    drive: Any, monkeypatch: pytest.MonkeyPatch, case: str, failing: tuple[Any, str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("an unexpected error")

    driver = drive(case)
    with monkeypatch.context() as patch:
        patch.setattr(*failing, fail)
        # The lease also counts the start of the fork server.
        driver.begin(lease_s=1 if failing[1] == "kill_all" else LEASE_S)
        error = driver.until_state("failed")["error"]
    assert (error["kind"], error["type"]) == ("supervisor", "RuntimeError")
    assert "an unexpected error" in error["message"]
    assert "in fail" in error["traceback"]


@pytest.mark.parametrize("case", ["exits_with_a_message", "exits_without_output"])
def test_message_with_which_user_code_exits_is_shown(drive: Any, case: str) -> None:
    driver = drive(case)
    driver.begin()
    error = driver.until_state("failed")["error"]
    assert "exit status 1" in error["message"]
    assert "no GPU was found" in error["traceback"]


@pytest.mark.parametrize(
    ("config", "status"), [({}, 0), ({"returns": 5.0}, 0), ({"raises": True}, 1)], ids=str
)
def test_forked_copy_of_the_process_does_not_end_the_attempt(
    drive: Any, config: dict[str, Any], status: int
) -> None:
    driver = drive("forks")
    driver.run_to(2, config=config)
    assert [report["metrics"] for report in driver.reports] == [{"acc": 1.0, "status": status}] * 2


def test_reports_of_a_thread_that_outlives_the_function_are_recorded(drive: Any) -> None:
    driver = drive("leaves_a_training_thread")
    driver.begin(target_step=9, config={"scores": [1.0, 2.0, 3.0]})
    assert driver.until_state("ended")["saved_step"] == 3
    assert [report["metrics"] for report in driver.reports] == [{"acc": 1.0}, {"acc": 2.0}, {"acc": 3.0}]


def test_training_in_a_thread_that_outlives_the_function_is_paused(
    drive: Any, hanging_save: tuple[Event, Event]
) -> None:
    driver, (hangs, goes_on) = drive("leaves_a_training_thread"), hanging_save
    driver.run_to(2, config={"scores": [1.0, 2.0, 3.0]})
    child = psutil.Process(driver.supervisor.processes.pids[0])
    driver.order("pause")
    hangs.wait()
    # The process ends before its checkpoint is stored. It must not report that the trial has ended.
    child.wait()
    goes_on.set()
    assert driver.until_state("paused")["saved_step"] == 2


@pytest.mark.parametrize("returns", [True, False])
def test_thread_that_only_helps_does_not_delay_the_end(drive: Any, returns: bool) -> None:
    driver = drive("leaves_a_helper_thread")
    driver.begin(config={"returns": returns})
    driver.until_state("ended")
    assert [report["metrics"] for report in driver.reports] == [{"acc": 0.9}]


def test_missing_module_is_named(drive: Any) -> None:
    driver = drive("train", "tests.worker.no_such_module", fresh=True)
    driver.begin()
    message = driver.until_state("failed")["error"]["message"]
    assert (
        "'tests.worker.no_such_module'. tests.worker was found, but it has no module no_such_module"
        in message
    )


@pytest.mark.parametrize(
    ("missing", "fix"),
    [
        ("mine", "Start `tuner serve` in the directory of mine"),
        ("mine.utils", "mine was found, but it has no module utils"),
        ("other.part", "Install other where"),
    ],
)
def test_missing_module_gets_the_advice_that_fits(missing: str, fix: str) -> None:
    assert fix in import_fix(ModuleNotFoundError(name=missing), "mine.train:train")


def test_nan_is_reported_and_tensors_become_numbers(drive: Any) -> None:
    driver = drive("nan")
    driver.run_to(1)
    assert driver.reports[0]["metrics"] == {"acc": "NaN", "tensor": 2.0}


def test_leftover_processes_of_user_code_are_killed_with_the_attempt(drive: Any) -> None:
    mark = str(uuid4())
    driver = drive("leaves_children")
    driver.run_to(1, config={"mark": mark})
    driver.end("stop")
    left = [p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]
    assert left == []


def test_arrays_that_joblib_shares_are_in_the_directory_of_the_attempt(drive: Any) -> None:
    """In /dev/shm, they would stay if the trial is killed."""
    driver = drive("shares_arrays_with_joblib")
    driver.begin(target_step=1)
    driver.until_state("waiting", "ended")
    assert driver.reports[0]["metrics"]["is_own"]


def test_many_fast_reports_all_arrive_in_order(drive: Any) -> None:
    driver = drive("fast")
    driver.run_to(1000, max_step=1000)
    assert [r["step"] for r in driver.reports] == list(range(1, 1001))


def test_attempt_fails_if_the_job_has_no_room_for_its_metrics(drive: Any) -> None:
    driver = drive("fast")
    driver.begin(target_step=9, metrics_room=3 * len('{"acc": 1.0}'))
    failed = driver.until_state("failed")
    assert [report["step"] for report in driver.reports] == [1, 2, 3]
    assert (
        "all reports of a job may have 1073741824 bytes of metrics as JSON, of which 36 were left"
        in failed["error"]["message"]
    )
    assert "report fewer metrics or shorter texts" in failed["error"]["message"]


@pytest.mark.parametrize(
    ("case", "values"),
    [
        ("returns", [4]),
        ("yields", [0, 1, 2]),
        ("returns_number", [4]),
        ("yields_numbers", [0, 1, 2]),
        ("returns_nothing_more", [0, 1]),
        ("reports_and_returns_status", [3, 4]),
    ],
)
def test_returned_or_yielded_values_are_reports(drive: Any, case: str, values: list[float]) -> None:
    driver = drive(case)
    driver.begin(target_step=9, metric="acc", mode="max")
    driver.until_state("ended")
    assert [r["metrics"]["acc"] for r in driver.reports] == values
    assert [r["last"] for r in driver.reports[-1:]] == [case in ("returns", "returns_number")]
    assert not any(r["last"] for r in driver.reports[:-1])


def test_function_that_has_returned_does_not_wait_for_the_driver(drive: Any) -> None:
    driver = drive("returns_number")
    driver.begin(target_step=1, metric="acc", mode="max")
    assert driver.until_state("waiting", "ended")["state"] == "ended"
    assert [r["last"] for r in driver.reports] == [True]


@pytest.mark.parametrize(
    ("case", "saved"), [("FollowsScores", 3), ("CannotBeSaved", 1), ("EndsWithoutCheckpoints", None)]
)
def test_class_trainable_that_is_done_does_not_wait_for_the_driver(
    drive: Any, case: str, saved: int | None
) -> None:
    """Its last report says so. Its last step is saved if the class can save it."""
    driver = drive(case, "tests.worker.tune_cases")
    scores = {"metric": "acc", "mode": "max", "config": {"scores": [5.0, 2.0, 1.0]}}
    driver.begin(target_step=3, **scores)
    ended = driver.until_state("waiting", "ended")
    assert (ended["state"], ended["saved_step"]) == ("ended", saved)
    assert [r["last"] for r in driver.reports] == [False, False, True]


def test_exit_status_that_a_resumed_function_returns_is_not_a_report(drive: Any) -> None:
    driver = drive("resumes_and_returns_status")
    driver.save_at(1)
    driver.begin(target_step=9, restore=1, metric="acc", mode="max")
    driver.until_state("ended")
    assert [r["metrics"]["acc"] for r in driver.reports] == [3]


def test_exit_status_of_a_resumed_function_without_steps_to_train_is_not_a_report(drive: Any) -> None:
    driver = drive("tune_checkpoints_and_returns_status", "tests.worker.tune_cases")
    driver.save_at(1)
    driver.begin(target_step=9, restore=1, metric="acc", mode="max")
    driver.until_state("ended")
    assert [r["metrics"]["acc"] for r in driver.reports] == [3]


@pytest.mark.parametrize("case", ["tune_checkpoints", "Steps", "DictSteps", "ArraySteps"])
def test_plain_ray_tune_trainables_run_unchanged_and_are_promoted_twice(drive: Any, case: str) -> None:
    driver = drive(case, "tests.worker.tune_cases")
    driver.promoted_twice(4)
    assert [r["metrics"]["acc"] for r in driver.reports] == [1, 2, 3, 4]
    assert driver.reports[0]["resumable"]


def test_totals_of_a_class_trainable_continue_after_a_pause(drive: Any) -> None:
    driver = drive("CountsEpisodes", "tests.worker.tune_cases")
    driver.promoted_twice(4)
    metrics = [report["metrics"] for report in driver.reports]
    assert [step["timesteps_total"] for step in metrics] == [10, 20, 30, 40]
    assert [step["episodes_total"] for step in metrics] == [2, 4, 6, 8]
    times = [step["time_total_s"] for step in metrics]
    assert times == sorted(times)
    assert times[3] == pytest.approx(sum(step["time_this_iter_s"] for step in metrics))


def test_class_trainable_that_changes_the_directory_saves_into_its_own(drive: Any, tmp_path: Path) -> None:
    config = {"project": str(tmp_path / "project")}
    Path(config["project"]).mkdir()
    driver = drive("ChangesDirectory", "tests.worker.tune_cases")
    driver.promoted_twice(4, config=config)
    assert [r["metrics"]["acc"] for r in driver.reports] == [1, 2, 3, 4]


def test_unrestorable_value_of_a_class_trainable_fails_at_save_and_is_named(drive: Any) -> None:
    driver = drive("Unsaveable", "tests.worker.tune_cases")
    driver.run_to(1)
    failed = driver.end("pause", "failed")
    assert failed["saved_step"] is None
    assert failed["error"]["type"] == "TypeError"
    assert "['history']['last'] is a collections.deque" in failed["error"]["message"]


def test_only_metrics_are_recorded_from_a_tune_report(drive: Any) -> None:
    driver = drive("tune_checkpoints", "tests.worker.tune_cases")
    driver.run_to(1)
    assert driver.reports[0]["metrics"] == {"acc": 1, "nested/a": 1}


def test_trainable_that_never_saves_reports_not_resumable(drive: Any) -> None:
    driver = drive("never_saves", "tests.worker.tune_cases")
    driver.run_to(2)
    assert not driver.reports[-1]["resumable"]
    assert driver.end("pause")["saved_step"] is None


def test_a_dead_fork_server_is_replaced(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status that a dead fork server cannot report is not waited for."""
    monkeypatch.setattr(endings, "STATUS_S", float("inf"))
    driver = drive("counts", PLAIN, fresh=True)
    driver.run_to(1)
    driver.supervisor.server._process.kill()
    driver.until_state("failed")
    driver.run_to(1)


def test_attempt_whose_fork_server_dies_before_it_forks_is_a_storage_failure(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = ForkServer.fork

    def killed_and_asked(server: ForkServer, *args: Any, **more: Any) -> Any:
        server.kill()
        return fork(server, *args, **more)

    monkeypatch.setattr(ForkServer, "fork", killed_and_asked)
    driver = drive("counts", fresh=True)
    driver.begin()
    failure = parsed(driver.until_state("failed")).failure
    assert failure is not None
    assert failure.is_storage_failure
    monkeypatch.undo()
    driver.run_to(1)


def test_module_that_kills_its_importer_is_imported_in_the_child(drive: Any) -> None:
    driver = drive("train", "tests.worker.dies_imported", fresh=True)
    driver.supervisor.server._process.wait(timeout=240)
    driver.begin()
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == "exited"
    assert "exit status 3" in failed["error"]["message"]


def test_module_that_initializes_cuda_on_import_leaves_gpus_usable(drive: Any) -> None:
    driver = drive("train", "tests.worker.touches_cuda", fresh=True)
    driver.run_to(1)
    assert driver.reports[0]["metrics"] == {"lost": False}


def test_exit_is_detected_if_a_leftover_process_holds_the_channel(drive: Any) -> None:
    driver = drive("forks_and_exits")
    driver.begin()
    failed = driver.until_state("failed")
    assert "exit status 3" in failed["error"]["message"]
    assert sum(failed["meter"].values()) < LEASE_S * SECOND


def test_death_of_the_actor_kills_the_child(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "from tests.worker.driving import Driver; from pathlib import Path; import os, time\n"
        f"d = Driver(Path({str(tmp_path)!r}), '{PLAIN}:counts'); d.begin(target_step=1); d.until_state('waiting')\n"
        "print(*d.supervisor.processes.pids, d.supervisor.server._process.pid, flush=True); time.sleep(1000)"
    )
    actor = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert actor.stdout is not None
    pids = [int(word) for word in actor.stdout.readline().split()]
    watched = [psutil.Process(pid) for pid in pids]
    actor.kill()
    actor.wait()
    gone, left = psutil.wait_procs(watched, timeout=240)
    assert not left
    assert len(gone) == 2


def test_teacher_that_a_stopped_attempt_still_fetches_disturbs_no_later_attempt(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches, goes_on = threading.Event(), threading.Event()

    def fetched(attempt: RunningAttempt, teacher: dict[str, Any], into: Path) -> Path:
        into.mkdir()
        if not fetches.is_set():
            fetches.set()
            goes_on.wait(240)
        (into / "weights").write_text(str(attempt.number))
        return into

    monkeypatch.setattr(restoring, "fetched_teacher", fetched)
    driver = drive("counts", PLAIN, fresh=True)
    worker = driver.supervisor
    driver.begin(teacher={"config": {}})
    assert fetches.wait(240)
    starter = worker._starter
    driver.end("stop")
    driver.run_to(1, teacher={"config": {}})
    goes_on.set()
    starter.join()
    home = worker._scratch.path
    kept = home / "teacher-trial_00000-a2"
    assert list(home.glob("teacher*")) == [worker._restorer._teacher] == [kept]
    assert (kept / "weights").read_text() == "2"


def test_trial_reads_the_teacher_of_its_job_and_names_one_that_is_gone(drive: Any, tmp_path: Path) -> None:
    drive("counts").save_at(2)
    place = {
        "storage": str(tmp_path / "storage"),
        "project": "default",
        "job": "job_1",
        "trial": "trial_00000",
    }
    named = {**place, "step": 2, "attempt": 1, "config": {"x": 7}}
    student = drive("learns")
    waiting = student.run_to(1, job="job_2", teacher=named)
    assert student.reports[0]["metrics"] == {"acc": 2.0, "x": 7}
    assert waiting["usage"]["restored_bytes"] > 0
    assert waiting["meter"]["restore"] > 0
    student.end("stop")
    student.supervisor._restorer._teacher = None
    student.begin(target_step=1, job="job_2", teacher={**named, "step": 3})
    error = student.until_state("failed")["error"]
    assert error["kind"] == "import"
    assert "the checkpoint of the job's teacher, trial_00000 of job_1, cannot be used" in error["message"]
