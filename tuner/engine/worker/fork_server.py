"""A warm process that forks children: what the trainable needs is imported once, and each attempt begins in milliseconds.

`python -m tuner.engine.worker.fork_server FD ENTRY PACKAGE` with one end of a SOCK_SEQPACKET socket as file descriptor FD; PACKAGE is
the folder that ENTRY comes from, or empty. It is asked for children (`{"fork": …}`, with the child's channel and its output pipe as descriptors), tells how they exited,
and ends with its socket. Everything that an attempt started is killed with it: children, and by way of being their
subreaper, whatever they left behind.
"""

import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import os
import re
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from tuner.engine.worker.child import come_from, run_child
from tuner.engine.worker.family import become_subreaper, kill_own_descendants
from tuner.engine.worker.limits import give_up_privileges

PR_SET_PDEATHSIG = 1
# The first optimizer of a process imports torch._dynamo, as some others of PyTorch's functions do: two seconds of a processor, spent
# once for all attempts, and not at all for code in which nothing does.
NEEDS_DYNAMO = re.compile(r"optim|\bcompile|utils[. ].*checkpoint|flex_attention")
# Packages in which only code that knows of optimizers can reach one.
OF_EVERYBODY = ("torch", "torchgen", "numpy", "ray", "pandas", "pyarrow")
# Code in which a function may import torch: by itself, by a helper of ours, or by the dictionary that `save_checkpoint` of a class
# returns. Two seconds of a processor, once for all attempts, and not at all for code that does without.
USES_TORCH = re.compile(r"torch|tuner\.training|save_checkpoint")
# Trainables of Ray Tune import it, often within the function; half a second that each attempt need not take.
IMPORTS_RAY = re.compile(r"^\s*(from|import)\s+ray\b", re.MULTILINE)
MAX_REQUEST = 1 << 16


def main(fd: int, entry: str, package: str) -> None:
    control = socket.socket(fileno=fd)
    become_subreaper()
    resume_at_parents_death()
    give_up_privileges()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    come_from(package)
    gc.disable()  # while modules are imported: a tenth of the processor time
    _preload(entry)
    gc.collect()
    gc.freeze()
    gc.enable()
    _send(control, {"ready": True})
    wake, waker = os.pipe()
    signal.set_wakeup_fd(_nonblocking(waker))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(control)
        if control.fileno() in ready and not _serve(control, (wake, waker), package):
            break
    kill_own_descendants()


def resume_at_parents_death() -> None:
    """Have the kernel resume this process when the worker dies. If user code stopped it, it would not see its socket close, and what
    user code started would go on unpaid. The kernel sends the signal when the *thread* that started this process ends, so it may come
    earlier; it changes nothing then."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


def _nonblocking(fd: int) -> int:
    os.set_blocking(fd, False)
    return fd


def _preload(entry: str) -> None:
    """Import what attempts will need. User code that cannot be imported, or would not survive a fork, is left to the child."""
    module, before = entry.partition(":")[0], set(sys.modules)
    if module:
        with contextlib.suppress(BaseException), _unheard():
            found = importlib.import_module(module)
            if IMPORTS_RAY.search(inspect.getsource(found)):
                importlib.import_module("ray.tune")
    brought = sys.modules.keys() - before
    if module not in sys.modules or _may_import_torch(brought):
        _import("numpy", "torch")
    if module not in sys.modules or needs_dynamo(brought):
        _import("torch._dynamo")
    if not module:
        return
    if threading.active_count() > 1 or _cuda_is_lost_to_forks():
        os.execv(sys.executable, [sys.executable, "-m", __spec__.name, sys.argv[1], "", sys.argv[3]])


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """What user code prints as it is imported, perhaps without end, would be in the worker's log, of which nobody cuts anything."""
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


def _cuda_is_lost_to_forks() -> bool:
    """Whether user code touched CUDA when it was imported, after which no fork of this process can use a GPU. PyTorch answers that
    in a fork alone: to ask for the number of GPUs is enough, and initializes nothing that the asking process could see."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitpid(pid, 0)[1] != 0 or bool(torch.cuda.is_initialized())


def _import(*names: str) -> None:
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def needs_dynamo(modules: Iterable[str]) -> bool:
    """Return whether any of these modules, which user code brought with it, may call what imports torch._dynamo."""
    return any("torch" in source and NEEDS_DYNAMO.search(source) for _, source in _sources(modules))


def _may_import_torch(modules: Iterable[str]) -> bool:
    """Return whether a function of user code may import torch. Installed packages are passed over: many support torch among others,
    and those that need it have imported it."""
    if "torch" in sys.modules:
        return False
    return any(
        "site-packages" not in path.parts and USES_TORCH.search(source) for path, source in _sources(modules)
    )


def _sources(modules: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Yield the files of modules written in Python, with their source."""
    for name in modules:
        if name.partition(".")[0] in OF_EVERYBODY or name.startswith("tuner.training"):
            continue
        with contextlib.suppress(Exception):  # what stands for a module may be anything, and answer anything
            path = Path(str(getattr(sys.modules[name], "__file__", None) or ""))
            if path.suffix == ".py":
                yield path, path.read_text(errors="replace")


def _serve(control: socket.socket, own: tuple[int, ...], package: str) -> bool:
    """One request. False at the end of the stream: the actor is gone. `own`: descriptors that are none of a child's business."""
    data, fds, _, _ = socket.recv_fds(control, MAX_REQUEST, 2)
    if not data:
        return False
    request = json.loads(data)
    if "fork" in request:
        channel, output = fds
        pid = os.fork()
        if pid == 0:
            control.close()
            signal.set_wakeup_fd(-1)
            for descriptor in own:
                os.close(descriptor)
            run_child(request["fork"], channel, output, package)
        for descriptor in fds:
            os.close(descriptor)
        _send(control, {"pid": pid})
    else:
        kill_own_descendants()
        _reap(control)
        _send(control, {"clean": True})
    return True


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _send(control, {"exited": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(control: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
