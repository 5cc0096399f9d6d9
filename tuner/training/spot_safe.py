"""`SpotSafe`: a training loop that can be stopped at any step and continues on another machine with the same result."""

import os
import shutil
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tuner.training import checkpoint, plain
from tuner.training.channel import Reply, StopTraining
from tuner.training.datasets import dataset
from tuner.training.environments import Alone, Home, PlainTune, Supervised, fail_last_save, find_home
from tuner.training.estimators import stateful
from tuner.training.measured import TimedBatches
from tuner.training.ranks import Ranks, SharedHome, rank_count
from tuner.training.sharded import unwrapped

T = TypeVar("T")
MS_PER_HOUR = 3_600_000
# A command on several nodes must not use `SpotSafe`: each rank writes a file, and only the files of a command's first node are stored.
ON_ONE_NODE = "SpotSafe in a command needs nodes: 1; name the function as the job's trainable instead"


class SpotSafe:
    """Save and restore models, optimizers and other objects, and the state of all random generators.

        with SpotSafe(model=model, optimizer=optimizer) as run:
            for epoch in run.steps():
                fit_one_epoch(model, optimizer)
                run.report(val_accuracy=evaluate(model))

    It works under the service, under plain Ray Tune, and in a plain script.

    Args:
        steps: Number of steps under plain Ray Tune and in a plain script. The service sets its own.
        checkpoint_dir: Directory for checkpoints in a plain script. None if no checkpoints are saved.
        parts: The objects to save, by name: objects with `state_dict` and `load_state_dict`, estimators of scikit-learn, lists and
            dictionaries. None values are ignored.

    Raises:
        CheckpointUnreadable: On entering the `with` block, if a checkpoint does not fit the parts.
        RuntimeError: On entering the `with` block, if another training of this trial has reported steps.
        TypeError: A part has no state that can be saved.
    """

    def __init__(
        self, *, steps: int | None = None, checkpoint_dir: str | Path | None = None, **parts: Any
    ) -> None:
        self._parts = {
            name: stateful(name, unwrapped(name, part)) for name, part in parts.items() if part is not None
        }
        self._home: Home = find_home(steps, checkpoint_dir)
        self._is_alone, self._is_supervised = (
            isinstance(self._home, Alone),
            isinstance(self._home, Supervised),
        )
        self._rank, self._ranks = 0, 1
        self._copies, self._kept_copies = checkpoint.Copies(), checkpoint.Copies()
        # The state and step of the newest report for which the service requested to keep a copy. None if no copy is kept.
        self._kept: tuple[dict[str, Any], int] | None = None
        self._latency_ms: float | None = None  # milliseconds of one prediction; None until it is measured
        self._step = self._home.first_step
        self._part = 0  # the number of saves in the middle of a step
        self._total = self._home.max_step
        self._open = self._reported = self._saved = False
        self._writing: threading.Thread | None = None
        self._save_error: Exception | None = None

    def __enter__(self) -> Self:
        self._home.begin()
        self._join_ranks()
        with self._home.checkpoints() as checkpoints:
            if checkpoints:
                self._home.phase("restore")
                self._step = checkpoint.restore(self._parts, checkpoints, rank=self._rank, ranks=self._ranks)
                if self._home.echo:
                    self._save(now=True)
                self._home.phase("setup")
        self._open = True
        return self

    def _join_ranks(self) -> None:
        """If several processes train together, let rank 0 report for all, and let all save."""
        count = 1 if isinstance(self._home, PlainTune) else rank_count()
        if count > 1:
            if (
                self._is_alone
                and "TUNER_CHECKPOINT_DIR" in os.environ
                and os.environ.get("GROUP_WORLD_SIZE", "1") != "1"
            ):
                raise RuntimeError(ON_ONE_NODE)
            ranks = Ranks()
            self._rank, self._ranks = ranks.rank, count
            self._home = SharedHome(self._home, ranks)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        try:
            if error is None and self._is_supervised:
                ended = self._ended_by_itself()
                if self._kept is not None and not (ended and self._kept[1] == self._step):
                    self._flush(now=True)
                if ended:
                    self._save(now=True)
            self._wait()
        except Exception:
            if error is None:  # an error of the `with` block is more important than that of a save
                raise

    def _ended_by_itself(self) -> bool:
        """Return whether the loop ended by itself before the service's maximum step, without a save of its last step.

        The service requests a save of the last step only at its maximum, so the last model would otherwise be lost.
        """
        return self._step != self._home.max_step and self._reported and not self._saved

    def steps(self, total: int | None = None) -> Iterator[int]:
        """Yield the remaining steps, counted from 0 as in `range`.

        The last step is the service's maximum, or the `steps` of the constructor, or else `total`.

        Raises:
            ValueError: The number of steps is unknown in a plain script.
            RuntimeError: It is used outside the `with` block, or a step ended without a report.
        """
        self._check_open()
        self._total = self._home.max_step if self._home.max_step is not None else total
        if self._total is None and self._is_alone:
            raise ValueError(
                "the number of steps is not known: call run.steps(10), or SpotSafe(steps=10, ...)"
            )
        return self._steps(self._total)

    def _steps(self, last: int | None) -> Iterator[int]:
        while last is None or self._step < last:
            self._reported = False
            self._home.phase("train")
            yield self._step
            if not self._reported:
                raise RuntimeError(
                    f"step {self._step + 1} ended without run.report(...); report once in each step"
                )

    @property
    def total_steps(self) -> int | None:
        """The largest number of steps that the trial may have, for example for a learning-rate schedule. None if it is not known.

        It is the job's `fidelity.max`. In a script it is known from the constructor, or once `steps` was called.
        """
        return self._total

    @property
    def rung(self) -> int:
        """The rung that the current step leads to, counted from 0. It is 0 in a script.

        With rungs at the steps 1, 3 and 9, the first step has the rung 0, the next two have 1, and all later steps have 2.
        """
        rungs = self._home.rungs
        return min(bisect_left(rungs, self._step + 1), len(rungs) - 1) if rungs else 0

    def fidelity(self, name: str, default: float | None = None) -> float:
        """Return the value of a proxy for the current step, from the job's `fidelity.proxies`.

        The value changes after each rung (a step at which trials are compared), so call this in each step.

        Args:
            name: The proxy, such as `resolution`.
            default: What to return if the job has no such proxy, and in a script.

        Raises:
            KeyError: The job has no such proxy, and no default is given.
        """
        proxies = self._home.proxies or {}
        if name in proxies:
            return proxies[name][self.rung]
        if default is None:
            names = ", ".join(proxies) or "none"
            raise KeyError(
                f"{name!r} is not in the job's fidelity.proxies, which has {names}; add it there, or give a default: "
                f"run.fidelity({name!r}, 1.0)"
            )
        return default

    def usd_per_million(self, latency_ms: float, usd_per_hour: float | None = None) -> float:
        """Return the cost in USD of a million predictions that one machine computes one after another.

        Args:
            latency_ms: Milliseconds of one prediction, as `tuner.training.latency_ms` measures them.
            usd_per_hour: The price of the machine that will serve the model. None means the price of a trial's share of the most expensive
                machine that the job may use, which is the same for all trials.

        Raises:
            ValueError: The price is not known, because no service runs the trial.
        """
        price = self._home.usd_per_hour if usd_per_hour is None else usd_per_hour
        if price is None:
            raise ValueError(
                "only the service knows the price of the machine; in a script, pass the price: run.usd_per_million(latency, usd_per_hour=0.2)"
            )
        return price / MS_PER_HOUR * latency_ms * 1_000_000

    def data(self, batches: Iterable[T]) -> TimedBatches[T]:
        """Return an iterable over the same batches: `for x, y in run.data(loader)`.

        It measures how long training waits for each batch, so that the service can advise when more loader workers would save money.
        """
        return TimedBatches(batches)

    def dataset(self, url: str | os.PathLike[str], **options: Any) -> Path:
        """Return the path of a local copy of a remote file or folder. See `tuner.training.dataset`."""
        return dataset(url, **options)

    def _check_open(self) -> None:
        """Raise RuntimeError outside the `with` block.

        The checkpoint is restored only when the `with` block is entered. Without this check, a loop outside the block would count its
        steps from the checkpoint, but train with new weights.
        """
        if not self._open:
            raise RuntimeError("use the run inside of a with block: with SpotSafe(...) as run:")

    def report(self, *, artifacts: Mapping[str, str | Path] | None = None, **metrics: Any) -> None:
        """Report the metrics of a step, once per step, and save a checkpoint if it is requested.

        In a script and under plain Ray Tune, the error of a failed save is raised. Under the service it is sent to the service,
        which decides whether training continues.

        Args:
            artifacts: Small files to store with the trial: paths by name, such as `{"confusion.png": path}`. A name that was
                reported before replaces the file. A file may have 8 MiB, all files of a trial 64 MiB, and all files of a job 1 GiB. Only
                the service stores them.
            metrics: Numbers, words or None, by name. If an objective or a constraint of the job names `latency_ms` or `usd_per_million`, and
                the trainable does not report it, the service measures the module that the trainable's `export` returns.

        Raises:
            StopTraining: The attempt is over.
            MetricsRefused: A metric cannot be recorded.
            ArtifactRefused: A file cannot be stored: its name, kind or size is not allowed.
            TypeError: A state cannot be saved.
            RuntimeError: The step was reported before, or the `with` block is not open.
        """
        self._check_open()
        if self._reported:
            raise RuntimeError(
                f"step {self._step} was reported before; report once in each step, with all metrics"
            )
        # The step is counted only after the report, because a refused report may be repeated.
        reply = self._home.report(self._step + 1, self._with_serving(metrics), artifacts or {})
        self._reported = True
        self._step += 1
        self._saved = reply.save
        self._obey(reply)

    def _with_serving(self, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the metrics, with `latency_ms` and `usd_per_million` added if the job needs them and the trainable does not report them.

        The latency is measured once in an attempt, because it hardly depends on the weights. It is not measured if several processes
        train together, because a module whose pieces are spread over processes cannot be built in one of them. The trainable must
        then report it.
        """
        missing = [name for name in self._home.serving_metrics if name not in metrics]
        if not missing or self._ranks > 1:
            return metrics
        latency = metrics.get("latency_ms")
        if latency is None:
            latency = self._latency_ms = self._latency_ms or self._home.latency_ms(self._states)
        if latency is None or isinstance(latency, str):  # a trainable may report a word
            return metrics
        serving = {
            name: latency if name == "latency_ms" else self.usd_per_million(float(latency))
            for name in missing
        }
        return {**metrics, **serving}

    def _states(self) -> Any:
        """Return copies of the states of the parts, as `export` gets them from a checkpoint."""
        checkpoint.settle()
        return plain.unpacked(self._snapshot(checkpoint.Copies())["parts"])

    def checkpoint_if_due(self) -> None:
        """Save in the middle of a step if the service requests it. Call this after each batch of a long step.

        The service requests a save if the machine is about to be taken away, if the trial is to pause, if its lease ends, and from time to
        time in a step that takes longer than the interval between checkpoints. The next attempt continues in the middle of that step:
        `steps` yields this step again. To avoid repeating its first batches, give `SpotSafe` a part that saves the position in the epoch: a
        `Batches`, or the loader of `efficient_loader`.

        Frequent calls cost little: at most ten calls per second ask the service whether to save. The other calls return at once. In a
        script and under plain Ray Tune, nothing is saved.

        Raises:
            StopTraining: The attempt is over.
            TypeError: A state cannot be saved.
            RuntimeError: The `with` block is not open.
        """
        self._check_open()
        reply = self._home.ask()
        self._part += reply.save
        self._obey(reply, part=self._part)

    def _obey(self, reply: Reply, *, part: int = 0) -> None:
        """Do what a reply to a report requests, or a reply to a question before the save `part` in the middle of a step."""
        try:
            if reply.flush:
                self._flush(now=reply.stop)
            if reply.keep:
                self._keep()
            if reply.save:
                self._save(now=reply.stop or isinstance(self._home, PlainTune), part=part)
        except Exception as error:
            if reply.stop:
                fail_last_save(error)
            if self._is_supervised:
                self._home.failed(self._step, error)
            raise
        if reply.stop:
            raise StopTraining(0)

    def _save(self, *, now: bool, part: int = 0) -> None:
        """Copy the state, then write it: in the background, or before returning if `now`."""
        checkpoint.settle()
        self._home.phase("checkpoint")
        self._wait()
        state = self._snapshot(self._copies)
        self._write_state(state, self._step, now=now, part=part)

    def _snapshot(self, copies: checkpoint.Copies) -> dict[str, Any]:
        return checkpoint.snapshot(
            self._parts, step=self._step, copies=copies, rank=self._rank, ranks=self._ranks
        )

    def _keep(self) -> None:
        """Copy the state of this step into memory without writing it. The copy replaces the previously kept copy."""
        checkpoint.settle()
        self._home.phase("checkpoint")
        self._wait()  # the previously kept copy may still be being written
        self._kept = self._snapshot(self._kept_copies), self._step
        self._home.phase("train")

    def _flush(self, *, now: bool) -> None:
        """Write the kept copy, if there is one: in the background, or before returning if `now`."""
        if self._kept is None:
            return
        (state, step), self._kept = self._kept, None
        self._home.phase("checkpoint")
        self._wait()
        self._write_state(state, step, now=now)

    def _write_state(self, state: dict[str, Any], step: int, *, now: bool, part: int = 0) -> None:
        if now:
            self._write(state, step, part)
            self._wait()
        else:
            self._writing = threading.Thread(target=self._write, args=(state, step, part), name="checkpoint")
            self._writing.start()
            self._home.phase("train")

    def _write(self, state: dict[str, Any], step: int, part: int) -> None:
        """Write a state, and report the result to the destination of checkpoints (`Home`).

        This may run in a background thread, in which an exception would go unnoticed. Therefore the exception is stored, and `_wait` raises it.
        """
        path, error = self._written(state, step, part)
        try:
            error = self._home.joint_error(error)
            if error is not None:
                self._home.failed(step, error)
            else:
                assert path is not None
                self._home.saved(step, path, part)
        except Exception as fatal:
            self._save_error = fatal

    def _written(self, state: dict[str, Any], step: int, part: int) -> tuple[Path | None, Exception | None]:
        """Write a state. Return its directory, and the error if it could not be written."""
        path = None
        try:
            path = self._home.place(step, part)
            checkpoint.write(state, path)
        except Exception as error:  # also RuntimeError: PyTorch raises it if the disk is full
            if path is not None and self._ranks == 1:
                shutil.rmtree(path, ignore_errors=True)
            return path, error
        return path, None

    def _wait(self) -> None:
        """Wait for the current save. Raise its error if the destination (`Home`) did not handle it."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        if self._save_error is not None:
            error, self._save_error = self._save_error, None
            raise error
