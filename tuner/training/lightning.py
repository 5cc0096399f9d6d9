"""Tune code that trains with the `Trainer` of Lightning.

    trainer = lightning.Trainer(max_epochs=27, callbacks=[TunerCallback("val_loss")], enable_checkpointing=False)
    trainer.fit(model, train_loader, val_loader, ckpt_path=tuner_checkpoint())

A step of the job is an epoch. Lightning's checkpoints do not hold the states of the random generators, so the callback adds them. An
interrupted training then has the same result as an uninterrupted one, even if it was interrupted in the middle of an epoch.
"""

import copy
import io
import pickle
import traceback
import warnings
import zipfile
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.fabric.utilities.types import _Stateful
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher

from tuner.training.checkpoint import random_states, set_random_states
from tuner.training.framework_run import FrameworkRun, restored_directory

FILE = "lightning.ckpt"


def tuner_checkpoint() -> str | None:
    """Return the file to pass as `ckpt_path`, or None if training starts from the beginning."""
    directory = restored_directory()
    return None if directory is None else str(directory / FILE)


class TunerCallback(Callback):
    """Report after each epoch, and save and stop when the service requests it.

    With `Trainer(check_val_every_n_epoch=n)` a step of the job has n epochs.

    Set `max_epochs` to the largest number of epochs that a trial may have. The service can stop the training earlier. The callback saves in
    the middle of an epoch if the machine is about to be taken away, if the trial must pause, or if its lease ends. The next attempt loads
    the batches before that point again and skips them, unless the training loader has a `state_dict`, which Lightning saves.

    Args:
        metrics: The names of logged metrics to report. Without names all logged metrics are reported.
        artifacts_dir: A directory whose new and changed files are stored with each step, with the limits of `SpotSafe.report`.
    """

    def __init__(self, *metrics: str, artifacts_dir: str | Path | None = None) -> None:
        self._names = metrics
        self._run = FrameworkRun(artifacts_dir)
        # The random states before the iterator of the epoch was created.
        self._epoch_start: dict[str, Any] | None = None
        # The number of the first epoch of this process. In this epoch, `on_train_epoch_start` must not set `_epoch_start`, because Lightning
        # has created the epoch's iterator before it calls that method.
        self._first_epoch = 0
        self._saves_within_epochs = False
        # How many batches of the epoch the checkpoint that is being written contains. 0 for a checkpoint at the end of an epoch.
        self._batches = 0
        # The restored state of this callback, if it was saved in the middle of an epoch.
        self._interrupted: dict[str, Any] | None = None
        self._epoch_end = _EpochEnd(self)
        # Whether the training stops after the epoch whose checkpoint is being written or was restored.
        self._stops = False
        # Whether the checkpoint that is being written is one of the service.
        self._is_saving = False
        self._is_checked = False  # whether a checkpoint of this process was read as a test

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"random": random_states()}
        if self._batches:
            state |= {"batches": self._batches, "epoch_start": self._epoch_start}
        if self._stops:
            state["stops"] = True
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._interrupted = state_dict if "batches" in state_dict else None
        self._epoch_start = state_dict.get("epoch_start", state_dict["random"])
        self._stops = state_dict.get("stops", False)
        # Set the states here and not in `on_train_start`: before that, Lightning creates the iterator of the first epoch, which draws a number.
        set_random_states(self._epoch_start)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(trainer, Trainer):
            # It would take `_EpochEnd` for an ordinary callback, and call it before other hooks for the end of an epoch.
            raise TypeError(
                f"this Trainer is of the package {type(trainer).__module__.partition('.')[0]}; import it from lightning.pytorch instead, "
                "and with it the module, the data module and the callbacks"
            )
        # This callback must come after the others: a save after a batch must include what they do after the batch, such as averaging weights.
        _set_callbacks(trainer, [*self._others(trainer), self, self._epoch_end])
        _use_own_copies(trainer.strategy)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # Remove `_EpochEnd`, because `trainer.test(ckpt_path="best")` would ask this checkpoint callback for the best checkpoint.
        _set_callbacks(trainer, [*self._others(trainer), self])

    def _others(self, trainer: Any) -> list[Callback]:
        return [callback for callback in trainer.callbacks if callback not in (self, self._epoch_end)]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._epoch_start is None:
            self._epoch_start = random_states()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._run.restored is not None and trainer.global_step == 0:
            raise RuntimeError(
                "the trial has a checkpoint, but training begins without it; call trainer.fit(..., ckpt_path=tuner_checkpoint())"
            )
        self._first_epoch = trainer.current_epoch
        self._saves_within_epochs = _can_continue_within_epoch(trainer, pl_module)
        if self._interrupted is not None:
            _skip(trainer, self._interrupted["batches"])
            set_random_states(self._interrupted["random"])
            self._interrupted = None
        if self._stops:  # training had already ended when the checkpoint was saved
            trainer.should_stop, self._stops = True, False
        self._run.begin()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch > self._first_epoch:
            self._epoch_start = random_states()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._saves_within_epochs and _is_between_steps(trainer) and self._run.is_save_due():
            self._batches = batch_idx + 1
            self._run.save(lambda place: self._write(trainer, place, "step"))
            self._batches = 0

    def end_epoch(self, trainer: Trainer) -> None:
        """Report the epoch, and save it if the service requests it. Lightning has already run all other hooks for the end of the epoch.

        If the module is validated after every n epochs only, a step of the job has n epochs, because the others have no metrics.
        """
        every = trainer.check_val_every_n_epoch
        if trainer.enable_validation and every and (trainer.current_epoch + 1) % every:
            return
        logged = dict(trainer.callback_metrics)
        missing = [name for name in self._names if name not in logged]
        if missing:
            names = ", ".join(sorted(logged)) or "none"
            raise ValueError(
                f"the module did not log {', '.join(missing)} by the end of epoch {trainer.current_epoch}; the logged metrics are {names}"
            )
        if self._run.report({name: logged[name] for name in self._names or logged}):
            self._stops = trainer.should_stop
            self._run.save(lambda place: self._write(trainer, place, "epoch"))
            self._stops = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._run.end(lambda place: self._save(trainer, place))

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Leave hyperparameters that could not be read again out of the service's checkpoints. A resumed training does not read them."""
        if not self._is_saving:
            return
        for owner in (LightningModule, LightningDataModule):
            keys = (
                owner.CHECKPOINT_HYPER_PARAMS_NAME,
                owner.CHECKPOINT_HYPER_PARAMS_KEY,
                owner.CHECKPOINT_HYPER_PARAMS_TYPE,
            )
            if not _is_readable([checkpoint.get(key) for key in keys]):
                for key in keys:
                    checkpoint.pop(key, None)

    def _save(self, trainer: Trainer, place: Path) -> None:
        """Write a checkpoint. If it is the first one of this process, check that Lightning can read it when the trial continues.

        Raises:
            TypeError: The checkpoint cannot be read.
        """
        self._is_saving = True
        try:
            trainer.save_checkpoint(place / FILE)
        finally:
            self._is_saving = False
        if not self._is_checked and trainer.is_global_zero:
            _check(place / FILE)
        self._is_checked = True

    def _write(self, trainer: Trainer, place: Path, interval: Literal["step", "epoch"]) -> None:
        """Write a checkpoint with the learning-rate schedulers in the state that they will have after this step or epoch.

        Lightning updates `ReduceLROnPlateau` only after `on_train_batch_end` or `on_train_epoch_end`, where this is called. Without the
        update, a restored training would continue with another learning rate. Afterwards the present state is restored.
        """
        plateaus = [config.scheduler for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
        before = [copy.deepcopy(plateau.state_dict()) for plateau in plateaus]
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups]
        trainer.fit_loop.epoch_loop.update_lr_schedulers(interval, update_plateau_schedulers=True)
        try:
            self._save(trainer, place)
        finally:
            for plateau, state in zip(plateaus, before, strict=True):
                plateau.load_state_dict(state)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


