"""Train one configuration in this process with the code that a worker uses, but without a service, a ledger or Ray."""

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tuner.domain.environment import HASH_SEED, Environment
from tuner.domain.errors import Invalid, TunerError
from tuner.service.cluster import import_path
from tuner.training import channel as words
from tuner.training.channel import BeginMessage, Metric, StopTraining
from tuner.worker.environment import THREADS, environment_of, relevant

OnReport = Callable[[int, Mapping[str, Metric]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """What to train on this machine, and with what."""

    entry: str  #: The trainable, `module:function`.
    config: Mapping[str, Any]  #: The configuration of the trial, including constants.
    steps: int | None  #: The last step. None if the trainable decides.
    #: The largest number of steps that the trial may have, which `run.total_steps` returns. None if it is not known.
    max_step: int | None = None
    rungs: Sequence[int] = ()  #: The steps at which the job compares trials, lowest first.
    #: One value per rung for each proxy of the job's fidelity. None without proxies.
    proxies: Mapping[str, Sequence[float]] | None = None
    save_to: Path | None = None  #: A directory for the last step's checkpoint. None saves none.
    #: Seed of all random generators. None keeps the states that the import of the module has left, which begins with seed 0.
    seed: int | None = None
    #: How the trainable is called, as in the field `kind` of a job file, such as `optuna`. None means the default.
    kind: str | None = None
    metric: str | None = None  #: The metric under which an Optuna objective's value is reported.
    #: The path of the checkpoint and the configuration of the trial that this training learns from. None without one.
    teacher: Mapping[str, Any] | None = None
    #: The price of a trial's share of the job's machine. None if it is not known.
    usd_per_hour: float | None = None
    #: The metrics about serving that the job's objectives or constraints name.
    serving_metrics: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training."""

    trainable: str
    config: Mapping[str, Any]
    steps: int
    metrics: Mapping[str, Metric]
    checkpoint: str | None  #: Path of the last step's checkpoint; None if it was not saved.


def prepare(entry: str, recorded: Environment | None, *, threads: int | None, seed: int | None) -> list[str]:
    """Set the environment variables of this process as `train` needs them.

    Call it before anything imports PyTorch or NumPy, which read them on import.

    Args:
        entry: The trainable.
        recorded: The recorded environment of the trial that is trained again. Its variables are set, and other variables that
            affect training are removed. If it is None, only the variable for `threads` is set.
        threads: Number of threads that libraries compute with. None means that the libraries decide.
        seed: The seed that `train` will be given.

    Returns:
        One line for each difference from the recorded environment, such as the version of a library or the code.
    """
    if threads is not None:
        os.environ[THREADS] = str(threads)
    if recorded is None:
        return []
    for name in relevant(os.environ).keys() - recorded.variables.keys() - {HASH_SEED}:
        del os.environ[name]
    os.environ.update({name: value for name, value in recorded.variables.items() if name != HASH_SEED})
    # Python reads PYTHONHASHSEED when it starts. It is rarely set outside of workers, and few trainables depend on the order of sets.
    unset = {name: value for name, value in recorded.variables.items() if name not in os.environ}
    return recorded.differences(environment_of(entry, import_path(), {**os.environ, **unset}).with_seed(seed))


def train(training: LocalTraining, *, on_report: OnReport) -> Trained:
    """Train from the beginning to step `training.steps`, or until the trainable returns.

    Exceptions of the trainable are passed through.

    Args:
        training: What to train.
        on_report: Called with the step and its metrics after each step, in another thread.

    Raises:
        Invalid: The entry cannot be trained.
        TunerError: The program of a job with a command failed.
    """
    # Imported late, because PyTorch must see what `prepare` has set.
    from tuner.worker import child, tune_compat
    from tuner.worker.program import ProgramFailed

    target = _loaded(training.entry)
    save_to = None if training.save_to is None else training.save_to.absolute()
    if save_to is not None:
        save_to.mkdir(parents=True, exist_ok=True)
    # With `save_to` the checkpoint is written to the file system to which it is moved.
    with TemporaryDirectory(prefix="tuner-train-", dir=save_to) as scratch:
        staging = Path(scratch) / "staging"
        staging.mkdir()
        ours, theirs = Pipe()
        begin = BeginMessage(
            "alone",
            1,
            training.entry,
            dict(training.config),
            str(staging),
            max_step=training.max_step,
            rungs=training.rungs,
            proxies=training.proxies,
            seed=training.seed,
            kind=training.kind,
            metric=training.metric,
            teacher=training.teacher,
            usd_per_hour=training.usd_per_hour,
            serving_metrics=training.serving_metrics,
        )
        ours.send_bytes(words.begin_message(begin))
        answering = _Answering(ours, training.steps, saves=save_to is not None, on_report=on_report)
        answering.start()
        try:
            child.train(target, words.open_channel(theirs))
        except StopTraining:
            pass
        except ProgramFailed as error:
            raise TunerError(str(error)) from error
        finally:
            theirs.close()
            answering.join()
            words.close_channel()
            tune_compat.uninstall()
        checkpoint = None
        if save_to is not None and answering.checkpoint is not None:
            checkpoint = str(_moved(Path(answering.checkpoint), save_to))
    return Trained(training.entry, dict(training.config), answering.step, answering.metrics, checkpoint)


def is_found(entry: str) -> bool:
    """Return whether this machine has the package or module of a trainable, without importing it."""
    _extend_path()
    return find_spec(entry.partition(":")[0].partition(".")[0]) is not None


def _extend_path() -> None:
    sys.path[:0] = [path for path in import_path() if path not in sys.path]


def _moved(checkpoint: Path, save_to: Path) -> Path:
    """Move a checkpoint into the directory `save_to`, in place of one of the same step. Return its new path."""
    target = save_to / checkpoint.name
    shutil.rmtree(target, ignore_errors=True)
    return checkpoint.rename(target)


def _loaded(entry: str) -> Callable[..., Any]:
    from tuner.worker import child

    _extend_path()
    module, colon, attribute = entry.partition(":")
    if not (module and colon and attribute):
        raise Invalid.at("trainable", f"{entry!r} is not a trainable: write it as module:function")
    sys.argv = sys.argv[:1]  # user code that parses its command line gets no arguments, as on a worker
    try:
        return child.load(entry)
    except child.NotTrainable as error:
        raise Invalid.at("trainable", str(error)) from error
    except SystemExit as error:
        raise Invalid.at("trainable", words.message_at_import(error)) from error
    except (ImportError, AttributeError) as error:
        raise Invalid.at(
            "trainable", f"{error}; train in the directory that contains {module}, or set PYTHONPATH to it"
        ) from error


class _Answering(threading.Thread):
    """Answer the reports of the training: let it continue until the last step, and request a checkpoint there if required."""

    def __init__(
        self, connection: Connection, steps: int | None, *, saves: bool, on_report: OnReport
    ) -> None:
        super().__init__(name="answering", daemon=True)
        self.step = 0
        self.metrics: Mapping[str, Metric] = {}
        self.checkpoint: str | None = None
        self._connection, self._steps, self._saves, self._on_report = connection, steps, saves, on_report

    def run(self) -> None:
        while True:
            try:
                message = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                return
            if message["type"] == "report":
                self._answer(message)
            if message["type"] == "saved":
                self.checkpoint = message["path"]

    def _answer(self, message: Mapping[str, Any]) -> None:
        self.step, self.metrics = message["step"], message["metrics"]
        self._on_report(self.step, self.metrics)
        is_last = self._steps is not None and self.step >= self._steps
        save = is_last and self._saves and bool(message["resumable"])
        self._connection.send_bytes(words.reply_message(stop=is_last, save=save))
