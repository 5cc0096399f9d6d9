"""Trainables that attack the service from inside a trial.

`train(config)` runs the attack that `config["attack"]` names. Each attack uses only what user code has: its channel to the
supervisor, its files, and signals to processes of the same user. None takes more than the machine can spare, and each ends by
itself after a minute if nothing stops it.
"""

import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.training import SpotSafe, channel

ENDS_S = 60.0
ATTACKS: dict[str, Callable[[], None]] = {}


def train(config: dict[str, Any]) -> None:
    """Run one attack. `well` behaves, and reports as `score` its step."""
    if config["attack"] == "well":
        behave()
    else:
        ATTACKS[config["attack"]]()


def ticks(config: dict[str, Any]) -> None:
    """Report the time of day five times a second, as a job next to an attack does."""
    with SpotSafe() as run:
        for step in run.steps():
            time.sleep(0.2)
            run.report(score=float(step), at=time.time())


def behave() -> None:
    with SpotSafe() as run:
        for step in run.steps():
            run.report(score=float(step))
            if step == 2:
                break


def attack(run: Callable[[], None]) -> Callable[[], None]:
    ATTACKS[run.__name__] = run
    return run


# What the attacks are made of


def own() -> channel.Channel:
    found = channel.current()
    assert found is not None
    return found


def fd() -> int:
    return own()._connection.fileno()


def raw(data: bytes) -> None:
    """Send one frame without reading any reply."""
    own()._connection.send_bytes(data)


def say(**message: Any) -> None:
    raw(json.dumps({"t": time.monotonic_ns(), **message}).encode())


def report(step: Any = 1, **changed: Any) -> None:
    """Send a report and do not read the reply."""
    say(**{"type": "report", "step": step, "metrics": {"score": 1.0}, "resumable": False, **changed})


def reply() -> Any:
    return json.loads(own()._connection.recv_bytes())


def compute(seconds: float = ENDS_S) -> None:
    """Keep a processor busy, in small parts so that signals arrive."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(10_000))


def idle(seconds: float = ENDS_S) -> None:
    time.sleep(seconds)


def staging() -> Path:
    return Path(own().begin.staging)


def reported_once() -> None:
    report(1)
    reply()


def supervisor_pid() -> int:
    """Return the worker's pid: the parent of the fork server, which is this process's parent."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


# The order and number of reports


@attack
def jams_the_channel() -> None:
    step = 0
    while True:
        step += 1
        report(step)


@attack
def leaves_a_reply_unread() -> None:
    report(1)
    compute()


@attack
def floods_with_reports() -> None:
    for _ in range(30_000):
        report(1)
    compute()


def _report_a_thousand_times() -> None:
    for _ in range(1000):
        report(1)


@attack
def floods_with_reports_from_threads() -> None:
    threads = [threading.Thread(target=_report_a_thousand_times) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compute()


@attack
def reports_beyond_the_last_step() -> None:
    report((own().begin.max_step or 0) + 1)
    compute()


@attack
def skips_steps() -> None:
    report(3)
    compute()


@attack
def reports_a_step_twice() -> None:
    reported_once()
    report(1)
    compute()


@attack
def reports_a_huge_step() -> None:
    report(10**20)
    compute()


@attack
def reports_a_step_of_a_thousand_digits() -> None:
    report(10**1000)
    compute()


@attack
def reports_a_negative_step() -> None:
    report(-1)
    compute()


@attack
def reports_a_step_that_is_text() -> None:
    report("1")
    compute()


@attack
def reports_a_step_that_is_true() -> None:
    report(True)
    compute()


# The content of messages


@attack
def invents_a_phase() -> None:
    say(type="phase", kind="nothing")
    compute()


@attack
def says_that_it_is_idle() -> None:
    say(type="phase", kind="idle")
    compute()


@attack
def sends_a_phase_that_is_a_list() -> None:
    say(type="phase", kind=["train"])
    compute()


@attack
def floods_with_phases() -> None:
    while True:
        own().phase("train")


@attack
def invents_a_message() -> None:
    say(type="promote")
    compute()


@attack
def replays_a_reply() -> None:
    raw(channel.reply_message(stop=False, save=False))
    compute()


@attack
def sends_no_type() -> None:
    say(kind="train")
    compute()


@attack
def sends_no_json() -> None:
    raw(b"\xff\xfe{")
    compute()


@attack
def sends_a_list() -> None:
    raw(b"[1, 2]")
    compute()


@attack
def sends_deeply_nested_json() -> None:
    raw(b"[" * 400_000 + b"]" * 400_000)
    compute()


@attack
def reports_a_bare_nan() -> None:
    raw(b'{"type": "report", "t": 1, "step": 1, "resumable": false, "metrics": {"score": NaN}}')
    compute()


@attack
def reports_nested_metrics() -> None:
    report(1, metrics={"score": {"score": 1}})
    compute()


@attack
def reports_a_list_of_metrics() -> None:
    report(1, metrics=[1])
    compute()


@attack
def fails_with_an_invented_kind() -> None:
    """A failure of the storage would not count as one of the trial."""
    say(type="failed", kind="storage", error="", message="", traceback="")
    compute()


@attack
def fails_with_too_much_text() -> None:
    say(type="failed", kind="raised", error="E", message="m" * 900_000, traceback="")
    compute()


@attack
def says_that_it_ended_and_goes_on() -> None:
    reported_once()
    say(type="ended")
    compute()


# Frames


@attack
def sends_an_empty_frame() -> None:
    raw(b"")
    compute()


@attack
def sends_part_of_a_frame() -> None:
    os.write(fd(), struct.pack("!i", 1000) + b"{")
    compute()


@attack
def announces_a_gigabyte() -> None:
    os.write(fd(), struct.pack("!i", 1 << 30) + b"{" * 1000)
    compute()


@attack
def announces_a_negative_length() -> None:
    os.write(fd(), struct.pack("!i", -7) + b"{" * 1000)
    compute()


@attack
def announces_an_exabyte() -> None:
    os.write(fd(), struct.pack("!iQ", -1, 1 << 60) + b"{" * 1000)
    compute()


@attack
def sends_descriptors() -> None:
    with socket.socket(fileno=os.dup(fd())) as end:
        for _ in range(100):
            socket.send_fds(end, [struct.pack("!i", 2) + b"[]"], [0, 1, 2])
    compute()


@attack
def closes_the_channel() -> None:
    own()._connection.close()
    compute()


@attack
def closes_half_of_the_channel() -> None:
    with socket.socket(fileno=os.dup(fd())) as end:
        end.shutdown(socket.SHUT_WR)
    compute()


@attack
def leaves_the_channel_to_a_daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            compute()
        os._exit(0)
    os._exit(0)


# Clocks


@attack
def runs_its_clock_ahead() -> None:
    say(type="phase", kind="train", t=time.monotonic_ns() + 10**15)
    report(1, t=time.monotonic_ns() + 10**15)
    reply()
    compute(1.0)


@attack
def stops_its_clock() -> None:
    say(type="phase", kind="train", t=0)
    report(1, t=0)
    reply()
    compute(1.0)


@attack
def sends_a_clock_that_is_text() -> None:
    report(1, t="now")
    compute()


# Checkpoints


@attack
def announces_many_checkpoints() -> None:
    reported_once()
    for _ in range(10_000):
        say(type="saved", step=1, path=str(staging()), seconds=0)
    compute()


@attack
def announces_a_checkpoint_of_no_step() -> None:
    say(type="saved", step=7, path=str(staging()), seconds=0)
    compute()


@attack
def announces_a_checkpoint_elsewhere() -> None:
    """It is left out, and the trial goes on."""
    reported_once()
    say(type="saved", step=1, path="/etc", seconds=0)


@attack
def announces_a_checkpoint_of_pipes() -> None:
    """Whoever opens such a file to copy it waits for ever."""
    reported_once()
    folder = staging() / "step_00000001"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "state.pt")
    say(type="saved", step=1, path=str(folder), seconds=0)
    idle(0.5)


