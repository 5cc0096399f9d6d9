"""Start every part when the parts that it needs are healthy, restart parts that end by themselves, and stop all of them.

waiting ──▶ starting ──▶ healthy ──▶ away (`kill`) ──▶ waiting …
                └──────▶ done, if the part ends by design
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

UPDATE_EVERY_S = 0.1
PROBE_EVERY_S = 0.5
RESTART_AFTER_S = 1.0
TRIES = 3
# A Ray node continues if one of its ports is in use, but without the component that should listen there.
RENEW_AFTER_S = 100.0
# A limit for hangs. On two idle cores all parts are up within half a minute.
UP_WITHIN_S = 400.0
END_WITHIN_S = 10.0
State = Literal["waiting", "starting", "healthy", "done", "away"]
_SATISFIED: dict[str, tuple[State, ...]] = {
    "service_healthy": ("healthy", "away"),
    "service_completed_successfully": ("done",),
    "service_started": ("starting", "healthy", "done", "away"),
}


class Failed(Exception):
    """A part does not become healthy. All started parts are stopped."""


@dataclass(slots=True)
class Running:
    """The state of a part. Times are seconds of the monotonic clock."""

    part: Part
    state: State = "waiting"
    process: "subprocess.Popen[bytes] | None" = None
    began_at: float = 0.0
    took_s: float = 0.0
    probed_at: float = 0.0
    due_at: float = 0.0
    failures: int = 0


class ProcessManager:
    """Starts, watches and stops the parts in one thread. `stop()` may be called from a signal handler."""

    def __init__(self, parts: Sequence[Part], folder: Folder, cwd: Path, say: Callable[[str], None]) -> None:
        self._folder, self._cwd, self._say = folder, cwd, say
        self._all = {part.name: Running(part) for part in parts}
        # Not a `threading.Event`: a signal handler that runs while its lock is held would deadlock.
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def start_all(self) -> float | None:
        """Start all parts. Return the seconds until all were up, or None if `stop` was called first.

        Raises:
            Failed: A part does not become healthy.
        """
        began_at = time.monotonic()
        while not all(running.state in ("healthy", "done", "away") for running in self._all.values()):
            time.sleep(UPDATE_EVERY_S)
            if self._stopped:
                return None
            self.update(is_starting=True)
            if time.monotonic() - began_at > UP_WITHIN_S:
                late = next(
                    running for running in self._all.values() if running.state in ("waiting", "starting")
                )
                raise self._failed(late, f"is not up within {UP_WITHIN_S:.0f} s")
        return time.monotonic() - began_at

    def run(self) -> None:
        """Watch the parts until `stop` is called."""
        while not self._stopped:
            self.update()
            time.sleep(UPDATE_EVERY_S)

    def end(self) -> None:
        """Stop the parts in reverse order. Processes that do not end in time are killed when the folder is cleared."""
        for running in reversed(self._all.values()):
            if running.process is not None and running.process.poll() is None:
                # After SIGTERM, PostgreSQL would wait until its clients disconnect.
                is_database = running.part.service == "database"
                running.process.send_signal(signal.SIGINT if is_database else signal.SIGTERM)
        deadline = time.monotonic() + END_WITHIN_S
        for running in self._all.values():
            if running.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.process.wait(max(0.0, deadline - time.monotonic()))
                self._folder.kill(running.part.name)
                running.process.wait()

    def update(self, *, is_starting: bool = False) -> None:
        """Check each part once, and start or restart it if necessary. With `is_starting`, raise Failed for a part that ends repeatedly."""
        before = [running.state for running in self._all.values()]
        for running in self._all.values():
            self._update(running, is_starting)
        if before != [running.state for running in self._all.values()] or is_starting:
            self._write()

    def _update(self, running: Running, is_starting: bool) -> None:
        now = time.monotonic()
        if running.state != "away" and self._folder.is_away(running.part.name):
            self._end_killed(running)
        elif running.state == "away" and not self._folder.is_away(running.part.name):
            running.state = "waiting"
        elif running.state == "waiting":
            if now >= running.due_at and self._may_start(running.part):
                self._start(running)
        elif running.process is not None and running.process.poll() is not None:
            self._has_ended(running, running.process.returncode, is_starting)
        elif (
            running.state == "starting"
            and running.part.probe is not None
            and now - running.probed_at >= PROBE_EVERY_S
        ):
            if running.part.probe.passes():
                self._set_up(running, "healthy")
            elif running.part.renewed and now - running.began_at > RENEW_AFTER_S:
                self._has_failed(running, f"is not healthy after {RENEW_AFTER_S:.0f} s", is_starting)
            running.probed_at = time.monotonic()

    def _may_start(self, part: Part) -> bool:
        return all(
            other.state in _SATISFIED[condition]
            for service, condition in part.needs.items()
            for other in self._all.values()
            if other.part.service == service
        )

    def _start(self, running: Running) -> None:
        part = running.part = running.part.renewed() if running.part.renewed else running.part
        with self._folder.log(part.name).open("ab") as log:
            running.process = subprocess.Popen(
                part.words,
                env={**part.environment, MARK: self._folder.new_mark(part.name)},
                cwd="/" if part.user else self._cwd,
                user=part.user,
                extra_groups=[] if part.user else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes only to the manager, which stops the parts in order
            )
        running.state, running.began_at, running.probed_at = "starting", time.monotonic(), 0.0

    def _set_up(self, running: Running, state: State) -> None:
        running.state, running.took_s, running.failures = state, time.monotonic() - running.began_at, 0
        self._say(
            f"{running.part.name:<12} {running.part.address:<14} {state:<8} after {running.took_s:5.1f} s"
        )

    def _has_ended(self, running: Running, status: int, is_starting: bool) -> None:
        if running.state == "done":
            return
        if running.part.ends and status == 0:
            self._set_up(running, "done")
            return
        self._has_failed(running, f"has ended with status {status}", is_starting)

    def _has_failed(self, running: Running, how: str, is_starting: bool) -> None:
        running.failures += 1
        if is_starting and (running.part.ends or running.failures >= TRIES):
            raise self._failed(running, how)
        self._folder.kill(running.part.name)
        if running.process is not None:
            running.process.wait()
        self._say(f"{running.part.name:<12} {how}: it is restarted")
        running.state, running.process, running.due_at = "waiting", None, time.monotonic() + RESTART_AFTER_S

    def _end_killed(self, running: Running) -> None:
        if running.process is not None:
            running.process.kill()
            running.process.wait()
        self._folder.kill(running.part.name)
        running.state, running.process, running.due_at, running.failures = "away", None, 0.0, 0
        self._say(f"{running.part.name:<12} was killed")

    def _failed(self, running: Running, how: str) -> Failed:
        return Failed(
            f"{running.part.name} {how}:\n{tail(self._folder.log(running.part.name), bytes_max=4000)}"
        )

    def _write(self) -> None:
        self._folder.write(
            {
                name: {
                    "address": running.part.address,
                    "state": running.state,
                    "took_s": round(running.took_s, 1),
                }
                for name, running in self._all.items()
            }
        )
