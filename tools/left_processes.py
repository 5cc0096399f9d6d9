"""List the processes that a run of `.ci/run` left behind.

    python -m tools.left_processes MARK SINCE

`.ci/run` sets the environment variable CI_RUN to MARK, which the processes that it starts inherit. Some programs overwrite their environment
or do not pass it on. Processes that started at SINCE or later, in seconds since 1970, are therefore also listed if their command line names
a file of this checkout. Processes of other checkouts and users are not listed.

Their command lines are written to standard error, and their number to standard output.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
VARIABLE = "CI_RUN"
GRACE_S = 10  #: How long processes that are ending may take.


def left(mark: str, since: float, root: Path = ROOT) -> Iterator[psutil.Process]:
    """Yield the processes of the run, except the calling process and those that started it."""
    own = psutil.Process()
    callers = {own, *own.parents()}
    for process in psutil.process_iter():
        try:
            if process not in callers and _belongs(process, mark, since, f"{root}/"):
                yield process
        except psutil.Error:  # It has ended, or belongs to another user.
            continue


def _belongs(process: psutil.Process, mark: str, since: float, prefix: str) -> bool:
    if process.environ().get(VARIABLE) == mark:
        return True
    return process.create_time() >= since and any(word.startswith(prefix) for word in process.cmdline())


def main(mark: str, since: str) -> int:
    _, alive = psutil.wait_procs(list(left(mark, float(since))), timeout=GRACE_S)
    for process in alive:
        try:
            sys.stderr.write(f"left running: {process.pid} {' '.join(process.cmdline())}\n")
        except psutil.Error:
            sys.stderr.write(f"left running: {process.pid}\n")
    sys.stdout.write(f"{len(alive)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
