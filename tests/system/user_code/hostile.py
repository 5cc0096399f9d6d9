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
from functools import partial
from pathlib import Path
from typing import Any

from tuner.training import channel

ENDS_S = 60.0
ATTACKS: dict[str, Callable[[], None]] = {}


def train(config: dict[str, Any]) -> None:
    """Run one attack. `well` behaves correctly and reports its step as `score`."""
    if config["attack"] == "well":
        behave()
    else:
        ATTACKS[config["attack"]]()


def ticks(config: dict[str, Any]) -> None:
    """Report the time of day five times a second, as a job next to an attack does."""
    from tuner.training import SpotSafe  # imports PyTorch, which no attack needs

    with SpotSafe() as run:
        for step in run.steps():
            time.sleep(0.2)
            run.report(score=float(step), at=time.time())


def behave() -> None:
    from tuner.training import SpotSafe

    with SpotSafe() as run:
        for step in run.steps():
            run.report(score=float(step))
            if step == 2:
                break


def attack(run: Callable[[], None]) -> Callable[[], None]:
    ATTACKS[run.__name__] = run
    return run


# Helpers for the attacks


def own() -> channel.Channel:
    current = channel.current()
    assert current is not None
    return current


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


def compute(seconds: float) -> None:
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


# Attacks that send one message and then wait

SENT: dict[str, Callable[[], object]] = {
    "leaves_a_reply_unread": lambda: report(1),
    "reports_beyond_the_last_step": lambda: report((own().begin.max_step or 0) + 1),
    "skips_steps": lambda: report(3),
    "reports_a_huge_step": lambda: report(10**20),
    "reports_a_step_of_a_thousand_digits": lambda: report(10**1000),
    "reports_a_negative_step": lambda: report(-1),
    "reports_a_step_that_is_text": lambda: report("1"),
    "reports_a_step_that_is_true": lambda: report(True),
    "invents_a_phase": lambda: say(type="phase", kind="nothing"),
    "says_that_it_is_idle": lambda: say(type="phase", kind="idle"),
    "sends_a_phase_that_is_a_list": lambda: say(type="phase", kind=["train"]),
    "invents_a_message": lambda: say(type="promote"),
    "replays_a_reply": lambda: raw(channel.reply_message(stop=False, save=False)),
    "sends_no_type": lambda: say(kind="train"),
    "sends_no_json": lambda: raw(b"\xff\xfe{"),
    "sends_a_list": lambda: raw(b"[1, 2]"),
    "sends_deeply_nested_json": lambda: raw(b"[" * 400_000 + b"]" * 400_000),
    "reports_a_bare_nan": lambda: raw(
        b'{"type": "report", "t": 1, "step": 1, "resumable": false, "metrics": {"score": NaN}}'
    ),
    "reports_nested_metrics": lambda: report(1, metrics={"score": {"score": 1}}),
    "reports_a_list_of_metrics": lambda: report(1, metrics=[1]),
    # A failure of the storage would not count as one of the trial.
    "fails_with_an_invented_kind": lambda: say(
        type="failed", kind="storage", error="", message="", traceback=""
    ),
    "fails_with_too_much_text": lambda: say(
        type="failed", kind="raised", error="E", message="m" * 900_000, traceback=""
    ),
    "sends_an_empty_frame": lambda: raw(b""),
    "sends_part_of_a_frame": lambda: os.write(fd(), struct.pack("!i", 1000) + b"{"),
    "announces_a_gigabyte": lambda: os.write(fd(), struct.pack("!i", 1 << 30) + b"{" * 1000),
    "announces_a_negative_length": lambda: os.write(fd(), struct.pack("!i", -7) + b"{" * 1000),
    "announces_an_exabyte": lambda: os.write(fd(), struct.pack("!iQ", -1, 1 << 60) + b"{" * 1000),
    "sends_a_clock_that_is_text": lambda: report(1, t="now"),
    "announces_a_checkpoint_of_no_step": lambda: say(type="saved", step=7, path=str(staging())),
}


def _send_and_wait(name: str) -> None:
    SENT[name]()
    idle()


