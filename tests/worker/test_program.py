"""Programs as trainables, under a real supervisor."""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import frameworks
from tests.data_server import data_server
from tests.worker.driving import NODE, SECOND, Driver
from tuner.checkpoints.artifacts import TrialArtifacts
from tuner.cluster.notices.node_board import NodeBoard
from tuner.cluster.notices.notice import Notice
from tuner.domain.command import PROGRAM_ENTRY
from tuner.domain.job import program_config
from tuner.domain.time import Instant
from tuner.training import dataset
from tuner.worker.self_test import SelfTestOrder, self_test

FILES = Path(str(frameworks.__file__)).parent
SCRIPT = f"{sys.executable} {FILES / 'with_argparse.py'} --lr {{lr}} --epochs {{steps}} --seed {{seed}}"
SHELL = f"bash {FILES / 'with_shell.sh'} {{rate}}"
PATTERN = r"epoch (?P<step>\d+): loss (?P<loss>\S+)"


def of(command: str, pattern: str | None = None, **values: Any) -> dict[str, Any]:
    return program_config(command, pattern, 9, values)


@pytest.fixture
def program(drive: Any) -> Driver:
    driver: Driver = drive("run", "tuner.worker.program")
    return driver


@pytest.fixture
def bash(tmp_path: Path) -> Any:
    """Write a script, and return the configuration that runs it. Its files are named relative to $HERE."""

    def written(script: str, pattern: str | None = None, words: str = "", **values: Any) -> dict[str, Any]:
        file = tmp_path / "script.sh"
        file.write_text(f"HERE={tmp_path}\n{script}\n")
        return of(f"bash {file} {words}", pattern, **values)

    return written


@pytest.fixture
def notice(node_board: NodeBoard) -> Iterator[Any]:
    """Post a notice of the machine's preemption."""
    yield lambda: node_board.announce(NODE, Notice("gone", Instant(time.time_ns() + 1000 * SECOND), "goes"))
    node_board.withdraw(NODE, "gone")


def values(driver: Driver, metric: str) -> list[Any]:
    return [report["metrics"][metric] for report in driver.reports]


def step_of(loss: str = "$i", seconds: float = 0.1, waits: bool = True) -> str:
    """Return the lines of a script that trains one step, saves its number, and reports.

    With `waits`, the script then waits until the worker has stopped and continued it. So it never begins to write its next
    checkpoint before the worker has read the report, however busy the machine is.
    """
    report = f"""echo '{{"loss": '{loss}'}}' >> $TUNER_METRICS"""
    lines = f"sleep {seconds}; echo $i > $TUNER_CHECKPOINT_DIR/step"
    if waits:
        report = f"continued=; trap continued=1 CONT; {report}; until [ $continued ]; do sleep 0.01; done"
    return f"{lines}; {report}"


def test_program_stores_artifacts_with_its_steps_and_names_one_that_is_refused(
    program: Driver, bash: Any
) -> None:
    # The sleep comes first, because the program is stopped only a moment after its line of metrics.
    script = "for i in 1 2; do sleep 0.3; NAME=table.csv; [ $i = 2 ] && NAME='a b'; {}; {}; done"
    figure = 'echo $i > "$TUNER_ARTIFACTS_DIR/$NAME"'
    program.begin(target_step=1, config=bash(script.format(figure, step_of(seconds=0))))
    program.until_state("waiting")
    program.order("continue", target_step=2, lease_ns=600 * SECOND)
    failed = program.until_state("failed")
    assert (
        "a file in TUNER_ARTIFACTS_DIR cannot be stored: 'a b' is not a valid name"
        in failed["error"]["message"]
    )
    stored = TrialArtifacts(str(program.storage), "default", "job_1", "trial_00000").list()
    assert {name: artifact.step for name, artifact in stored.items()} == {"table.csv": 1}


def counting(step: str) -> str:
    return f"for i in $(seq $((TUNER_STEP + 1)) 20); do echo $i >> $HERE/tried; {step}; done"


COUNTS = counting(step_of())


@pytest.mark.parametrize(
    ("config", "metric"),
    [(of(SCRIPT, lr=0.1), "val_loss"), (of(SHELL, PATTERN, rate=10), "loss")],
    ids=["argparse", "shell"],
)
def test_interrupted_program_equals_an_uninterrupted_one(
    drive: Any, config: dict[str, Any], metric: str
) -> None:
    whole = drive("run", "tuner.worker.program")
    whole.run_to(8, config=config)
    whole.end("finish")
    parts = drive("run", "tuner.worker.program", storage=f"{whole.storage}-parts")
    saved = parts.save_from(2, config=config)
    parts.run_to(8, config=config, restore=saved)
    parts.end("finish")
    assert [report["step"] for report in parts.reports] == [*range(1, 9)]
    assert values(parts, metric) == values(whole, metric)
    assert values(whole, metric)[7] < values(whole, metric)[0]