class _EpochEnd(Checkpoint):
    """Call `end_epoch` of the `TunerCallback` after each epoch, as the last hook.

    Lightning calls checkpoint callbacks after the module's `on_train_epoch_end`, which may log metrics, and after other callbacks, which may
    stop the training. `TunerCallback` itself is not a checkpoint callback, because `Trainer(enable_checkpointing=False)` would refuse it.
    """

    def __init__(self, callback: TunerCallback) -> None:
        self._callback = callback

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._callback.end_epoch(trainer)


def _set_callbacks(trainer: Any, callbacks: list[Callback]) -> None:
    """Set the trainer's callbacks. The list is replaced and not changed in place, because Lightning may be iterating over it."""
    trainer.callbacks = callbacks


def _use_own_copies(strategy: Any) -> None:
    """Let each node write and read the service's checkpoints in its own directory.

    By default, strategies that split a model between ranks send rank 0's path to all ranks, because they expect a directory that all nodes
    share.
    """
    broadcast = strategy.broadcast

    def broadcast_other(value: Any, src: int = 0) -> Any:
        is_own = isinstance(value, str | Path) and Path(value).name == FILE
        return value if is_own else broadcast(value, src)

    strategy.broadcast = broadcast_other


def _can_continue_within_epoch(trainer: Trainer, module: LightningModule) -> bool:
    """Return whether training can continue exactly from a checkpoint in the middle of an epoch.

    It cannot in four cases. With manual optimization, gradients may be kept from batch to batch. Validation at time intervals would not come
    after the same batch again. A `training_step` that takes batches from the loader itself may take any number of them. If only some of
    several loaders have a `state_dict`, Lightning continues these itself, but the batches of the others would have to be skipped.
    """
    loaders = _loaders(trainer)
    return (
        module.automatic_optimization
        and trainer.val_check_batch is not None
        and not isinstance(trainer.fit_loop._data_fetcher, _DataLoaderIterDataFetcher)
        and len({isinstance(loader, _Stateful) for loader in loaders}) == 1
    )


