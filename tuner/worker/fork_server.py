"""A process that has imported user code and forks a child for each attempt. It imports the modules of a
trainable once, so that each attempt begins in milliseconds.

Usage: `python -m tuner.worker.fork_server FD ENTRY PACKAGE [MODULE ...]`. FD is the file descriptor of one end of a
SOCK_SEQPACKET socket. ENTRY is the trainable whose module is imported, or empty. PACKAGE is the folder that the trainable comes from,
or empty. Each MODULE is imported if ENTRY is empty. The standard input has the job's constants as JSON. The server calls the functions
that are decorated with `tuner.training.prepare` with these constants.

The server reads requests from the socket. `{"fork": …}` carries two descriptors, the child's channel and its output pipe, and
starts a child. `{"clean": …}` kills everything that attempts started, and the answer says whether none of it is left. The server sends
the exit status of each child, and ends when the socket is closed. When it ends, it kills its children and the processes that they left
behind, which it adopts as a subreaper.

On a worker that runs several attempts at once, each slot has a fork server of its own. So cleaning up after one attempt does not touch the
others. `{"slot": …}` forks the server of a slot, which shares the memory of all imports. It carries one end of the slot's own socket.
`{"batch": …}` starts the batch process of a `tuner.training.Packed` trainable, and carries the socket at which that process listens.
"""

import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import mmap
import os
import re
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tuner.worker.child import import_first_from, import_module, run_batch, run_child
from tuner.worker.dynamo import end_stand_in, stand_in
from tuner.worker.limits import HUGE_PAGES, TUNABLES, give_up_privileges
from tuner.worker.process_tree import (
    become_subreaper,
    kill_other_children,
    kill_own_descendants,
    signal_at_parents_death,
)
from tuner.worker.ray_imports import leave_out_pandas

# Names of `tuner.training` that can be used without torch.
_LIGHT = r"(?:DatasetRefused|MetricsRefused|StopTraining|dataset|prepare)"
# Finds user code in which a function may import torch: directly, through `tuner.training`, or because `save_checkpoint` of a class returns
# a dictionary. If user code matches, the server imports torch once for all attempts, which takes two seconds of processor time.
USES_TORCH = re.compile(
    rf"torch|save_checkpoint|tuner\.training(?!\.boosting| import {_LIGHT}(?:, {_LIGHT})*[ ]*$)", re.MULTILINE
)
# Finds imports of Ray and of pandas in the module of a trainable, where they are often inside the function. The server then imports `ray.tune`
# or pandas once for all attempts. Each would take about 0.3 s per attempt.
IMPORTS_SLOW = re.compile(r"^\s*(?:from|import)\s+(ray|pandas)\b", re.MULTILINE)
# Modules that a server imports again after it restarts itself, if it had imported them. All of them together take seven seconds of
# processor time.
COSTLY = ("numpy", "torch", "torch._dynamo", "pandas", "ray.tune")
MAX_REQUEST = 1 << 16
PREPARING = "tuner.training.preparing"
THREADS_END_S = 1.0
# An empty parallel region takes less than a millisecond if it does not hang. If it is only slow, user code is imported once more.
HANGS_S = 2.0
# Threads that jemalloc and Polars start when they are imported. Both work in a fork without them.
HARMLESS_THREADS = frozenset({"jemalloc_bg_thd", "polars-ooc-clea"})


def main(fd: int, entry: str, package: str, modules: list[str]) -> None:
    control = socket.socket(fileno=fd)
    become_subreaper()
    # If user code has stopped this process with SIGSTOP, wake it when the worker dies. Otherwise it would not see its socket close, and the
    # processes that user code started would continue to run unpaid. A running process ignores SIGCONT.
    signal_at_parents_death(signal.SIGCONT)
    give_up_privileges()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_first_from(package)
    leave_out_pandas()
    # After a restart by `_preload`, the input is empty: the server then prepares no data, so it needs no constants.
    constants = json.loads(sys.stdin.read() or "{}")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # user code that reads its standard input gets nothing
    os.close(null)
    gc.disable()  # saves a tenth of the processor time of the imports
    if entry:
        _preload(control, entry, package, constants)
    else:
        _import(*modules)
    if "numpy" in sys.modules:
        # NumPy imports it when it is first used. Each child would do so to seed its generator, in 7 ms of processor time.
        _import("numpy.random")
    if os.environ.get(TUNABLES) == HUGE_PAGES:
        # The setting has taken effect in this process. It is deleted so that programs which attempts start do not get it.
        del os.environ[TUNABLES]
    # Shared with the children. The first child that imports torch._dynamo sets it to 1.
    dynamo_needed = mmap.mmap(-1, 1)
    stand_in(lambda: dynamo_needed.__setitem__(0, 1))
    # Collecting garbage takes 0.25 s of processor time. Imports leave little garbage, so collect only if data may have been prepared.
    if PREPARING in sys.modules:
        gc.collect()
    gc.freeze()
    gc.enable()
    _send(control, {"ready": True})
    Server(control, package, dynamo_needed).run()


