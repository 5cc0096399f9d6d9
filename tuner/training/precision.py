"""Train with the precision that a name gives (fp32, bf16 or fp16), on CPU and CUDA, or prepare a model for an export with 8 bits."""

from contextlib import AbstractContextManager, ContextDecorator, ExitStack
from types import MethodType, TracebackType
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from tuner.training.measured import note

M = TypeVar("M", bound=nn.Module)
Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: str | None = None) -> AbstractContextManager[object]:
    """Return the autocast context for forward passes.

    Args:
        precision: fp32, bf16 or fp16.
        device: cpu or cuda, for operations on this device alone. None means operations on the CPU, and also on GPUs if the process uses them.

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
        # CUDA is initialized if any tensor is on a GPU. Do not check in another way, which would initialize CUDA even if training uses only the CPU.
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


def quantize_aware(model: M) -> M:
    """Let the Linear and convolution layers of a model compute with weights and inputs that are rounded to 8 bits, and return the model.

    A model that is trained in this way loses less of its metric when it is exported as `int8-static` (quantization-aware training, Jacob et
    al. 2018). Weights are rounded with a scale for each output channel, and inputs with one scale for the range of the batch. Gradients
    pass through the rounding. The parameters keep their names and stay in full precision, so a model without the rounding loads them.

    Args:
        model: The model, which is changed. Layers of other classes, and subclasses, compute as before.

    Raises:
        ValueError: The model has no such layer.
    """
    layers = [layer for layer in model.modules() if type(layer) in _ROUNDED]
    if not layers:
        raise ValueError(
            "the model has no Linear or convolution layer that could be rounded to 8 bits; train it without quantize_aware"
        )
    for layer in layers:
        layer.forward = MethodType(_rounded_forward, layer)
    for part in model.modules():
        # In evaluations without gradients, these classes read the weights of their layers instead of calling the layers.
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # only layers with one of these activations do so
        elif isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False
    return model


_ROUNDED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TINY = torch.finfo(torch.float32).eps  # the smallest scale, for tensors of zeros


def _rounded_forward(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
    weight = _rounded_weight(layer.weight)
    if type(layer) is nn.Linear:
        return nn.functional.linear(_rounded(inputs), weight, layer.bias)
    outputs: torch.Tensor = layer._conv_forward(_rounded(inputs), weight, layer.bias)
    return outputs


def _rounded(values: torch.Tensor) -> torch.Tensor:
    """Round to 256 equidistant values, which cover the range of `values` and include 0."""
    if not values.numel():
        return values
    low, high = (bound.float() for bound in values.detach().aminmax())
    scale = ((high.clamp(min=0) - low.clamp(max=0)) / 255).clamp(min=_TINY)
    # If training diverges, the scale is NaN, which has no integer value. The results are NaN for any zero point.
    zero = (-low.clamp(max=0) / scale).round().nan_to_num().clamp(0, 255).to(torch.int32)
    return torch.fake_quantize_per_tensor_affine(values.float(), scale, zero, 0, 255).to(values.dtype)


def _rounded_weight(weight: torch.Tensor) -> torch.Tensor:
    """Round to 255 equidistant values, which are symmetric around 0, with a scale for each output channel."""
    scale = (weight.detach().float().abs().flatten(1).amax(1) / 127).clamp(min=_TINY)
    zeros = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
    return torch.fake_quantize_per_channel_affine(weight.float(), scale, zeros, 0, -127, 127).to(weight.dtype)
