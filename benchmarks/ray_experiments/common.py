"""Helpers of the experiments: a private Ray without leftovers, a run of Tune in it, and checks of processes."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import tune
from ray.tune.experiment import Trial

BEGAN = time.monotonic()


def say(text: str) -> None:
    """Print a line with the seconds since the experiment began."""
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory that is removed at the end. Its name is short, because Ray creates sockets in it."""
    path = Path(tempfile.mkdtemp(prefix="rx-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def private_ray(cpus: int = 2, **options: Any) -> Iterator[Path]:
    """Start a private Ray on free ports. Yield the directory in which it and the experiment may write."""
    with scratch() as path:
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=options.pop("include_dashboard", False),
            log_to_driver=options.pop("log_to_driver", False),
            logging_level=options.pop("logging_level", "ERROR"),
            object_store_memory=100_000_000,
            _temp_dir=str(path / "ray"),
            **options,
        )
        try:
            yield path
        finally:
            ray.shutdown()


class Plain(tune.Trainable):
    """A trainable with empty checkpoints. Tune saves at a trial's end, and counts the trial as failed if that fails."""

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {}

    def load_checkpoint(self, checkpoint: Any) -> None:
        pass


def tuner(trainable: Any, folder: Path, *, name: str = "run", **options: Any) -> tune.Tuner:
    """Return a Tuner that writes only to `folder` and prints nothing. Options of RunConfig and TuneConfig may be mixed."""
    space = options.pop("space", {})
    failures = options.pop("max_failures", 0)
    run = {key: options.pop(key) for key in ("stop", "callbacks", "checkpoint_config") if key in options}
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(**options),
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(folder / "results"),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=failures),
            **run,
        ),
    )


def alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def wait_for(condition: Callable[[], Any], timeout_s: float, every_s: float = 0.05) -> float | None:
    """Return the seconds until the condition held, or None if it did not hold in time."""
    began = time.monotonic()
    while time.monotonic() - began < timeout_s:
        if condition():
            return time.monotonic() - began
        time.sleep(every_s)
    return None


def note(path: Path, line: object) -> None:
    """Append a line to a file that several processes write to."""
    with path.open("a") as file:
        file.write(f"{line}\n")


def notes(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def one_line(error: BaseException) -> str:
    """Return the error's type and the last line of its text, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:160]


def recorded_error(trial: Trial) -> str:
    """Return why a trial failed according to Tune's storage and to its local file."""
    stored, local = trial.get_pickled_error(), Path(trial.pickled_error_file or "")
    local_error = ray.cloudpickle.loads(local.read_bytes()) if local.is_file() else None
    return f"get_pickled_error() is {type(stored).__name__}, the local file has {type(local_error).__name__}"


def environment(**values: str) -> None:
    """Set variables that Tune reads when a run begins."""
    os.environ.update(values)