def _preload(control: socket.socket, entry: str, package: str, constants: dict[str, object]) -> None:
    """Import the module of a trainable and the modules that its attempts will need, and prepare the data that they share.

    If user code cannot be imported, the child will report the error. If user code started threads, used CUDA or computed with several
    threads, children could not be forked safely, so the server restarts itself without the trainable. It then imports only the slow
    libraries (`COSTLY`) that it had imported before.
    """
    module, before = entry.partition(":")[0], set(sys.modules)
    # whether preparing the data has started threads outside Python, such as those of OpenMP
    has_native_threads = False
    with contextlib.suppress(BaseException), _output_discarded(), _ends_with_its_worker(control):
        imported = import_module(module)
        found = set(IMPORTS_SLOW.findall(inspect.getsource(imported)))
        _import(*(name for name in ("pandas", "ray.tune") if name.partition(".")[0] in found))
        # An error of a function that prepares data is suppressed here. Each child that calls the function raises it again.
        if PREPARING in sys.modules:
            threads = _thread_count()
            try:
                sys.modules[PREPARING].prepare_all(constants)
            finally:
                # The kernel still lists a thread for some milliseconds after the thread has ended.
                deadline = time.monotonic() + THREADS_END_S
                while (has_native_threads := _thread_count() > threads) and time.monotonic() < deadline:
                    time.sleep(0.01)
    brought = sys.modules.keys() - before
    if _may_import_torch(brought):
        _import("numpy", "torch")
    is_lost = has_native_threads or threading.active_count() > 1 or _cuda_is_lost_to_forks()
    if is_lost or _pool_is_lost_to_forks() or _openmp_is_lost_to_forks():
        needed = [name for name in COSTLY if name in sys.modules]
        command = [sys.executable, "-m", __spec__.name, str(control.fileno()), "", package, *needed]
        os.execv(sys.executable, command)


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


@contextlib.contextmanager
def _output_discarded() -> Iterator[None]:
    """Discard the output that user code prints while it is imported.

    The output would otherwise go to the worker's log, whose size is not limited.
    """
    kept, null = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)
    try:
        yield
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        for number, before in enumerate(kept, start=1):
            os.dup2(before, number)
        for descriptor in (*kept, null):
            os.close(descriptor)


