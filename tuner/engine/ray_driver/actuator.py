"""Orders of the loop, sent to Tune and to the workers' actors.

A Tune trial is one *attempt* of a trial of ours. An attempt to begin waits in a queue until Tune's searcher asks; its
worker is told what to do through its actor's mailbox, which Ray empties in order, before Tune calls `train()` on it.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from tuner.domain.cost import Meter
from tuner.engine.messages import Progress
from tuner.engine.world import Assignment

Message = dict[str, Any]
Send = Callable[[Message], None]


class Actuator:
    """Fulfils `World`. One thread. `clock` is the loop's, monotonic."""

    def __init__(
        self, begin_message: Callable[[Assignment], Message], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._begin_message, self._clock = begin_message, clock
        self._queue: deque[Assignment] = deque()
        self._pending: dict[str, Assignment] = {}
        self._actors: dict[str, tuple[int, Send]] = {}
        self._withdrawn: dict[str, Literal["paused", "stopped"]] = {}

    # Orders of the loop

    def begin(self, assignment: Assignment) -> None:
        self._queue.append(assignment)

    def go(self, trial: str, until: int | None, lease_ns: int, job_best: float | None) -> None:
        self._send(trial, {"order": "go", "until": until, "lease_ns": lease_ns, "job_best": job_best})

    def park(self, trial: str) -> None:
        if not self._send(trial, {"order": "pause"}):
            self._call_off(trial, "paused")

    def finish(self, trial: str) -> None:
        self._send(trial, {"order": "finish"})

    def stop(self, trial: str, *, keep_best: bool) -> None:
        if not self._send(trial, {"order": "stop", "keep_best": keep_best}):
            self._call_off(trial, "stopped")

    def _call_off(self, trial: str, how: Literal["paused", "stopped"]) -> None:
        """Only what waits can be called off: of a worker that is gone, the loop hears otherwise."""
        if trial in self._pending or any(one.trial == trial for one in self._queue):
            self._withdrawn[trial] = how

    def _send(self, trial: str, message: Message) -> bool:
        """False where the trial has no worker (any more): there is nobody to order."""
        actor = self._actors.get(trial)
        if actor is not None:
            actor[1](message)
        return actor is not None

    # What Tune does

    def next_assignment(self) -> Assignment | None:
        """The next attempt for which Tune should find a worker: the first of those whose time has come."""
        now = self._clock()
        assignment = next((one for one in self._queue if one.not_before_ns <= now), None)
        if assignment is not None:
            self._queue.remove(assignment)
            self._pending[assignment.trial] = assignment
        return assignment

    def started(self, trial: str, send: Send, lease_ns: int) -> None:
        """Tune found a worker for the trial's attempt, where it has this lease; called before the first `train()`."""
        assignment = replace(self._pending.pop(trial), lease_ns=lease_ns)
        self._actors[trial] = (assignment.attempt, send)
        send(self._begin_message(assignment))
        if trial in self._withdrawn:
            send({"order": "pause" if self._withdrawn.pop(trial) == "paused" else "stop"})

    def ended(self, trial: str, attempt: int) -> None:
        """The attempt runs no more, or never will. A later one of the trial may be on its way already."""
        if self._actors.get(trial, (0,))[0] == attempt:
            del self._actors[trial]
        if trial in self._pending and self._pending[trial].attempt == attempt:
            del self._pending[trial]

    def looking(self) -> list[Assignment]:
        """Those for which Tune looks for a worker."""
        return list(self._pending.values())

    def withdraw_queued(self) -> list[Progress]:
        """Attempts that were called off before Tune knew of them, as the ends that the loop waits for."""
        called = [one for one in self._queue if one.trial in self._withdrawn]
        for assignment in called:
            self._queue.remove(assignment)
        return [called_off(one, self._withdrawn.pop(one.trial)) for one in called]

    def withdraw_pending(self) -> list[Progress]:
        """Those that were called off while Tune looked for a worker; Tune is to be told."""
        called = [one for one in self._pending.values() if one.trial in self._withdrawn]
        for assignment in called:
            del self._pending[assignment.trial]
        return [called_off(one, self._withdrawn.pop(one.trial)) for one in called]


def called_off(assignment: Assignment, state: Literal["paused", "stopped"]) -> Progress:
    return Progress(assignment.trial, assignment.attempt, state, Meter(), saved_step=assignment.restore_step)


def actor_sender(actor: Any) -> Send:
    """Puts a message into an actor's mailbox; a dead actor is noticed elsewhere."""

    def send(message: Mapping[str, Any]) -> None:
        actor.order.options(name=task_name(message)).remote(dict(message))

    return send


def task_name(message: Mapping[str, Any]) -> str:
    """What Ray's dashboard shows of an order: whose attempt the worker has from here on, and up to which rung; a reused one keeps
    the name that it had at first."""
    if message["order"] != "begin":
        return f"order {message['order']}"
    until = "its end" if message["until"] is None else f"step {message['until']}"
    return f"{message['trial']}, attempt {message['attempt']}, to {until}"
