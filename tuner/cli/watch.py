"""Follow a job until it ends: as a live screen on a terminal, otherwise as lines of a log."""

import json
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from tuner.cli.escape import config, harmless, number, plural, span, usd
from tuner.domain.objective import gain_of_next

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    from tuner.client import Client, Event, Job
    from tuner.schemas.best import BestAnswer

FOOT = "Press Ctrl-C to stop watching; the job keeps running."
FORECAST_S, PROGRESS_S, PROGRESS_SHARE = 60.0, 30.0, 0.1
LOGGED = ("best", "preempted", "failed", "state")
STATES = ("running", "pending", "paused", "completed", "stopped", "failed")
LEADERS, LATEST = 5, 10
STYLES = {
    "running": "green",
    "succeeded": "bold green",
    "failed": "bold red",
    "cancelled": "bold",
    "preempted": "yellow",
    "promoted": "cyan",
    "paused": "yellow",
    "best": "bold green",
}


class _Terminated(BaseException):
    """Raised when the process receives SIGTERM, as KeyboardInterrupt is for SIGINT."""


def watch(client: "Client", job: str) -> str:
    """Show a job until it ends or is paused, and return its last state."""
    from rich.console import Console

    console, watched = Console(highlight=False), WatchedJob(client.job(job))
    if console.is_terminal and not console.is_dumb_terminal:
        draw(client, watched, console)
    else:
        log(client, watched)
    return watched.state


@contextmanager
def may_leave(job: str) -> Iterator[None]:
    """Stop watching on Ctrl-C (exit status 130) or SIGTERM (143) without ending the job, and print how to watch the job again."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _terminated) if here else None
    try:
        yield
    except KeyboardInterrupt:
        raise _left(job, 130) from None
    except _Terminated:
        raise _left(job, 143) from None
    finally:
        if here:
            signal.signal(signal.SIGTERM, before)


def print_events(client: "Client", job: str) -> str:
    """Print each event of the job as a line of JSON until the job ends, and return its last state."""
    from tuner.client.follow import silent_since

    silent: list[datetime] = []

    def silence(since: datetime) -> None:
        if since not in silent:
            silent.append(since)
            typer.echo(silent_since(since), err=True)

    state = ""
    client.on_request(lambda: None, lambda: None)
    for event in client.events(job, on_silence=silence):
        typer.echo(json.dumps({"event": event.type, "id": event.id, "data": event.data}))
        state = event.data["state"] if event.type == "job" else state
    return state


def exit_unless_succeeded(state: str) -> None:
    if state != "succeeded":
        raise typer.Exit(1)


def _terminated(*_: Any) -> NoReturn:
    raise _Terminated


def _left(job: str, status: int) -> typer.Exit:
    typer.echo(
        f"\nThe job keeps running. tuner watch {job} shows it again; tuner cancel {job} ends it.", err=True
    )
    return typer.Exit(status)


@dataclass(frozen=True, slots=True)
class Highlight:
    """An event that is worth showing to the user."""

    kind: str  #: best, promoted, preempted, failed or state.
    text: str
    at: str = ""  #: Time of day at which it arrived. Empty if that was before the watching began.


@dataclass(frozen=True, slots=True)
class BestReport:
    """A trial's metric at a step, and the cost of training to that step."""

    trial: str
    step: int
    metric: float
    cost_usd: float


