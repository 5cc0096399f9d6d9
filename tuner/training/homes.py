"""Where a run reports to: the service's supervisor, a session of plain Ray Tune, or nobody."""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from tuner.training import checkpoint
from tuner.training.channel import Channel, Kind, Reply, current, plain_metrics

WRITING = ".writing_"  # what names of unfinished checkpoints begin with


class Home(Protocol):
    """One step's report goes through `report`; what it answers with says whether to save and whether to stop."""

    first_step: int
    max_step: int | None
    echo: bool
    """Whether what was restored is to be saved again at once."""

    def phase(self, kind: Kind) -> None: ...

    def checkpoints(self) -> AbstractContextManager[Sequence[Path]]:
        """Where to go on from: the newest first. They are there while the context is open."""

    def report(self, step: int, metrics: Mapping[str, Any]) -> Reply:
        """Raises MetricsRefused for what is no metric."""

    def place(self, step: int) -> Path:
        """A directory for this step's checkpoint; it must not exist yet."""

    def saved(self, step: int, path: Path, seconds: float) -> None: ...

    def failed(self, step: int, error: Exception) -> None:
        """A save failed. Raises the error where nobody is told: training is not to go on unsaved and unnoticed."""


class Supervised:
    """Under the service."""

    def __init__(self, channel: Channel) -> None:
        self._channel, begin = channel, channel.begin
        self.first_step, self.max_step, self.echo = begin.first_step, begin.max_step, begin.echo
        self._restore = [Path(begin.restore)] if begin.restore else []
        self._staging = Path(begin.staging)

    def phase(self, kind: Kind) -> None:
        self._channel.phase(kind)

    def checkpoints(self) -> AbstractContextManager[Sequence[Path]]:
        return nullcontext(self._restore)

    def report(self, step: int, metrics: Mapping[str, Any]) -> Reply:
        return self._channel.report(step, metrics, resumable=True)

    def place(self, step: int) -> Path:
        return self._staging / f"step_{step:08d}"

    def saved(self, step: int, path: Path, seconds: float) -> None:
        self._channel.saved(step, str(path), seconds)

    def failed(self, step: int, error: Exception) -> None:
        self._channel.save_failed(step, f"{type(error).__name__}: {error}")


class Alone:
    """In a plain script. With `checkpoint_dir` every report saves, and the newest whole checkpoint there is gone on from."""

    first_step = 0
    echo = False

    def __init__(self, steps: int | None, checkpoint_dir: Path | None) -> None:
        self.max_step, self._dir = steps, checkpoint_dir

    def phase(self, kind: Kind) -> None:
        pass

    def checkpoints(self) -> AbstractContextManager[Sequence[Path]]:
        """Removes what a killed script left half-written, too."""
        for stale in self._dir.glob(f"{WRITING}*") if self._dir else []:
            shutil.rmtree(stale, ignore_errors=True)
        return nullcontext(self._complete()[::-1])

    def _complete(self) -> list[Path]:
        return sorted(self._dir.glob("step_" + "[0-9]" * 8)) if self._dir else []

    def report(self, step: int, metrics: Mapping[str, Any]) -> Reply:
        plain_metrics(metrics)
        return Reply(stop=False, save=self._dir is not None)

    def place(self, step: int) -> Path:
        assert self._dir is not None
        return self._dir / f"{WRITING}{step:08d}_{time.monotonic_ns()}"

    def saved(self, step: int, path: Path, seconds: float) -> None:
        assert self._dir is not None
        checkpoint.sync(path)
        final = self._dir / f"step_{step:08d}"
        shutil.rmtree(final, ignore_errors=True)
        path.rename(final)
        for old in self._complete()[:-2]:
            shutil.rmtree(old, ignore_errors=True)

    def failed(self, step: int, error: Exception) -> None:
        raise error


class PlainTune:
    """Under Ray Tune without the service: reports through `ray.tune.report`, with a checkpoint each time.

    Ray is found where the caller imported it, never imported here: a trainable needs PyTorch alone.
    """

    first_step = 0
    echo = False

    def __init__(self, tune: Any, steps: int | None) -> None:
        self._tune, self.max_step = tune, steps
        self._metrics: dict[str, Any] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def phase(self, kind: Kind) -> None:
        pass

    @contextmanager
    def checkpoints(self) -> Iterator[Sequence[Path]]:
        """Tune copies one only where it must, and removes the copy."""
        checkpoint = self._tune.get_checkpoint()
        if checkpoint is None:
            yield []
        else:
            with checkpoint.as_directory() as directory:
                yield [Path(directory)]

    def report(self, step: int, metrics: Mapping[str, Any]) -> Reply:
        self._metrics = plain_metrics(metrics)
        return Reply(stop=False, save=True)

    def place(self, step: int) -> Path:
        self._folder = tempfile.TemporaryDirectory(prefix="spot-safe-", ignore_cleanup_errors=True)
        return Path(self._folder.name) / f"step_{step:08d}"

    def saved(self, step: int, path: Path, seconds: float) -> None:
        """Tune keeps a copy of its own. Where it stops the trial, its report does not return but raises SystemExit."""
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


def find_home(steps: int | None, checkpoint_dir: str | Path | None) -> Home:
    channel = current()
    if channel is not None:
        return Supervised(channel)
    tune = _tune_session()
    if tune is not None:
        return PlainTune(tune, steps)
    return Alone(steps, Path(checkpoint_dir) if checkpoint_dir else None)


def _tune_session() -> Any:
    """`ray.tune`, where a Tune trial runs in this process; None elsewhere."""
    session = sys.modules.get("ray.train._internal.session")
    if session is None or session.get_session() is None:
        return None
    return sys.modules.get("ray.tune")
