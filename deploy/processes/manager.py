"""Starts every part when what it waits for is healthy, starts again what ends by itself, and ends all of it.

waiting ──▶ starting ──▶ healthy ──▶ away (`kill`) ──▶ waiting …
                └──────▶ done, of a part that ends
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.processes.folder import Folder
from deploy.processes.parts import Part
from tuner.cluster.launch import tail
from tuner.cluster.processes import MARK

TURN_S = 0.1
ASK_EVERY_S = 0.5
RESTART_AFTER_S = 1.0
TRIES = 3
# A node of Ray that finds one of its ports taken runs on without what was to listen there.
ANEW_AFTER_S = 100.0
# For hangs; on two idle cores all is up within half a minute.
UP_WITHIN_S = 400.0
END_WITHIN_S = 10.0
State = Literal["waiting", "starting", "healthy", "done", "away"]
_SATISFIED: dict[str, tuple[State, ...]] = {
    "service_healthy": ("healthy", "away"),
    "service_completed_successfully": ("done",),
    "service_started": ("starting", "healthy", "done", "away"),
}


class Failed(Exception):
    """A part does not come up. All that was started is ended again."""


@dataclass(slots=True)
class Running:
    """How a part is doing. Times are the monotonic clock's, seconds."""

    part: Part
    state: State = "waiting"
    process: "subprocess.Popen[bytes] | None" = None
    began: float = 0.0
    took_s: float = 0.0
    asked: float = 0.0
    due: float = 0.0
    failures: int = 0


class Keeper:
    """One thread; `stop()` may be called from a signal's handler."""

    def __init__(self, parts: Sequence[Part], folder: Folder, cwd: Path, say: Callable[[str], None]) -> None:
        self._folder, self._cwd, self._say = folder, cwd, say
        self._all = {part.name: Running(part) for part in parts}
        # No event of `threading`: a handler that comes while its lock is taken would wait for itself.
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def start_all(self) -> float | None:
        """Answers after how many seconds all were up; None where it was stopped before. Raises Failed."""
        began = time.monotonic()
        while not all(one.state in ("healthy", "done", "away") for one in self._all.values()):
            time.sleep(TURN_S)
            if self._stopped:
                return None
            self.turn(is_first=True)
            if time.monotonic() - began > UP_WITHIN_S:
                late = next(one for one in self._all.values() if one.state in ("waiting", "starting"))
                raise self._failed(late, f"is not up within {UP_WITHIN_S:.0f} s")
        return time.monotonic() - began

    def keep(self) -> None:
        """Until it is stopped."""
        while not self._stopped:
            self.turn()
            time.sleep(TURN_S)

    def end(self) -> None:
        """In good order, what was started last first; what does not go in time is killed when the folder is cleared."""
        for one in reversed(self._all.values()):
            if one.process is not None and one.process.poll() is None:
                # PostgreSQL waits for its clients to go, unless it is told not to.
                is_database = one.part.service == "database"
                one.process.send_signal(signal.SIGINT if is_database else signal.SIGTERM)
        deadline = time.monotonic() + END_WITHIN_S
        for one in self._all.values():
            if one.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0.0, deadline - time.monotonic()))
                self._folder.kill(one.part.name)
                one.process.wait()

    def turn(self, *, is_first: bool = False) -> None:
        """Looks after each part once; `is_first`: until all were up, what ends again and again raises Failed."""
        before = [one.state for one in self._all.values()]
        for one in self._all.values():
            self._look_after(one, is_first)
        if before != [one.state for one in self._all.values()] or is_first:
            self._write()

    def _look_after(self, one: Running, is_first: bool) -> None:
        now = time.monotonic()
        if one.state != "away" and self._folder.is_away(one.part.name):
            self._has_gone(one)
        elif one.state == "away" and not self._folder.is_away(one.part.name):
            one.state = "waiting"
        elif one.state == "waiting":
            if now >= one.due and self._may_start(one.part):
                self._start(one)
        elif one.process is not None and one.process.poll() is not None:
            self._has_ended(one, one.process.returncode, is_first)
        elif one.state == "starting" and one.part.probe is not None and now - one.asked >= ASK_EVERY_S:
            if one.part.probe.passes():
                self._is_up(one, "healthy")
            elif one.part.anew and now - one.began > ANEW_AFTER_S:
                self._has_failed(one, f"is not healthy after {ANEW_AFTER_S:.0f} s", is_first)
            one.asked = time.monotonic()

    def _may_start(self, part: Part) -> bool:
        return all(
            other.state in _SATISFIED[condition]
            for service, condition in part.needs.items()
            for other in self._all.values()
            if other.part.service == service
        )

    def _start(self, one: Running) -> None:
        part = one.part = one.part.anew() if one.part.anew else one.part
        with self._folder.log(part.name).open("ab") as log:
            one.process = subprocess.Popen(
                part.words,
                env={**part.environment, MARK: self._folder.new_mark(part.name)},
                cwd="/" if part.user else self._cwd,
                user=part.user,
                extra_groups=[] if part.user else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the keeper, which ends them in order
            )
        one.state, one.began, one.asked = "starting", time.monotonic(), 0.0

    def _is_up(self, one: Running, state: State) -> None:
        one.state, one.took_s, one.failures = state, time.monotonic() - one.began, 0
        self._say(f"{one.part.name:<12} {one.part.address:<14} {state:<8} after {one.took_s:5.1f} s")

    def _has_ended(self, one: Running, status: int, is_first: bool) -> None:
        if one.state == "done":
            return
        if one.part.ends and status == 0:
            self._is_up(one, "done")
            return
        self._has_failed(one, f"has ended with status {status}", is_first)

    def _has_failed(self, one: Running, how: str, is_first: bool) -> None:
        one.failures += 1
        if is_first and (one.part.ends or one.failures >= TRIES):
            raise self._failed(one, how)
        self._folder.kill(one.part.name)
        if one.process is not None:
            one.process.wait()
        self._say(f"{one.part.name:<12} {how}: it is started again")
        one.state, one.process, one.due = "waiting", None, time.monotonic() + RESTART_AFTER_S

    def _has_gone(self, one: Running) -> None:
        if one.process is not None:
            one.process.kill()
            one.process.wait()
        self._folder.kill(one.part.name)
        one.state, one.process, one.due, one.failures = "away", None, 0.0, 0
        self._say(f"{one.part.name:<12} is taken away")

    def _failed(self, one: Running, how: str) -> Failed:
        return Failed(f"{one.part.name} {how}:\n{tail(self._folder.log(one.part.name), bytes_max=4000)}")

    def _write(self) -> None:
        self._folder.write(
            {
                name: {"address": one.part.address, "state": one.state, "took_s": round(one.took_s, 1)}
                for name, one in self._all.items()
            }
        )
