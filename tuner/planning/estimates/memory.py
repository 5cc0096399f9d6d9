"""GPU memory that training needs, and the changes that make it fit.

**Weights, gradients and optimizer** (Rajbhandari et al., ZeRO, SC 2020, §3.1). In fp32, a parameter takes 4 + 4 bytes for weights and
gradients. In bf16 or fp16, it takes 2 + 2 bytes, and 4 for the optimizer's fp32 copy. The optimizer's state adds 4 bytes for momentum, 8
for Adam and AdamW, 2 for Adam with 8-bit states (Dettmers et al. 2022), and none for SGD and for Adafactor without momentum, which keeps
only rows and columns (Shazeer & Stern 2018).

**Activations** of a transformer (Korthikanti et al. 2022, eq. 1, 2). Each layer and sample takes s·h·(34 + 5·a·s/h) bytes at 16 bits,
where 2 of the 34 and 1 of the 5 are dropout masks of one byte per element. At 32 bits it takes s·h·(66 + 9·a·s/h). FlashAttention stores
no scores, so the term with a is dropped. The logits are kept in fp32: 4·s·v. With gradient checkpointing, only the input of each layer is
kept, plus all activations of one layer at a time. Measured activations are divided into ⌊√L⌋ segments of the L layers (Chen et al. 2016). Either
way, gradient checkpointing costs one more forward pass, which is a third of the time.

**Overhead**: 1 GiB for the CUDA context and libraries, and a tenth of the rest for fragmentation. These are assumptions, to be checked
with `torch.cuda.max_memory_reserved()`.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

from tuner.domain.units import GIB
from tuner.planning.estimates.described import Format, ModelShape

CONTEXT = GIB
FRAGMENTS = 10  # a tenth (1/10) of the memory is lost to fragmentation
OPTIMIZER_BYTES = {"sgd": 0, "momentum": 4, "adam": 8, "adamw": 8, "adam_8bit": 2, "adafactor": 0}
# a step is one forward pass and a backward pass twice as long; one more forward pass adds a third
RECOMPUTED = Fraction(4, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """The memory that a training needs on each GPU, by use, in bytes."""

    weights: int
    gradients: int
    optimizer: int
    activations: int  #: The activations of one micro-batch.
    around: int  #: CUDA context, libraries and fragmentation.

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.around


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A way to fit the training of a model into the memory of a GPU."""

    changes: tuple[str, ...]  #: The differences from the described model. Empty if it fits as described.
    precision: Format
    micro_batch: int
    accumulation: int
    gradient_checkpointing: bool
    memory: GpuMemory


def memory_of(model: ModelShape, micro_batch: int | None = None) -> GpuMemory:
    """Return the memory that training the model needs on each GPU.

    `micro_batch` is the number of samples that are computed at once. None means the whole batch.
    """
    half = model.precision != "fp32"
    weights = gradients = model.parameters * (2 if half else 4)
    optimizer = model.parameters * (OPTIMIZER_BYTES[model.optimizer] + (4 if half else 0))
    activations = _activations(model) * (model.batch if micro_batch is None else micro_batch)
    inside = weights + gradients + optimizer + activations
    return GpuMemory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        around=CONTEXT - (-inside // FRAGMENTS),
    )


def fit(model: ModelShape, gib: Fraction, *, bf16: bool) -> Fit | None:
    """Fit the model into the memory of a GPU, with the smallest possible change to the training. Return None if it cannot fit.

    Args:
        model: The model.
        gib: The memory of the GPU in GiB.
        bf16: Whether the GPU supports bf16.
    """
    return next(fits(model, gib, bf16=bf16), None)


def fits(model: ModelShape, gib: Fraction, *, bf16: bool) -> Iterator[Fit]:
    """Yield every way to fit the model into a GPU with `gib` GiB of memory, in ascending order of the change to the training.

    The smallest change is a smaller micro-batch, which does not change the result. A 16-bit format (bf16, or fp16 if the GPU does not
    support bf16) is next, because it changes the rounding. Gradient checkpointing is last, because it costs time.
    """
    native = "fp16" if model.precision == "bf16" and not bf16 else model.precision
    formats: list[Format] = [native]
    if native == "fp32":
        formats.append("bf16" if bf16 else "fp16")
    checkpointing = (model.gradient_checkpointing,) if model.gradient_checkpointing else (False, True)
    for again, precision, whole in product(checkpointing, formats, (True, False)):
        changed = replace(_in(model, precision), gradient_checkpointing=again)
        micro = model.batch if whole else _largest_micro_batch(changed, gib)
        # A micro-batch as large as the batch is the whole batch, which was already tried.
        if (not whole and micro in (0, model.batch)) or memory_of(changed, micro).total > gib * GIB:
            continue
        yield _fit(model, changed, micro)


def _fit(model: ModelShape, changed: ModelShape, micro: int) -> Fit:
    accumulation = -(-model.batch // micro)
    changes: list[str] = []
    if changed.precision != model.precision:
        changes.append(changed.precision)
    if accumulation > 1:
        changes.append("accumulation")
    if changed.gradient_checkpointing and not model.gradient_checkpointing:
        changes.append("gradient_checkpointing")
    return Fit(
        changes=tuple(changes),
        precision=changed.precision,
        micro_batch=micro,
        accumulation=accumulation,
        gradient_checkpointing=changed.gradient_checkpointing,
        memory=memory_of(changed, micro),
    )


def _in(model: ModelShape, precision: Format) -> ModelShape:
    """Return the model in another number format. Measured activations are halved if the format changes from 32 to 16 bits."""
    if model.precision != "fp32" or precision == "fp32" or model.activation_bytes is None:
        return replace(model, precision=precision)
    return replace(model, precision=precision, activation_bytes=-(-model.activation_bytes // 2))


def _largest_micro_batch(model: ModelShape, gib: Fraction) -> int:
    """Return the largest micro-batch that fits into `gib` GiB, in samples. Return 0 if not even one sample fits."""
    sizes = range(1, model.batch + 1)
    return bisect_right(sizes, gib * GIB, key=lambda size: Fraction(memory_of(model, size).total))


def _activations(model: ModelShape) -> int:
    """Return the bytes of one sample's activations. Return 0 if neither a measurement nor a complete shape is known."""
    if model.activation_bytes is not None:
        return _measured(model.activation_bytes, model)
    if model.layers is None or model.hidden is None or model.heads is None or model.sequence is None:
        return 0
    wide = model.precision == "fp32"
    s, h, a = model.sequence, model.hidden, model.heads
    layer = s * h * (66 if wide else 34)
    if not model.flash_attention:
        layer += a * s * s * (9 if wide else 5)
    logits = 4 * s * model.vocabulary
    if model.gradient_checkpointing:
        return model.layers * s * h * (4 if wide else 2) + layer + logits
    return model.layers * layer + logits


def _measured(whole: int, model: ModelShape) -> int:
    layers = model.layers or 1
    if not model.gradient_checkpointing or layers < 4:
        return whole
    segments = math.isqrt(layers)
    return math.ceil(Fraction(whole, segments) + Fraction(whole * segments, layers))