def test_program_does_not_run_while_its_report_waits_for_a_reply(
    program: Driver, bash: Any, tmp_path: Path
) -> None:
    program.run_to(2, config=bash(counting(step_of(waits=False))))
    time.sleep(0.3)
    assert (tmp_path / "tried").read_text().split()[-1] in ("2", "3")
    program.order("continue", target_step=3, lease_ns=600 * SECOND)
    program.until_state("waiting")
    assert values(program, "loss") == [1, 2, 3]


def test_program_with_a_notice_saves_the_step_in_progress(program: Driver, bash: Any, notice: Any) -> None:
    program.begin(target_step=9, config=bash(COUNTS.replace("sleep 0.1", "sleep 0.5")))
    program.reported(1)
    notice()
    ended = program.until_state("preempted")
    assert ended["saved_step"] == program.reports[-1]["step"] == 2


def test_restored_program_gets_its_files_and_its_step(program: Driver, bash: Any, tmp_path: Path) -> None:
    script = (
        f"echo $(cat $TUNER_CHECKPOINT_DIR/step) $TUNER_STEP $TUNER_STEPS $TUNER_SEED >> $HERE/seen; {COUNTS}"
    )
    program.save_at(3, config=bash(script), seed=7)
    program.run_to(4, config=bash(script), restore=3, seed=7)
    program.end("finish")
    assert (tmp_path / "seen").read_text() == "0 9 7\n3 3 9 7\n"
    assert values(program, "loss") == [1, 2, 3, 4]


def test_values_are_single_arguments_and_no_shell_reads_them(program: Driver, bash: Any) -> None:
    evil = "a b'; touch $HOME/x; $(true) \"*"
    script = """python3 - "$@" <<'E' >> $TUNER_METRICS
import json, os, sys
print(json.dumps({"words": json.dumps(sys.argv[1:]), "file": open(os.environ["TUNER_CONFIG"]).read()}))
E"""
    words = "--text={text} {rate} {on} --gone {gone} --also={gone} '{{x}}'"
    config = bash(script, words=words, text=evil, rate=1e-05, on=True, other=[1])
    program.begin(target_step=9, config=config)
    program.until_state("ended")
    metrics = program.reports[0]["metrics"]
    assert json.loads(metrics["words"]) == [f"--text={evil}", "1e-05", "true", "{x}"]
    assert json.loads(metrics["file"]) == {"text": evil, "rate": 1e-05, "on": True, "other": [1]}


def test_program_with_another_python_gets_no_packages_of_this_one(
    program: Driver, bash: Any, tmp_path: Path
) -> None:
    program.run_to(
        1, config=bash(f"echo $PYTHONPATH > $HERE/path; command -v python > $HERE/python; {COUNTS}")
    )
    program.end("finish")
    assert "python3" not in (tmp_path / "path").read_text()
    assert Path((tmp_path / "python").read_text().strip()).parent == Path(sys.executable).parent


def test_program_that_prints_all_the_time_reports_and_ends(program: Driver, bash: Any) -> None:
    program.save_at(2, config=bash(f"yes & {COUNTS}"))


def test_program_that_ends_by_itself_saves_its_last_step(program: Driver, bash: Any) -> None:
    program.begin(target_step=9, config=bash(f"for i in 1 2; do {step_of()}; done"))
    assert program.until_state("ended")["saved_step"] == 2


def test_program_without_checkpoints_begins_again(program: Driver, bash: Any) -> None:
    config = bash(COUNTS.replace("echo $i > $TUNER_CHECKPOINT_DIR/step", "true"))
    program.run_to(2, config=config)
    assert not program.reports[-1]["resumable"]
    assert program.end("pause")["saved_step"] is None


