"""Follow a job to its end, by its events or by polling its state, and show its progress."""

import html
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

import httpx2

from tuner.client.http import ApiError, problem_of, silent
from tuner.client.steps import Connect, Item, ReadLine, Series, Sleep, Steps
from tuner.schemas.job import JobFacts


class Show(Protocol):
    def __call__(self, job: Any, /) -> None: ...

    def silent(self, since: datetime, /) -> None:
        """Show that the service does not answer."""


def progress_of(wanted: bool | None) -> Show:
    """Return the object that shows the progress. If `wanted` is None, it shows something only in a notebook or on a terminal."""
    if wanted is False:
        return _Nothing()
    if in_notebook():
        return _InPlace()
    return _Lines() if wanted or sys.stderr.isatty() else _Nothing()


def in_notebook() -> bool:
    """Return whether this process is a notebook kernel, such as Jupyter's. IPython in a terminal is not one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _Nothing:
    def __call__(self, job: Any) -> None:
        pass

    def silent(self, since: datetime) -> None:
        pass


class _Lines:
    """Writes a line to standard error whenever the state or the best metric has changed."""

    def __init__(self) -> None:
        self._told: tuple[object, ...] = ()

    def __call__(self, job: Any) -> None:
        best = job.best_so_far
        shown = (job.state, None if best is None else best.metric)
        if shown != self._told:
            self._told = shown
            self._write(line_of(job))

    def silent(self, since: datetime) -> None:
        shown = (since,)
        if shown != self._told:
            self._told = shown
            self._write(silent_since(since))

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class _InPlace:
    """Displays a bar and a line in a notebook, and updates them in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, job: Any) -> None:
        self._show(html_of(job))

    def silent(self, since: datetime) -> None:
        self._show(html.escape(silent_since(since)))

    def _show(self, text: str) -> None:
        from IPython.display import HTML, display

        shown = HTML(text)
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


def silent_since(since: datetime) -> str:
    """Return a message that the service does not answer, with the time of its last answer."""
    return f"The service has not answered since {since:%H:%M:%S}; trying again. The job runs on without it."


def line_of(job: Any) -> str:
    """Return a job's state, money, trials and best metric so far in one line."""
    trials = sum(job.progress.trials.values())
    parts = [f"{job.name}: {_state(job)}", _money(job), f"{trials} trials", f"{job.progress.steps} steps"]
    if job.best_so_far is not None:
        parts.append(f"best {job.objective['metric']} {_number(job.best_so_far.metric)}")
    return ", ".join(parts)


def html_of(job: Any) -> str:
    """Return HTML: a bar of the used budget with the text of `line_of` below it.

    The text is escaped, because users choose the names in it.
    """
    used = min(max(job.progress.budget_used, 0.0), 1.0)
    return (
        f'<progress value="{used:.4f}" max="1" style="width: 24em" aria-label="budget used">{used:.0%}</progress>'
        f" {used:.0%} of the budget<br>{html.escape(line_of(job))}"
    )


def _state(job: Any) -> str:
    return f"{job.state} ({job.stop_reason})" if job.stop_reason else str(job.state)


def _money(job: Any) -> str:
    limit = job.budget.get("usd")
    spent = f"${job.spend.usd:.6g} spent"
    return spent if limit is None else f"${job.spend.usd:.6g} of ${limit:.6g} spent"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


J = TypeVar("J", bound=JobFacts)
ENDED = ("succeeded", "cancelled", "failed")
RESTART_S = 120.0  # long enough for a restart of the service
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
        self._kind, self._data = "message", ""
        self._number: int | None = None

    def take(self, line: str) -> Event | None:
        """Add a line. Return the event if the line completes one, otherwise None."""
        if line == "":
            return self._ended()
        if line.startswith("event:"):
            self._kind = line[6:].strip()
        elif line.startswith("data:"):
            self._data += line[5:].strip()
        elif line.startswith("id:"):
            self._number = int(line[3:].strip())
        return None

    def _ended(self) -> Event | None:
        found = Event(self._kind, json.loads(self._data), self._number) if self._data else None
        self._kind, self._data, self._number = "message", "", None
        return found


