"""Test the supervisor's end of a child's channel: messages arrive whole and in order, and a reply never waits
for the child.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, Pipe

import pytest

from tuner.worker.child_channel import ChannelEnd

LONG = b"b" * (4 << 20)  # more than the socket's buffer holds


@pytest.fixture
def ends() -> tuple[ChannelEnd, Connection]:
    ours, childs = Pipe()
    return ChannelEnd(ours), childs


def being_sent(end: ChannelEnd, data: bytes) -> threading.Thread:
    """Send a message in a thread, and return when its first bytes wait for the child."""
    thread = threading.Thread(target=end.send_waiting, args=(data,), daemon=True)
    thread.start()
    while not end.unread:
        time.sleep(0.001)
    return thread


def test_a_reply_sent_during_a_long_message_follows_it(ends: tuple[ChannelEnd, Connection]) -> None:
    """A child that has read the message may report before the thread that sent the message returns."""
    end, child = ends
    thread = being_sent(end, LONG)
    assert end.send(b"reply")
    assert child.recv_bytes() == LONG
    assert child.recv_bytes() == b"reply"
    thread.join()
    assert end.send(b"another")
    assert child.recv_bytes() == b"another"


def test_a_second_reply_during_a_long_message_is_refused(ends: tuple[ChannelEnd, Connection]) -> None:
    end, child = ends
    thread = being_sent(end, LONG)
    assert end.send(b"reply")
    assert not end.send(b"another")
    assert child.recv_bytes() == LONG
    thread.join()


def test_a_reply_is_refused_when_the_child_reads_none(ends: tuple[ChannelEnd, Connection]) -> None:
    end, _child = ends
    while end.send(b"r" * 1000):
        pass
    assert end.unread


def repeat_until_error(do: Callable[[], object], errors: list[BaseException]) -> None:
    try:
        while True:
            do()
    except BaseException as error:
        errors.append(error)


def test_threads_that_receive_and_send_end_when_the_channel_is_closed() -> None:
    """A channel may be closed between the length of a message and the message itself."""
    errors: list[BaseException] = []
    for _ in range(100):
        ours, childs = Pipe()
        end = ChannelEnd(ours)
        uses = (end.receive, partial(end.send_waiting, LONG))
        threads = [threading.Thread(target=repeat_until_error, args=(use, errors)) for use in uses]
        for thread in threads:
            thread.start()
        for number in range(40):
            childs.send_bytes(b"m" * number)
        end.close()
        for thread in threads:
            thread.join()
    assert len(errors) == 200
    assert {type(error) for error in errors} <= {EOFError, OSError, BrokenPipeError}
