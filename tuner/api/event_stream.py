"""Streams of a job's events, shared between watchers, as server-sent events.

Each watched job has one feed. The feed reads the job's new events every quarter of a second, encodes their messages
once, and sends the messages to all watchers of the job. A client that stays slower than the feed is disconnected, and can reconnect
with its last event id. A feed runs in one event loop; feeds of different loops are independent.

A client that reconnects with an older event id first receives the events between that id and the feed's position, which
are read for this client alone. It then continues with the feed, without a gap and without duplicates.

A `report` or `trial` message contains a change. The last message of each event carries the event's number as `id`, so
that a client that reconnects with `Last-Event-ID` misses nothing. A `spend` or `job` message contains the present state
and has no `id`.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuner.api import serialize_jobs
from tuner.domain.job import FINAL
from tuner.service import answers
from tuner.service.answers import ChangesSince
from tuner.service.bootstrap import Service
from tuner.service.views import JobView, revision_of

READ_EVERY_S = 0.25
# How often a stream without news sends a line, because clients treat a stream that is silent for 4 s as broken.
ALIVE_S = 2.0
BEGIN = b"retry: 1000\n\n"
ALIVE = b": still here\n\n"
# At most this many updates wait in the queue of a watcher: about half a minute of a busy job.
MOST_QUEUED = 100
log = logging.getLogger("tuner.api")


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Messages of the events up to `seq`, in order, each with the number of its event.

    `more` is true if later events already exist but were not read.
    """

    seq: int
    messages: list[tuple[int, str]]
    more: bool = False

    def after(self, seq: int) -> str:
        return "".join(text for number, text in self.messages if number > seq)


@dataclass(frozen=True, slots=True)
class JobReading:
    """The result of reading a job's record once.

    `state` maps each kind of state message, such as `spend`, to a pair of a value and the message. A feed sends the message only if the value
    has changed since the previous reading. `final` is true if the job has ended.
    """

    batch: EventBatch
    state: dict[str, tuple[object, str]]
    final: bool


class EventSource(Protocol):
    """Reads the events and the state of one job."""

    async def read(self, after: int | None) -> JobReading:
        """Return the events after number `after` and the present state.

        One call reads a limited number of events; `batch.more` is true if there are others. If `after` is None, return the present state and no
        messages.
        """

    async def read_between(self, after: int, until: int) -> EventBatch:
        """Return the events after number `after` and up to `until`. One call reads a limited number of events; `more` is true if there are others."""

    async def newest(self) -> int:
        """Return the number of the newest event."""


@dataclass(frozen=True, slots=True)
class _Update:
    """What a feed sends to all watchers after one reading: the new events, and the state messages that changed if all events were read.

    `text` contains the messages of `batch` and `state`. They are encoded once, because most watchers need all of them.
    """

    batch: EventBatch
    state: str
    text: bytes

    def after(self, seq: int) -> bytes:
        if not self.batch.messages or self.batch.messages[0][0] > seq:
            return self.text
        return (self.batch.after(seq) + self.state).encode()


@dataclass(eq=False, slots=True)
class _Watcher:
    """The queue of one client's stream. None in the queue marks the end of the stream."""

    queue: asyncio.Queue[_Update | None] = field(default_factory=lambda: asyncio.Queue(MOST_QUEUED + 1))

    def offer(self, update: _Update) -> bool:
        """Add an update to the queue. If too many updates are waiting, end the stream and return False."""
        if self.queue.qsize() < MOST_QUEUED:
            self.queue.put_nowait(update)
            return True
        while not self.queue.empty():
            self.queue.get_nowait()
        self.end()
        return False

    def end(self) -> None:
        self.queue.put_nowait(None)

    async def next(self) -> _Update | None:
        """Return the next update, or None at the end of the stream. Raise TimeoutError if nothing arrives within ALIVE_S seconds."""
        return await asyncio.wait_for(self.queue.get(), ALIVE_S)