ATTACKS.update({name: partial(_send_and_wait, name) for name in SENT})


# The order and number of reports


@attack
def jams_the_channel() -> None:
    step = 0
    while True:
        step += 1
        report(step)


@attack
def floods_with_reports() -> None:
    for _ in range(30_000):
        report(1)
    idle()


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
    idle()


@attack
def reports_a_step_twice() -> None:
    reported_once()
    report(1)
    idle()


@attack
def fills_the_database() -> None:
    step = 0
    while True:
        step += 1
        report(step, metrics={"score": 1.0, "text": "x" * 60_000})
        reply()


# The content of messages


@attack
def floods_with_phases() -> None:
    while True:
        own().phase("train")


@attack
def says_that_it_ended_and_goes_on() -> None:
    reported_once()
    say(type="ended")
    idle()


# Frames


@attack
def dies_in_the_middle_of_a_message() -> None:
    os.write(fd(), struct.pack("!i", 1000) + b"{")
    os.kill(os.getpid(), signal.SIGKILL)


@attack
def sends_descriptors() -> None:
    with socket.socket(fileno=os.dup(fd())) as end:
        for _ in range(100):
            socket.send_fds(end, [struct.pack("!i", 2) + b"[]"], [0, 1, 2])
    idle()


@attack
def closes_the_channel() -> None:
    own()._connection.close()
    idle()


@attack
def closes_half_of_the_channel() -> None:
    with socket.socket(fileno=os.dup(fd())) as end:
        end.shutdown(socket.SHUT_WR)
    idle()


@attack
def leaves_the_channel_to_a_daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            idle()
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


# Checkpoints


@attack
def announces_many_checkpoints() -> None:
    reported_once()
    for _ in range(10_000):
        say(type="saved", step=1, path=str(staging()))
    idle()


@attack
def announces_a_checkpoint_elsewhere() -> None:
    """Announce a checkpoint outside the staging folder. The trial fails, because its last checkpoint cannot be stored."""
    reported_once()
    say(type="saved", step=1, path="/etc")


@attack
def announces_a_checkpoint_of_pipes() -> None:
    """Announce a checkpoint that contains a named pipe. Opening the pipe to copy it would block indefinitely."""
    reported_once()
    folder = staging() / "step_00000001"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "state.pt")
    say(type="saved", step=1, path=str(folder))
    idle(0.5)


@attack
def saves_files_with_hostile_names() -> None:
    reported_once()
    folder = staging() / "step_00000001"
    folder.mkdir(parents=True)
    for name in ("new\nline", "-rf", "a" * 250, "\udcff", "MANIFEST.json", "tab\t", " "):
        (folder / name).write_bytes(b"x")
    say(type="saved", step=1, path=str(folder))
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
    """Limit the size of files, as if the disk were full."""
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
    idle()


@attack
def stops_the_fork_server_and_leaves() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(0)


@attack
def kills_the_fork_server() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    idle()


@attack
def blocks_all_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    compute(ENDS_S)


@attack
def survives_its_parent() -> None:
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG: no signal when the parent dies
    os.kill(os.getppid(), signal.SIGKILL)
    idle()


@attack
def leaves_an_orphan_without_a_fork_server() -> None:
    """Kill the fork server and leave an orphan that only the worker can find."""
    server = os.getppid()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.kill(server, signal.SIGKILL)
            idle()
        os._exit(0)
    idle()


@attack
def leaves_the_process_group() -> None:
    if os.fork() == 0:
        os.setsid()
        idle()
    idle()


@attack
def leaves_daemons() -> None:
    for _ in range(5):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                idle()
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
def restarts_its_training_loop() -> None:
    while True:
        behave()


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
    idle()


@attack
def kills_its_supervisor() -> None:
    os.kill(supervisor_pid(), signal.SIGKILL)
    idle()


@attack
def stops_everything_above() -> None:
    supervisor = supervisor_pid()
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(supervisor, signal.SIGSTOP)
    idle()


ON_THE_WORKER = ("stops_its_supervisor", "kills_its_supervisor", "stops_everything_above")
