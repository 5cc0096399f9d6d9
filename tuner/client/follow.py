"""Follow a job to its end, by its events or by polling its state, and show its progress."""

import html
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import httpx2

from tuner.client.bridge import Items
from tuner.client.http import ApiError, Http, unreachable
from tuner.domain.job import FINAL, JOB_STATES
from tuner.domain.money import dollars
from tuner.schemas.job import JobFacts


class ProgressDisplay:
    """Shows the progress of a job. This base class shows nothing."""

    def __call__(self, job: Any) -> None:
        """Show the state of the job."""

    def silent(self, since: datetime) -> None:
        """Show that the service has not answered since the time `since`."""


def progress_of(wanted: bool | None) -> ProgressDisplay:
    """Return the object that shows the progress of a job.

    If `wanted` is False, it shows nothing. If `wanted` is None, it shows the progress only in a notebook or on a terminal.
    """
    if wanted is False:
        return ProgressDisplay()
    if in_notebook():
        return _InPlace()
    return _Lines() if wanted or sys.stderr.isatty() else ProgressDisplay()


def in_notebook() -> bool:
    """Return whether this process is a notebook kernel, such as Jupyter's. IPython in a terminal is not one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _Lines(ProgressDisplay):
    """Writes a line to standard error whenever the state or the best metric has changed."""

    def __init__(self) -> None:
        self._shown: object = None

    def __call__(self, job: Any) -> None:
        best = job.best_so_far
        self._write((job.state, None if best is None else best.metric), line_of(job))

    def silent(self, since: datetime) -> None:
        self._write(since, silent_since(since))

    def _write(self, shown: object, line: str) -> None:
        if shown != self._shown:
            self._shown = shown
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


class _InPlace(ProgressDisplay):
    """Displays a bar and a line in a notebook, and updates them in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, job: Any) -> None:
        self._show(html_of(job))

    def silent(self, since: datetime) -> None:
        self._show(html.escape(silent_since(since)))

    def _show(self, text: str) -> None:
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(text), display_id=True)
        else:
            self._handle.update(HTML(text))


def silent_since(since: datetime) -> str:
    """Return a message that the service does not answer, with the time of its last answer."""
    return f"The service has not answered since {since:%H:%M:%S}; trying again. The job continues without the service."


def line_of(job: Any) -> str:
    """Return a line with a job's state, spend, number of trials and steps, and best metric so far."""
    state = f"{job.state} ({job.stop_reason})" if job.stop_reason else job.state
    limit = job.budget.get("usd")
    of_limit = "" if limit is None else f" of {dollars(limit)}"
    trials = sum(job.progress.trials.values())
    line = f"{job.name}: {state}, {dollars(job.spend.usd)}{of_limit} spent, {trials} trials, {job.progress.steps} steps"
    if job.best_so_far is None:
        return line
    metric = job.best_so_far.metric
    return f"{line}, best {job.objective['metric']} {'unknown' if metric is None else f'{metric:.4g}'}"


def html_of(job: Any) -> str:
    """Return HTML that shows the used share of the budget as a bar, with the text of `line_of` below it.

    The text is escaped, because users choose the names in it.
    """
    used = min(max(job.progress.budget_used, 0.0), 1.0)
    return (
        f'<progress value="{used:.4f}" max="1" style="width: 24em" aria-label="budget used">{used:.0%}</progress>'
        f" {used:.0%} of the budget<br>{html.escape(line_of(job))}"
    )


J = TypeVar("J", bound=JobFacts)
ENDED = tuple(state for state in JOB_STATES if state in FINAL)
RESTART_S = 120.0  # seconds; long enough for a restart of the service
FIRST_ANSWER_S = 5.0  # seconds until a call gives up an address at which nothing has ever answered it
PAUSE_S = 0.5
# The service sends a line on each stream every two seconds. After twice that time without a line, it counts as not answering.
SILENT_S = 4.0
# The service may answer slowly because it is overloaded, so the time limit doubles with each try, up to this one.
ANSWER_S_MAX = 64.0


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    type: str
    data: dict[str, Any]
    id: int | None = None  #: None for events that only describe the current state.


class EventReader:
    """Parses lines into server-sent events, as the HTML standard defines them."""

    def __init__(self) -> None:
        self._type, self._data = "message", ""
        self._id: int | None = None

    def add_line(self, line: str) -> Event | None:
        """Add a line. Return the event if the line completes one, otherwise None."""
        name, _, value = line.partition(":")
        if name == "event":
            self._type = value.strip()
        elif name == "data":
            self._data += value.strip()
        elif name == "id":
            self._id = int(value.strip())
        elif line == "":
            event = Event(self._type, json.loads(self._data), self._id) if self._data else None
            self._type, self._data, self._id = "message", "", None
            return event
        return None


