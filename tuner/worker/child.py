"""The child process, which runs user code in its own session and directory and sends messages to the supervisor."""

import atexit
import contextlib
import errno
import importlib
import inspect
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, NoReturn

from tuner.domain.command import PROGRAM_ENTRY
from tuner.training import channel as words
from tuner.training.channel import Channel, StopTraining
from tuner.training.seeding import seed_attempt, seed_everything
from tuner.worker import tune_compat
from tuner.worker.process_tree import become_child
from tuner.worker.program import PACKAGE_VARIABLE, ProgramFailed

EXPORT_KIND = "export"  # the `kind` of an attempt that exports a checkpoint instead of training
EXIT_S = 1.0  # how long exit handlers of user code may run after it has ended, and threads after it was stopped or has failed
GPUS = "CUDA_VISIBLE_DEVICES"  # the variable by which Ray gives a worker its GPUs
IMPORT_SEED = 0  # the fork server imports user code before it knows the seed of an attempt
ANNOUNCES_TRAINING = frozenset({"tuner.training.spot_safe", "tuner.training.framework_run"})
OUT_OF_GPU_MEMORY = "OutOfMemoryError"  # PyTorch's class; JAX and other libraries raise other errors
# PyTorch's exception class for a failed rendezvous, and the error name in its message if the port is taken
RENDEZVOUS_ERROR, PORT_IN_USE = "DistNetworkError", "EADDRINUSE"
# searched in the message, because PyTorch raises an exception class of its own
TOO_MANY_FILES = os.strerror(errno.EMFILE)
FIX_GPU_MEMORY = (
    "the GPU ran out of memory; use a smaller batch or model, bf16, gradient accumulation or activation checkpointing, or give each "
    "trial a larger share of a GPU or a larger GPU"
)
RAY_TRAINER = (
    "{entry} is a {kind} of Ray Train. It would start workers of its own, for which the job reserves no resources. Name its "
    "train_loop_per_worker as the trainable, and replace ScalingConfig(num_workers=N) with processes_per_node: N in the job's resources. "
    "In the function, replace prepare_model with torch.distributed.init_process_group() and DistributedDataParallel"
)
ASYNC_FUNCTION = "{entry} is an async function; write a function with def, and let it call asyncio.run for the asynchronous part"

# Why the GPUs that user code chose while it was imported were not accepted. None if it chose none, or if they were.
gpus_refused: str | None = None


class NotTrainable(Exception):
    """The entry does not name a function or class that can be trained."""


def import_first_from(package: str) -> None:
    """Make this process and the processes that it starts import from the folder `package` first. Do nothing if it is empty.

    Bytecode is not written, so the folder stays unchanged.
    """
    if not package:
        return
    sys.path.insert(0, package)
    os.environ[PACKAGE_VARIABLE] = package
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *([before] if before else [])])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True


def run_child(cwd: str, channel_fd: int, output_fd: int, package: str) -> NoReturn:
    """Run user code in the forked process, then exit.

    Args:
        cwd: The child's working directory.
        channel_fd: The child's end of the channel to the supervisor.
        output_fd: The pipe for standard output and standard error.
        package: The folder of the trainable's package, or empty.
    """
    become_child(output_fd)
    _restore_defaults()
    os.chdir(cwd)
    os.environ["TMPDIR"] = cwd
    # joblib would share arrays in /dev/shm, where those of a killed trial would stay
    os.environ.setdefault("JOBLIB_TEMP_FOLDER", cwd)
    tempfile.tempdir = None  # the fork server may have cached another directory
    code = 0
    try:
        channel = words.open_channel(Connection(channel_fd))
        _run(channel, package)
    except StopTraining:
        pass
    except BaseException:
        _print(traceback.format_exc())
        code = 1
    _exit(code)


