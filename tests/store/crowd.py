"""Other processes that work on a test's database."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tuner.store.database import Database

ROOT = Path(__file__).parents[2]
Process = subprocess.Popen[str]


@contextmanager
def process(act: Callable[..., None], database: Database, *arguments: object) -> Iterator[Process]:
    """Run an act of `tests.store.hammer` in a process, and yield the process when it is ready. It is killed at
    the end of the block.
    """
    command = [sys.executable, "-m", "tests.store.hammer", act.__name__, str(database.url)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, *map(str, arguments)], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
    ) as found:
        try:
            assert found.stdout is not None
            assert found.stdout.readline().strip()
            yield found
        finally:
            found.kill()


@contextmanager
def crowd(
    act: Callable[..., None], database: Database, arguments: Sequence[tuple[int, ...]]
) -> Iterator[list[Process]]:
    """Run one process for each tuple of arguments. All are ready before the first begins, and all must exit
    successfully.
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(process(act, database, *given)) for given in arguments]
        for one in processes:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        yield processes
        assert [one.wait() for one in processes] == [0] * len(processes)
