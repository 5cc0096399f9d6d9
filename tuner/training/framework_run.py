"""The steps of a training whose framework writes its own checkpoints.

`SpotSafe` saves the states of objects. Frameworks such as transformers, Lightning, XGBoost and LightGBM write checkpoint files themselves.
Their adapters use a `FrameworkRun` to report each step, and to save and restore these files when the service asks for it.
"""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuner.training.artifacts import ArtifactFolder
from tuner.training.channel import Reply, StopTraining
from tuner.training.environments import Home, PlainTune, Supervised, fail_last_save, find_home
from tuner.training.ranks import Ranks, SharedHome, rank_count

STEP_FILE = "tuner_step.json"


def restored_directory() -> Path | None:
    """Return the directory with the files that training continues from, or None if it starts from the beginning.

    Under Ray Tune without the service the files are copied, because Tune deletes its own copy. The copy is removed when the process ends.
    """
    home = find_home(None, None)
    with home.checkpoints() as directories:
        if not directories:
            return None
        if not isinstance(home, PlainTune):
            return directories[0]
        copy = Path(tempfile.mkdtemp(prefix="tuner-restored-"))
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        shutil.copytree(directories[0], copy, dirs_exist_ok=True)
        return copy


class FrameworkRun:
    """Report the steps of one training, and save its checkpoints.

    This works under the service and under Ray Tune. In a plain script it only counts the steps and checks the metrics.

    Args:
        artifacts_dir: A directory whose new and changed files are reported with each step. None if there are no artifacts.

    Attributes:
        step: The last finished step, counted from 1. It is 0 before the first one.
        restored: The directory with the files that training continues from, or None.
        is_supervised: Whether training runs under the service.
        directory: The directory of the attempt, which all ranks on a node share. None without the service.
    """

    def __init__(self, artifacts_dir: str | Path | None = None) -> None:
        self._artifacts = None if artifacts_dir is None else ArtifactFolder(artifacts_dir)
        self._home: Home = find_home(None, None)
        self.is_supervised = isinstance(self._home, Supervised)
        self.directory = self._home.directory if isinstance(self._home, Supervised) else None
        self._ranks: Ranks | None = None  # None if one process trains
        self.restored = restored_directory()
        self.step = self._home.first_step
        if self.restored is not None and isinstance(self._home, PlainTune):
            self.step = int(json.loads((self.restored / STEP_FILE).read_text())["step"])
        self._reply = Reply(stop=False, save=False)
        self._part, self._parts = 0, 0
        self._kept: tuple[int, Path] | None = None
        # The last step for which a checkpoint was passed to the service or could not be written. 0 if there is none.
        self._last_saved = 0

    def begin(self) -> None:
        """Begin the time that is billed as training. The time before is billed as setup and restore.

        If the service tests whether the trainable restores its checkpoints correctly (restore self-test), first save a copy of the restored
        files, so that the test can compare both checkpoints.

        Raises:
            SecondTraining: Another training of this trial has reported steps, or this one has begun before and reported steps.
        """
        self._home.begin()
        self._join_ranks()
        if self._home.echo and self.restored is not None:
            self._write(lambda place: _copy(self.restored, place), announce=True)
        self._home.phase("train")

    def _join_ranks(self) -> None:
        """If several processes train together, let rank 0 report for all. All ranks must still call `save`."""
        if not isinstance(self._home, PlainTune) and rank_count() > 1:
            self._ranks = Ranks()
            self._home = SharedHome(self._home, self._ranks)

    def report(self, metrics: Mapping[str, Any], *, last: bool = False) -> bool:
        """Report the metrics of the step that has just finished. Return whether `save` must be called next.

        Args:
            metrics: Numbers, words or None, by name.
            last: Whether training ends after this step by itself. The final state is then saved.

        Raises:
            StopTraining: The attempt is over, and nothing needs to be saved.
            MetricsRefused: A metric cannot be recorded.
            ArtifactRefused: A file of the directory for artifacts cannot be stored.
        """
        self.step += 1
        reply = self._home.report(self.step, metrics, self._artifacts.changed() if self._artifacts else {})
        if reply.flush:
            self._announce_kept()
        save = reply.save or (last and self.ends_unsaved())
        return self._must_save(Reply(stop=reply.stop, save=save, keep=reply.keep))

    def is_save_due(self) -> bool:
        """Ask in the middle of a step whether `save` must be called next. Call this after each batch.

        If `save` is called, the next attempt continues in the middle of that step.

        Raises:
            StopTraining: The attempt is over, and nothing needs to be saved.
        """
        reply = self._home.ask()
        if reply.flush:
            self._announce_kept()
        return self._must_save(reply, in_step=True)

    def _must_save(self, reply: Reply, *, in_step: bool = False) -> bool:
        self._reply = reply
        if reply.save or reply.keep:
            self._parts += in_step
            self._part = self._parts if in_step else 0
            return True
        if reply.stop:
            raise StopTraining(0)
        return False

    def save(self, write: Callable[[Path], object], *, by_first: bool = False) -> None:
        """Save the current state. Call this if `report` or `is_save_due` has returned True.

        After `report`, the checkpoint counts as the state at the end of the step. After `is_save_due`, it counts as a state in the middle of
        the next step.

        A checkpoint that cannot be written is reported to the service, which decides whether training continues.

        Args:
            write: Writes the framework's files into the empty directory that it gets. On several ranks, all ranks call it with the same
                directory.
            by_first: Whether only rank 0 calls `write`, after all ranks have called `save`.

        Raises:
            StopTraining: The attempt is over.
        """
        try:
            self._write(write, announce=self._reply.save, by_first=by_first)
        except Exception as error:
            if self._reply.stop:
                fail_last_save(error)
            raise
        if self._reply.stop:
            raise StopTraining(0)
        self._home.phase("train")

    def end(self, write: Callable[[Path], object], *, by_first: bool = False) -> None:
        """Save the best step if it is kept, and the last step if training ended by itself and the step is not saved yet (`ends_unsaved`).

        If training ended in the middle of the next step, the checkpoint may include this training too. The arguments are those of `save`.
        """
        is_unsaved = self.ends_unsaved()
        if self.is_supervised and self._kept is not None and self._kept[0] != self.step:
            self._announce_kept()
        if not is_unsaved:
            return
        self._part = 0
        if self._kept is not None and self._kept[0] == self.step:
            self._announce_kept()
        else:
            self._write(write, announce=True, by_first=by_first)

    def ends_unsaved(self) -> bool:
        """Return whether `end` would save the last step that this attempt has reported.

        It would if this step is not saved yet, and is below the service's maximum step. The service itself requests a save of its maximum
        step.
        """
        is_early = self._home.first_step < self.step != self._home.max_step
        return self.is_supervised and is_early and self._last_saved != self.step

    def _announce_kept(self) -> None:
        if self._kept is not None:
            (step, place), self._kept = self._kept, None
            self._last_saved = step
            self._home.saved(step, place)

    def _write(self, write: Callable[[Path], object], *, announce: bool, by_first: bool = False) -> None:
        self._home.phase("checkpoint")
        place = self._home.place(self.step, self._part)
        error = self._home.joint_error(self._write_error(write, place, by_first=by_first))
        if announce and not self._part:
            self._last_saved = self.step
        if error is not None:
            self._home.failed(self.step, error)
        elif announce:
            self._home.saved(self.step, place, self._part)
        else:
            if self._kept is not None:
                shutil.rmtree(self._kept[1], ignore_errors=True)
            self._kept = self.step, place

    def _write_error(
        self, write: Callable[[Path], object], place: Path, *, by_first: bool
    ) -> Exception | None:
        """Write the files to `place`, and return the error if writing fails.

        The error is not raised, because all ranks must still exchange their errors.
        """
        if self._ranks is not None and by_first:
            self._ranks.wait()
            if self._ranks.rank != 0:
                return None
        try:
            place.mkdir(parents=True, exist_ok=self._ranks is not None)
            write(place)
            (place / STEP_FILE).write_text(json.dumps({"step": self.step}))
        except (OSError, RuntimeError) as error:  # PyTorch raises RuntimeError if the disk is full
            if self._ranks is None:
                shutil.rmtree(place, ignore_errors=True)
            return error
        return None


def _copy(source: Path | None, place: Path) -> None:
    assert source is not None
    shutil.copytree(source, place, dirs_exist_ok=True)
