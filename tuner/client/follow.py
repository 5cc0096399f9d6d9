"""Follow a job to its end, by its events or by polling its state."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import httpx2

from tuner.client.http import ApiError, problem_of, silent
from tuner.client.progress import Show
from tuner.client.steps import Connect, Item, ReadLine, Series, Sleep, Steps
from tuner.schemas.job import JobFacts

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
