"""Mixed precision by name: fp32, bf16, fp16, on CPU and CUDA."""

from contextlib import AbstractContextManager, ContextDecorator, ExitStack
from types import TracebackType
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
    return _Autocast(precision, device)


class _Autocast(AbstractContextManager[object], ContextDecorator):
    """Made once it may be entered again and again, as PyTorch's own; each time it is looked at anew whether GPUs are used.

    PyTorch's context is of one kind of device, and passes over the tensors of others without a word.
    """

    def __init__(self, precision: str, device: str | None) -> None:
        self._precision, self._device = precision, device
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        # A tensor on a GPU initializes CUDA. To ask for more than that would do so in a training on the CPU.
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
    """Scales losses where fp16 would lose small gradients, and does nothing for the others. Give it to SpotSafe as `scaler`.

    `device` is where the losses are: without it, CUDA where there is a GPU.
    """
    found = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return torch.amp.GradScaler(found, enabled=precision == "fp16")
