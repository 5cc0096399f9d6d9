"""Test the supervisor's end of a child's channel: messages arrive whole and in order, and a reply never waits
for the child.
"""

import threading
import time
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
    being_sent(end, LONG)
    assert end.send(b"reply")
    assert not end.send(b"another")
    assert child.recv_bytes() == LONG


def test_a_reply_is_refused_when_the_child_reads_none(ends: tuple[ChannelEnd, Connection]) -> None:
    end, _child = ends
    while end.send(b"r" * 1000):
        pass
    assert end.unread
