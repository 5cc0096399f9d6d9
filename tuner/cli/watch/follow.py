"""Follow a job until it ends or is paused, and turn its events into the view that is shown."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tuner.cli.escape import number, usd
from tuner.cli.watch.pace import Pace, first_end
from tuner.cli.watch.screen import View
from tuner.cli.watch.state import Facts, Happening, Watched
from tuner.client.follow import silent_since

if TYPE_CHECKING:
    from tuner.client import Client, Event, Job
    from tuner.schemas.best import BestAnswer


ENDED = ("succeeded", "cancelled", "failed")
FORECAST_EVERY_S = 60.0


class Follower:
    """The state of a job as known from its events, with the times at which the events arrived. Any thread may call `view`."""

    def __init__(
        self,
        job: "Job",
        *,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.seen = Watched(Facts.of(job.model_dump()))
        self.next_dollar = ""
        self.on_connection: Callable[[bool], None] = lambda _: None
        self._clock, self._today, self._lock = clock, today, threading.Lock()
        self._pace, self._heard_at = Pace(), clock()
        self._events: deque[tuple[str, Happening]] = deque(maxlen=100)
        self._note = ""

    @property
    def has_ended(self) -> bool:
        return self.seen.state in ENDED

    def take(self, event: "Event") -> list[Happening]:
        """Add an event to the state and return what is new in it.

        Events up to the first `job` event happened before the watching began. What they contain is shown without a time of day, and only
        changes of state are returned.
        """
        with self._lock:
            was_told = bool(self.seen.job)
            found = self.seen.take(event.type, event.data)
            if event.type == "job":
                self._heard_at = self._clock()
            if event.type == "spend":
                self._pace.note(self._clock(), event.data["usd"])
            at = f"{self._today():%H:%M:%S}" if was_told else ""
            self._events += [(at, one) for one in found]
            return found if was_told else [one for one in found if one.kind == "state"]

    def connection(self, is_there: bool) -> None:
        """Record whether the service answers. If it does not, call `silence` first, with the time since which it does not answer."""
        if is_there:
            self._note = ""
        self.on_connection(is_there)

    def silence(self, since: datetime) -> None:
        self._note = silent_since(since)

    @property
    def note(self) -> str:
        return self._note

    def complete(self, client: "Client") -> None:
        """Load the current state of a paused job and its trials, because its last events may not have arrived yet."""
        job = client.job(self.seen.facts.job)
        rows = list(client.trials(self.seen.facts.job))
        with self._lock:
            for row in rows:
                self.seen.take("trial", row.model_dump())
                self.seen.steps[row.id] = max(self.seen.steps.get(row.id, 0), row.steps)
                if row.id not in self.seen.best_of:
                    report = {"trial": row.id, "step": row.steps, "cost_usd": row.paid_usd}
                    self.seen.take("report", {**report, "metric": row.metric})
                self.seen.latest[row.id] = (row.steps, row.latest_metric)
            if job.best_so_far is not None:
                self.seen.take("report", job.best_so_far.model_dump())

    def view(self, foot: str = "") -> View:
        with self._lock:
            return self._view(foot)

    def _view(self, foot: str) -> View:
        seen, now = self.seen, self._clock()
        running = seen.job.get("progress", {}).get("running_seconds", 0.0)
        rate = end = None
        if seen.state == "running":
            running += now - self._heard_at
            rate = self._pace.usd_per_hour(now, running)
        if rate is not None:
            end = first_end(seen.job["budget"], seen.spend, running, rate)
        return View(
            seen=seen,
            running_s=running,
            usd_per_hour=rate,
            end=end,
            ends_at="" if end is None else self._time_of_day(end.seconds),
            next_dollar=self.next_dollar,
            events=list(self._events),
            note=self._note,
            foot=foot,
        )

    def _time_of_day(self, after_s: float) -> str:
        now = self._today()
        at = now + timedelta(seconds=min(after_s, 1e9))
        return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


def events(client: "Client", follower: Follower, **options: float) -> Iterator[list[Happening]]:
    """Yield what is new in each event until the job has ended or is paused. `options` are passed to `Client.events`."""
    client.on_request(
        _ignore, _ignore
    )  # The follower itself shows if the service does not answer, so switch off the note that `connect` prints.
    callbacks = {"on_connection": follower.connection, "on_silence": follower.silence}
    for event in client.events(follower.seen.facts.job, **callbacks, **options):  # type: ignore[arg-type]
        yield follower.take(event)
        if follower.seen.state == "paused":
            follower.complete(client)
            return


def _ignore() -> None:
    pass


class Forecaster(threading.Thread):
    """A thread that requests every minute the gain that a larger budget would bring. If a request fails, the previous answer is kept."""

    def __init__(self, client: "Client", follower: Follower) -> None:
        super().__init__(name="forecast", daemon=True)
        self._client, self._follower, self._over = client, follower, threading.Event()

    def run(self) -> None:
        pause_s = 1.0
        while not self._over.wait(pause_s):
            if self._follower.seen.best_of and self._follower.seen.state == "running":
                with suppress(
                    Exception
                ):  # The screen works without a forecast, and the next request may succeed.
                    self._follower.next_dollar = next_dollar(self._client.best(self._follower.seen.facts.job))
                pause_s = FORECAST_EVERY_S

    def stop(self) -> None:
        self._over.set()


def next_dollar(found: "BestAnswer") -> str:
    """Return a line about the gain of a larger budget: the forecast, or else the next point of the Pareto front."""
    forecast, point = found.next_dollar.forecast, found.next_dollar.next_point
    if forecast is not None and forecast.items:
        one = forecast.items[0]
        gain = f"{number(one.expected_gain)} ({number(one.low_gain)} to {number(one.high_gain)})"
        return f"{usd(one.extra_usd)} for {one.trial} to step {one.to_step} may gain {gain}"
    if point is not None:
        return (
            f"{usd(point.extra_usd)} more gains {number(point.gain)}, by {point.trial} at step {point.step}"
        )
    return "" if forecast is None or forecast.reason is None else forecast.reason