class _Feed:
    """Reads the events of one job and sends them to all clients that watch the job.

    A feed closes when its last watcher leaves, the job has ended, or a read fails.
    """

    def __init__(self, source: EventSource, on_close: Callable[[], None]) -> None:
        self.seq, self.users, self._closed = 0, 0, False
        self._read_at = asyncio.get_running_loop().time()
        self.ready = asyncio.Event()
        self._source, self._on_close = source, on_close
        self._watchers: set[_Watcher] = set()
        self._state: dict[str, tuple[object, str]] = {}
        self._task = asyncio.create_task(self._run())

    def state(self) -> str:
        return _messages(self._state)

    def register(self) -> _Watcher:
        """Return a new watcher, which receives all events that the feed reads from now on.

        If the feed is closed, the watcher's stream ends at once.
        """
        watcher = _Watcher()
        if self._closed:
            watcher.end()
        else:
            self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: _Watcher | None) -> None:
        if watcher is not None:
            self._watchers.discard(watcher)
        self.users -= 1
        if self.users == 0:
            self.close()
            self._task.cancel()

    async def _run(self) -> None:
        try:
            reading = await self._source.read(None)
            self.seq, self._state = reading.batch.seq, reading.state
            self.ready.set()
            await self._follow(reading)
        except Exception:
            log.exception("a job's events cannot be read; its clients are disconnected and will reconnect")
        finally:
            self.close()
            self.ready.set()

    async def _follow(self, reading: JobReading) -> None:
        clock = asyncio.get_running_loop().time
        while not reading.final or reading.batch.messages:
            if not reading.batch.more:
                await asyncio.sleep(max(0.0, READ_EVERY_S - (clock() - self._read_at)))
            self._read_at = clock()
            reading = await self._source.read(self.seq)
            self._send(reading)

    def _send(self, reading: JobReading) -> None:
        batch, changed = reading.batch, ""
        # A client may stop at the message that the job is paused, so this message must not precede events of the job.
        if not batch.more:
            changed = "".join(
                message
                for kind, (compared, message) in reading.state.items()
                if kind not in self._state or self._state[kind][0] != compared
            )
            self._state = reading.state
        self.seq = max(self.seq, batch.seq)
        if not batch.messages and not changed:
            return
        update = _Update(batch, changed, (batch.after(-1) + changed).encode())
        self._watchers = {watcher for watcher in self._watchers if watcher.offer(update)}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_close()
            for watcher in self._watchers:
                watcher.end()


class EventBroadcaster:
    """The feeds of all jobs that are watched through this process."""

    def __init__(self) -> None:
        self._feeds: dict[Hashable, _Feed] = {}
        self._is_over = False

    def __len__(self) -> int:
        """Return the number of jobs that are watched."""
        return len(self._feeds)

    def end(self) -> None:
        """End all streams. Streams that are opened later end at once.

        Clients then reconnect to another replica or to the restarted service.

        Call this in the event loop.
        """
        self._is_over = True
        for feed in list(self._feeds.values()):
            feed.close()

    async def follow(self, job: Hashable, source: EventSource, after: int) -> AsyncIterator[bytes]:
        """Yield server-sent events after event `after` until the job has ended.

        Calls with an equal `job` share a feed, which reads the `source` of the first call.
        """
        if self._is_over:
            return
        key = (asyncio.get_running_loop(), job)
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _Feed(source, lambda: self._forget(key))
        feed.users += 1
        watcher: _Watcher | None = None
        try:
            yield BEGIN
            while not feed.ready.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(feed.ready.wait(), ALIVE_S)
                    break
                yield ALIVE
            watcher = feed.register()
            until, state = feed.seq, feed.state()
            at = after if after <= until else min(after, await source.newest())
            while at < until:
                batch = await source.read_between(at, until)
                text, at = batch.after(at), batch.seq
                if text:
                    yield text.encode()
            if state:
                yield state.encode()
            async for data in _rest(watcher, at):
                yield data
        finally:
            feed.leave(watcher)

    def _forget(self, key: Hashable) -> None:
        self._feeds.pop(key, None)


async def _rest(watcher: _Watcher, at: int) -> AsyncIterator[bytes]:
    while True:
        try:
            update = await watcher.next()
        except TimeoutError:
            yield ALIVE
            continue
        if update is None:
            return
        text, at = update.after(at), max(at, update.batch.seq)
        if text:
            yield text


