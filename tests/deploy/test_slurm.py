"""Run the Slurm job script with stand-ins for Slurm, Ray and the service: what it starts, and in which order it stops."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import ROOT
from tests.deploy.stand_ins import Answers, Scratch

SCRIPT = ROOT / "deploy/slurm/tuner.sbatch"
NODES = ("list nodes", 0, json.dumps([{"is_head_node": True}, {"is_head_node": False}], indent=2))


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 240  # only a limit for hangs
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Allocation:
    """An allocation of one node with four CPUs and no GPU."""

    def __init__(
        self,
        folder: Path,
        tuner: Answers = (),
        blocks: tuple[str, ...] = ("serve",),
        nodes: Answers = (NODES,),
    ) -> None:
        self.scratch = Scratch(folder)
        self.scratch.home.mkdir()
        joined = (("health-check", "ray start --head"), ("list nodes", "ray start --block"))
        self.scratch.stand_in("ray", nodes, blocks=("start",), waits=joined)
        self.scratch.stand_in("tuner", tuner, blocks=blocks, waits=(("submit", "python -m"),))
        self.scratch.stand_in("python", blocks=("tuner.cluster.notice_watch",))
        # On Debian, a machine's own name has a loopback address.
        own, interfaces = ("--ip-address", 0, "127.0.1.1\n"), ("--all-ip-addresses", 0, "fd00::2 10.1.2.3 \n")
        self.scratch.stand_in("hostname", (own, interfaces))
        # `sleep 60` lasts until the watcher has ended, which takes a moment of that minute.
        self.scratch.stand_in("sleep", waits=(("60", "ended python"),))
        self.sruns = folder / "sruns"  # the number of CPUs and the arguments of each call of srun
        srun = folder / "bin/srun"
        srun.write_text(
            f'#!/bin/sh\necho "$SRUN_CPUS_PER_TASK $*" >>{self.sruns}\n'
            'while case $1 in --*) true ;; *) false ;; esac; do shift; done\nexec "$@"\n'
        )
        srun.chmod(0o755)

    def start(self, **env: str) -> None:
        # The script puts this first on its PATH, before this machine's programs.
        (self.scratch.folder / "venv").mkdir()
        (self.scratch.folder / "venv/bin").symlink_to(self.scratch.folder / "bin")
        given = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "4"}
        self.process = subprocess.Popen(
            ["bash", SCRIPT],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.scratch.home),
                "VENV": str(self.scratch.folder / "venv"),
                **given,
                **env,
            },
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def take_calls(self) -> list[str]:
        calls = self.scratch.calls
        return (
            [" ".join(json.loads(line)[0]) for line in calls.read_text().splitlines()]
            if calls.exists()
            else []
        )

    def heeds_sigterm(self) -> bool:
        """Return whether the script has installed its handler of SIGTERM."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def is_empty(self) -> bool:
        """Return whether no process that the script started is left."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def end(self) -> None:
        if not self.is_empty():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def allocation(tmp_path: Path) -> Iterator[Allocation]:
    slurm_allocation = Allocation(tmp_path, (("submit", 3, ""),))
    yield slurm_allocation
    slurm_allocation.end()


def test_script_runs_the_job_and_exits_with_its_status(allocation: Allocation) -> None:
    allocation.start(JOB="deploy/digits.yaml", USD_PER_HOUR="0.40", MARKET="spot")
    assert allocation.process.wait(240) == 3
    until(allocation.is_empty)
    calls = allocation.take_calls()
    (head,) = [call for call in calls if call.startswith("ray start --head")]
    (worker,) = [call for call in calls if call.startswith("ray start --block --address=")]
    (watcher,) = [call for call in calls if call.startswith("python -m")]
    assert "--num-cpus=0" in head
    assert "--num-cpus=4 --num-gpus=0" in worker
    assert worker.endswith("--labels=ray.io/market-type=spot,instance-type=slurm,usd-per-hour=0.40")
    address = worker.split("--address=")[1].split()[0]
    assert address == "10.1.2.3:6379"
    assert f"--address={address}" in watcher
    worker_srun, watcher_srun = sorted(allocation.sruns.read_text().splitlines())
    assert worker_srun.startswith("4 --kill-on-bad-exit=0 ray start")
    assert watcher_srun.startswith("4 --overlap --cpus-per-task=1 --kill-on-bad-exit=0 python")
    assert calls.index("tuner submit --wait deploy/digits.yaml") > max(map(calls.index, (head, worker)))
    assert calls.index("ended ray start --block") < calls.index("ended ray start --head")
    token = allocation.scratch.home / ".tuner/slurm_token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text()


def test_watcher_ends_before_service_and_worker_and_head_ends_last(allocation: Allocation) -> None:
    allocation.start()
    for beginning in ("tuner serve", "python -m", "ray start --block"):
        until(lambda start=beginning: any(call.startswith(start) for call in allocation.take_calls()))
    until(allocation.heeds_sigterm)
    allocation.process.send_signal(signal.SIGTERM)
    assert allocation.process.wait(240) == 0
    until(allocation.is_empty)
    *_, first, pause, second, third, last = allocation.take_calls()
    assert first == "ended python -m tuner.cluster.notice_watch" or pause.startswith("ended python")
    assert "sleep 60" in (first, pause)
    assert {second, third} == {"ended tuner serve", "ended ray start --block"}
    assert last == "ended ray start --head"


def test_unfinished_job_is_notified_at_the_end_of_the_time_and_fails_the_allocation(
    tmp_path: Path,
) -> None:
    allocation = Allocation(tmp_path, blocks=("serve", "submit"))
    try:
        allocation.start(JOB="deploy/digits.yaml")
        for beginning in ("tuner serve", "python -m", "ray start --block", "tuner submit"):
            until(lambda start=beginning: any(call.startswith(start) for call in allocation.take_calls()))
        allocation.process.send_signal(signal.SIGTERM)
        assert allocation.process.wait(240) == 1
        calls = allocation.take_calls()
    finally:
        allocation.end()
    notice = calls.index("ended python -m tuner.cluster.notice_watch")
    assert "sleep 60" in calls
    assert notice < calls.index("ended tuner serve") < calls.index("ended ray start --head")


def test_job_is_not_awaited_indefinitely_if_a_node_does_not_join(tmp_path: Path) -> None:
    only_head = ("list nodes", 0, json.dumps([{"is_head_node": True}], indent=2))
    allocation = Allocation(tmp_path, nodes=(only_head,))
    try:
        allocation.start(JOB="deploy/digits.yaml", JOIN_SECONDS="0")
        assert allocation.process.wait(240) == 1
        until(allocation.is_empty)
        calls = allocation.take_calls()
    finally:
        allocation.end()
    assert not [call for call in calls if call.startswith("tuner submit")]
    assert "ended ray start --head" in calls
