"""Find, measure and kill a process and its descendants, using /proc."""

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
KILL_S = 8.0  # shorter than `CLEAN_TIMEOUT_S`, for which the supervisor waits while its fork server cleans up
LOOK_AGAIN_S = 0.01
COLLECT_S = 0.5  # seconds between collections of exit statuses while descendants are killed
TRACKERS_S = 0.3  # how long resource trackers may remove the shared memory of processes that were killed
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_INTERRUPTS = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1)  # as bits of a signal mask in /proc
_SHM_MANAGER = "torch_shm_manag"  # the kernel keeps 15 characters of a program's name
PR_SET_PDEATHSIG = 1


def become_subreaper() -> None:
    """Make the kernel give orphaned descendants to this process as children, so that it can find and kill them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_at_parents_death(number: signal.Signals) -> None:
    """Have the kernel send a signal to this process when the *thread* that started it ends.

    So the signal also comes if only that thread ends and the parent process continues.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`, or for example `signal 40` if it has no name, like most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def become_child(output_fd: int) -> None:
    """Prepare a forked process that runs user code.

    The process gets a session of its own, and its output goes to `output_fd`. The kernel kills it when its parent ends. If memory runs
    out, the kernel kills it before other processes.
    """
    os.setsid()
    signal_at_parents_death(signal.SIGKILL)
    for number in (1, 2):
        os.dup2(output_fd, number)
    os.close(output_fd)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """The resources that some processes use now."""

    processes: int  #: Processes and threads, counted together.
    #: An upper bound: the memory of each process without its files and shared memory, plus the files and shared memory of the process that has
    #: the most of them. Memory that a forked process still shares with its parent counts in both. `proportional_bytes` counts it once.
    memory_bytes: int
    #: Processor time since their start, including that of ended children whose exit status they collected.
    cpu_ns: int


def resource_use(pids: Iterable[int]) -> ResourceUse:
    """Return the resources that these processes use together. A process that has ended uses nothing."""
    count, memory, most_shared, cpu_ns = 0, 0, 0, 0
    for pid in pids:
        with contextlib.suppress(OSError):
            threads = len(os.listdir(f"/proc/{pid}/task"))
            _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_bytes().split())
            ticks = sum(map(int, _stat(pid)[11:15]))
            count, memory = count + threads, memory + (resident - shared) * _PAGE_BYTES
            most_shared, cpu_ns = max(most_shared, shared * _PAGE_BYTES), cpu_ns + ticks * _TICK_NS
    return ResourceUse(count, memory + most_shared, cpu_ns)


def proportional_bytes(pids: Iterable[int]) -> int:
    """Return the memory of some processes in bytes. Of a page that `n` processes share, each of them counts one n-th.

    Reading it takes about a millisecond for each process, a hundred times as long as `resource_use`. A process can forbid this with
    `PR_SET_DUMPABLE`, unless root reads it. All its memory then counts.
    """
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
            except PermissionError:
                total += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
                continue
            total += 1024 * sum(
                int(line.split()[1]) for line in rollup.splitlines() if line.startswith(b"Pss:")
            )
    return total


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the process's state on. See proc(5)."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def descendants(pid: int, *, most: int | None = None) -> list[int]:
    """Return the process ids of all descendants of a process.

    If the process is a subreaper, its orphaned descendants are included.

    This takes 0.05 ms for one process, and 1.5 ms with 30 threads and 16 children. It does not depend on what else runs on the machine,
    because only the files of these processes in /proc are read. psutil would look through all processes of the machine.

    Args:
        pid: The process.
        most: The listing may stop once it has more than this number of descendants. None means that it lists all of them.
    """
    pids, waiting = list[int](), [pid]
    while waiting and (most is None or len(pids) <= most + 1):
        parent = waiting.pop()
        pids.append(parent)
        with contextlib.suppress(OSError, psutil.Error):  # a process may end meanwhile
            for task in os.listdir(f"/proc/{parent}/task"):
                children = Path(f"/proc/{parent}/task/{task}/children")
                try:
                    waiting += map(int, children.read_bytes().split())
                except ProcessLookupError:
                    continue  # the thread has ended
                except FileNotFoundError:
                    if children.parent.exists():  # this kernel does not list children in /proc
                        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return pids[1:]


def kill(pid: int) -> None:
    """Kill a process, if it still exists and belongs to this user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def is_tracker(pid: int) -> bool:
    """Return whether a process may be one that removes the shared memory of other processes when they have ended.

    Python's and joblib's resource trackers ignore SIGINT and SIGTERM, and block them while they start. PyTorch's manager has a name of
    its own. If these are killed, the shared memory of a killed trial stays in /dev/shm until the machine is restarted. The command line
    would show more, but a hostile process can block its readers.
    """
    with contextlib.suppress(OSError, ValueError, KeyError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        ignored = int(fields["SigIgn"], 16) | int(fields["SigBlk"], 16)
        return ignored & _INTERRUPTS == _INTERRUPTS or fields["Name"].strip() == _SHM_MANAGER
    return False


def kill_descendants(pid: int, *, within_s: float = 2.0, trackers_s: float = TRACKERS_S) -> bool:
    """Kill all descendants of a process until none remains or `within_s` seconds have passed. Return True if none remains.

    Resource trackers may first end by themselves, for at most `trackers_s` seconds.

    The descendants are listed repeatedly, because a process that is being killed may fork another one. An empty list is checked once
    more: a process that ends while it is listed hides its children until the next subreaper has adopted them. Zombies count as gone,
    because their parent may be stopped, so that it cannot collect their exit status.
    """
    began, empty_looks = time.monotonic(), 0
    while empty_looks < 2:
        living = [child for child in descendants(pid) if not _is_zombie(child)]
        for child in living:
            if time.monotonic() - began >= trackers_s or not is_tracker(child):
                kill(child)
        empty_looks = 0 if living else empty_looks + 1
        if living and time.monotonic() - began > within_s:
            return False
        if living:
            _wait_for_end(living[0])
    return True


def _wait_for_end(pid: int) -> None:
    """Wait until a killed process has ended, at most `LOOK_AGAIN_S`."""
    try:
        ends = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # this kernel has no pidfd_open(2), or too many files are open
        time.sleep(LOOK_AGAIN_S)
        return
    try:
        waiting = select.poll()
        waiting.register(ends, select.POLLIN)
        waiting.poll(LOOK_AGAIN_S * 1000)
    finally:
        os.close(ends)


def kill_own_descendants(*, without: int = 0) -> bool:
    """Kill all descendants of this process and collect their exit status. Return True if none remains.

    The exit status of process `without` is not collected, because other code collects it.

    Wait up to `KILL_S` until the descendants are gone, so that the next attempt finds the GPU free: a process that uses a GPU ends only
    after the GPU driver has freed its memory. Exit statuses are also collected during the wait, because zombies count as processes of
    the user and slow down each search for descendants.
    """
    until, trackers_s = time.monotonic() + KILL_S, TRACKERS_S
    while True:
        are_gone = kill_descendants(os.getpid(), within_s=COLLECT_S, trackers_s=trackers_s)
        trackers_s = 0.0
        collect_ended(without=without)
        if are_gone or time.monotonic() > until:
            return are_gone


def kill_other_children(kept: Collection[int]) -> None:
    """Kill the children of this process that are not in `kept`, with all their descendants.

    Repeat this until no such child is left, because this process adopts the orphans of a killed process, or until `KILL_S` is over.
    """
    until = time.monotonic() + KILL_S
    while time.monotonic() < until:
        others = [child.pid for child in psutil.Process().children() if child.pid not in kept]
        if not others:
            return
        for child in others:
            kill_descendants(child, trackers_s=0)  # they would wait for `child`
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            _wait_for_end(child)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def collect_ended(*, without: int) -> None:
    """Collect the exit status of all children of this process that have ended.

    The exit status of process `without` is not collected, because other code collects it.
    """
    for child in descendants(os.getpid()):
        if child != without and _is_zombie(child):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def _is_zombie(pid: int) -> bool:
    """Return whether a process is a zombie or does not exist any more."""
    with contextlib.suppress(OSError):
        return _stat(pid)[0] in (b"Z", b"X")
    return True