def _exit(code: int) -> NoReturn:
    """Wait for threads and run the exit handlers that were registered in this process, both for at most `EXIT_S`, then exit.

    Python waits for the same threads at its end: those that are not daemons, and those of a `ThreadPoolExecutor`.

    The supervisor already knows how the attempt ended, and kills this process after its own grace period or at the end of the lease.
    """
    if atexit._ncallbacks() or threading.active_count() > 1:
        limit = threading.Timer(EXIT_S, os._exit, [code])
        limit.daemon = True
        limit.start()
        for finish in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                finish()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _restore_defaults() -> None:
    """Undo what a forked process has inherited from the fork server: its signal handlers, its exit handlers, and its random numbers."""
    atexit._clear()  # they would run in each process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    random.seed()  # otherwise all children would draw the same numbers as the fork server


def run_batch(entry: str, listener_fd: int, package: str) -> NoReturn:
    """Train the trials of a `tuner.training.Packed` trainable as one batch, in the forked process, until this process is killed.

    Output is discarded. Errors are sent to the children that they concern.

    Args:
        entry: The trainable, `module:attribute`.
        listener_fd: A listening socket, to which the children of the trials connect.
        package: The folder of the trainable's package, or empty.
    """
    become_child(os.open(os.devnull, os.O_WRONLY))
    _restore_defaults()
    listener = socket.socket(fileno=listener_fd)
    try:
        load(entry, package).serve(listener)  # type: ignore[attr-defined]
    finally:
        # Close the connections of the children that wait. They then train in their own processes.
        listener.setblocking(False)
        with contextlib.suppress(BaseException):
            while True:
                listener.accept()[0].close()
        os._exit(1)


def _run(channel: Channel, package: str) -> None:
    _join_ranks(channel.begin.variables)
    _limit_joblib()
    process = os.getpid()
    try:
        target = load(channel.begin.entry, package)
    except BaseException as error:
        if os.getpid() != process:
            raise  # a process that user code forked must not end the attempt
        _fail(channel, error, kind="import")
        return
    try:
        train(target, channel, returned=partial(_returned, channel, process))
    except StopTraining:
        raise
    except SystemExit as error:
        _exit_as_python(error.code)
    except BaseException as error:
        if os.getpid() != process:
            raise
        _fail(channel, error, kind="metrics" if isinstance(error, words.MetricsRefused) else "raised")
    else:
        _returned(channel, process)
        channel.ended()


def _returned(channel: Channel, process: int, output: object = None) -> None:
    """Wait for the threads of user code that has returned, if they may still report. Python waits for them at the end of a script.

    They may if user code returned no metrics, and another thread sent its newest report, or it has not reported at all. Otherwise other
    threads only support the training, and the end of the attempt does not wait for them. An integer may be an exit status.

    This function sets no limit, because the driver ends a trial that does not report for too long. If this is not the child `process`, but
    a process that user code forked from it, exit: its output is not that of the attempt.
    """
    if os.getpid() != process:
        _exit(0)
    own = threading.current_thread()
    if not (output is None or type(output) is int) or channel.reporter == own.ident:
        return
    if any(thread is not own and not thread.daemon for thread in threading.enumerate()):
        threading._shutdown()  # type: ignore[attr-defined]


def _exit_as_python(code: object) -> NoReturn:
    """End this process as Python does after `sys.exit(code)`: a code that is not a number is printed to standard error, and the status is 1."""
    if code is not None and not isinstance(code, int):
        _print(f"{words.text_of(code)}\n")
    _exit(code if isinstance(code, int) else int(code is not None))


def _print(text: str) -> None:
    """Print to standard error, or to the original one if user code has closed or replaced it by something that fails. Ignore errors."""
    for stream in (sys.stderr, sys.__stderr__):
        with contextlib.suppress(Exception):
            print(text, end="", file=stream)
            return


def _join_ranks(variables: Mapping[str, str]) -> None:
    """Set the environment variables with which ranks find each other, and PyTorch's number of threads. Do nothing without variables."""
    if not variables:
        return
    os.environ.update(variables)
    if (
        "torch" in sys.modules
    ):  # the fork server imported it before the variables were set, so they do not change its threads
        sys.modules["torch"].set_num_threads(int(variables["OMP_NUM_THREADS"]))


