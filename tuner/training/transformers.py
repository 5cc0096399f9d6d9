"""Tune code that trains with the `Trainer` of Hugging Face transformers.

    trainer = Trainer(model, args, train_dataset=..., eval_dataset=..., callbacks=[TunerCallback()])
    trainer.train(resume_from_checkpoint=tuner_checkpoint())

A step of the job is an epoch, or `every` optimizer steps. The trainer's checkpoints hold the optimizer, the learning-rate schedule and
the states of the random generators, so an interrupted training has the same result as an uninterrupted one.
"""

import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from tuner.training.framework_run import FrameworkRun, restored_directory


def tuner_checkpoint() -> str | None:
    """Return the checkpoint to pass as `resume_from_checkpoint`, or None if training starts from the beginning."""
    directory = restored_directory()
    return None if directory is None else str(directory)


class TunerCallback(TrainerCallback):
    """Evaluate and report after each step of the job, and save and stop when the service says so.

    Evaluations happen only then, and saves also in the middle of a step if the machine is about to be taken away: `eval_strategy` and `save_strategy` of the arguments have no effect. Set `num_train_epochs` to
    the largest number of epochs that a trial may have, because the learning-rate schedule is made for it.

    Args:
        every: The number of optimizer steps that are one step of the job. None means that an epoch is one step.
        artifacts_dir: A directory whose new and changed files are stored with each step, with the limits of `SpotSafe.report`.
    """

    def __init__(self, every: int | None = None, *, artifacts_dir: str | Path | None = None) -> None:
        if every is not None and every < 1:
            raise ValueError(
                f"every is {every}; name at least one optimizer step, or leave it out for epochs"
            )
        self._every = every
        self._run = FrameworkRun(artifacts_dir)
        self._due = self._saving = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._run.restored is not None and state.global_step == 0:
            raise RuntimeError(
                "training does not continue from its checkpoint; call trainer.train(resume_from_checkpoint=tuner_checkpoint())"
            )
        if args.save_strategy == SaveStrategy.BEST:
            # With this strategy the trainer saves after each best evaluation, even if a callback forbids it.
            args.save_strategy = SaveStrategy.NO
        self._run.begin()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        self._due = self._every is not None and state.global_step % self._every == 0
        control = self._only_what_is_due(control)
        # If the checkpoint was saved after the last batch of an epoch, the trainer does not repeat the end of that epoch.
        if not self._due and not control.should_epoch_stop and not self._ends_epoch(state):
            control.should_save = self._saving = self._run.is_save_due()
        return control

    def _ends_epoch(self, state: TrainerState) -> bool:
        return state.epoch is not None and state.epoch == int(state.epoch)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        self._due = self._every is None
        return self._only_what_is_due(control)

    def _only_what_is_due(self, control: TrainerControl) -> TrainerControl:
        control.should_evaluate, control.should_save = self._due, False
        return control

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if self._due:  # otherwise user code called `evaluate`
            self._due = False
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            reported = {**kwargs["metrics"], "loss": losses[-1] if losses else None}
            control.should_save = self._saving = self._run.report(
                reported, last=state.global_step >= state.max_steps
            )
        return control

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._saving:
            self._saving = False
            written = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            # All ranks write to the same directory.
            self._run.save(lambda place: _move(written, place), by_first=True)


def _move(written: Path, place: Path) -> None:
    """Move the files instead of copying them, because the trainer does not read its checkpoint again."""
    for path in written.iterdir():
        shutil.move(path, place)
    written.rmdir()
