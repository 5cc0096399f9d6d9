"""Trainings of frameworks in which something happens after the optimizer step or round `at`. Frameworks are imported by the trainable that uses
them, because the trainings with XGBoost and LightGBM must not import PyTorch.
"""

import os
import time
import warnings
from pathlib import Path
from typing import Any

from tuner.training.channel import ASK_S


def happens(config: dict[str, Any], step: int) -> None:
    """Warn, and then do what `what` names: wait until the file `gate` exists, or run out of memory."""
    if step != config["at"]:
        return
    warnings.warn("this does not end the training", UserWarning, stacklevel=1)
    if config["what"] == "wait":
        Path(config["reached"]).touch()
        while not Path(config["gate"]).exists():
            time.sleep(0.01)
        # The worker is asked at most once in this time. Without the pause, the step could end before it is asked again.
        time.sleep(ASK_S)
    elif config["what"] == "fill memory":
        memory = []
        while True:
            memory.append(b"x" * (16 << 20))
            time.sleep(0.01)
    else:
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory.")


def transformers(config: dict[str, Any]) -> None:
    from transformers import TrainerCallback, TrainerState

    from tests.frameworks import with_transformers

    class Happens(TrainerCallback):
        def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
            happens(config, state.global_step)

    with_transformers.train(config, None, Happens())


def transformers_with_output_dir(config: dict[str, Any]) -> None:
    """Train ten optimizer steps in the directory `project`, and write the name of the directory for output at the end."""
    from transformers import TrainerCallback

    from tests.frameworks import with_transformers

    class Ends(TrainerCallback):
        def on_train_end(self, args: Any, *_: Any, **__: Any) -> None:
            Path(config["ended"]).write_text(args.output_dir)

    os.chdir(config["project"])
    with_transformers.train(
        config, 4, TrainerCallback(), Ends(), output_dir=config["output_dir"], max_steps=10
    )


def lightning(config: dict[str, Any]) -> None:
    from tests.frameworks import with_lightning

    with_lightning.train(config, "val_loss", _lightning_callback(config))


def lightning_with_rare_validation(config: dict[str, Any]) -> None:
    from tests.frameworks import with_lightning

    with_lightning.train_with_rare_validation(config, _lightning_callback(config))


def lightning_of_the_other_package(config: dict[str, Any]) -> None:
    import pytorch_lightning
    from pytorch_lightning.demos.boring_classes import BoringModel

    from tuner.training.lightning import TunerCallback

    trainer = pytorch_lightning.Trainer(
        max_epochs=1, callbacks=[TunerCallback()], enable_checkpointing=False, logger=False, accelerator="cpu"
    )
    trainer.fit(BoringModel())


def _lightning_callback(config: dict[str, Any]) -> Any:
    from lightning.pytorch.callbacks import Callback

    class Happens(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            happens(config, trainer.global_step)

    return Happens()


def xgboost(config: dict[str, Any]) -> None:
    from xgboost.callback import TrainingCallback

    from tests.frameworks import with_xgboost

    class Happens(TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            happens(config, model.num_boosted_rounds())
            return False

    with_xgboost.train(config, "valid-logloss", 18, Happens())


def lightgbm(config: dict[str, Any]) -> None:
    from tests.frameworks import with_lightgbm

    with_lightgbm.train(
        config, "valid-binary_logloss", lambda env: happens(config, env.model.current_iteration())
    )
