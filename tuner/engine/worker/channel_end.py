"""The supervisor's end of a child's channel.

The methods that are called under the supervisor's lock never wait for the child. This works on Linux only: the SIOCOUTQ request
(unix(7), "Ioctls") returns how many bytes the child has not read yet.
"""

import contextlib
import fcntl
import select
import struct
import termios
import threading
import time
from multiprocessing.connection import Connection

from tuner.engine.worker.child_messages import InvalidMessage
from tuner.training.channel import MAX_MESSAGE_BYTES


class ChannelEnd:
    """Wrap a connection over a Unix stream socket. One thread may receive. Any thread may send."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # never held while something waits for the child
        self._is_sending = False  # whether a thread is in `send_waiting`
        self._next: bytes | None = None  # messages that the thread in `send_waiting` sends after its own
        self._sent_at = 0.0
        self._room = select.poll()
        self._room.register(connection.fileno(), select.POLLOUT)

    def receive(self) -> bytes:
        """Wait for the next message and return it.

        Raises:
            InvalidMessage: The child announced a message that is too large.
            EOFError, OSError: The child closed its end.
        """
        try:
            return self._connection.recv_bytes(MAX_MESSAGE_BYTES)
        except OSError:
            # After a message above the limit, the connection stays open but is no longer readable. Other errors mean that it closed.
            if not self._connection.closed and not self._connection.readable:
                raise InvalidMessage(f"sent a message of more than {MAX_MESSAGE_BYTES} bytes") from None
            raise

    def send(self, data: bytes) -> bool:
        """Send a short message without waiting. Return False if the child has left too much unread.

        If another thread is in `send_waiting`, that thread sends this message after its own. This happens when the child has read
        and answered that thread's message before `send_waiting` returns. Return True if the channel is closed, because the reader
        notices the end.
        """
        with self._lock:
            if self._is_sending:
                if self._next is not None:
                    return False
                self._next = data
                return True
            with contextlib.suppress(OSError, ValueError):
                # POLLOUT means that at least three quarters of the buffer are free, which is far more than a reply needs.
                if not self._room.poll(0):
                    return False
                self._connection.send_bytes(data)
            self._sent_at = time.monotonic()
            return True

    def send_waiting(self, data: bytes) -> None:
        """Send a message of any length, and wait until the child has taken it. Raise OSError if the child is gone."""
        with self._lock:
            self._is_sending = True
        message: bytes | None = data
        try:
            while message is not None:
                self._connection.send_bytes(message)
                self._sent_at = time.monotonic()
                with self._lock:
                    message, self._next = self._next, None
                    self._is_sending = message is not None
        finally:
            self._is_sending = False

    @property
    def unread(self) -> bool:
        """Whether the child has not read all that was sent."""
        with contextlib.suppress(OSError, ValueError):
            answer = fcntl.ioctl(self._connection.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
            return int(struct.unpack("i", answer)[0]) > 0
        return False

    def unread_s(self) -> float:
        """Return the seconds since the last message was sent if some data is unread, or 0 if the child has read everything."""
        return time.monotonic() - self._sent_at if self._sent_at and self.unread else 0.0

    @property
    def has_data(self) -> bool:
        """Whether the child sent data that was not received yet, or closed its end."""
        with contextlib.suppress(OSError, ValueError):
            return self._connection.poll(0)
        return False

    def close(self) -> None:
        self._connection.close()
