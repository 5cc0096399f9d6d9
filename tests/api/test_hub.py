"""One database read serves many watchers, and each sees exactly the events after its own, in order, once."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.api import event_stream
from tuner.api.event_stream import EventBatch, EventBroadcaster, JobReading

PAGE = 3


class Events:
    """A job of numbered events, read a few at a time.

    Each read yields to the event loop once before it sees anything, and once more before it returns.
    """

    def __init__(self) -> None:
        self.count, self.reads, self.gaps, self.ended = 0, 0, 0, False

    async def read(self, after: int | None) -> JobReading:
        self.reads += 1
        await asyncio.sleep(0)
        batch = EventBatch(self.count, []) if after is None else self._batch(after, self.count)
        state: dict[str, tuple[object, str]] = {"job": (self.ended, f"ended {self.ended}\n")}
        ended = self.ended
        await asyncio.sleep(0)
        return JobReading(batch, state, ended)

    async def read_between(self, after: int, until: int) -> EventBatch:
        self.gaps += 1
        await asyncio.sleep(0)
        return self._batch(after, until)

    async def newest(self) -> int:
        await asyncio.sleep(0)
        return self.count

    def _batch(self, after: int, until: int) -> EventBatch:
        last = min(until, after + PAGE)
        return EventBatch(last, [(n, f"{n}\n") for n in range(after + 1, last + 1)], last < until)


class Watcher:
    def __init__(self, broadcaster: EventBroadcaster, events: Events, after: int) -> None:
        self.after, self.text = after, ""
        self.task = asyncio.create_task(self._read(broadcaster, events))

    async def _read(self, broadcaster: EventBroadcaster, events: Events) -> None:
        stream = broadcaster.follow("job", events, self.after)
        try:
            async for data in stream:
                self.text += data.decode()
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    @property
    def numbers(self) -> list[int]:
        return [int(line) for line in self.text.splitlines() if line.isdecimal()]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 240))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "READ_EVERY_S", 0.0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 8)),
        st.tuples(st.just("join"), st.integers(0, 40)),
        st.tuples(st.just("leave"), st.integers(0, 10)),
        st.tuples(st.just("turns"), st.integers(1, 12)),
    ),
    max_size=40,
)


@examples(200, gate=80)
@given(steps=STEPS)
def test_each_watcher_gets_all_events_after_its_own_once_and_in_order(
    steps: list[tuple[str, int]],
) -> None:
    async def test() -> None:
        broadcaster, events, watchers = EventBroadcaster(), Events(), list[Watcher]()
        left: list[Watcher] = []
        for what, number in steps:
            if what == "append":
                events.count += number
            elif what == "join":
                watchers.append(Watcher(broadcaster, events, min(number, events.count)))
            elif what == "leave" and watchers:
                gone = watchers.pop(number % len(watchers))
                gone.task.cancel()
                left.append(gone)
            else:
                await turns(number)
        events.ended = True
        await asyncio.gather(*(watcher.task for watcher in watchers))
        for watcher in watchers:
            assert watcher.numbers == list(range(watcher.after + 1, events.count + 1))
            assert "ended True" in watcher.text
        for gone in left:
            with suppress(asyncio.CancelledError):
                await gone.task
            assert gone.numbers == list(range(gone.after + 1, gone.after + 1 + len(gone.numbers)))
        assert len(broadcaster) == 0

    run(test())


def test_fifty_watchers_share_each_database_read() -> None:
    async def test() -> None:
        broadcaster, events = EventBroadcaster(), Events()
        watchers = [Watcher(broadcaster, events, 0) for _ in range(50)]
        await turns(20)
        before = events.reads
        events.count = PAGE
        await turns(20)
        assert 1 <= events.reads - before <= 20
        assert len(broadcaster) == 1
        events.ended = True
        await asyncio.gather(*(watcher.task for watcher in watchers))
        assert events.gaps == 0

    run(test())


def test_database_is_not_read_without_watchers() -> None:
    async def test() -> None:
        broadcaster, events = EventBroadcaster(), Events()
        watcher = Watcher(broadcaster, events, 0)
        await turns(10)
        watcher.task.cancel()
        await turns(10)
        assert len(broadcaster) == 0
        before = events.reads
        await turns(50)
        assert events.reads == before > 0

    run(test())


def test_watcher_with_a_future_id_starts_at_the_newest_event() -> None:
    async def test() -> None:
        broadcaster, events = EventBroadcaster(), Events()
        events.count = 5
        watcher = Watcher(broadcaster, events, 10**6)
        await turns(20)
        events.count = 7
        await turns(20)
        events.ended = True
        await watcher.task
        assert watcher.numbers == [6, 7]

    run(test())


def test_slow_watcher_is_dropped_and_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MOST_QUEUED", 4)

    async def test() -> None:
        broadcaster, events = EventBroadcaster(), Events()
        quick = Watcher(broadcaster, events, 0)
        slow = broadcaster.follow("job", events, 0)
        async for data in slow:
            if b"ended" in data:
                break
        for _ in range(20):
            events.count += 1
            await turns(20)
        rest = b"".join([data async for data in slow])
        assert rest == b""
        assert quick.numbers == list(range(1, 21))
        again = Watcher(broadcaster, events, 0)
        await turns(60)
        assert again.numbers == quick.numbers
        events.ended = True
        await asyncio.gather(quick.task, again.task)

    run(test())


def test_failed_read_ends_all_streams() -> None:
    class Broken(Events):
        async def read(self, after: int | None) -> JobReading:
            if self.reads > 3:
                raise OSError("the database does not answer")
            return await super().read(after)

    async def test() -> None:
        broadcaster, events = EventBroadcaster(), Broken()
        watchers = [Watcher(broadcaster, events, 0) for _ in range(3)]
        await asyncio.gather(*(watcher.task for watcher in watchers))
        assert len(broadcaster) == 0

    run(test())
