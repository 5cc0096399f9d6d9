"""Tune code that trains with the `Trainer` of Lightning.

    trainer = lightning.Trainer(max_epochs=27, callbacks=[TunerCallback("val_loss")], enable_checkpointing=False)
    trainer.fit(model, train_loader, val_loader, ckpt_path=tuner_checkpoint())

A step of the job is an epoch. Lightning's checkpoints do not hold the states of the random generators, so the callback adds them. An
interrupted training then has the same result as an uninterrupted one.
"""

import copy
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from tuner.training.checkpoint import random_states, set_random_states
from tuner.training.framework_run import FrameworkRun, restored_directory

FILE = "lightning.ckpt"


def tuner_checkpoint() -> str | None:
    """Return the file to pass as `ckpt_path`, or None if training starts from the beginning."""
    directory = restored_directory()
    return None if directory is None else str(directory / FILE)


class TunerCallback(Callback):
    """Report after each epoch, and save and stop when the service says so.

    Set `max_epochs` to the largest number of epochs that a trial may have. The service stops the training earlier.

    Args:
        metrics: The names of logged metrics to report. Without names all logged metrics are reported.
        artifacts_dir: A directory whose new and changed files are stored with each step, with the limits of `SpotSafe.report`.
    """

    def __init__(self, *metrics: str, artifacts_dir: str | Path | None = None) -> None:
        self._names = metrics
        self._run = FrameworkRun(artifacts_dir)

    def state_dict(self) -> dict[str, Any]:
        return {"random": random_states()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Not later: Lightning creates the iterator of the first epoch, which draws a number, before it calls `on_train_start`.
        set_random_states(state_dict["random"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._run.restored is not None and trainer.global_step == 0:
            raise RuntimeError(
                "training does not continue from its checkpoint; call trainer.fit(..., ckpt_path=tuner_checkpoint())"
            )
        self._run.begin()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        logged = dict(trainer.callback_metrics)
        missing = [name for name in self._names if name not in logged]
        if missing:
            names = ", ".join(sorted(logged)) or "none"
            raise ValueError(
                f"{', '.join(missing)}: not logged by the end of epoch {trainer.current_epoch}; logged are {names}"
            )
        reported = {name: logged[name] for name in self._names or logged}
        ends = trainer.max_epochs is not None and trainer.current_epoch + 1 >= trainer.max_epochs
        if self._run.report(reported, last=ends or trainer.should_stop):
            self._run.save(lambda place: _write(trainer, place))


def _write(trainer: Trainer, place: Path) -> None:
    """Write a checkpoint as it will be after the epoch.

    Lightning steps `ReduceLROnPlateau` only after `on_train_epoch_end`. Without this step, a restored training would train one epoch
    with another learning rate.
    """
    plateaus = [config.scheduler for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    before = [copy.deepcopy(plateau.state_dict()) for plateau in plateaus]
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    trainer.fit_loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    try:
        trainer.save_checkpoint(place / FILE)
    finally:
        for plateau, state in zip(plateaus, before, strict=True):
            plateau.load_state_dict(state)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
