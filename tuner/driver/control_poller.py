"""Check for users' control requests and changes of a running job, and pass them to the driver's loop."""

import time
from dataclasses import replace

from tuner.domain.events import ConcurrencyChanged, ControlRequested
from tuner.domain.time import system_now
from tuner.driver.launch_context import Heartbeat, LaunchContext
from tuner.driver.loop import Loop
from tuner.driver.ray_display import RayDisplay
from tuner.store.journal import SqlJournal

LOOK_S = 0.25  # time between two checks for control requests


class ControlPoller:
    """Check for control requests and changes of the job every `LOOK_S`, and call the loop's `tick`.

    `concurrency` is how many trials may run at once according to the job. The project's quota may allow fewer.
    """

    def __init__(
        self,
        loop: Loop,
        journal: SqlJournal,
        context: LaunchContext,
        heartbeat: Heartbeat,
        display: RayDisplay,
        concurrency: int,
    ) -> None:
        self._loop, self._journal, self._context, self._heartbeat = loop, journal, context, heartbeat
        self._display, self._concurrency = display, concurrency
        self._requested: str | None = None
        self._next = 0.0

    def turn(self) -> None:
        """Record that the loop makes progress, and answer pending suggestions. Call this on every turn of Tune's loop.

        Every `LOOK_S`, also update the dashboard, pass new requests to the loop, and call the loop's `tick`.
        """
        now = self._heartbeat.turned_at = time.monotonic()
        self._loop.answer_suggestions()
        if now < self._next or self._loop.end is not None:
            return
        self._next = now + LOOK_S
        self._display.turn(now)
        control = self._context.control()
        if control.budget_version != self._journal.budget_version:
            self._journal.budget_version = control.budget_version
            self._loop.budget_changed(control.budget)
        if control.concurrency != self._concurrency and self._loop.end is None:
            self._concurrency = control.concurrency
            width = self._context.width(control.concurrency)
            self._loop.handle_event(ConcurrencyChanged(system_now(), width))
        if control.newest_request > self._loop.state.requests:
            handle_trial_requests(self._loop, self._context)
        if control.request in ("pause", "cancel") and control.request != self._requested:
            self._requested = control.request
            self._loop.handle_event(ControlRequested(system_now(), control.request))
        if self._loop.end is None:
            self._loop.tick()


def handle_trial_requests(loop: Loop, context: LaunchContext) -> None:
    """Pass the users' new requests about single trials to the loop, until the job has ended."""
    for request in context.trial_requests(after=loop.state.requests):
        if loop.end is None:
            loop.handle_event(replace(request, at=system_now()))
