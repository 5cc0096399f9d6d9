"""The package that trainables import. It needs PyTorch, but neither Ray nor the service.

Names are imported at first use. A worker's supervisor imports `tuner.training.channel` too, and must not spend seconds and memory
on importing torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.training.accumulation import (
        accumulate,
        distillation_loss,
        fit_batch_size,
        recompute,
        teacher,
    )
    from tuner.training.channel import MetricsRefused, StopTraining
    from tuner.training.checkpoint import CheckpointUnreadable
    from tuner.training.datasets import DatasetRefused, dataset
    from tuner.training.exporting import Exported
    from tuner.training.latency import latency_ms
    from tuner.training.loaders import Batches, efficient_loader
    from tuner.training.packed import Packed
    from tuner.training.precision import autocast, grad_scaler, quantize_aware
    from tuner.training.preparing import prepare
    from tuner.training.seeding import seed_everything
    from tuner.training.spot_safe import SpotSafe
    from tuner.training.vmapped import AdamW, BatchFailed, Sgd

__all__ = [
    "AdamW",
    "BatchFailed",
    "Batches",
    "CheckpointUnreadable",
    "DatasetRefused",
    "Exported",
    "MetricsRefused",
    "Packed",
    "Sgd",
    "SpotSafe",
    "StopTraining",
    "accumulate",
    "autocast",
    "dataset",
    "distillation_loss",
    "efficient_loader",
    "fit_batch_size",
    "grad_scaler",
    "latency_ms",
    "prepare",
    "quantize_aware",
    "recompute",
    "seed_everything",
    "teacher",
]
_HOMES = {
    "AdamW": "vmapped",
    "BatchFailed": "vmapped",
    "Batches": "loaders",
    "CheckpointUnreadable": "checkpoint",
    "DatasetRefused": "datasets",
    "Exported": "exporting",
    "MetricsRefused": "channel",
    "Packed": "packed",
    "Sgd": "vmapped",
    "SpotSafe": "spot_safe",
    "StopTraining": "channel",
    "accumulate": "accumulation",
    "autocast": "precision",
    "dataset": "datasets",
    "distillation_loss": "accumulation",
    "efficient_loader": "loaders",
    "fit_batch_size": "accumulation",
    "grad_scaler": "precision",
    "latency_ms": "latency",
    "prepare": "preparing",
    "quantize_aware": "precision",
    "recompute": "accumulation",
    "seed_everything": "seeding",
    "teacher": "accumulation",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tuner.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tuner.training.{_HOMES[name]}"), name)
