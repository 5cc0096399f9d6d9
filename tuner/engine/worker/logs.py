"""What user code prints: its head and its tail are kept, the rest is counted."""

import os
import select
import threading

HEAD_BYTES = 256 * 1024
TAIL_BYTES = 256 * 1024


class LogPump:
    """Drains the child's standard output and error as fast as they come, so that it never blocks."""

    def __init__(self) -> None:
        self._read, self.write_fd = os.pipe()
        self._head, self._tail, self._seen = bytearray(), bytearray(), 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-pump", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """The child has its end of the pipe; ours is closed, so that its exit ends the stream."""
        os.close(self.write_fd)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._read)

    def text(self) -> bytes:
        left_out = self._seen - len(self._head) - len(self._tail)
        gap = b"\n[... %d bytes left out ...]\n" % left_out if left_out else b""
        return bytes(self._head) + gap + bytes(self._tail)

    def last(self, size: int = 4000) -> str:
        return self.text()[-size:].decode(errors="replace")

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._read], [], [], 0.05)
            if ready:
                data = os.read(self._read, 1 << 16)
                if not data:
                    return
                self._take(data)
            elif self._stop.is_set():
                return

    def _take(self, data: bytes) -> None:
        self._seen += len(data)
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        del self._tail[:-TAIL_BYTES]
