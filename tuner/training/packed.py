"""`Packed`: a trainable whose trials a worker can train as one batch."""

import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from tuner.training.batch_process import BatchClient, BatchServer, client_state
from tuner.training.channel import current
from tuner.training.environments import Alone, find_home
from tuner.training.ranks import rank_count
from tuner.training.spot_safe import SpotSafe
from tuner.training.vmapped import (
    BatchMember,
    Config,
    Optimizer,
    Recipe,
    Tensors,
    Trainer,
    checked,
    load_flat,
)


class Packed:
    """A trainable that is declared by functions, so that a worker can train several of its trials as one batch.

        train = Packed(make=make, optimizer=optimizer, batches=batches, loss=loss, evaluate=evaluate)

    A job names it as `module:train`. With `resources: {pack: 4}`, a worker trains up to four of its trials with `torch.func.vmap`
    (https://docs.pytorch.org/docs/stable/func.html). Without `pack`, under plain Ray Tune and in a script, the same code trains one
    trial, with the same result except for rounding.

    `SpotSafe` saves and restores each trial. Its checkpoints have the parts `model`, which is the `state_dict()` of the module,
    and `optimizer`, so a function `export(config, state)` can load `state["model"]`.

    After each step, `train_loss` (the mean of the step's losses) and the metrics of `evaluate` are reported.

    Args:
        make: `make(config)` returns the module with its first parameters. Models whose shapes, layers and attributes are equal
            train together. A number that differs between trials, such as a temperature, must be a buffer for this.
        optimizer: `optimizer(config, step)` returns `Sgd(...)` or `AdamW(...)` for a step, counted from 0, so it can be a schedule. Trials
            with the same class train together, with their own hyperparameters.
        batches: `batches(config, step)` returns the batches of a step: tensors or tuples of tensors. It must depend on nothing but its
            arguments; shuffle with a `torch.Generator` that is seeded with them. Trials whose batches have the same shapes train together.
        loss: `loss(model, batch)` returns the mean loss of a batch as a tensor of one number. `model` is called like the module.
        evaluate: `evaluate(model)` returns metrics by name, each a tensor of one number. The module is in evaluation mode. None if only
            `train_loss` is reported.
        doc: The trainable's description for users.
    """

    def __init__(
        self,
        *,
        make: Callable[[Any], nn.Module],
        optimizer: Callable[[Any, int], Optimizer],
        batches: Callable[[Any, int], Iterable[Any]],
        loss: Callable[[Any, Any], torch.Tensor],
        evaluate: Callable[[Any], Mapping[str, torch.Tensor]] | None = None,
        doc: str | None = None,
    ) -> None:
        self._recipe = Recipe(make, optimizer, batches, loss, evaluate)
        if doc is not None:
            self.__doc__ = doc

    def __call__(
        self, config: Config, *, steps: int | None = None, checkpoint_dir: str | Path | None = None
    ) -> None:
        """Train one trial: in this process, or in the batch process of the worker if there is one.

        Args:
            config: The trial's configuration.
            steps: Number of steps under plain Ray Tune and in a plain script. The service sets its own.
            checkpoint_dir: Directory for checkpoints in a plain script. None if no checkpoints are saved.

        Raises:
            BatchFailed: `loss` or `evaluate` failed.
            RuntimeError: Several processes train the trial.
            TypeError: A function has returned a value of the wrong type.
            ValueError: The model cannot be trained in a batch, or the number of steps is unknown in a script.
        """
        if rank_count() > 1:
            raise RuntimeError("Packed trains a trial in one process; set processes_per_node: 1 and nodes: 1")
        if steps is None and isinstance(find_home(None, None), Alone):
            raise ValueError("the number of steps is not known in a script; call train(config, steps=10)")
        training = _Training(self._recipe, config)
        parts = {"model": _ModelPart(training), "optimizer": _OptimizerPart(training)}
        run = SpotSafe(steps=steps, checkpoint_dir=checkpoint_dir, **parts)
        # The training is closed last, because a checkpoint may be written when the block of the run ends.
        with closing(training), run:
            for step in run.steps():
                metrics: dict[str, Any] = training.advance(step)
                run.report(**metrics)

    def serve(self, listener: socket.socket) -> None:
        """Run the batch process: train the trials that connect to the socket, until this process is killed."""
        BatchServer(self._recipe, listener).run()


