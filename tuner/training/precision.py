"""Mixed precision by name: fp32, bf16, fp16, on CPU and CUDA."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Literal

import torch

from tuner.training.measured import note

Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: str | None = None) -> AbstractContextManager[object]:
    """The context for forward passes, on the CPU and on CUDA or only on the kind of device that is named.

    Raises ValueError for another word than fp32, bf16 and fp16.
    """
    if precision != "fp32" and precision not in _DTYPES:
        raise ValueError(f"precision {precision!r} is not one of fp32, bf16 and fp16")
    # A tensor on a GPU initializes CUDA. To ask for more than that would do so in a training on the CPU.
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    note(precision=precision, device=device or ("cuda" if on_gpu else "cpu"))
    if device is not None:
        return _autocast(precision, device)
    return _everywhere(precision) if on_gpu else _autocast(precision, "cpu")


def _autocast(precision: str, device: str) -> torch.autocast:
    if precision == "fp32":
        return torch.autocast(device, enabled=False)
    return torch.autocast(device, dtype=_DTYPES[precision])


@contextmanager
def _everywhere(precision: str) -> Iterator[None]:
    """PyTorch's context is of one kind of device, and passes over the tensors of others without a word."""
    with ExitStack() as both:
        for device in ("cpu", "cuda"):
            both.enter_context(_autocast(precision, device))
        yield


def grad_scaler(precision: str, device: str | None = None) -> torch.amp.GradScaler:
    """Scales losses where fp16 would lose small gradients, and does nothing for the others. Give it to SpotSafe as `scaler`.

    `device` is where the losses are: without it, CUDA where there is a GPU.
    """
    found = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return torch.amp.GradScaler(found, enabled=precision == "fp16")
