"""Measure a real driver from within, for `benchmarks.sizing`.

`sitecustomize` of that driver's process imports this module before anything else. The module appends a line of JSON to a file after every
`EVERY` transactions of the job's journal.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tuner.store.journal import SqlJournal

FILE = "TUNER_USER_SIZING"
EVERY = 1000
# Every Python process in the folder runs this. The driver is recognised by its command.
SITE = f"""
import os, sys
if "tuner.service.driver" in sys.orig_argv and os.environ.get({FILE!r}):
    import benchmarks.sizing_driver
    benchmarks.sizing_driver.measure()
"""


def measure() -> None:
    """Measure all journal transactions from now on."""
    path, plain = Path(os.environ[FILE]), SqlJournal.transaction
    took_ns: list[int] = []
    process = psutil.Process()

    @contextmanager
    def timed(journal: SqlJournal) -> Iterator[Any]:
        began = time.perf_counter_ns()
        with plain(journal) as tx:
            yield tx
        took_ns.append(time.perf_counter_ns() - began)
        if len(took_ns) == EVERY:
            note(path, took_ns, process)
            took_ns.clear()

    SqlJournal.transaction = timed  # type: ignore[method-assign,assignment]


def note(path: Path, took_ns: list[int], process: psutil.Process) -> None:
    used = process.cpu_times()
    record = {
        "transactions_ns": took_ns,
        "cpu_s": used.user + used.system,
        "rss": process.memory_info().rss,
        "at": time.time(),
    }
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