def test_steps_that_a_restored_program_trains_again_are_ignored(program: Driver, bash: Any) -> None:
    config = bash(f"for i in $(seq 9); do {step_of().replace('loss', 'step')}; done")
    program.save_at(2, config=config)
    program.run_to(4, config=config, restore=2)
    program.end("finish")
    assert [report["step"] for report in program.reports] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "echo 'no such file: x.csv' >&2; exit 3",
            "ended with exit status 3; it printed last: no such file: x.csv",
        ),
        ("cat x.csv", "x.csv: No such file or directory. A program runs in an empty directory"),
        ("kill -9 $$", "was ended by SIGKILL"),
        ("kill -40 $$", "was ended by signal 40"),
        (
            """for i in 1 2; do echo '{"loss": '$i'}' > $TUNER_METRICS; sleep 1; done""",
            "shortened its metrics file",
        ),
        ("i=1; " + step_of() + "; sleep 1; rm $TUNER_METRICS; sleep 1", "removed its metrics file"),
        (
            "i=1; " + step_of() + "; sleep 1; sed -i s/1/2/ $TUNER_METRICS; sleep 1",
            "removed its metrics file",  # sed writes a new file
        ),
        ("echo done", "without a metric: append lines of JSON"),
        ("echo 'loss 0.5' >> $TUNER_METRICS", "wrote 'loss 0.5' to its metrics; write one JSON object"),
        ("""echo '{"step": 0, "loss": 1}' >> $TUNER_METRICS""", "reported step 0 where step 1"),
        ("""echo '{"step": 500, "loss": 1}' >> $TUNER_METRICS""", "reported step 500 where step 1"),
        ("exec /no/such/program", "exit status 127"),
    ],
)
def test_failed_program_says_why(program: Driver, bash: Any, script: str, says: str) -> None:
    program.begin(target_step=9, config=bash(script))
    error = program.until_state("failed")["error"]
    assert says in error["message"]
    assert "Traceback" not in error["traceback"]


def test_program_that_runs_out_of_memory_fails_for_that_reason(program: Driver, bash: Any) -> None:
    fills = "python3 -c 'kept = []\nwhile True: kept.append(bytearray(1 << 24))'"
    program.begin(target_step=9, config=bash(f"i=1; {step_of()}; {fills}"), memory_limit_bytes=500 << 20)
    error = program.until_state("failed")["error"]
    assert error["kind"] == "memory", error


def test_output_that_matches_nothing_fails_and_shows_the_pattern(program: Driver, bash: Any) -> None:
    program.begin(target_step=9, config=bash("echo loss=0.5", r"val_loss=(?P<val_loss>\S+)"))
    message = program.until_state("failed")["error"]["message"]
    assert r"no line of its output matches val_loss=(?P<val_loss>\S+)" in message
    assert "loss=0.5" in message


def test_missing_program_fails_with_its_name(program: Driver) -> None:
    program.begin(target_step=9, config=of("/no/such/program"))
    assert "/no/such/program cannot be started" in program.until_state("failed")["error"]["message"]


@pytest.mark.parametrize("how", ["pause", "stop"])
def test_program_that_ignores_sigterm_is_killed_with_everything_that_it_left_behind(
    program: Driver, bash: Any, tmp_path: Path, how: str
) -> None:
    daemon = "(trap '' TERM; setsid bash -c 'echo $$ > $0/daemon; trap \"\" TERM; while :; do sleep 0.1; done' $HERE &)"
    program.run_to(2, config=bash(f"trap '' TERM; echo $$ > $HERE/main; {daemon}; {COUNTS}"))
    pids = [int((tmp_path / name).read_text()) for name in ("main", "daemon")]
    assert all(map(psutil.pid_exists, pids))
    ended = program.end(how)
    assert not any(map(psutil.pid_exists, pids))
    assert ended["saved_step"] == (2 if how == "pause" else None)


@pytest.mark.parametrize("how", ["lease ends", "child is killed"])
def test_program_ends_with_its_attempt(program: Driver, bash: Any, tmp_path: Path, how: str) -> None:
    script = f"echo $$ > $HERE/main; echo $PPID > $HERE/child; i=1; {step_of()}; sleep 1000 & wait"
    program.begin(target_step=9, config=bash(script))
    program.reported(1)
    main, child = (int((tmp_path / name).read_text()) for name in ("main", "child"))
    if how == "child is killed":
        os.kill(child, signal.SIGKILL)
    else:
        program.lease_ends_in(0.5)
    program.until_state("paused" if how == "lease ends" else "failed")
    assert not psutil.pid_exists(main)


def test_processes_that_an_ended_program_left_behind_are_killed(
    program: Driver, bash: Any, tmp_path: Path
) -> None:
    program.begin(target_step=9, config=bash(f"(setsid sleep 1000 & echo $! > $HERE/left); i=1; {step_of()}"))
    program.until_state("ended")
    assert not psutil.pid_exists(int((tmp_path / "left").read_text()))


def test_checkpoint_that_is_newer_than_its_report_is_not_saved(program: Driver, bash: Any) -> None:
    config = bash(f"touch -d '+1 hour' $TUNER_CHECKPOINT_DIR/next; {COUNTS}")
    program.run_to(2, config=config)
    assert program.end("pause")["saved_step"] is None


@pytest.mark.parametrize("pattern", [None, PATTERN])
def test_checkpoint_that_is_open_for_writing_is_not_saved(
    program: Driver, bash: Any, pattern: str | None
) -> None:
    report = """echo '{"loss": 1}' >> $TUNER_METRICS; echo "epoch $i: loss 1" """
    step = f"exec 3> $TUNER_CHECKPOINT_DIR/step; echo half >&3; sleep 0.1; {report}; sleep 0.3; echo rest >&3; exec 3>&-"
    program.run_to(2, config=bash(f"for i in $(seq 9); do {step}; done", pattern))
    assert [report["resumable"] for report in program.reports] == [False, False]
    assert program.end("pause")["saved_step"] is None