STATE_FIELDS = {
    "id",
    "state",
    "stop_reason",
    "detail",
    "budget",
    "tags",
    "priority",
    "revision",
    "queue_position",
    "progress",
    "best",
}


class JobEvents:
    """The recorded events of one job. Implements `EventSource`."""

    def __init__(self, service: Service, job: str) -> None:
        self._service, self._job = service, job

    async def read(self, after: int | None) -> JobReading:
        return await asyncio.to_thread(self._read, after)

    async def read_between(self, after: int, until: int) -> EventBatch:
        return await asyncio.to_thread(
            lambda: _batch(answers.changes_between(self._service, self._job, after, until))
        )

    async def newest(self) -> int:
        return await asyncio.to_thread(answers.newest, self._service, self._job)

    def whole(self, after: int, revision: str) -> bytes:
        """Return the whole stream of a job that has ended: the messages of all events after `after`, and the job's state.

        Return b"" if there are more events than one call reads, or if the job has another revision than `revision`.
        """
        changes, view = answers.changes(self._service, self._job, after)
        if changes.more or revision_of(view.row) != revision:
            return b""
        return BEGIN + (_batch(changes).after(after) + _messages(_state(view))).encode()

    def _read(self, after: int | None) -> JobReading:
        seq = answers.newest(self._service, self._job) if after is None else after
        changes, view = answers.changes(self._service, self._job, seq)
        if after is None:
            # Events may have been added since `newest`. The state must not be newer than the events up to the returned number.
            while changes.more:
                changes, view = answers.changes(self._service, self._job, changes.seq)
            return JobReading(EventBatch(changes.seq, []), _state(view), view.row.state in FINAL)
        return JobReading(_batch(changes), _state(view), view.row.state in FINAL)


def _messages(state: dict[str, tuple[object, str]]) -> str:
    return "".join(message for _, message in state.values())


def _state(view: JobView) -> dict[str, tuple[object, str]]:
    """Return the `spend` and `job` messages of the present state, in the form of `JobReading.state`.

    A message is sent only if the value next to it has changed. The value of the `job` message therefore leaves out the running time, and
    rounds the used part of the budget to percent: both would otherwise change with the clock, and cause a message after every reading.
    """
    shown = serialize_jobs.job_of(view)
    spend = {**shown.spend.model_dump(), "budget_usd": shown.budget["usd"]}
    job = shown.model_dump(include=STATE_FIELDS)
    used = round(job["progress"]["budget_used"], 2)
    compared = {**job, "progress": {**job["progress"], "running_seconds": 0, "budget_used": used}}
    return {"spend": (spend, _message("spend", spend)), "job": (compared, _message("job", job))}


def _batch(changes: ChangesSince) -> EventBatch:
    """Return the `report` and `trial` messages of the changes, in the order of their events.

    Only the last message of an event has the event's number as `id`. A client that loses the connection before this message therefore receives
    all messages of the event again. If the event has a `report` message, this is the last one, so no client
    receives it twice.
    """
    parts = [(point.seq, 1, "report", _report(point)) for point in changes.reports]
    parts += [(row.seq, 0, "trial", serialize_jobs.trial_of(row).model_dump()) for row in changes.trials]
    parts.sort(key=lambda part: part[:2])
    numbers = [seq for seq, *_ in parts] + [None]
    messages = [
        (seq, _message(kind, body, seq if numbers[index + 1] != seq else None))
        for index, (seq, _, kind, body) in enumerate(parts)
    ]
    return EventBatch(changes.seq, messages, changes.more)


def _report(point: answers.CostedReport) -> dict[str, Any]:
    shown = serialize_jobs.best_of(point).model_dump(exclude={"config", "checkpoint"})
    return {**shown, "violation": point.violation, "seq": point.seq}


def _message(kind: str, body: dict[str, Any], seq: int | None = None) -> str:
    number = "" if seq is None else f"id: {seq}\n"
    return f"{number}event: {kind}\ndata: {json.dumps(body)}\n\n"
