"""`SpotSafe`: a training loop that can be stopped at any step and goes on elsewhere as if nothing had happened."""

import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tuner.training import checkpoint
from tuner.training.channel import StopTraining
from tuner.training.checkpoint import Stateful
from tuner.training.homes import Alone, PlainTune, Supervised, find_home
from tuner.training.measured import Timed

T = TypeVar("T")


class SpotSafe:
    """Checkpoints and restores whatever has `state_dict` and `load_state_dict`, and all random generators.

        with SpotSafe(model=model, optimizer=optimizer) as run:
            for epoch in run.steps():
                fit_one_epoch(model, optimizer)
                run.report(val_accuracy=evaluate(model))

    Works under the service, under plain Ray Tune, and in a plain script, where `steps` says how many there are and
    `checkpoint_dir` (optional) where checkpoints go. Raises CheckpointUnreadable where a checkpoint does not fit.
    """

    def __init__(
        self, *, steps: int | None = None, checkpoint_dir: str | Path | None = None, **parts: Stateful | None
    ) -> None:
        self._parts = {name: part for name, part in parts.items() if part is not None}
        for name, part in self._parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise TypeError(f"{name} cannot be checkpointed: it has no state_dict and load_state_dict")
        self._home = find_home(steps, checkpoint_dir)
        self._copies, self._kept_copies = checkpoint.Copies(), checkpoint.Copies()
        self._kept: tuple[dict[str, Any], int] | None = None  # state and step of the job's best so far
        self._step = self._home.first_step
        self._open = self._reported = self._saved = False
        self._writing: threading.Thread | None = None
        self._save_error: Exception | None = None

    def __enter__(self) -> Self:
        with self._home.checkpoints() as found:
            if found:
                self._home.phase("restore")
                self._step = checkpoint.restore(self._parts, found)
                if self._home.echo:
                    self._save(now=True)
                self._home.phase("setup")
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        try:
            if error is None and self._ended_by_itself():
                self._save(now=True)
            self._wait()
        except Exception:
            if error is None:  # else that is the one to be told
                raise

    def _ended_by_itself(self) -> bool:
        """Whether the service, which says what to save up to its maximum, has not got the last model."""
        early = isinstance(self._home, Supervised) and self._step != self._home.max_step
        return early and self._reported and not self._saved

    def steps(self, total: int | None = None) -> Iterator[int]:
        """The steps that are left, counted from 0 as `range` does. Ends at the service's maximum, or at `total` in a script."""
        self._check_open()
        last = self._home.max_step if self._home.max_step is not None else total
        if last is None and isinstance(self._home, Alone):
            raise ValueError("say how many steps there are: run.steps(10), or SpotSafe(steps=10, ...)")
        return self._steps(last)

    def _steps(self, last: int | None) -> Iterator[int]:
        while last is None or self._step < last:
            self._reported = False
            self._home.phase("train")
            yield self._step
            if not self._reported:
                raise RuntimeError(
                    f"step {self._step + 1} ended without run.report(...); report once in each step"
                )

    def data(self, batches: Iterable[T]) -> Timed[T]:
        """The same batches, of a loader or anything else: `for x, y in run.data(loader)`. How long the training waits for each is
        measured, so that the service can say where more loader workers would save money."""
        return Timed(batches)

    def _check_open(self) -> None:
        """Only `with` restores: counting on without it would be from the checkpoint's step, with fresh weights."""
        if not self._open:
            raise RuntimeError("this is for inside of a with block: with SpotSafe(...) as run:")

    def report(self, **metrics: Any) -> None:
        """The step's metrics, numbers mostly, once a step; may save, and may not return: then the attempt is over.

        Raises MetricsRefused for a metric that cannot be recorded, and TypeError for a state that cannot. In a script
        and under plain Ray Tune a save that failed is raised too; the service is told, and decides.
        """
        self._check_open()
        if self._reported:
            raise RuntimeError(
                f"step {self._step} was reported before; report once in each step, with all metrics"
            )
        self._reported = True
        self._step += 1
        reply = self._home.report(self._step, metrics)
        self._saved = reply.save
        if reply.flush:
            self._flush(now=reply.stop)
        if reply.keep:
            self._keep()
        if reply.save:
            self._save(now=reply.stop or isinstance(self._home, PlainTune))
        if reply.stop:
            raise StopTraining(0)

    def _save(self, *, now: bool) -> None:
        """Copies the state, then writes it: in the background, unless the attempt ends here."""
        checkpoint.settle()
        self._home.phase("checkpoint")
        self._wait()
        state = checkpoint.snapshot(self._parts, step=self._step, copies=self._copies)
        self._write_state(state, self._step, now=now)

    def _keep(self) -> None:
        """Copy the state of this step into memory of its own. The copy that was kept before is gone."""
        checkpoint.settle()
        self._home.phase("checkpoint")
        self._wait()  # the copy kept before may be on its way to the disk
        self._kept = checkpoint.snapshot(self._parts, step=self._step, copies=self._kept_copies), self._step
        self._home.phase("train")

    def _flush(self, *, now: bool) -> None:
        """Write the copy that was kept, in the background unless the attempt ends here."""
        if self._kept is None:
            return
        (state, step), self._kept = self._kept, None
        self._home.phase("checkpoint")
        self._wait()
        self._write_state(state, step, now=now)

    def _write_state(self, state: dict[str, Any], step: int, *, now: bool) -> None:
        if now:
            self._write(state, step)
            self._wait()
        else:
            self._writing = threading.Thread(target=self._write, args=(state, step), name="checkpoint")
            self._writing.start()
            self._home.phase("train")

    def _write(self, state: dict[str, Any], step: int) -> None:
        """May run in a thread of its own, where nothing that it raised would be seen: `_wait` raises it."""
        began = time.monotonic()
        try:
            self._write_to(self._home.place(step), state, step, began)
        except Exception as error:
            try:
                self._home.failed(step, error)
            except Exception as fatal:
                self._save_error = fatal

    def _write_to(self, path: Path, state: dict[str, Any], step: int, began: float) -> None:
        try:
            checkpoint.write(state, path)
        except Exception:  # also RuntimeError: PyTorch raises it where the disk is full
            shutil.rmtree(path, ignore_errors=True)
            raise
        self._home.saved(step, path, time.monotonic() - began)

    def _wait(self) -> None:
        """Until the save under way is complete. Raises what made it fail, if nobody else was told."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        if self._save_error is not None:
            error, self._save_error = self._save_error, None
            raise error
