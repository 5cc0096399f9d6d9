"""Run unchanged Ray Tune trainables in a child that is not part of Ray.

Supported are `tune.report`, `tune.get_checkpoint`, the Tune context, and class trainables. Tune's functions find their session in
a global of `ray.train._internal.session`. The session is set when any code imports that module, so a trainable that does not use Ray
never spends the time of importing it.
"""

import importlib.abc
import importlib.machinery
import inspect
import itertools
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.training.channel import (
    BeginMessage,
    Channel,
    Metric,
    Reply,
    StopTraining,
    scalars,
)
from tuner.training.environments import print_failed_save
from tuner.training.seeding import seed_untouched

SESSION_MODULE = "ray.train._internal.session"
DEFAULT_METRIC = "_metric"
DICT_FILE = "dict_checkpoint.pt"  # the dictionary that `save_checkpoint` returned
# The attributes in which Ray counts the totals of a class trainable over all attempts, and the file of a checkpoint that has their values.
TOTALS, TOTALS_FILE = ("_timesteps_total", "_episodes_total", "_time_total"), ".tuner_totals.json"


class TuneSession:
    """A session with the attributes and methods that Ray Tune's functions use. Each report is one step."""

    world_rank = None  # Ray checks this attribute to distinguish Tune from Train
    world_size = local_rank = local_world_size = node_rank = storage = metadata = None

    def __init__(self, channel: Channel) -> None:
        self._channel, begin = channel, channel.begin
        self._step = begin.first_step
        self._echoes, self._is_loaded = begin.echo, False
        # Whether user code has called `tune.report`, in this attempt or in the one that saved the checkpoint.
        self._has_reported = begin.restore is not None
        self.trial_id = self.trial_name = begin.trial
        self.experiment_name = self.run_id = begin.trial
        self.trial_dir = os.getcwd()
        self._resources = dict(begin.resources)
        self._kept = KeptCheckpoint(channel)

    @property
    def trial_resources(self) -> Any:
        from ray.tune import PlacementGroupFactory

        return PlacementGroupFactory([self._resources or {"CPU": 1}])

    @property
    def loaded_checkpoint(self) -> Any:
        from ray.tune import Checkpoint

        restore = self._channel.begin.restore
        if restore and not self._is_loaded:
            self._is_loaded = True
            _seed_continued(self._channel.begin)
        if restore and self._echoes:
            self._echoes = False
            self._kept.copy(self._step, Path(restore), Reply(stop=False, save=True))
        return Checkpoint.from_directory(restore) if restore else None

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None) -> None:
        """Report a step. User code calls this as `tune.report`."""
        self._has_reported = True
        self._report(metrics, checkpoint)

    def _report(self, metrics: Mapping[str, Any], checkpoint: Any = None, *, last: bool = False) -> None:
        self._step += 1
        resumable = checkpoint is not None
        reply = self._channel.report(self._step, scalars(metrics), resumable=resumable, last=last)
        if reply.flush:
            self._kept.flush()
        if (reply.save or reply.keep) and checkpoint is not None:
            with checkpoint.as_directory() as directory:
                self._kept.copy(self._step, Path(directory), reply)
        if reply.stop:
            raise StopTraining(0)

    def take_output(self, output: Any) -> None:
        """Report each dictionary or number that a function returned or yields as one step. Then announce the kept checkpoint.

        A number is recorded as the objective's metric. It is ignored if the function reports in another way, because it may then be an
        exit status. If the function has reported steps with `tuner.training`, its whole output is ignored.
        """
        name = self._channel.begin.metric or DEFAULT_METRIC
        has_returned = not inspect.isgenerator(output)
        for result in [output] if has_returned else output:
            reports_itself = self._has_reported or self._channel.is_used_by_run
            metrics = (
                result if isinstance(result, dict) else {} if reports_itself else _number_as(name, result)
            )
            if metrics and self._channel.step == self._step:
                self._report(metrics, last=has_returned)
        self._kept.flush()


def _number_as(name: str, value: Any) -> dict[str, Metric]:
    """Return `{name: value}` if the value is a number, or an array or tensor of one element. Return an empty dictionary otherwise."""
    metrics = scalars({name: value})
    return metrics if type(metrics.get(name)) in (int, float) else {}


class KeptCheckpoint:
    """Copies checkpoints of user code to the staging directory, and announces them to the supervisor.

    A copy that is not announced at once is kept. `flush` announces it later, unless a newer copy has replaced it.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._kept: tuple[int, Path] | None = None

    def copy(self, step: int, source: Path, reply: Reply) -> None:
        """Copy a checkpoint that user code wrote. Announce it if the reply asks for a save, otherwise keep it."""
        channel = self._channel
        channel.phase("checkpoint")
        target = Path(channel.begin.staging) / f"step_{step:08d}"
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target)
        except OSError as error:
            shutil.rmtree(target, ignore_errors=True)  # a partial copy would fill the disk further
            self.failed(step, error)
        else:
            if reply.save:
                channel.saved(step, str(target))
            else:
                if self._kept is not None:
                    shutil.rmtree(self._kept[1], ignore_errors=True)
                self._kept = step, target
        if not reply.stop:
            channel.phase("train")

    def failed(self, step: int, error: Exception) -> None:
        """Report that user code could not write its checkpoint."""
        print_failed_save(step, error)
        self._channel.save_failed(step, f"{type(error).__name__}: {error}")

    def flush(self) -> None:
        """Announce the kept copy to the supervisor, if there is one."""
        if self._kept is not None:
            (step, path), self._kept = self._kept, None
            self._channel.saved(step, str(path))


def install(channel: Channel) -> TuneSession:
    """Create a session, and set it in Ray's session module now, or when that module is imported. Return the session."""
    session = TuneSession(channel)
    if SESSION_MODULE in sys.modules:
        sys.modules[SESSION_MODULE]._session = session  # type: ignore[attr-defined]
    else:
        sys.meta_path.insert(0, _WhenImported(session))
    return session