class WatchedJob:
    """A job as known from its events. It is the same if events are repeated. Hold `lock` to use it in several threads."""

    def __init__(
        self,
        job: "Job",
        *,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.facts, self.lock = job, threading.RLock()
        self.data: Mapping[str, Any] = {}  #: The newest `job` event: the job as REST returns it.
        self.spend: Mapping[str, Any] = {}
        self.trials: dict[str, Mapping[str, Any]] = {}
        self.best_of: dict[str, BestReport] = {}
        self.latest: dict[str, tuple[int, float | None]] = {}  #: The last step of each trial, and its metric.
        self.highlights: deque[Highlight] = deque(maxlen=LATEST)
        self.next_dollar = ""  #: What a larger budget would gain.
        self.note = ""  #: What is wrong with the connection.
        self._clock, self._today, self._heard_at = clock, today, clock()
        self._maximise, self._unit = job.objective["mode"] == "max", job.fidelity["unit"]

    @property
    def state(self) -> str:
        return str(self.data.get("state", ""))

    @property
    def running_s(self) -> float:
        """How long the job has run, counted on since its last event."""
        running_s = float(self.data.get("progress", {}).get("running_seconds", 0.0))
        return running_s + (self._clock() - self._heard_at if self.state == "running" else 0.0)

    @property
    def leaders(self) -> list[BestReport]:
        """The best report of each trial, best first."""
        return sorted(self.best_of.values(), key=self._order)

    def add(self, event: "Event") -> list[Highlight]:
        """Add an event, and return what is new in it.

        Events up to the first `job` event happened before the watching began. Of those, only changes of state are returned.
        """
        kinds = {"report": self._report, "trial": self._trial, "job": self._job, "spend": self._spend}
        with self.lock:
            is_live, at = bool(self.data), f"{self._today():%H:%M:%S}"
            pairs = kinds[event.type](event.data) if event.type in kinds else []
            highlights = [Highlight(kind, text, at if is_live else "") for kind, text in pairs]
            self.highlights += highlights
        return [highlight for highlight in highlights if is_live or highlight.kind == "state"]

    def rate_and_end(self) -> str:
        """Return the mean dollars per hour, and the limit that is reached first at that rate; "" if nothing has been spent."""
        running_s = self.running_s
        if self.state != "running" or running_s < 1 or not self.spend.get("usd"):
            return ""
        budget, limits = self.data["budget"], list[tuple[float, str]]()
        if budget["wall_clock"] is not None:
            limits.append((budget["wall_clock"] - running_s, "wall clock"))
        for name, spent, label in (("usd", "usd", "money"), ("gpu_hours", "gpu_hours", "GPU-hours")):
            if budget[name] is not None and self.spend[spent]:
                limits.append(((budget[name] / self.spend[spent] - 1) * running_s, label))
        usd_per_hour = self.spend["usd"] / running_s * 3600
        rate = f"{usd(round(usd_per_hour, 4 if usd_per_hour < 1 else 2))} an hour"
        if not limits:
            return rate
        left_s, label = max(min(limits)[0], 0.0), min(limits)[1]
        now = self._today()
        until = now + timedelta(seconds=min(left_s, 1e9))
        end = f"{until:%H:%M}" if until.date() == now.date() else f"{until:%Y-%m-%d %H:%M}"
        return f"{rate}: {label} lasts {span(left_s)} more, until {end}"

    def complete(self, client: "Client") -> None:
        """Load the trials and the best report of a paused job, because its last events may not have arrived yet."""
        from tuner.client import Event

        best, rows = client.job(self.facts.id).best_so_far, list(client.trials(self.facts.id))
        for kind, row in [*(("trial", row) for row in rows), *([("report", best)] if best else [])]:
            self.add(Event(kind, row.model_dump()))

    def _order(self, report: BestReport) -> tuple[float, float, int, str]:
        """Return a sort key: better metrics first, and the cheapest of equal ones first, as in `tuner best`."""
        score = -report.metric if self._maximise else report.metric
        return score, report.cost_usd, report.step, report.trial

    def _report(self, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        trial, step, value = data["trial"], data["step"], data["metric"]
        before = self.latest[trial][0] if trial in self.latest else None
        if before is None or step > before:
            self.latest[trial] = step, value
            passed = (rung for rung in self.facts.rungs if before is not None and before <= rung < step)
            yield from (("promoted", f"{trial} promoted beyond {self._unit} {rung}") for rung in passed)
        if not isinstance(value, int | float) or not math.isfinite(value) or data.get("violation", 0) != 0:
            return
        report, known = BestReport(trial, step, value, data["cost_usd"]), self.best_of.get(trial)
        best = min(self.best_of.values(), key=self._order, default=None)
        if known is None or self._order(report) < self._order(known):
            self.best_of[trial] = report
        if best is None or (value != best.metric and self._order(report) < self._order(best)):
            metric = self.facts.objective["metric"]
            yield "best", f"best {metric} {number(value)} by {trial} at {self._unit} {step}"

    def _trial(self, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        trial, known = data["id"], self.trials.get(data["id"], {})
        if known and _age(data) <= _age(known):
            return
        self.trials[trial] = data
        if data["preemptions"] > known.get("preemptions", 0):
            often = f" ({plural(data['preemptions'], 'time')})" if data["preemptions"] > 1 else ""
            yield "preempted", f"{trial} preempted at {self._unit} {data['steps']}{often}"
        if data["state"] == "failed" and known.get("state") != "failed":
            yield "failed", f"{trial} failed: {data['reason'] or 'for no known reason'}"

    def _job(self, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        before, self.data, self._heard_at = self.data, data, self._clock()
        if data["state"] != before.get("state"):
            detail = f": {data['detail']}" if data["detail"] and data["state"] in ("failed", "paused") else ""
            yield "state", f"{data['state']} {data['stop_reason'] or ''}".rstrip() + detail
        if before and data["budget"] != before["budget"]:
            yield "state", f"the budget is now {budget_line(data['budget'])}"

    def _spend(self, data: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        self.spend = data
        return ()


def _age(row: Mapping[str, Any]) -> tuple[str, int, int, int, str]:
    return row["updated_at"], row["steps"], row["attempts"], row["preemptions"], row["state"]


def budget_line(limits: Mapping[str, Any]) -> str:
    """Return the limits that are set as text.

    >>> budget_line({"usd": 2, "gpu_hours": None, "wall_clock": None, "trials": 9})
    '$2.00, 9 trials'
    """
    parts = [
        usd(limits["usd"]) if limits["usd"] is not None else "",
        f"{number(limits['gpu_hours'])} GPU-hours" if limits["gpu_hours"] is not None else "",
        f"{span(limits['wall_clock'])} of wall clock" if limits["wall_clock"] is not None else "",
        plural(limits["trials"], "trial") if limits["trials"] is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _follow(
    client: "Client",
    watched: WatchedJob,
    on_connection: Callable[[bool], None] = lambda _: None,
    **options: float,
) -> Iterator[list[Highlight]]:
    """Yield what is new in each event until the job has ended or is paused. `options` are passed to `Client.events`."""
    from tuner.client.follow import silent_since

    def silence(since: datetime) -> None:
        watched.note = silent_since(since)

    def connection(is_there: bool) -> None:
        on_connection(is_there)
        watched.note = "" if is_there else watched.note

    # The note above shows if the service does not answer, so switch off the one that `connect` prints.
    client.on_request(lambda: None, lambda: None)
    for event in client.events(watched.facts.id, on_connection=connection, on_silence=silence, **options):  # type: ignore[arg-type]
        yield watched.add(event)
        if watched.state == "paused":
            watched.complete(client)
            return


def draw(client: "Client", watched: WatchedJob, console: "Console") -> None:
    """Show the job on the terminal's alternate screen, and print the last state on the normal screen afterwards.

    The alternate screen does not flicker, and no parts of old screens remain when the size of the terminal changes.
    """
    from rich.live import Live

    from tuner.cli.tables import Harmless

    forecast_at = time.monotonic() + 1.0
    with Live(
        get_renderable=lambda: Harmless(screen(watched, FOOT)),
        console=console,
        refresh_per_second=4,
        screen=True,
    ):
        # Wait without a limit if the service does not answer: the screen says so, and the user can press Ctrl-C.
        for _ in _follow(client, watched, reconnect_s=math.inf):
            if watched.state == "running" and watched.best_of and time.monotonic() >= forecast_at:
                forecast_at = time.monotonic() + FORECAST_S
                with suppress(
                    Exception
                ):  # The screen works without a forecast, and the next request may succeed.
                    watched.next_dollar = next_dollar(client.best(watched.facts.id))
    if watched.data:
        console.print(Harmless(screen(watched)))


def log(client: "Client", watched: WatchedJob, write: Callable[[str], None] = typer.echo) -> None:
    """Print a line for each new best metric, change of state, preemption and failure, and a summary at the end.

    A line of progress follows after every tenth of the budget, and with the next event after 30 s.
    """

    def line(text: str) -> None:
        write(f"{datetime.now():%H:%M:%S}  {harmless(text)}")

    is_lost = False

    def connection(is_there: bool) -> None:
        nonlocal is_lost
        if is_there == is_lost:
            is_lost = not is_there
            line("The service answers again." if is_there else watched.note)

    written_at, written_share = time.monotonic(), 0.0
    for highlights in _follow(client, watched, connection):
        for highlight in highlights:
            if highlight.kind in LOGGED:
                line(highlight.text)
        share = watched.data.get("progress", {}).get("budget_used", 0.0)
        is_due = time.monotonic() - written_at >= PROGRESS_S or share >= written_share + PROGRESS_SHARE
        if is_due and watched.data and watched.spend:
            written_at, written_share = time.monotonic(), share
            line(summary(watched))
    line(summary(watched))


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


def screen(watched: WatchedJob, foot: str = "") -> "Group":
    """Return what the screen shows. A terminal that is too small for everything cuts off the end."""
    from rich.console import Group
    from rich.text import Text

    with watched.lock:
        blocks: list[list[Text | Table]] = [
            [
                _head(watched),
                *([Text(foot, style="dim")] if foot else []),
                _bars(watched),
                *_forecast(watched),
            ],
            [*_leaders(watched)],
            [*_rungs(watched)],
            [
                Text.assemble((f"{event.at:>8}  ", "dim"), (event.text, STYLES.get(event.kind, "")))
                for event in reversed(watched.highlights)
            ],
        ]
    lines: list[Text | Table] = []
    for block in filter(None, blocks):
        lines += [*([Text()] if lines else []), *block]
    for line in lines:
        if isinstance(line, Text):
            line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _head(watched: WatchedJob) -> "Text":
    from rich.text import Text

    reason, state = watched.data.get("stop_reason"), watched.state
    return Text.assemble(
        (watched.facts.name, "bold"),
        "  ",
        (watched.facts.id, "dim"),
        "  ",
        (f"{state}{f' ({reason})' if reason else ''}", STYLES.get(state, "bold")),
        f"  for {span(watched.running_s)}" if watched.running_s else "",
    )


def _bars(watched: WatchedJob) -> "Table":
    """Return a line for each limit: its label, a bar, and the amounts."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(max_width=40)
    grid.add_column(no_wrap=True)
    for label, text, done in _shares(watched):
        style = "red" if done >= 0.9 else "green"
        bar = ProgressBar(total=1.0, completed=done, complete_style=style, finished_style=style)
        grid.add_row(label, bar, text)
    return grid


def _shares(watched: WatchedJob) -> Iterator[tuple[str, str, float]]:
    spend, budget = watched.spend, watched.data.get("budget")
    if not spend or budget is None:
        return
    held = f", {usd(spend['held_usd'])} held" if spend["held_usd"] else ""
    of_limit = f" of {usd(budget['usd'])}" if budget["usd"] else ""
    yield (
        "money",
        f"{usd(spend['usd'])}{of_limit}{held}",
        spend["usd"] / budget["usd"] if budget["usd"] else 0.0,
    )
    if budget["gpu_hours"]:
        text = f"{number(spend['gpu_hours'])} of {number(budget['gpu_hours'])} GPU-hours"
        yield "GPUs", text, spend["gpu_hours"] / budget["gpu_hours"]
    if budget["wall_clock"] is not None:
        text = f"{span(watched.running_s)} of {span(budget['wall_clock'])}"
        yield "time", text, watched.running_s / budget["wall_clock"]
    states, limit = watched.data["progress"]["trials"], budget["trials"]
    count, ended = (
        sum(states.values()),
        sum(states.get(name, 0) for name in ("completed", "stopped", "failed")),
    )
    counts = ", ".join(f"{states[name]} {name}" for name in STATES if states.get(name))
    # Without a limit on trials, the share of started trials that have ended is shown.
    done = count / limit if limit else ended / count if count else 0.0
    yield "trials", f"{count}{f' of {limit}' if limit else ''}{f': {counts}' if counts else ''}", done


def _forecast(watched: WatchedJob) -> "Iterator[Text]":
    from rich.text import Text

    for label, text in (("rate", watched.rate_and_end()), ("next", watched.next_dollar)):
        if text:
            yield Text.assemble((label.ljust(8), "bold"), text)
    if watched.note:
        yield Text(watched.note, style="bold yellow")


def _rungs(watched: WatchedJob) -> "Iterator[Table]":
    """Yield a table of how many trials reached each rung, and how many continued beyond it."""
    from tuner.cli.tables import plain

    steps, rungs = [step for step, _ in watched.latest.values()], watched.facts.rungs
    if rungs:
        table = plain(watched.facts.fidelity["unit"], *map(str, rungs))
        table.add_row("reached", *(str(sum(step >= rung for step in steps)) for rung in rungs))
        table.add_row("promoted", *(str(sum(step > rung for step in steps)) for rung in rungs))
        yield table


def _leaders(watched: WatchedJob) -> "Iterator[Table]":
    """Yield a table of the best trials."""
    from rich.text import Text

    from tuner.cli.tables import plain

    facts = watched.facts
    unit, metric = facts.fidelity["unit"], facts.objective["metric"]
    table = plain("#", "trial", "state", unit, metric, "latest", "paid", "configuration")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for rank, best in enumerate(watched.leaders[:LEADERS], 1):
        trial = watched.trials.get(best.trial, {})
        at = f"{best.step} of {trial['steps']}" if trial.get("steps", 0) > best.step else str(best.step)
        figures = number(best.metric), number(watched.latest[best.trial][1]), usd(trial.get("paid_usd"))
        shown = Text(config(trial.get("config", {})), no_wrap=True, overflow="ellipsis")
        cells = str(rank), best.trial, str(trial.get("state", "")), at, *figures, shown
        table.add_row(*cells, style="bold" if rank == 1 else "")
    if table.rows:
        yield table


def summary(watched: WatchedJob) -> str:
    """Return the state of the job in one line for a log."""
    states, spend, budget = watched.data["progress"]["trials"], watched.spend, watched.data["budget"]
    of_limit = f" of {usd(budget['usd'])}" if budget["usd"] is not None else ""
    parts = [f"{usd(spend['usd'])}{of_limit} spent"]
    if budget["gpu_hours"] is not None:
        parts.append(f"{number(spend['gpu_hours'])} of {number(budget['gpu_hours'])} GPU-hours")
    parts.append(f"{plural(sum(states.values()), 'trial')}, {states.get('running', 0)} running")
    if watched.best_of:
        parts.append(f"best {watched.facts.objective['metric']} {number(watched.leaders[0].metric)}")
    return "; ".join([*parts, *filter(None, [watched.rate_and_end()])])