class _Patience:
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
        self._heard_at: float | None = None
        self.heard_time = datetime.now().astimezone()
        self.answer_s = SILENT_S  #: How long to wait for the next answer.

    def heard(self) -> None:
        self._heard_at, self.heard_time = time.monotonic(), datetime.now().astimezone()
        self.answer_s = SILENT_S

    def tell(self, is_there: bool) -> None:
        """Report to the callbacks whether the service answers."""
        if not is_there:
            self._on_silence(self.heard_time)
        self._on_connection(is_there)

    def bear(self, error: ApiError, cause: BaseException | None) -> None:
        """Raise the error unless the call should be tried again.

        A status below 500 is always raised. If the service has answered before, other errors are raised only when it has been
        silent for longer than the patience. If the service has never answered, every error except a timeout is raised at once.
        Each tolerated timeout doubles the time limit of the next try, up to `ANSWER_S_MAX`. A timeout at that limit is raised
        if the service has never answered.
        """
        was_slow = isinstance(cause, httpx2.TimeoutException)
        if self._heard_at is not None:
            is_over = time.monotonic() - self._heard_at > self._lasts_s
        else:
            is_over = not was_slow or self.answer_s >= ANSWER_S_MAX
        if 0 < error.status < 500 or is_over:
            raise error
        if was_slow:
            self.answer_s = min(2 * self.answer_s, ANSWER_S_MAX)


def events(
    url: str,
    path: str,
    after: int | None,
    on_connection: Callable[[bool], None] | None,
    on_silence: Callable[[datetime], None] | None = None,
    patience_s: float = RESTART_S,
) -> Series[Event]:
    """Yield the events of a job until it has ended. If the connection breaks or stays silent, reconnect after the last event.

    Args:
        url: The service's URL, for error messages.
        path: The path of the stream.
        after: The id of the last event that is known.
        on_connection: Called with False when the connection breaks or stays silent, and with True whenever a connection is established.
        on_silence: Called before `on_connection(False)`, with the time of the last answer.
        patience_s: Raise the error if the service has not answered for this many seconds.
    """
    patience, ended = _Patience(patience_s, on_connection, on_silence), False
    while not ended:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        try:
            answer: httpx2.Response = yield Connect(path, headers, patience.answer_s, SILENT_S)
            if not answer.is_success:
                raise ApiError(problem_of(answer))
            patience.heard()
            patience.tell(True)
            final, reader = False, EventReader()
            while (line := (yield ReadLine())) is not None:
                patience.heard()
                event = reader.take(line)
                if event is not None:
                    after = event.id if event.id is not None else after
                    yield Item(event)
                    final = event.data["state"] in ENDED if event.type == "job" else final
            ended = final  # the service ends the stream once it has sent everything
        except httpx2.HTTPError as error:
            patience.bear(silent(url, error), error)
        except ApiError as error:
            patience.bear(error, error.__cause__)
        if not ended:
            patience.tell(False)
            yield Sleep(PAUSE_S)


def wait(
    look: Callable[[float], Steps[J]],
    job: str,
    *,
    timeout_s: float | None,
    until: tuple[str, ...],
    show: Show,
) -> Steps[J]:
    """Return the job once its state is one of `until`. Raise TimeoutError after `timeout_s` seconds.

    `look` fetches the job. Its argument is the time limit of the request in seconds.
    """
    began, patience, state = time.monotonic(), _Patience(), "unknown"
    while True:
        try:
            found = yield from look(patience.answer_s)
            patience.heard()
            show(found)
            state = found.state
            if state in until:
                return found
        except ApiError as error:
            patience.bear(error, error.__cause__)
            if error.status == 0:
                show.silent(patience.heard_time)
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            raise TimeoutError(f"{job} is still {state} after {timeout_s:g} s")
        yield Sleep(PAUSE_S)
