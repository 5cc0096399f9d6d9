"""Homes: the destinations to which `SpotSafe` sends reports and checkpoints.

There is one class of home for each way to run a trainable: under the service's supervisor, under plain Ray Tune, and in a plain script.
"""

import contextlib
import shutil
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from tuner.training.artifacts import ArtifactLimits, stage
from tuner.training.channel import (
    BeginMessage,
    Channel,
    Kind,
    Reply,
    StopTraining,
    current,
    plain_metrics,
    refuse_at_import,
)

ONE_TRAINING = (
    "an earlier training of this trial has already reported steps, and a trial has one training; to train several models, such as those of a "
    "cross-validation, make each of them a step: use one SpotSafe, and report once for each model"
)
WRITING = ".writing_"  # prefix of the names of unfinished checkpoints
Artifacts = Mapping[str, str | Path]
NO_ARTIFACTS: Artifacts = {}


class SecondTraining(RuntimeError):
    """A second training begins in a trial that has reported steps of another one."""


class Home(ABC):
    """The destination of a training's reports and checkpoints. Its reply to a report says whether to save and whether to stop."""

    first_step: int = 0
    max_step: int | None = None
    echo: bool = False  #: Whether the restored state must be saved again at once.
    rungs: Sequence[int] = ()  #: The steps at which trials are compared, lowest first.
    #: One value per rung for each proxy of the job's fidelity.
    proxies: Mapping[str, Sequence[float]] | None = None
    #: The price of a trial's share of the job's machine. Only the service knows it.
    usd_per_hour: float | None = None
    serving_metrics: Sequence[str] = ()  #: The metrics about serving that the job needs in each report.

    def _take_settings(self, source: "Home | BeginMessage") -> None:
        self.first_step, self.max_step, self.echo = source.first_step, source.max_step, source.echo
        self.rungs, self.proxies, self.usd_per_hour = source.rungs, source.proxies, source.usd_per_hour
        self.serving_metrics = source.serving_metrics

    def phase(self, kind: Kind) -> None:  # noqa: B027  # only the service bills phases
        """Record that the time from now on belongs to this cost kind, such as training or checkpoint."""

    def begin(self) -> None:  # noqa: B027  # only the service counts the steps of a trial
        """Begin a training.

        Raises:
            SecondTraining: Under the service, another training of this process has reported steps.
        """

    @abstractmethod
    def checkpoints(self) -> AbstractContextManager[Sequence[Path]]:
        """Return the checkpoints to restore from, newest first. They exist while the context is open."""

    @abstractmethod
    def report(self, step: int, metrics: Mapping[str, Any], artifacts: Artifacts = NO_ARTIFACTS) -> Reply:
        """Report a step with its artifacts, and return the reply.

        Only the service stores artifacts, but every home checks them, so that mistakes are found in a script.

        Raises:
            MetricsRefused: A value is not a metric.
            ArtifactRefused: A file cannot be an artifact.
        """

    def ask(self) -> Reply:
        """Ask, in the middle of a step, whether to save or stop now. Without the service, the reply is always to continue."""
        return Reply(stop=False, save=False)

    def latency_ms(self, states: Callable[[], Any]) -> float | None:
        """Return the milliseconds that one prediction takes with the PyTorch module that the trainable's `export` builds.

        Return None if the trainable defines no `export`, or if it does not run under the service: only the service needs the latency.

        Args:
            states: Returns the states of the parts, as `export` gets them from a checkpoint.
        """
        return None

    @abstractmethod
    def place(self, step: int, part: int = 0) -> Path:
        """Return the path of a directory for a new checkpoint. The directory does not exist yet.

        Args:
            step: The last finished step.
            part: 0 for a checkpoint of this step. Otherwise the number of the checkpoint from the middle of the next step.
        """

    def joint_error(self, error: Exception | None) -> Exception | None:
        """Return `error`, the error of writing to the directory from `place`. With several ranks, return the first error of any rank.

        None means that the write succeeded. Call it exactly once after each write, whether or not the checkpoint is then given to `saved`.
        """
        return error

    @abstractmethod
    def saved(self, step: int, path: Path, part: int = 0) -> None:
        """Take over the complete checkpoint in `path`."""

    def failed(self, step: int, error: Exception) -> None:
        """Report a failed save to the service. Without the service, raise the error, so that the user notices it."""
        raise error