@attack
def saves_files_with_hostile_names() -> None:
    reported_once()
    folder = staging() / "step_00000001"
    folder.mkdir(parents=True)
    for name in ("new\nline", "-rf", "a" * 250, "\udcff", "MANIFEST.json", "tab\t", " "):
        (folder / name).write_bytes(b"x")
    say(type="saved", step=1, path=str(folder), seconds=0)
    idle(0.5)


@attack
def deletes_the_staging_folder() -> None:
    shutil.rmtree(staging())
    behave()


@attack
def deletes_the_workers_folder() -> None:
    shutil.rmtree(staging().parent.parent, ignore_errors=True)
    behave()


@attack
def saves_on_a_full_disk() -> None:
    """Files may not grow, as on a disk without room."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
    behave()


# Processes and signals


@attack
def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@attack
def stops_the_fork_server() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    compute()


@attack
def stops_the_fork_server_and_leaves() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(0)


@attack
def kills_the_fork_server() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    compute()


@attack
def blocks_all_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    compute()


@attack
def survives_its_parent() -> None:
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG: no signal when the parent dies
    os.kill(os.getppid(), signal.SIGKILL)
    compute()


@attack
def leaves_an_orphan_without_a_fork_server() -> None:
    """Nobody but the worker can find the orphan."""
    server = os.getppid()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.kill(server, signal.SIGKILL)
            compute()
        os._exit(0)
    compute()


@attack
def leaves_the_process_group() -> None:
    if os.fork() == 0:
        os.setsid()
        compute()
    compute()


@attack
def leaves_daemons() -> None:
    for _ in range(5):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                compute()
            os._exit(0)
    behave()


@attack
def leaves_threads() -> None:
    for _ in range(20):
        threading.Thread(target=idle).start()
    behave()


@attack
def closes_standard_streams() -> None:
    for number in (0, 1, 2):
        os.close(number)
    behave()


@attack
def prints_without_end() -> None:
    while True:
        os.write(1, b"x" * 65_536)


@attack
def swallows_the_stop() -> None:
    while True:
        try:
            behave()
        except BaseException:
            continue


@attack
def exits_with_a_huge_status() -> None:
    sys.exit(10**30)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@attack
def raises_an_unprintable_error() -> None:
    raise _Unprintable


@attack
def raises_an_error_with_surrogates() -> None:
    raise RuntimeError("\udcff\0" * 10)


# Attacks on the worker itself, which only a real driver survives


@attack
def stops_its_supervisor() -> None:
    os.kill(supervisor_pid(), signal.SIGSTOP)
    compute()


@attack
def kills_its_supervisor() -> None:
    os.kill(supervisor_pid(), signal.SIGKILL)
    compute()


@attack
def stops_everything_above() -> None:
    supervisor = supervisor_pid()
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(supervisor, signal.SIGSTOP)
    compute()


ON_THE_WORKER = ("stops_its_supervisor", "kills_its_supervisor", "stops_everything_above")
