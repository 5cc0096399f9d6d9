"""Tune code that trains with the `Trainer` of Hugging Face transformers.

    trainer = Trainer(model, args, train_dataset=..., eval_dataset=..., callbacks=[TunerCallback()])
    trainer.train(resume_from_checkpoint=tuner_checkpoint())

A step of the job is an epoch, or `every` optimizer steps. The trainer's checkpoints hold the optimizer, the learning-rate schedule and
the states of the random generators, so an interrupted training has the same result as an uninterrupted one.
"""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from tuner.training.channel import scalars
from tuner.training.framework_run import FrameworkRun, restored_directory


def tuner_checkpoint() -> str | None:
    """Return the checkpoint to pass as `resume_from_checkpoint`, or None if training starts from the beginning."""
    directory = restored_directory()
    return None if directory is None else str(directory)


class TunerCallback(TrainerCallback):
    """Evaluate and report after each step of the job, and save and stop when the service requests it.

    The callback also saves in the middle of a step if the machine is about to be taken away. It decides alone when to evaluate and save:
    `eval_strategy`, `save_strategy` and `save_only_model` of the arguments have no effect. Set `num_train_epochs` to the largest number of epochs that a trial
    may have, because the learning-rate schedule is made for it.

    Args:
        every: The number of optimizer steps that are one step of the job. None means that an epoch is one step.
        artifacts_dir: A directory whose new and changed files are stored with each step, with the limits of `SpotSafe.report`.
    """

    def __init__(self, every: int | None = None, *, artifacts_dir: str | Path | None = None) -> None:
        if every is not None and every < 1:
            raise ValueError(
                f"`every` is {every}; give at least one optimizer step, or leave `every` out to report after each epoch"
            )
        self._every = every
        self._run = FrameworkRun(artifacts_dir)
        # Whether a report is due, whether the next save is of a report, and whether it is of a training that ended by itself.
        self._due = self._saving = self._ending = False
        # The metrics of the sets that were evaluated for the report that is due. They are not copied, because user code that overrides
        # `evaluate` may add metrics after this callback was called.
        self._metrics: list[dict[str, Any]] = []
        self._output_dir: str | None = None  # the argument `output_dir`, if the trainer writes elsewhere
        # Whether the training had ended by itself when the restored checkpoint was saved.
        self._has_ended = False
        self._epoch_began = 0  # the number of optimizer steps before the current epoch

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._run.restored is not None:
            # Restore the states of callbacks. Otherwise `EarlyStoppingCallback` would begin to count its patience again.
            args.restore_callback_states_from_checkpoint = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._run.restored is not None and state.global_step == 0:
            raise RuntimeError(
                "the trial has a checkpoint, but training begins without it; call trainer.train(resume_from_checkpoint=tuner_checkpoint())"
            )
        if args.save_strategy == SaveStrategy.BEST:
            # With this strategy the trainer saves after each best evaluation, even if a callback forbids it.
            args.save_strategy = SaveStrategy.NO
        # A checkpoint with only the model would continue with a new optimizer, learning-rate schedule and random numbers.
        args.save_only_model = False
        self._write_to_own_directory(args)
        if self._run.restored is not None and _has_ended(self._run.restored):
            # The trainer trains one more optimizer step before it considers this flag. That step is neither evaluated nor saved.
            control.should_training_stop = self._has_ended = True
        self._run.begin()

    def _write_to_own_directory(self, args: TrainingArguments) -> None:
        """Let the trainer write its checkpoints into the directory of the attempt, from where they are moved.

        Otherwise trials with the same `output_dir` would mix their checkpoints, which have the same names. Ranks on several nodes have no
        common directory of the attempt, so they keep `output_dir`.
        """
        own = self._run.directory
        if own is None or os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
            return
        if not Path(str(args.output_dir)).resolve().is_relative_to(own.resolve()):
            self._output_dir, args.output_dir = args.output_dir, str(own / "trainer")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._output_dir is not None:  # user code may save the model there
            args.output_dir, self._output_dir = self._output_dir, None

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._epoch_began = state.global_step

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        return TrainerControl(**control.state()["args"]) if isinstance(control, _LateDecision) else control

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        is_end = self._every is not None and state.global_step % self._every == 0
        self._due = is_end and not self._has_ended
        control = self._only_what_is_due(control)
        # Do not save after the last batch of an epoch, because the trainer would not run the end of that epoch after a restore.
        ends = control.should_epoch_stop or control.should_training_stop or self._ends_epoch(state)
        if not self._due and not ends:
            control.should_save = self._saving = self._run.is_save_due()
        return control

    def _ends_epoch(self, state: TrainerState) -> bool:
        return state.epoch is not None and state.epoch == int(state.epoch)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        # With a data set without a length, the first epoch after a restore may have no batches, because the trainer skips all of them.
        is_trained = state.global_step > self._epoch_began
        self._due = self._every is None and is_trained and not self._has_ended
        control = self._only_what_is_due(control)
        # If no report is due, the training may end here in the middle of a step of the job. It must then be saved.
        return control if self._due else _deciding(control, self._must_save_end)

    def _only_what_is_due(self, control: TrainerControl) -> TrainerControl:
        control.should_evaluate, control.should_save = self._due, False
        return control

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if not self._due:  # user code called `evaluate`
            return control
        # With several evaluation sets, the trainer calls this after each set. It does not say which one is the last.
        self._metrics.append(kwargs["metrics"])
        last = control.should_training_stop or state.global_step >= state.max_steps
        return _deciding(control, partial(self._report, state, last))

    def _report(self, state: TrainerState, last: bool, control: TrainerControl) -> bool:
        """Report the metrics of all evaluation sets, and the evaluation metrics that user code has logged.

        Return whether the trainer must save.
        """
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        metrics: dict[str, Any] = {}
        logged = takewhile(lambda entry: entry.get("step") == state.global_step, reversed(state.log_history))
        for entry in reversed(list(logged)):
            metrics |= {name: value for name, value in entry.items() if name.startswith("eval_")}
        for evaluated in self._metrics:
            metrics |= evaluated
        self._metrics, self._due = [], False
        # `compute_metrics` may return nested metrics and lists in addition to numbers.
        reported = scalars({**metrics, "loss": losses[-1] if losses else None})
        self._saving = self._run.report(reported, last=last)
        return self._saving or self._must_save_end(control)

    def _must_save_end(self, control: TrainerControl) -> bool:
        """Return whether the training ends here by itself and must be saved."""
        self._ending = control.should_training_stop and self._run.ends_unsaved()
        return self._ending

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        written = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        # `by_first` lets only rank 0 move the files, because all ranks have written to the same directory.
        if self._saving:
            self._saving = False
            self._run.save(lambda place: _move(written, place), by_first=True)
        elif self._ending:
            self._ending = False
            self._run.end(lambda place: _move(written, place), by_first=True)