class Supervised(Home):
    """The destination of reports and checkpoints under the service: the worker's supervisor, through a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel, begin = channel, channel.begin
        channel.is_used_by_run = True
        self._take_settings(begin)
        self._restore = [Path(begin.restore)] if begin.restore else []
        self._staging = Path(begin.staging)
        #: The directory of the attempt, which is deleted when the attempt ends.
        self.directory = self._staging.parent
        self._limits = ArtifactLimits(begin.artifact_room)

    def phase(self, kind: Kind) -> None:
        self._channel.phase(kind)

    def begin(self) -> None:
        if self._channel.step > self._channel.begin.first_step:
            # The steps would be counted from the beginning again, and the checkpoint of the other training would be restored.
            raise SecondTraining(ONE_TRAINING)

    def checkpoints(self) -> AbstractContextManager[Sequence[Path]]:
        return nullcontext(self._restore)

    def report(self, step: int, metrics: Mapping[str, Any], artifacts: Artifacts = NO_ARTIFACTS) -> Reply:
        if artifacts:
            files = self._limits.read(artifacts)
            plain_metrics(
                metrics
            )  # check the metrics before the files are staged, so that a refused report can be repeated
            stage(self._staging, step, files)
        return self._channel.report(step, metrics, resumable=True, artifacts=list(artifacts))

    def ask(self) -> Reply:
        return self._channel.ask()

    def latency_ms(self, states: Callable[[], Any]) -> float | None:
        begin = self._channel.begin
        module = sys.modules[begin.entry.partition(":")[0]]
        if not callable(getattr(module, "export", None)):
            return None
        from tuner.training import exporting  # imports torch, which adapters for other libraries do not need

        self.phase("setup")
        try:
            return exporting.exported_latency_ms(module, begin.config, states())
        finally:
            self.phase("train")

    def place(self, step: int, part: int = 0) -> Path:
        return self._staging / (f"step_{step:08d}-part{part}" if part else f"step_{step:08d}")

    def saved(self, step: int, path: Path, part: int = 0) -> None:
        self._channel.saved(step, str(path), part=part)

    def failed(self, step: int, error: Exception) -> None:
        print_failed_save(step, error)
        self._channel.save_failed(step, f"{type(error).__name__}: {error}")


class Alone(Home):
    """The destination of reports and checkpoints in a plain script.

    With `checkpoint_dir`, every report saves a checkpoint, and training continues from the newest complete checkpoint there.
    """

    def __init__(self, steps: int | None, checkpoint_dir: Path | None) -> None:
        self.max_step, self._dir = steps, checkpoint_dir
        self._limits = ArtifactLimits()

    def checkpoints(self) -> AbstractContextManager[Sequence[Path]]:
        """Return the complete checkpoints, newest first, after removing unfinished ones of a killed script."""
        for stale in self._dir.glob(f"{WRITING}*") if self._dir else []:
            shutil.rmtree(stale, ignore_errors=True)
        return nullcontext(self._complete()[::-1])

    def _complete(self) -> list[Path]:
        return sorted(self._dir.glob("step_" + "[0-9]" * 8)) if self._dir else []

    def report(self, step: int, metrics: Mapping[str, Any], artifacts: Artifacts = NO_ARTIFACTS) -> Reply:
        plain_metrics(metrics)
        self._limits.read(artifacts)
        return Reply(stop=False, save=self._dir is not None)

    def place(self, step: int, part: int = 0) -> Path:
        assert self._dir is not None
        return self._dir / f"{WRITING}{step:08d}_{time.monotonic_ns()}"

    def saved(self, step: int, path: Path, part: int = 0) -> None:
        from tuner.training import checkpoint  # imports torch, which adapters for other libraries do not need

        assert self._dir is not None
        checkpoint.sync(path)
        final = self._dir / f"step_{step:08d}"
        shutil.rmtree(final, ignore_errors=True)
        path.rename(final)
        for old in self._complete()[:-2]:
            shutil.rmtree(old, ignore_errors=True)


class PlainTune(Home):
    """The destination of reports and checkpoints under Ray Tune without the service.

    Each report is sent with `ray.tune.report` and has a checkpoint.

    Ray is taken from `sys.modules` and never imported here, because a trainable needs only PyTorch.
    """

    def __init__(self, tune: Any, steps: int | None) -> None:
        self._tune, self.max_step = tune, steps
        self._limits = ArtifactLimits()
        self._metrics: dict[str, Any] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @contextmanager
    def checkpoints(self) -> Iterator[Sequence[Path]]:
        """Yield the checkpoint that Tune restores the trial from, if any.

        If Tune has to copy the checkpoint to this machine first, the copy is removed afterwards.
        """
        checkpoint = self._tune.get_checkpoint()
        if checkpoint is None:
            yield []
        else:
            with checkpoint.as_directory() as directory:
                yield [Path(directory)]

    def report(self, step: int, metrics: Mapping[str, Any], artifacts: Artifacts = NO_ARTIFACTS) -> Reply:
        self._metrics = plain_metrics(metrics)
        self._limits.read(artifacts)
        return Reply(stop=False, save=True)

    def place(self, step: int, part: int = 0) -> Path:
        self._folder = tempfile.TemporaryDirectory(prefix="spot-safe-", ignore_cleanup_errors=True)
        return Path(self._folder.name) / f"step_{step:08d}"

    def saved(self, step: int, path: Path, part: int = 0) -> None:
        """Report the step with its checkpoint to Tune, then remove the checkpoint, because Tune keeps a copy of its own.

        If Tune stops the trial, `ray.tune.report` raises SystemExit. The checkpoint is removed in this case, too.
        """
        try:
            self._tune.report(self._metrics, checkpoint=self._tune.Checkpoint.from_directory(str(path)))
        finally:
            self._clean()

    def failed(self, step: int, error: Exception) -> None:
        self._clean()
        raise error

    def _clean(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def print_failed_save(step: int, error: Exception) -> None:
    """Print the error of a failed save, so that the trial's log has it. Training may continue without this checkpoint."""
    with contextlib.suppress(Exception):  # user code may have closed its output
        sys.stderr.write(f"step {step} could not be saved: {type(error).__name__}: {error}\n")


def fail_last_save(error: Exception) -> NoReturn:
    """End the attempt because its last save raised `error`. Code that catches exceptions would otherwise train on after the order to stop.

    Raises:
        StopTraining: Under the service, which was sent the error.
        Exception: `error`, without the service.
    """
    channel = current()
    if channel is None:
        raise error
    channel.failed(type(error).__name__, str(error), "".join(traceback.format_exception(error)))
    raise StopTraining(1) from error


def find_home(steps: int | None, checkpoint_dir: str | Path | None) -> Home:
    """Return the destination of reports and checkpoints in this process.

    Raises:
        UsedAtImport: A worker is importing user code.
    """
    refuse_at_import("a training, a callback or a checkpoint of a trial")
    channel = current()
    if channel is not None:
        return Supervised(channel)
    tune = _tune_session()
    if tune is not None:
        return PlainTune(tune, steps)
    return Alone(steps, Path(checkpoint_dir) if checkpoint_dir else None)


def _tune_session() -> Any:
    """Return `ray.tune` if a Tune trial runs in this process, else None."""
    session = sys.modules.get("ray.train._internal.session")
    if session is None or session.get_session() is None:
        return None
    return sys.modules.get("ray.tune")
