"""Collect the output of user code.

The beginning and the end of the output are kept in memory and in the job's storage. The part between them is only
counted.
"""

import logging
import math
import os
import select
import threading
import time

from tuner.checkpoints.attempt_logs import Printed, TrialLogs
from tuner.checkpoints.storage import explained
from tuner.worker.orders import BeginOrder

HEAD_BYTES = 256 * 1024
TAIL_BYTES = 256 * 1024
FIRST_S = 1.0  # how often the writer checks for output before the first output
EVERY_S = 5.0  # how often it stores new output after the first output
LAST_S = 1.0  # longest wait until the last output is stored; it is limited because the worker costs money meanwhile
log = logging.getLogger("tuner.worker")


class LogPump:
    """Reads the child's standard output and error as soon as they are written, so that the child never blocks on them.

    A second thread writes the output to storage, so that slow storage does not delay the reading.
    """

    def __init__(self, order: BeginOrder) -> None:
        """Create the pipe for the child's output, and start both threads. `order` is the order that began the attempt."""
        self._order = order
        self._read, self.write_fd = os.pipe()
        self._lock = threading.Lock()
        self._head, self._tail, self._seen = bytearray(), bytearray(), 0
        self._stop, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-pump", daemon=True)
        self._thread.start()
        self._writer = threading.Thread(target=self._keep, name="log-writer", daemon=True)
        self._writer.start()

    def started(self) -> None:
        """Close this process's write end of the pipe, so that the stream ends when the child exits. Call it after the child was forked."""
        os.close(self.write_fd)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._read)
        self._over.set()
        self._writer.join(LAST_S)

    def text(self) -> bytes:
        printed = self._printed()
        left_out = printed.total - len(printed.head) - len(printed.tail)
        gap = b"\n[... %d bytes left out ...]\n" % left_out if left_out else b""
        return printed.head + gap + printed.tail

    def last(self, size: int = 4000) -> str:
        return self.text()[-size:].decode(errors="replace")

    def _printed(self, *, complete: bool = False) -> Printed:
        with self._lock:
            return Printed(self._seen, bytes(self._head), bytes(self._tail), complete)

    def _run(self) -> None:
        stops_at = math.inf
        while time.monotonic() < stops_at:
            if self._stop.is_set() and stops_at == math.inf:
                stops_at = time.monotonic() + LAST_S  # a process that nothing can kill may print without end
            ready, _, _ = select.select([self._read], [], [], 0.05)
            if ready:
                data = os.read(self._read, 1 << 16)
                if not data:
                    return
                self._take(data)
            elif self._stop.is_set():
                return

    def _take(self, data: bytes) -> None:
        with self._lock:
            self._seen += len(data)
            room = HEAD_BYTES - len(self._head)
            self._head += data[:room]
            self._tail += data[room:] if room > 0 else data
            del self._tail[:-TAIL_BYTES]

    def _keep(self) -> None:
        written, wait_s = 0, FIRST_S
        while not self._over.wait(wait_s):
            printed = self._printed()
            if printed.total != written and self._write(printed):
                written = printed.total
            wait_s = EVERY_S if printed.total else FIRST_S
        if self._seen:
            self._write(self._printed(complete=True))

    def _write(self, printed: Printed) -> bool:
        order = self._order
        try:
            logs = TrialLogs(order["storage"], order["project"], order["job"], order["trial"])
            logs.write(order["attempt"], printed, node=order.get("node", 0))
        except Exception as error:  # each kind of storage has errors of its own
            log.warning("%s: its output could not be stored: %s", order["trial"], explained(error))
            return False
        return True