def uninstall() -> None:
    """Remove the session, so that nothing that runs later in this process reports to it."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WhenImported)]
    if SESSION_MODULE in sys.modules:
        sys.modules[SESSION_MODULE]._session = None  # type: ignore[attr-defined]


class _WhenImported(importlib.abc.MetaPathFinder):
    """Sets a session in Ray's session module when that module is imported."""

    def __init__(self, session: TuneSession) -> None:
        self._session = session

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != SESSION_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_set_session(module: ModuleType) -> None:
                execute(module)
                module._session = self._session  # type: ignore[attr-defined]

            spec.loader.exec_module = execute_and_set_session  # type: ignore[method-assign]
        return spec


def is_trainable_class(target: type) -> bool:
    """Return whether a class is a subclass of `ray.tune.Trainable`. This does not import Ray: such a class has imported it already."""
    trainable = sys.modules.get("ray.tune.trainable.trainable")
    return trainable is not None and issubclass(target, trainable.Trainable)


def run_class(target: type, channel: Channel) -> None:
    """Run a class trainable step by step until it reports `done` or a reply orders it to stop.

    Raises:
        StopTraining: A reply ordered the class to stop.
    """
    begin, kept = channel.begin, KeptCheckpoint(channel)
    _module().DEFAULT_STORAGE_PATH = begin.staging  # results are deleted with the attempt's directory
    trainable = target(config=dict(begin.config))
    if begin.restore:
        channel.phase("restore")
        _restore_class(trainable, begin, begin.restore)
        if begin.echo:
            _save_class(trainable, begin, kept, begin.first_step, Reply(stop=False, save=True))
    resumable = target.save_checkpoint is not _module().Trainable.save_checkpoint  # type: ignore[attr-defined]
    channel.phase("train")
    try:
        for step in itertools.count(begin.first_step + 1):
            result = trainable.train()
            metrics = {name: value for name, value in result.items() if name != "config"}
            is_done = bool(result.get("done"))
            reply = channel.report(step, scalars(metrics), resumable=resumable, last=is_done)
            if reply.flush:
                kept.flush()
            if (reply.save or reply.keep) and resumable:
                _save_class(trainable, begin, kept, step, reply)
            if reply.stop:
                raise StopTraining(0)
            if is_done:
                kept.flush()
                # Without a checkpoint of its last step, a trial that can be resumed has to train this step again after a failure.
                if resumable and not (reply.save or reply.keep):
                    _save_complete(trainable, begin, kept, step)
                return
    finally:
        trainable.cleanup()


def _save_complete(trainable: Any, begin: BeginMessage, kept: "KeptCheckpoint", step: int) -> None:
    """Save the last step of a complete training. If that fails, report it: the training is complete nevertheless."""
    try:
        _save_class(trainable, begin, kept, step, Reply(stop=False, save=True))
    except Exception as error:
        kept.failed(step, error)


def _restore_class(trainable: Any, begin: BeginMessage, checkpoint: str) -> None:
    # Seed before `load_checkpoint`, which may restore the generators itself.
    _seed_continued(begin)
    from tuner.training import plain  # imports torch, so only when needed

    state, totals = (Path(checkpoint) / name for name in (DICT_FILE, TOTALS_FILE))
    trainable.load_checkpoint(plain.read(state, device=None) if state.exists() else checkpoint)
    trainable._iteration = begin.first_step
    if totals.exists():
        saved = json.loads(totals.read_text())
        for name in TOTALS:
            setattr(trainable, name, saved[name])


def _seed_continued(begin: BeginMessage) -> None:
    """Seed the random generators of a trial that continues from its checkpoint.

    Ray Tune does not restore the generators. Without another seed, each attempt would draw the same numbers as the beginning of the trial.
    """
    if begin.seed is not None:
        seed_untouched(begin.seed + begin.first_step, before=begin.seed)


def _module() -> Any:
    return sys.modules["ray.tune.trainable.trainable"]


def _save_class(trainable: Any, begin: BeginMessage, kept: KeptCheckpoint, step: int, reply: Reply) -> None:
    """Have a class trainable write a checkpoint, then announce or keep it as the reply orders.

    Raise TypeError if `save_checkpoint` returns a dictionary with values that could not be restored.
    """
    # not in the current directory, because user code may change to one that all trials share
    folder = Path(begin.staging) / f"class_step_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    state = trainable.save_checkpoint(str(folder))
    try:
        if isinstance(state, dict):
            from tuner.training import plain

            plain.write(state, folder / DICT_FILE, name="save_checkpoint(...)")
        totals = {name: getattr(trainable, name) for name in TOTALS}
        (folder / TOTALS_FILE).write_text(json.dumps(totals, default=float))
        kept.copy(step, folder, reply)
    except (OSError, RuntimeError) as error:  # PyTorch raises RuntimeError if the disk is full
        kept.failed(step, error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
