"""The child: user code, in a session and a directory of its own, with its words for the supervisor."""

import contextlib
import ctypes
import errno
import importlib
import inspect
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from tuner.engine.worker import tune_compat
from tuner.training import channel as words
from tuner.training.channel import Channel, StopTraining
from tuner.training.seeding import seed_everything

PR_SET_PDEATHSIG = 1
OUT_OF_GPU_MEMORY = "OutOfMemoryError"  # PyTorch's; JAX and others say so in words of their own
TOO_MANY_FILES = os.strerror(errno.EMFILE)  # PyTorch says it in an error of its own
MEND_GPU_MEMORY = (
    "the GPU's memory ran out; use a smaller batch or model, bf16, accumulation or checkpointing of activations, or ask for more "
    "of a GPU, or a larger one, a trial"
)


class NotTrainable(Exception):
    """What was named cannot be trained."""


def come_from(package: str) -> None:
    """From here on this process and all that it starts import from the folder of a package first; empty: from none. Nothing is
    written there."""
    if not package:
        return
    sys.path.insert(0, package)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *([before] if before else [])])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True


def run_child(place: dict[str, Any], channel_fd: int, output_fd: int, package: str) -> NoReturn:
    """Called in the forked process; never returns. `place` has its directory (`cwd`)."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _settle_in(place["cwd"], output_fd)
    code = 0
    try:
        channel = words.open_channel(Connection(channel_fd))
        _run(channel, package)
    except StopTraining:
        pass
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _settle_in(cwd: str, output_fd: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.close(output_fd)
    os.chdir(cwd)
    os.environ["TMPDIR"] = cwd
    tempfile.tempdir = None  # whoever asked for it in the fork server was told of another
    random.seed()  # a fork shares its server's generator
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, this process goes first


def _run(channel: Channel, package: str) -> None:
    try:
        target = load(channel.begin.entry, package)
    except BaseException as error:
        _fail(channel, error, kind="import")
        return
    try:
        train(target, channel)
    except StopTraining:
        raise
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else int(bool(error.code)))
    except BaseException as error:
        _fail(channel, error, kind="metrics" if isinstance(error, words.MetricsRefused) else "raised")
    else:
        channel.ended()


def load(entry: str, package: str = "") -> Callable[..., Any]:
    """The function or class that `module:attribute` names, in the folder of a package if there is one."""
    module, _, attribute = entry.partition(":")
    imported = importlib.import_module(module)
    file = str(getattr(imported, "__file__", None))
    if package and not file.startswith(package + os.sep):
        raise NotTrainable(f"{module} is not of the package: it is {file}")
    found = getattr(imported, attribute)
    if not callable(found):
        raise NotTrainable(f"{entry} is a {type(found).__name__}, not a function or a class")
    origin = str(found.__module__) if inspect.isroutine(found) or inspect.isclass(found) else module
    package = origin.partition(".")[0]
    if package in sys.stdlib_module_names and package != module.partition(".")[0]:
        # Who allows a module does not allow what it imports: `from subprocess import run` would be a shell for everybody.
        raise NotTrainable(
            f"{entry} is {attribute} of Python's own {origin}; name a function or class of {module}"
        )
    return found  # type: ignore[no-any-return]


def train(target: Callable[..., Any], channel: Channel) -> None:
    """Calls user code as a worker does, whatever of Ray Tune's ways to report it uses. Raises what it raises."""
    session = tune_compat.install(channel)
    begin = channel.begin
    if begin.seed is not None:
        # A function that restores no generators must not draw the numbers of its first steps again when it continues.
        seed_everything(begin.seed + begin.first_step)
    if isinstance(target, type) and tune_compat.is_trainable_class(target):
        tune_compat.run_class(target, channel)
        return
    # `SpotSafe.steps` says when training begins; what comes before it loads data and builds the model.
    channel.phase("setup" if "tuner.training.spot_safe" in sys.modules else "train")
    session.take_output(target(dict(channel.begin.config)))


def _fail(channel: Channel, error: BaseException, *, kind: words.FailureKind) -> None:
    traceback.print_exc()
    text, message = "".join(traceback.format_exception(error)), str(error)
    if type(error).__name__ == OUT_OF_GPU_MEMORY:
        kind, message = "memory", f"{MEND_GPU_MEMORY}. {message}"
    missing = getattr(error, "filename", None) if isinstance(error, FileNotFoundError) else None
    if isinstance(missing, str) and not os.path.isabs(missing):
        message = (
            f"{message}. Each trial starts in an empty directory of its own: use an absolute path, for example one that the job passes "
            "in `constants`"
        )
    if TOO_MANY_FILES in message:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        message = (
            f"a process may have {soft} files open at once, and {hard} if it asks for that; close what is not needed, or have "
            f"the operator raise TUNER_MAX_OPEN_FILES or the machine's limit. {message}"
        )
    channel.failed(type(error).__name__, message, text, kind=kind)
