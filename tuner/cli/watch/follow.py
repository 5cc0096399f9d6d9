"""Follow a job until it ends or is paused, and turn its events into the view that is shown."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tuner.cli.escape import number, usd
from tuner.cli.watch.screen import View
from tuner.cli.watch.state import Highlight, JobState, SpendRate, StaticFacts, first_limit
from tuner.client.follow import silent_since
from tuner.domain.job import FINAL
from tuner.domain.objective import gain_of_next

if TYPE_CHECKING:
    from tuner.client import Client, Event, Job
    from tuner.schemas.best import BestAnswer

FORECAST_EVERY_S = 60.0


class JobFollower:
    """The state of a job as known from its events, with the times at which the events arrived. Any thread may call `view`."""

    def __init__(
        self,
        job: "Job",
        *,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.job = JobState(StaticFacts.of(job.model_dump()))
        self.next_dollar = ""
        self.note = ""  #: What is wrong with the connection, or "" if nothing is.
        self.on_connection: Callable[[bool], None] = lambda _: None
        self._clock, self._today, self._lock = clock, today, threading.Lock()
        self._rate, self._heard_at = SpendRate(), clock()
        self._highlights: deque[tuple[str, Highlight]] = deque(maxlen=100)

    @property
    def has_ended(self) -> bool:
        return self.job.state in FINAL

    def add(self, event: "Event") -> list[Highlight]:
        """Add an event to the state and return what is new in it.

        The first events, up to and including the first `job` event, happened before the watching began. Only
        changes of the job's state and budget are returned for these events. The view shows everything that is new in these events, but without
        a time of day.
        """
        with self._lock:
            is_live = bool(self.job.data)
            highlights = self.job.add(event.type, event.data)
            if event.type == "job":
                self._heard_at = self._clock()
            if event.type == "spend":
                self._rate.note(self._clock(), event.data["usd"])
            at = f"{self._today():%H:%M:%S}" if is_live else ""
            self._highlights += [(at, highlight) for highlight in highlights]
            return (
                highlights
                if is_live
                else [highlight for highlight in highlights if highlight.kind == "state"]
            )

    def connection(self, is_there: bool) -> None:
        """Record whether the service answers. If it does not, call `silence` first: it sets `note`, which this method leaves unchanged."""
        if is_there:
            self.note = ""
        self.on_connection(is_there)

    def silence(self, since: datetime) -> None:
        self.note = silent_since(since)

    def complete(self, client: "Client") -> None:
        """Load the current state of a paused job and its trials, because its last events may not have arrived yet."""
        job, name = self.job, self.job.facts.job
        current, rows = client.job(name), list(client.trials(name))
        with self._lock:
            for row in rows:
                job.add("trial", row.model_dump())
                job.steps[row.id] = max(job.steps.get(row.id, 0), row.steps)
                if row.id not in job.best_of:
                    report = {"trial": row.id, "step": row.steps, "cost_usd": row.paid_usd}
                    job.add("report", {**report, "metric": row.metric})
                job.latest[row.id] = (row.steps, row.latest_metric)
            if current.best_so_far is not None:
                job.add("report", current.best_so_far.model_dump())

    def view(self, foot: str = "") -> View:
        with self._lock:
            job, now = self.job, self._clock()
            running_s = job.data.get("progress", {}).get("running_seconds", 0.0)
            rate, limit, ends_at = None, None, ""
            if job.state == "running":
                running_s += now - self._heard_at
                rate = self._rate.usd_per_hour(now, running_s)
            if rate is not None:
                limit = first_limit(job.data["budget"], job.spend, running_s, rate)
            if limit is not None:
                today = self._today()
                at = today + timedelta(seconds=min(limit.seconds, 1e9))
                ends_at = f"{at:%H:%M}" if at.date() == today.date() else f"{at:%Y-%m-%d %H:%M}"
            return View(
                job=job,
                running_s=running_s,
                usd_per_hour=rate,
                limit=limit,
                ends_at=ends_at,
                next_dollar=self.next_dollar,
                highlights=list(self._highlights),
                note=self.note,
                foot=foot,
            )


def events(client: "Client", follower: JobFollower, **options: float) -> Iterator[list[Highlight]]:
    """Yield what is new in each event until the job has ended or is paused. `options` are passed to `Client.events`."""
    # The follower itself shows if the service does not answer, so switch off the note that `connect` prints.
    client.on_request(lambda: None, lambda: None)
    callbacks = {"on_connection": follower.connection, "on_silence": follower.silence}
    for event in client.events(follower.job.facts.job, **callbacks, **options):  # type: ignore[arg-type]
        yield follower.add(event)
        if follower.job.state == "paused":
            follower.complete(client)
            return


class Forecaster(threading.Thread):
    """A thread that requests, every minute, a forecast of what a larger budget would gain. If a request fails, the previous forecast is kept."""

    def __init__(self, client: "Client", follower: JobFollower) -> None:
        super().__init__(name="forecast", daemon=True)
        self._client, self._follower, self._over = client, follower, threading.Event()

    def run(self) -> None:
        pause_s = 1.0
        while not self._over.wait(pause_s):
            if self._follower.job.best_of and self._follower.job.state == "running":
                # The screen works without a forecast, and the next request may succeed.
                with suppress(Exception):
                    self._follower.next_dollar = next_dollar(self._client.best(self._follower.job.facts.job))
                pause_s = FORECAST_EVERY_S

    def stop(self) -> None:
        self._over.set()


def next_dollar(best: "BestAnswer") -> str:
    """Return a line about the gain of a larger budget: the forecast, or else the next point of the Pareto front."""
    forecast, point = best.next_dollar.forecast, best.next_dollar.next_point
    points = ""
    if forecast is not None and forecast.points_per_usd is not None:
        points = f"{gain_of_next(forecast.points_per_usd).removeprefix('the next ')}; "
    if forecast is not None and forecast.items:
        trial_forecast = forecast.items[0]
        gain = f"{number(trial_forecast.expected_gain)} ({number(trial_forecast.low_gain)} to {number(trial_forecast.high_gain)})"
        return f"{points}{usd(trial_forecast.extra_usd)} for {trial_forecast.trial} to step {trial_forecast.to_step} may gain {gain}"
    if point is not None:
        return f"{points}{usd(point.extra_usd)} more gains {number(point.gain)}, by {point.trial} at step {point.step}"
    return points + ("" if forecast is None or forecast.reason is None else forecast.reason)