def test_orphans_that_have_ended_are_collected(program: Driver, bash: Any, tmp_path: Path) -> None:
    orphan = "(sleep 0.01 & echo $! > $HERE/orphan); O=/proc/$(cat $HERE/orphan); echo $PPID > $HERE/child"
    until_ended = "while [ -d $O ] && ! grep -q '^State:.Z' $O/status; do sleep 0.01; done"
    program.run_to(1, config=bash(f"{orphan}; {until_ended}; {COUNTS}"))
    children = psutil.Process(int((tmp_path / "child").read_text())).children()
    assert len(children) == 1, [child.status() for child in children]


def test_many_fast_steps_are_all_reported(program: Driver, bash: Any) -> None:
    program.begin(
        target_step=9, config=bash(f"for i in $(seq 9); do {step_of(seconds=0, waits=False)}; done")
    )
    program.until_state("ended", "waiting")
    assert values(program, "loss") == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_restore_self_test_passes_a_program_with_checkpoints_only(bash: Any) -> None:
    def verdict(config: dict[str, Any]) -> Any:
        order = SelfTestOrder(
            entry=PROGRAM_ENTRY, configs=[config], max_step=9, limit_s=60, resources={"CPU": 1}
        )
        return self_test(order)

    assert verdict(of(SCRIPT, lr=0.1)).passed
    without = verdict(bash(COUNTS.replace("echo $i > $TUNER_CHECKPOINT_DIR/step", "true")))
    assert not without.passed
    assert "reported no checkpoint" in without.reason


def test_each_rank_runs_the_program_with_the_same_checkpoint(program: Driver, bash: Any) -> None:
    """Each rank leaves a file in the checkpoint. Rank 0 counts them when all have come, as after a barrier, and reports."""
    config = bash(
        """
        cd $TUNER_CHECKPOINT_DIR
        for step in $(seq $((TUNER_STEP + 1)) 9); do
            touch $step-$RANK
            while [ $(ls $step-* | wc -l) -lt $WORLD_SIZE ]; do sleep 0.01; done
            sleep 0.02
            [ $RANK = 1 ] || echo "{\\"files\\": $(ls [0-9]* | wc -l), \\"local\\": $LOCAL_RANK, \\"world\\": $WORLD_SIZE}" >> $TUNER_METRICS
            while [ $RANK = 1 -a ! -e ../go-$step ]; do sleep 0.01; done
            sleep 0.05
            touch ../go-$step
        done
        """
    )
    two: dict[str, Any] = {"processes": 2, "config": config, "resources": {"CPU": 2}}
    program.save_at(2, **two)
    program.run_to(3, restore=2, **two)
    program.end("stop")
    assert values(program, "files") == [2, 4, 6]
    assert values(program, "world") == [2, 2, 2]


def test_program_that_fails_on_another_rank_fails_the_attempt(program: Driver, bash: Any) -> None:
    config = bash("[ $RANK = 0 ] && sleep 600; echo no luck; exit 3")
    program.begin(target_step=9, config=config, processes=2, resources={"CPU": 2})
    failed = program.until_state("failed")
    assert (
        "rank 1: the program ended with exit status 3; it printed last: no luck" in failed["error"]["message"]
    )


def test_program_waits_for_a_dataset_that_another_one_downloads(
    drive: Any, bash: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is billed as setup, and reported to the driver, which would otherwise take it for a program that hangs."""
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    script = bash("""echo '{"text": "'"$(cat $DATA)"'"}' >> $TUNER_METRICS""")
    with data_server() as server:
        server.content, server.trickles = b"the data" + b"\n" * 2000, True
        server.may_end.clear()
        other = multiprocessing.get_context("fork").Process(target=dataset, args=(server.url(),))
        other.start()
        assert server.half_sent.wait(60)
        command = f"python -m tuner.training.datasets DATA={{data}} {script['command']}"
        driver = drive("run", "tuner.worker.program", fresh=True)
        driver.begin(target_step=1, config=of(command, data=server.url()))
        driver.until(lambda result: result["outage_ns"] > SECOND)
        server.may_end.set()
        driver.until_state("waiting")
        ended = driver.end("stop")
        other.join()
    assert values(driver, "text") == ["the data"]
    assert ended["usage"]["data_read_bytes"] == 0
    assert ended["meter"]["setup"] - ended["warming_ns"] >= ended["outage_ns"]
    assert ended["meter"]["train"] > 0
