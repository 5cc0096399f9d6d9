"""Many watch a job, one looks: each job that somebody watches is looked at once every quarter of a second, its messages are made
once, and all its watchers get them.

Who comes with an older event id is read the gap between that and where the feed is, by a look of their own, and then goes on with the
feed, without a gap and without a double. Who is slower than the feed for long is dropped: they come back with their last event id.
Everything here runs in one event loop; feeds of different loops know nothing of each other.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

LOOK_S = 0.25
# Clients take a stream without a line for 4 s for one of a service that does not answer.
ALIVE_S = 2.0
BEGIN = b"retry: 1000\n\n"
ALIVE = b": still here\n\n"
BEHIND = 100  # pieces that may wait for a watcher: half a minute of a busy job
log = logging.getLogger("tuner.api")


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages up to event `seq`, each with its event's number, in order; `more`: there are later ones already."""

    seq: int
    messages: list[tuple[int, str]]
    more: bool = False

    def after(self, seq: int) -> str:
        return "".join(text for number, text in self.messages if number > seq)


@dataclass(frozen=True, slots=True)
class Look:
    """`standing`, by kind: what it is compared by, and the message that tells it. `final`: the job has ended."""

    piece: Piece
    standing: dict[str, tuple[object, str]]
    final: bool


class Source(Protocol):
    """One job's record."""

    async def look(self, after: int | None) -> Look:
        """What came after an event, as far as is read at once, and how things stand; None: how things stand, and no messages."""

    async def gap(self, after: int, until: int) -> Piece:
        """What came after an event, up to another, as far as is read at once."""

    async def newest(self) -> int:
        """The number of the newest event."""


@dataclass(frozen=True, slots=True)
class _Told:
    """A piece for all: `text` is the whole of it, made once."""

    piece: Piece
    standing: str
    text: bytes

    def after(self, seq: int) -> bytes:
        if not self.piece.messages or self.piece.messages[0][0] > seq:
            return self.text
        return (self.piece.after(seq) + self.standing).encode()


@dataclass(eq=False, slots=True)
class _Watcher:
    """None in its queue is the end."""

    queue: asyncio.Queue[_Told | None] = field(default_factory=lambda: asyncio.Queue(BEHIND + 1))

    def tell(self, told: _Told) -> bool:
        """False where too much waits already: then it is dropped."""
        if self.queue.qsize() < BEHIND:
            self.queue.put_nowait(told)
            return True
        while not self.queue.empty():
            self.queue.get_nowait()
        self.end()
        return False

    def end(self) -> None:
        self.queue.put_nowait(None)

    async def next(self) -> _Told | None:
        """Raises TimeoutError where there was nothing for long."""
        return await asyncio.wait_for(self.queue.get(), ALIVE_S)


class _Feed:
    """Of one job, for as long as somebody watches."""

    def __init__(self, source: Source, on_close: Callable[[], None]) -> None:
        self.seq, self.users, self._closed = 0, 0, False
        self._looked_at = asyncio.get_running_loop().time()
        self.ready = asyncio.Event()
        self._source, self._on_close = source, on_close
        self._watchers: set[_Watcher] = set()
        self._standing: dict[str, tuple[object, str]] = {}
        self._task = asyncio.create_task(self._run())

    def standing(self) -> str:
        return "".join(message for _, message in self._standing.values())

    def register(self) -> _Watcher:
        """From here on it is told everything behind `seq`."""
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
            look = await self._source.look(None)
            self.seq, self._standing = look.piece.seq, look.standing
            self.ready.set()
            await self._follow(look)
        except Exception:
            log.exception("a job's events cannot be read; its watchers will come back")
        finally:
            self.close()
            self.ready.set()

    async def _follow(self, look: Look) -> None:
        clock = asyncio.get_running_loop().time
        while not look.final or look.piece.messages:
            if not look.piece.more:
                await asyncio.sleep(max(0.0, LOOK_S - (clock() - self._looked_at)))
            self._looked_at = clock()
            look = await self._source.look(self.seq)
            self._tell(look)

    def _tell(self, look: Look) -> None:
        changed = "".join(
            message
            for kind, (compared, message) in look.standing.items()
            if kind not in self._standing or self._standing[kind][0] != compared
        )
        self._standing, self.seq = look.standing, max(self.seq, look.piece.seq)
        if not look.piece.messages and not changed:
            return
        told = _Told(look.piece, changed, (look.piece.after(-1) + changed).encode())
        self._watchers = {watcher for watcher in self._watchers if watcher.tell(told)}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_close()
            for watcher in self._watchers:
                watcher.end()


class Hub:
    """The feeds of one process."""

    def __init__(self) -> None:
        self._feeds: dict[Hashable, _Feed] = {}
        self._is_over = False

    def __len__(self) -> int:
        """How many jobs are looked at."""
        return len(self._feeds)

    def end(self) -> None:
        """Ends all streams, and those to come at once: who follows goes on with another service, or with the next. Call it in the event
        loop."""
        self._is_over = True
        for feed in list(self._feeds.values()):
            feed.close()

    async def follow(self, job: Hashable, source: Source, after: int) -> AsyncIterator[bytes]:
        """Server-sent events behind event `after`, until the job has ended; `job` says which feed it is."""
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
            until, standing = feed.seq, feed.standing()
            at = after if after <= until else min(after, await source.newest())
            while at < until:
                piece = await source.gap(at, until)
                text, at = piece.after(at), piece.seq
                if text:
                    yield text.encode()
            if standing:
                yield standing.encode()
            async for data in _rest(watcher, at):
                yield data
        finally:
            feed.leave(watcher)

    def _forget(self, key: Hashable) -> None:
        self._feeds.pop(key, None)


async def _rest(watcher: _Watcher, at: int) -> AsyncIterator[bytes]:
    while True:
        try:
            told = await watcher.next()
        except TimeoutError:
            yield ALIVE
            continue
        if told is None:
            return
        text, at = told.after(at), max(at, told.piece.seq)
        if text:
            yield text
