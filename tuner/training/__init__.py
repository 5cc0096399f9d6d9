"""The package that trainables import. It needs PyTorch, but neither Ray nor the service.

Names are imported at first use. A worker's supervisor imports `tuner.training.channel` too, and must not spend seconds and memory
on importing torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.training.accumulation import accumulated_step
    from tuner.training.channel import MetricsRefused, StopTraining
    from tuner.training.checkpoint import CheckpointUnreadable
    from tuner.training.loaders import Batches
    from tuner.training.precision import autocast, grad_scaler
    from tuner.training.preparing import prepare
    from tuner.training.seeding import seed_everything
    from tuner.training.spot_safe import SpotSafe

__all__ = [
    "Batches",
    "CheckpointUnreadable",
    "MetricsRefused",
    "SpotSafe",
    "StopTraining",
    "accumulated_step",
    "autocast",
    "grad_scaler",
    "prepare",
    "seed_everything",
]
_HOMES = {
    "Batches": "loaders",
    "CheckpointUnreadable": "checkpoint",
    "MetricsRefused": "channel",
    "SpotSafe": "spot_safe",
    "StopTraining": "channel",
    "accumulated_step": "accumulation",
    "autocast": "precision",
    "grad_scaler": "precision",
    "prepare": "preparing",
    "seed_everything": "seeding",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tuner.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tuner.training.{_HOMES[name]}"), name)
