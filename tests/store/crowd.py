"""Other processes that work on a test's database.

They are forked by one server per test process, which has imported everything: an import takes a second of a core.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess as Process

from tuner.database.database import Database

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.store.hammer"])


@contextmanager
def process(
    act: Callable[..., None], database: Database, *arguments: object
) -> Iterator[tuple[Process, Connection]]:
    """Run an act of `tests.store.hammer` in a process. It is killed at the end of the block.

    Yields:
        The process, and a connection to it, when it is ready.
    """
    mine, theirs = FORKS.Pipe()
    url = database.url.render_as_string(hide_password=False)
    child = FORKS.Process(target=act, args=(theirs, url, *arguments))
    child.start()
    theirs.close()  # so that `recv` fails if the process ends
    try:
        assert mine.recv()
        yield child, mine
    finally:
        child.kill()
        child.join()
        mine.close()


@contextmanager
def crowd(
    act: Callable[..., None], database: Database, arguments: Sequence[tuple[int, ...]]
) -> Iterator[list[Process]]:
    """Run one process for each tuple of arguments. All are ready before the first begins, and all must exit
    successfully.
    """
    with ExitStack() as stack:
        started = [stack.enter_context(process(act, database, *given)) for given in arguments]
        for _, connection in started:
            connection.send("go")
        processes = [started_process for started_process, _ in started]
        yield processes
        for member in processes:
            member.join()
        assert [started_process.exitcode for started_process in processes] == [0] * len(processes)
