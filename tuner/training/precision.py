"""Mixed precision by name: fp32, bf16, fp16, on CPU and CUDA."""

from contextlib import AbstractContextManager, ContextDecorator, ExitStack
from types import TracebackType
from typing import Literal

import torch

from tuner.training.measured import note

Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: str | None = None) -> AbstractContextManager[object]:
    """Return the autocast context for forward passes.

    Args:
        precision: fp32, bf16 or fp16.
        device: cpu or cuda. None means the CPU, and CUDA if it is used.

    Raises:
        ValueError: The precision is unknown.
    """
    if precision != "fp32" and precision not in _DTYPES:
        raise ValueError(f"precision {precision!r} is not one of fp32, bf16 and fp16")
    return _Autocast(precision, device)


class _Autocast(AbstractContextManager[object], ContextDecorator):
    """An autocast context that can be entered repeatedly, like PyTorch's own. Each time it checks again whether GPUs are used.

    It enters a context for the CPU and one for GPUs, because a PyTorch context ignores tensors on other kinds of devices.
    """

    def __init__(self, precision: str, device: str | None) -> None:
        self._precision, self._device = precision, device
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        # If any tensor is on a GPU, CUDA is initialized. Other checks would initialize CUDA even if training uses only the CPU.
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        note(precision=self._precision, device=self._device or ("cuda" if on_gpu else "cpu"))
        devices = ("cpu", "cuda") if on_gpu else ("cpu",)
        with ExitStack() as all_of_them:
            for device in devices if self._device is None else (self._device,):
                all_of_them.enter_context(_autocast(self._precision, device))
            self._entered.append(all_of_them.pop_all())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)


def _autocast(precision: str, device: str) -> torch.autocast:
    if precision == "fp32":
        return torch.autocast(device, enabled=False)
    return torch.autocast(device, dtype=_DTYPES[precision])


def grad_scaler(precision: str, device: str | None = None) -> torch.amp.GradScaler:
    """Return a gradient scaler for fp16, which would lose small gradients. For other precisions it does nothing.

    Pass it to SpotSafe as `scaler`.

    Args:
        device: The device of the losses. None means CUDA if there is a GPU, else the CPU.
    """
    on_device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return torch.amp.GradScaler(on_device, enabled=precision == "fp16")
