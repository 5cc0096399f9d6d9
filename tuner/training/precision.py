"""Mixed precision by name: fp32, bf16, fp16, on CPU and CUDA."""

from contextlib import AbstractContextManager
from typing import Literal

import torch

from tuner.training.measured import note

Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: str = "cpu") -> AbstractContextManager[object]:
    """The context for forward passes. Raises ValueError for another word than fp32, bf16 and fp16."""
    if precision != "fp32" and precision not in _DTYPES:
        raise ValueError(f"precision {precision!r} is not one of fp32, bf16 and fp16")
    note(precision=precision, device=device)
    if precision == "fp32":
        return torch.autocast(device, enabled=False)
    return torch.autocast(device, dtype=_DTYPES[precision])


def grad_scaler(precision: str, device: str = "cpu") -> torch.amp.GradScaler:
    """Scales losses where fp16 would lose small gradients, and does nothing for the others. Give it to SpotSafe as `scaler`."""
    return torch.amp.GradScaler(device, enabled=precision == "fp16")