class ReconnectLimit:
    """Decides how long to keep trying while the service does not answer, and reports silence to the caller's callbacks."""

    def __init__(
        self,
        lasts_s: float = RESTART_S,
        on_connection: Callable[[bool], None] | None = None,
        on_silence: Callable[[datetime], None] | None = None,
    ) -> None:
        self._lasts_s = lasts_s
        self._on_connection = on_connection or (lambda _: None)
        self._on_silence = on_silence or (lambda _: None)
        # When the service last answered. Before its first answer, the start of the call.
        self._answered_at, self._has_answered = time.monotonic(), False
        self.answer_time = datetime.now().astimezone()
        self.answer_s = SILENT_S  #: How many seconds to wait for the next answer.

    def note_answer(self) -> None:
        self._answered_at, self.answer_time = time.monotonic(), datetime.now().astimezone()
        self._has_answered = True
        self.answer_s = SILENT_S

    def report(self, is_there: bool) -> None:
        """Report to the callbacks whether the service answers."""
        if not is_there:
            self._on_silence(self.answer_time)
        self._on_connection(is_there)

    def pause_after(self, error: ApiError) -> float:
        """Return how many seconds to wait before the next try, or raise the error if the call should not be tried again.

        An error with a status below 500 is raised at once, except 429. Any other error is raised only when the service has not answered
        for longer than `lasts_s`. Before its first answer, this time counts from the start of the call, and is `FIRST_ANSWER_S` if no
        connection can be made: the address is probably wrong. A timeout that is not raised doubles the time limit of the next try, up to
        `ANSWER_S_MAX`.
        """
        was_slow = isinstance(error.__cause__, httpx2.TimeoutException)
        is_absent = not self._has_answered and error.status == 0 and not was_slow
        lasts_s = min(FIRST_ANSWER_S, self._lasts_s) if is_absent else self._lasts_s
        is_final = 0 < error.status < 500 and error.status != 429
        if is_final or time.monotonic() - self._answered_at > lasts_s:
            raise error
        if was_slow:
            self.answer_s = min(2 * self.answer_s, ANSWER_S_MAX)
        return max(PAUSE_S, error.retry_after_s)


async def events(http: Http, path: str, after: int | None, limit: ReconnectLimit) -> Items[Event]:
    """Yield the events of a job until it has ended. If the connection breaks or stays silent, reconnect and continue after the last event.

    Args:
        http: The connection to the service.
        path: The path of the stream.
        after: The id of the last event that the caller already has.
        limit: Decides how long to reconnect before an error is raised.
    """
    while True:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        has_ended, reader = False, EventReader()
        try:
            async with http.stream(path, headers=headers, timeout=limit.answer_s) as response:
                if not response.is_success:
                    raise ApiError.of(response)
                # Until here, the time limit was the one for the headers. From here on, each line must arrive within SILENT_S: the transport
                # reads this setting when the body begins.
                response.request.extensions["timeout"]["read"] = SILENT_S
                limit.note_answer()
                limit.report(True)
                async for line in http.lines(response):
                    limit.note_answer()
                    event = reader.add_line(line)
                    if event is not None:
                        after = event.id if event.id is not None else after
                        yield event
                        has_ended = event.data["state"] in ENDED if event.type == "job" else has_ended
            if has_ended:  # the stream ended after all events, and was not interrupted
                return
            pause_s = PAUSE_S
        except httpx2.HTTPError as error:
            pause_s = limit.pause_after(unreachable(http.url, error))
        except ApiError as error:
            pause_s = limit.pause_after(error)
            if error.status == 429:  # the service answers, but asks to wait
                await http.sleep(pause_s)
                continue
        limit.report(False)
        await http.sleep(pause_s)


async def wait(
    http: Http,
    fetch: Callable[[float], Awaitable[J]],
    job: str,
    *,
    timeout_s: float | None,
    until: tuple[str, ...],
    show: ProgressDisplay,
) -> J:
    """Return the job once its state is one of `until`. Raise TimeoutError after `timeout_s` seconds.

    `fetch` requests the job. Its argument is the time limit of the request in seconds. `job` is the name of the job in the error.
    """
    began, limit, state = time.monotonic(), ReconnectLimit(), "unknown"
    while True:
        pause_s = PAUSE_S
        try:
            current = await fetch(limit.answer_s)
            limit.note_answer()
            show(current)
            state = current.state
            if state in until:
                return current
        except ApiError as error:
            pause_s = limit.pause_after(error)
            if error.status == 0:
                show.silent(limit.answer_time)
        left_s = math.inf if timeout_s is None else began + timeout_s - time.monotonic()
        if left_s < 0:
            raise TimeoutError(f"{job} is still {state} after {timeout_s:g} s")
        await http.sleep(min(pause_s, max(PAUSE_S, left_s)))