def _loaders(trainer: Trainer) -> list[Any]:
    assert trainer.fit_loop._combined_loader is not None
    return trainer.fit_loop._combined_loader.flattened


def _is_between_steps(trainer: Trainer) -> bool:
    """Return whether the newest batch ends an optimizer step, and another batch follows it without a validation in between.

    A restored training would leave out a validation that was due at the interruption.
    """
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    assert fetcher is not None
    ends = loop._is_training_done or (trainer.should_stop and trainer.fit_loop._can_stop_early)
    return not (ends or loop._should_accumulate() or loop._should_check_val_fx(fetcher))


def _skip(trainer: Trainer, batches: int) -> None:
    """Load the batches on which the interrupted epoch has already trained, and drop them.

    Otherwise Lightning would begin the epoch again with its first batch. Do nothing if the loaders have a `state_dict`, because they
    continue by themselves.
    """
    if isinstance(_loaders(trainer)[0], _Stateful):
        return
    for loader in _loaders(trainer):
        _set_sampler_epoch(
            loader, trainer.current_epoch
        )  # Lightning itself sets the epoch only after the batches are skipped
    fetcher = trainer.fit_loop._data_fetcher
    assert fetcher is not None
    for _ in range(batches):
        next(fetcher)
    fetcher.fetched -= batches  # Lightning adds the restored number of batches itself
    # Lightning warns that the loader begins the epoch again, which is not true here.
    warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before the epoch ended")


def _is_readable(value: Any) -> bool:
    """Return whether a value in a checkpoint can be read with `weights_only=True`, as Lightning reads a checkpoint when it resumes."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:
        return False
    return True


def _weights_only() -> bool | None:
    """Return the argument `weights_only` of the running `trainer.fit`. None leaves the decision to PyTorch.

    Lightning does not keep the argument, so it is looked up in the calling frame.
    """
    fits = (frame for frame, _ in traceback.walk_stack(None) if frame.f_code is Trainer._fit_impl.__code__)
    return next((frame.f_locals.get("weights_only") for frame in fits), None)


def _check(file: Path) -> None:
    """Raise TypeError with the keys that are not readable if a checkpoint cannot be read as Lightning reads it when the trial continues.

    The tensors are not read. Nothing is checked if a strategy or a plugin writes checkpoints in another form than PyTorch's files.
    """
    if not zipfile.is_zipfile(file):
        return
    try:
        # PyTorch reads the variables TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD and TORCH_FORCE_WEIGHTS_ONLY_LOAD here
        torch.load(file, weights_only=_weights_only(), mmap=True)
    except pickle.UnpicklingError as error:
        checkpoint = torch.load(file, weights_only=False, mmap=True)
        unreadable = [
            f"{key!r} ({type(value).__name__})"
            for key, value in checkpoint.items()
            if not _is_readable(value)
        ]
        raise TypeError(
            f"a resumed trial could not read its checkpoint, because PyTorch does not read the objects in {', '.join(unreadable)} with "
            "weights_only=True; in `on_save_checkpoint` and `state_dict`, save tensors, text, Python numbers such as float(x), and "
            "dictionaries and lists of these, or call trainer.fit(..., weights_only=False)"
        ) from error
