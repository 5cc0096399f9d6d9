"""Prune a PyTorch module: set its smallest weights to zero, or remove the channels with the smallest weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import prune


def zero_weights(module: nn.Module, share: float) -> int:
    """Set the smallest weights of all Linear and convolution layers to zero, and return in how many layers.

    Unstructured pruning by the global L1 norm, with `torch.nn.utils.prune`: `share` is the share of the weights of all these layers
    together that become zero. Biases are kept. The layers keep their shapes, so a runtime for dense matrices computes as much as before
    and takes as much time.
    """
    layers: dict[int, Any] = {}  # by weight, because layers may share one
    for layer in module.modules():
        weight = layer._parameters.get("weight")
        if isinstance(layer, nn.Linear | _ConvNd) and weight is not None:
            # torch joins the weights to one vector, and refuses `channels_last`
            weight.data = weight.data.contiguous()
            layers.setdefault(id(weight), layer)
    pairs = [(layer, "weight") for layer in layers.values()]
    if pairs:
        prune.global_unstructured(pairs, pruning_method=prune.L1Unstructured, amount=share)
    for layer, name in pairs:
        prune.remove(layer, name)  # type: ignore[no-untyped-call]
    return len(pairs)


# Layers that compute each channel on its own, so that channels can be removed before and after them.
_BETWEEN = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.ELU, nn.Identity, nn.Dropout,
    nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.Flatten,
)  # fmt: skip


def remove_channels(module: nn.Module, share: float) -> int:
    """Remove the channels with the smallest weights from layers of the module, and return how many channels were removed.

    Each of these layers loses a share of its channels, `share`, rounded down.

    Structured pruning by the L1 norm of filters (Li et al., 2017): the layers become smaller, so the model takes less memory and time
    on any runtime. It is applied to each pair of Linear or Conv2d layers that follow each other in one `nn.Sequential`, because
    nothing else can read the channels between them. The rest of the module is not changed.
    """
    removed = 0
    uses = [child for _, child in module.named_modules(remove_duplicate=False)]
    for block in [child for child in module.modules() if type(child) is nn.Sequential]:
        first: nn.Module | None = None
        between: list[nn.Module] = []
        for layer in block:
            shared = sum(layer is used_module for used_module in uses) > 1
            if _is_dense(layer) and not shared:
                if first is not None and _connect(first, between, layer):
                    removed += _shrink(first, between, layer, share)
                first, between = layer, []
            elif isinstance(layer, _BETWEEN) and not shared:
                between.append(layer)
            else:
                first, between = None, []
    return removed


def _is_dense(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.groups == 1)


def _connect(first: Any, between: Sequence[nn.Module], second: Any) -> bool:
    """Return whether a channel of the first layer can be removed together with the weights of the second layer that read it.

    This requires that each column of the second layer's weights reads only one channel, and that as many columns read each channel.
    """
    flat = [layer for layer in between if isinstance(layer, nn.Flatten)]
    if any((flatten.start_dim, flatten.end_dim) != (1, -1) for flatten in flat):
        return False
    flattens = bool(flat)
    if type(first) is nn.Linear:
        return type(second) is nn.Linear and not flattens and second.in_features == first.out_features
    if type(second) is nn.Conv2d:
        return not flattens and second.in_channels == first.out_channels
    return flattens and second.in_features % first.out_channels == 0


def _shrink(first: Any, between: Sequence[nn.Module], second: Any, share: float) -> int:
    channels = len(first.weight)
    fewer = int(channels * share)
    if fewer == 0 or channels - fewer < 1:
        return 0
    norms = first.weight.detach().abs().flatten(1).sum(1)
    kept = norms.argsort()[fewer:].sort().values
    _keep(first, "weight", kept)
    _keep(first, "bias", kept)
    wide = second.weight.shape[1] // channels  # columns of the second layer for each channel
    columns = (kept[:, None] * wide + torch.arange(wide)).flatten()
    features = kept
    for layer in between:
        if isinstance(layer, nn.Flatten):
            features = columns
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            for name in ("weight", "bias", "running_mean", "running_var"):
                _keep(layer, name, features)
            layer.num_features = len(features)
    second.weight = nn.Parameter(second.weight.detach()[:, columns].clone())
    if type(first) is nn.Linear:
        first.out_features = len(kept)
    else:
        first.out_channels = len(kept)
    if type(second) is nn.Linear:
        second.in_features = len(columns)
    else:
        second.in_channels = len(columns)
    return fewer


def _keep(layer: nn.Module, name: str, kept: torch.Tensor) -> None:
    """Reduce a parameter or buffer of the layer to the channels `kept`. Do nothing if the layer has none of this name."""
    value = getattr(layer, name, None)
    if value is None:
        return
    smaller = value.detach()[kept].clone()
    setattr(layer, name, nn.Parameter(smaller) if isinstance(value, nn.Parameter) else smaller)
