"""Tune code that trains with the `Trainer` of Hugging Face transformers.

    trainer = Trainer(model, args, train_dataset=..., eval_dataset=..., callbacks=[TunerCallback()])
    trainer.train(resume_from_checkpoint=tuner_checkpoint())

A step of the job is an epoch, or `every` optimizer steps. The trainer's checkpoints hold the optimizer, the learning-rate schedule and
the states of the random generators, so an interrupted training has the same result as an uninterrupted one.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from tuner.training.framework_run import FrameworkRun, restored_directory


def tuner_checkpoint() -> str | None:
    """Return the checkpoint to pass as `resume_from_checkpoint`, or None if training starts from the beginning."""
    directory = restored_directory()
    return None if directory is None else str(directory)


class TunerCallback(TrainerCallback):
    """Evaluate and report after each step of the job, and save and stop when the service requests it.

    The callback also saves in the middle of a step if the machine is about to be taken away. It decides alone when to evaluate and save:
    `eval_strategy` and `save_strategy` of the arguments have no effect. Set `num_train_epochs` to the largest number of epochs that a trial
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
        self._due = self._saving = False
        # Whether the trainer's control is a `_SaveIfEnded`, with which the trainer saves if the training ends by itself.
        self._may_end = False
        # Whether the training had ended by itself when the restored checkpoint was saved.
        self._has_ended = False

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
        if self._run.restored is not None and _has_ended(self._run.restored):
            # The trainer trains one more optimizer step before it considers this flag. That step is neither evaluated nor saved.
            control.should_training_stop = self._has_ended = True
        self._run.begin()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self._may_end:
            self._may_end = False
            control = TrainerControl(**control.state()["args"])
        return control

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
        self._due = self._every is None and not self._has_ended
        control = self._only_what_is_due(control)
        # If no report is due, the training may end here in the middle of a step of the job. It must then be saved.
        return control if self._due else self._save_if_ended(control)

    def _only_what_is_due(self, control: TrainerControl) -> TrainerControl:
        control.should_evaluate, control.should_save = self._due, False
        return control

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if self._due:  # if no report is due, user code called `evaluate`
            self._due = False
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            reported = {**kwargs["metrics"], "loss": losses[-1] if losses else None}
            last = control.should_training_stop or state.global_step >= state.max_steps
            control.should_save = self._saving = self._run.report(reported, last=last)
            if not self._saving:
                return self._save_if_ended(control)
        return control

    def _save_if_ended(self, control: TrainerControl) -> TrainerControl:
        """Return a control with which the trainer saves now if the training ends, even if a later callback ends it."""
        self._may_end = self._run.ends_unsaved()
        if not self._may_end:
            return control
        saving = _SaveIfEnded(**control.state()["args"])
        saving.should_save = saving.should_training_stop
        return saving

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        written = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        # `by_first` lets only rank 0 move the files, because all ranks have written to the same directory.
        if self._saving:
            self._saving = False
            self._run.save(lambda place: _move(written, place), by_first=True)
        elif self._may_end and control.should_training_stop:
            self._run.end(lambda place: _move(written, place), by_first=True)


class _SaveIfEnded(TrainerControl):
    """A control that has the trainer save if a callback ends the training.

    The trainer can save only right after an evaluation or at the end of an epoch. Callbacks after `TunerCallback` may end the training
    there, when `TunerCallback` itself can no longer request the save.
    """

    def __setattr__(self, name: str, value: bool) -> None:
        super().__setattr__(name, value)
        if name == "should_training_stop" and value:
            self.should_save = True


# Use the name of the base class, because the trainer saves the state of its control under the name of the control's class.
_SaveIfEnded.__name__ = TrainerControl.__name__


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