class _LateDecision(TrainerControl):
    """A control that decides whether to save when the trainer reads `should_save`.

    The trainer reads it right after it has evaluated all sets, and at the end of an epoch. Callbacks after `TunerCallback` may end the
    training until then.
    """

    #: Returns whether to save. It is called once, with this control. None if `should_save` has a value.
    decide: Callable[[TrainerControl], bool] | None = None

    @property
    def should_save(self) -> bool:
        if self.decide is not None:
            decide, self.decide = self.decide, None
            self._should_save = decide(self)
        return self._should_save

    @should_save.setter
    def should_save(self, value: bool) -> None:
        self._should_save = value


# Use the name of the base class, because the trainer saves the state of its control under the name of the control's class.
_LateDecision.__name__ = TrainerControl.__name__


def _deciding(control: TrainerControl, decide: Callable[[TrainerControl], bool]) -> TrainerControl:
    """Return a control with the same values, except that `decide` returns whether to save."""
    late = control if isinstance(control, _LateDecision) else _LateDecision(**control.state()["args"])
    late.decide = decide
    return late


def _has_ended(checkpoint: Path) -> bool:
    """Return whether the saved training had ended by itself before its largest number of steps."""
    state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text())
    control = state["stateful_callbacks"]["TrainerControl"]["args"]
    return bool(control["should_training_stop"]) and state["global_step"] < state["max_steps"]


def _move(written: Path, place: Path) -> None:
    """Move the files of a checkpoint. They are not copied, because the trainer does not read its checkpoint again."""
    for path in written.iterdir():
        shutil.move(path, place)
    written.rmdir()