class _Engine(Protocol):
    """The engine that trains the model of a trial."""

    def advance(self, step: int) -> dict[str, float]: ...

    def state(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class _OwnProcess:
    """Train the model in this process, as a batch of one."""

    def __init__(self, recipe: Recipe, config: Config, state: Mapping[str, Any], module: nn.Module) -> None:
        self._recipe, self._trainer, self._member = recipe, Trainer(recipe), BatchMember(0, config, module)
        self._member.load(state["parameters"], state["optimizer"], state["moments"])

    def advance(self, step: int) -> dict[str, float]:
        self._member.begin(self._recipe, step)
        while True:
            result = self._trainer.round([self._member])
            for error in result.errors.values():
                raise error
            if self._member in result.metrics:
                return result.metrics[self._member]

    def state(self) -> dict[str, Any]:
        return {"tensors": self._member.state(), "optimizer": self._member.optimizer}

    def close(self) -> None:
        pass


class _Training:
    """The training of one trial: the module and the optimizer's moments, which are copies of what the engine has.

    The copies are renewed only when a checkpoint is written, because the batch process has to send them. If the batch process dies, this
    process continues alone: it trains the steps since the last copies again.
    """

    def __init__(self, recipe: Recipe, config: Config) -> None:
        self._recipe, self._config = recipe, config
        self.module = checked(recipe.make(config))
        self.optimizer: str | None = None  #: The class of the optimizer. None before the first step.
        self.moments: Tensors = {}
        self._engine: _Engine | None = None  #: None until the first step, which is after the restore.
        self._finished = self._copied = (
            0  #: How many steps are finished, and how many were when the copies were made.
        )

    def advance(self, step: int) -> dict[str, float]:
        """Train one step and return its metrics. `step` is the number of finished steps."""
        if self._engine is None:
            self._finished = self._copied = step
        try:
            engine = self._engine = self._engine or self._new_engine()
            metrics = engine.advance(step)
        except ConnectionError as error:
            metrics = self._continue_alone(error).advance(step)
        self._finished = step + 1
        return metrics

    def _new_engine(self) -> _Engine:
        channel = current()
        path = None if channel is None else channel.begin.batch_socket
        if path is None:
            return self._own_process()
        return BatchClient(path, self._config, client_state(self.module, self.optimizer, self.moments))

    def _own_process(self) -> "_OwnProcess":
        state = client_state(self.module, self.optimizer, self.moments)
        return _OwnProcess(self._recipe, self._config, state, self.module)

    def _continue_alone(self, error: ConnectionError) -> _Engine:
        """Return an engine in this process that has trained all finished steps, because the batch process is dead."""
        sys.stderr.write(f"{error}. This trial continues in its own process\n")
        self.close()
        self._engine = self._own_process()
        for step in range(self._copied, self._finished):
            self._engine.advance(step)
        return self._engine

    def refresh(self) -> None:
        """Copy the state of the last finished step from the engine."""
        if self._copied == self._finished or self._engine is None:
            return
        try:
            state = self._engine.state()
        except ConnectionError as error:
            state = self._continue_alone(error).state()
        self.moments = {name: tensor for name, tensor in state["tensors"].items() if name != "parameters"}
        self.optimizer = state["optimizer"]
        load_flat(self.module, state["tensors"]["parameters"])
        self._copied = self._finished

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


class _ModelPart:
    """The module as a part of a checkpoint."""

    def __init__(self, training: _Training) -> None:
        self._training = training

    def state_dict(self) -> dict[str, Any]:
        self._training.refresh()
        return self._training.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._training.module.load_state_dict(state)


class _OptimizerPart:
    """The optimizer's moments as a part of a checkpoint. Each is a tensor of shape (P,) for all P trained numbers of the module."""

    def __init__(self, training: _Training) -> None:
        self._training = training

    def state_dict(self) -> dict[str, Any]:
        self._training.refresh()
        return {"class": self._training.optimizer, "moments": self._training.moments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._training.optimizer, self._training.moments = state["class"], dict(state["moments"])