@contextlib.contextmanager
def _ends_with_its_worker(control: socket.socket) -> Iterator[None]:
    """While the block runs user code, end this process and all its descendants if the worker is gone.

    A thread waits until the other end of the socket is closed. The thread has ended when the block is left, because children cannot be
    forked safely while threads run. The kernel could instead kill this process with its worker (`PR_SET_PDEATHSIG`), but that would
    leave the processes that user code started, and would also happen when only the thread that started this process has ended.
    """
    reader, writer = os.pipe()

    def watch() -> None:
        waiting = select.poll()
        waiting.register(reader, select.POLLIN)
        waiting.register(control, 0)  # reports only that the other end was closed
        if reader in dict(waiting.poll()):
            return
        try:
            kill_own_descendants()
        finally:
            os._exit(1)

    thread = threading.Thread(target=watch, name="worker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.write(writer, b"x")
        thread.join()
        os.close(reader)
        os.close(writer)


def _cuda_is_lost_to_forks() -> bool:
    """Return whether this process has used CUDA while it imported user code. If it has, no fork of this process can use a GPU.

    The test runs in a fork, because PyTorch reports only there that CUDA is unusable. A call that counts the GPUs is enough to cause this,
    although `torch.cuda.is_initialized()` stays false in the calling process.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitpid(pid, 0)[1] != 0 or bool(torch.cuda.is_initialized())


def _pool_is_lost_to_forks() -> bool:
    """Return whether a library has started threads outside Python, such as those of Polars, JAX or CUDA. A fork would wait for them.

    Only threads with a name of their own count. OpenBLAS, MKL and OpenMP leave their threads the name of the process, and handle forks,
    except for GNU OpenMP (`_openmp_is_lost_to_forks`).
    """
    names = set[str]()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has ended
            names.add(Path(f"/proc/self/task/{thread}/comm").read_text().strip())
    return not names <= {Path("/proc/self/comm").read_text().strip(), *HARMLESS_THREADS}


def _openmp_is_lost_to_forks() -> bool:
    """Return whether a fork of this process hangs when it computes with the threads of GNU OpenMP.

    It does if user code has computed with several threads while it was imported, such as XGBoost's `DMatrix` or PyTorch: the library then
    takes the threads of this process for its own in the fork, where they do not exist. Each Python package brings a copy of the library
    with threads of its own. Other OpenMP libraries handle forks.
    """
    if _thread_count() == threading.active_count():
        return False
    lines = Path("/proc/self/maps").read_text().splitlines()
    libraries = {line.split(maxsplit=5)[-1] for line in lines if re.search(r"/libgomp[-.][^/]*$", line)}
    if not libraries:
        return False
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, HANGS_S)
        harmless = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p)
        for library in libraries:
            ctypes.CDLL(library).GOMP_parallel(harmless, None, 2, 0)
        os._exit(0)
    return os.waitpid(pid, 0)[1] != 0


def _import(*names: str) -> None:
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _may_import_torch(modules: Iterable[str]) -> bool:
    """Return whether a function of user code may import torch later. The server then imports torch now, once for all children.

    Only the user's own modules are searched. Many installed packages can use torch but need not, and those that need it have already
    imported it. Return False if torch is already imported.
    """
    if "torch" in sys.modules:
        return False
    for name in modules:
        if name.startswith("tuner.training"):
            continue
        # an entry of sys.modules may be any object, and reading it may raise
        with contextlib.suppress(Exception):
            path = Path(str(getattr(sys.modules[name], "__file__", None) or ""))
            is_own = path.suffix == ".py" and not {"site-packages", "dist-packages"} & {*path.parts}
            if is_own and USES_TORCH.search(path.read_text(errors="replace")):
                return True
    return False


class Server:
    """Serves the requests that arrive at one socket.

    Args:
        control: The socket to the supervisor.
        package: The folder of the trainable's package, or empty.
        dynamo_needed: One byte of memory that is shared with the children. It is not 0 if a child has imported torch._dynamo. The server
            then imports it too, once for all later children.
    """

    def __init__(self, control: socket.socket, package: str, dynamo_needed: mmap.mmap) -> None:
        self._control, self._package, self._dynamo_needed = control, package, dynamo_needed
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        # The servers of slots, and the batch process. A server that has any runs no attempts itself.
        self._members = set[int]()

    def run(self) -> None:
        """Serve requests until the socket is closed, because the worker is gone. Then kill all descendants."""
        signal.set_wakeup_fd(self._waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._wake], [], [])
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._serve():
                break
        kill_own_descendants()

    def _serve(self) -> bool:
        """Serve one request. Return False if the socket was closed."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MAX_REQUEST, 2)
        except ConnectionResetError:  # the worker has ended without reading the last answers
            return False
        if not data:
            return False
        request = json.loads(data)
        if "clean" in request:
            is_clean = kill_own_descendants()
            self._reap()
            _send(self._control, {"clean": is_clean})
        else:
            self._start(request, fds)
        return True

    def _start(self, request: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Fork the process that a request asks for, and send its id."""
        if self._dynamo_needed[0] and "fork" in request:
            self._import_dynamo()
        pid = os.fork()
        if pid == 0:
            self._release()
            if "fork" in request:
                run_child(request["fork"], fds[0], fds[1], self._package)
            elif "batch" in request:
                run_batch(request["batch"], fds[0], self._package)
            else:
                self._run_slot(request["slot"], fds[0])
        if "fork" not in request:
            self._members.add(pid)
        for descriptor in fds:
            os.close(descriptor)
        _send(self._control, {"pid": pid})

    def _release(self) -> None:
        """Close what a forked process must not share with this server."""
        self._control.close()
        signal.set_wakeup_fd(-1)
        for descriptor in (self._wake, self._waker):
            os.close(descriptor)

    def _run_slot(self, variables: Mapping[str, str], control: int) -> NoReturn:
        """Serve a slot from its own socket, then exit.

        Args:
            variables: Environment variables of the slot.
            control: The file descriptor of one end of the slot's socket.
        """
        code = 1
        try:
            os.setsid()
            become_subreaper()
            signal_at_parents_death(signal.SIGCONT)
            os.environ.update(variables)
            if "torch" in sys.modules:  # it has read the number of threads already
                sys.modules["torch"].set_num_threads(int(variables["OMP_NUM_THREADS"]))
            Server(socket.socket(fileno=control), self._package, self._dynamo_needed).run()
            code = 0
        finally:
            os._exit(code)

    def _import_dynamo(self) -> None:
        self._dynamo_needed[0] = 0
        gc.disable()
        # If it cannot be imported, a child that needs torch._dynamo reports the error.
        with contextlib.suppress(Exception):
            end_stand_in()
        gc.collect()
        gc.freeze()
        gc.enable()

    def _reap(self) -> None:
        """Send the exit status of each child that has ended.

        If a member has ended, kill the processes that it left behind. This server has adopted them.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._members:
                self._members.remove(pid)
                kill_other_children(self._members)
            _send(self._control, {"exited": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(control: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


if __name__ == "__main__":
    status = 1
    try:
        own_name, fd_text, entry, package, *modules = sys.argv
        sys.argv = [own_name]  # user code that parses its command line gets no arguments
        main(int(fd_text), entry, package, modules)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Do not run the exit handlers of user code: nobody would end them, or the processes that they start.
        os._exit(status)