def _limit_joblib() -> None:
    """Let joblib's `n_jobs=-1` use as many CPUs as libraries use threads, unless the operator has set a number. By default it uses all."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if threads.isdecimal():
        os.environ.setdefault("LOKY_MAX_CPU_COUNT", threads)


def import_module(name: str) -> ModuleType:
    """Import a module of user code. Code at its top level must not train.

    If it was not imported before, the random generators are seeded first. So code at its top level, such as a random split of the data, does
    the same in each attempt, no matter on which worker and whether the fork server or the attempt imports the module.
    """
    if name not in sys.modules:
        seed_everything(IMPORT_SEED)
    own_gpus = os.environ.get(GPUS)
    try:
        with words.importing():
            return importlib.import_module(name)
    finally:
        _restore_gpus(own_gpus)


def _restore_gpus(own: str | None) -> None:
    """Restore the GPUs of this process if user code has chosen others. Code may choose among those of the process, or none."""
    global gpus_refused
    chosen = os.environ.get(GPUS)
    if own is None or (chosen is not None and {*chosen.split(",")} <= {*own.split(","), "", "-1"}):
        return
    os.environ[GPUS] = own
    gpus_refused = (
        f"The module set {GPUS} to {chosen!r} while it was imported. It was restored to {own!r}, which names the GPUs of this trial; "
        "use them as cuda:0, cuda:1 and so on, and do not set the variable"
    )


def load(entry: str, package: str = "") -> Callable[..., Any]:
    """Import and return the function or class that `module:attribute` names.

    Args:
        entry: The trainable, `module:attribute`.
        package: The folder that the module must come from. Empty means any folder. The service's own module that runs the program of a
            package is allowed, too.

    Raises:
        NotTrainable: The module is not in the package. Or the attribute is not callable, is an async function, is a trainer of Ray Train, or
            is a function or class that the module has imported from Python's standard library.
    """
    module, _, attribute = entry.partition(":")
    imported = import_module(module)
    file = str(getattr(imported, "__file__", None))
    if package and entry != PROGRAM_ENTRY and not file.startswith(package + os.sep):
        raise NotTrainable(
            f"{module} is not in the package: it was imported from {file}; name a module of the package"
        )
    target = getattr(imported, attribute)
    if type(target).__module__.startswith("ray.train."):
        raise NotTrainable(RAY_TRAINER.format(entry=entry, kind=type(target).__name__))
    if not callable(target):
        raise NotTrainable(
            f"{entry} is not a function or a class, but a value of the type {type(target).__name__}; name a function or a class"
        )
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        raise NotTrainable(ASYNC_FUNCTION.format(entry=entry))
    origin = str(target.__module__) if inspect.isroutine(target) or inspect.isclass(target) else module
    package = origin.partition(".")[0]
    if package in sys.stdlib_module_names and package != module.partition(".")[0]:
        # Allowing a module must not allow the functions that it imports: `from subprocess import run` would give users a shell.
        raise NotTrainable(
            f"{entry} is {attribute} of the standard library's module {origin}; name a function or class that {module} defines"
        )
    return target  # type: ignore[no-any-return]


def import_fix(error: ModuleNotFoundError, entry: str) -> str:
    """Return what to do if a module of the trainable `entry` cannot be imported."""
    name, own = error.name or "the module", entry.partition(":")[0].partition(".")[0]
    package, _, module = name.rpartition(".")
    if name == own:
        return (
            f"Start `tuner serve` in the directory of {own}, or add that directory to its PYTHONPATH. On a cluster, install {own} where "
            "the workers run"
        )
    if package.partition(".")[0] == own:
        return f"{package} was found, but it has no module {module}: correct the name, or add the file"
    return f"Install {name.partition('.')[0]} where the service and its workers run"


def train(
    target: Callable[..., Any], channel: Channel, *, returned: Callable[[object], object] = lambda _: None
) -> None:
    """Run the attempt: an export, or a trainable, which may be a function, a class of Ray Tune or an Optuna objective.

    User code may report in any of Ray Tune's ways. Its exceptions propagate. If the GPUs that its module chose were not accepted, say so in
    its output.

    Args:
        target: The trainable. It is not used for an export.
        channel: The channel to the supervisor.
        returned: Called with the output of a function or an objective that has returned, before the output is reported. It is not called for a generator,
            whose code has not run yet.
    """
    if gpus_refused is not None:
        with contextlib.suppress(Exception):  # user code may have closed its output
            sys.stdout.write(f"{gpus_refused}\n")
    begin = channel.begin
    if begin.kind == EXPORT_KIND:
        from tuner.worker.export_child import run_export  # imports torch, so only when needed

        run_export(channel)
        return
    session = tune_compat.install(channel)
    if begin.seed is not None:
        # Each attempt gets the same seed, so that code before the restore, such as a random split of the data, gives the same result.
        seed_attempt(begin.seed)
    if isinstance(target, type) and tune_compat.is_trainable_class(target):
        tune_compat.run_class(target, channel)
        return
    # `SpotSafe` and the adapters announce themselves when training starts. Code that has imported one of them is still in its setup here.
    channel.phase("setup" if ANNOUNCES_TRAINING & sys.modules.keys() else "train")
    if begin.kind == "optuna":
        from tuner.worker.objective import run_objective  # imports Optuna, so only when needed

        run_objective(lambda trial: _output(target, trial, returned), channel)
        return
    session.take_output(_output(target, dict(channel.begin.config), returned))


def _output(target: Callable[..., Any], argument: object, returned: Callable[[object], object]) -> Any:
    output = target(argument)
    if not inspect.isgenerator(output):
        returned(output)
    return output


def _fix(error: BaseException, begin: words.BeginMessage) -> str:
    """Return advice if the error usually comes from a common mistake in user code, else an empty text."""
    if isinstance(error, ModuleNotFoundError):
        return import_fix(error, begin.entry)
    attribute = str(error.name) if isinstance(error, AttributeError) and isinstance(error.obj, dict) else ""
    if attribute.startswith("suggest_"):
        return "The function expects an Optuna trial: write kind: optuna in the job file"
    key = error.args[0] if type(error) is KeyError and error.args else None
    if isinstance(key, str) and key not in begin.config:
        # Do not list the parameters, which may differ between trials: a job ends early if its trials fail with the same message.
        return (
            "If the trainable looks this key up in its config: the job has no parameter or constant of this name; add it to search_space "
            "or constants"
        )
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        if os.path.isabs(error.filename):
            return "The path must exist on each machine that runs workers"
        return "Each trial starts in an empty directory of its own: use an absolute path, for example one that the job passes in `constants`"
    return ""


def _fail(channel: Channel, error: BaseException, *, kind: words.FailureKind) -> None:
    if isinstance(error, ProgramFailed):
        text = error.output  # a traceback would show only the service's own code
        _print(f"{error}\n")
    else:
        text = "".join(traceback.format_exception(error))
        _print(text)
    message = words.message_at_import(error) if kind == "import" else words.text_of(error)
    if type(error).__name__ == OUT_OF_GPU_MEMORY:
        kind, message = "memory", f"{FIX_GPU_MEMORY}. {message}"
    if fix := _fix(error, channel.begin):
        message = f"{message}. {fix}"
    if channel.begin.variables and type(error).__name__ == RENDEZVOUS_ERROR and PORT_IN_USE in message:
        kind = "port"  # another process has taken the port since it was chosen
    if TOO_MANY_FILES in message:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        message = (
            f"the process has reached its limit of {soft} open files, which it may raise to {hard}; close files that are not needed, "
            f"or have the operator raise TUNER_MAX_OPEN_FILES or the machine's limit. {message}"
        )
    channel.failed(type(error).__name__, message, text, kind=kind)
