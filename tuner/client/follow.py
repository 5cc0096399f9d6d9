"""A job followed to its end: by its events, or by asking how it is."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2

from tuner.client.http import ApiError, problem_of, silent
from tuner.client.steps import Connect, Item, ReadLine, Series, Sleep, Steps
from tuner.schemas.job import JobFacts

J = TypeVar("J", bound=JobFacts)
ENDED = ("succeeded", "cancelled", "failed")
RESTART_S = 120.0  # who follows a job outlasts a restart of the service
PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. `id` is None for those that only tell how things stand."""

    type: str
    data: dict[str, Any]
    id: int | None = None


class EventReader:
    """Makes events, as the HTML standard has them, of lines."""

    def __init__(self) -> None:
        self._kind, self._data = "message", ""
        self._number: int | None = None

    def take(self, line: str) -> Event | None:
        """The event that this line ends."""
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
    """Of one who follows a job, once it was heard of."""

    def __init__(self) -> None:
        self._heard_at = -RESTART_S

    def heard(self) -> None:
        self._heard_at = time.monotonic()

    def bear(self, error: ApiError) -> None:
        """Raises what will not pass, or has lasted too long: the service, or something before it, does not answer."""
        silent_s = time.monotonic() - self._heard_at
        if 0 < error.status < 500 or silent_s > RESTART_S:
            raise error


def events(
    url: str, path: str, after: int | None, on_connection: Callable[[bool], None] | None
) -> Series[Event]:
    """Until the job has ended and all is told; goes on behind the last event when the connection breaks."""
    patience, ended, tell = _Patience(), False, on_connection or (lambda _: None)
    while not ended:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        try:
            answer: httpx2.Response = yield Connect(path, headers)
            if not answer.is_success:
                raise ApiError(problem_of(answer))
            tell(True)
            told, reader = False, EventReader()
            while (line := (yield ReadLine())) is not None:
                event = reader.take(line)
                if event is not None:
                    after = event.id if event.id is not None else after
                    patience.heard()
                    yield Item(event)
                    told = event.data["state"] in ENDED if event.type == "job" else told
            ended = told  # the service ends the stream once it has told everything
        except httpx2.HTTPError as error:
            patience.bear(silent(url, error))
        except ApiError as error:
            patience.bear(error)
        if not ended:
            tell(False)
            yield Sleep(PAUSE_S)


def wait(
    look: Callable[[], Steps[J]],
    job: str,
    *,
    timeout_s: float | None,
    until: tuple[str, ...],
    seen: Callable[[J], None],
) -> Steps[J]:
    """Until its state is one of `until`. Raises TimeoutError."""
    began, patience, state = time.monotonic(), _Patience(), "unknown"
    while True:
        try:
            found = yield from look()
            patience.heard()
            seen(found)
            state = found.state
            if state in until:
                return found
        except ApiError as error:
            patience.bear(error)
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            raise TimeoutError(f"{job} is still {state} after {timeout_s:g} s")
        yield Sleep(PAUSE_S)
