"""What training takes of a GPU's memory, and what would make it fit.

**Weights, gradients, optimizer** (Rajbhandari et al., ZeRO, SC 2020, §3.1): in fp32 4 + 4 bytes a parameter; in bf16 or fp16 2 + 2,
and 4 for the optimizer's own fp32 copy. On top, in fp32: momentum 4, Adam and AdamW 8, Adam with 8-bit states 2 (Dettmers et al.
2022), SGD and Adafactor without momentum none (Shazeer & Stern 2018: rows and columns alone).

**Activations** of a transformer (Korthikanti et al. 2022, eq. 1, 2): for each layer and sample s·h·(34 + 5·a·s/h) bytes at 16 bits, of
which 2 and 1 are dropout masks of one byte; s·h·(66 + 9·a·s/h) at 32. FlashAttention keeps no scores: the term with a is dropped. The
logits are kept in fp32: 4·s·v. With gradient checkpointing each layer's input is kept, and one layer is whole at a time. Activations
that were measured are cut into ⌊√L⌋ segments of L layers (Chen et al. 2016). Either costs one more forward pass, a third of the time.

**Around it** a GiB of CUDA context and libraries, and a tenth for fragmentation: assumptions, to be checked by
`torch.cuda.max_memory_reserved()`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

from tuner.planning.estimates.described import Format, Model

GIB = 2**30
CONTEXT = GIB
FRAGMENTS = 10  # a tenth
OPTIMIZER_BYTES = {"sgd": 0, "momentum": 4, "adam": 8, "adamw": 8, "adam_8bit": 2, "adafactor": 0}
RECOMPUTED = Fraction(4, 3)  # forward, backward as long as two, and forward again


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """In bytes, on each GPU. `activations` of one micro-batch."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    around: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.around


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How it fits. `changes` against what was asked for; none: as it is."""

    changes: tuple[str, ...]
    precision: Format
    micro_batch: int
    accumulation: int
    gradient_checkpointing: bool
    memory: Memory


def memory_of(model: Model, micro_batch: int | None = None) -> Memory:
    """What the model takes with micro-batches of this size; None: with its whole batch."""
    half = model.precision != "fp32"
    weights = gradients = model.parameters * (2 if half else 4)
    optimizer = model.parameters * (OPTIMIZER_BYTES[model.optimizer] + (4 if half else 0))
    activations = _activations(model) * (model.batch if micro_batch is None else micro_batch)
    inside = weights + gradients + optimizer + activations
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        around=CONTEXT - (-inside // FRAGMENTS),
    )


def fit(model: Model, gib: Fraction, *, bf16: bool) -> Fit | None:
    """The least change with which the model fits into a GPU; None: none is enough. `bf16`: whether the GPU has it."""
    return next(fits(model, gib, bf16=bf16), None)


def fits(model: Model, gib: Fraction, *, bf16: bool) -> Iterator[Fit]:
    """Every way to fit, the least change first: smaller micro-batches change nothing that is learned, bf16 the rounding alone,
    gradient checkpointing costs time."""
    native = "fp16" if model.precision == "bf16" and not bf16 else model.precision
    formats: list[Format] = [native]
    if native == "fp32":
        formats.append("bf16" if bf16 else "fp16")
    checkpointing = (model.gradient_checkpointing,) if model.gradient_checkpointing else (False, True)
    for again, precision, whole in product(checkpointing, formats, (True, False)):
        changed = replace(_in(model, precision), gradient_checkpointing=again)
        micro = model.batch if whole else _largest_micro_batch(changed, gib)
        if (not whole and micro in (0, model.batch)) or memory_of(changed, micro).total > gib * GIB:
            continue
        yield _fit(model, changed, micro)


def _fit(model: Model, changed: Model, micro: int) -> Fit:
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


def _in(model: Model, precision: Format) -> Model:
    """In another format. Measured activations are halved where 32 bits become 16."""
    if model.precision != "fp32" or precision == "fp32" or model.activation_bytes is None:
        return replace(model, precision=precision)
    return replace(model, precision=precision, activation_bytes=-(-model.activation_bytes // 2))


def _largest_micro_batch(model: Model, gib: Fraction) -> int:
    """0 where not even one sample fits."""
    low, high = 0, model.batch
    while low < high:
        middle = (low + high + 1) // 2
        if memory_of(model, middle).total <= gib * GIB:
            low = middle
        else:
            high = middle - 1
    return low


def _activations(model: Model) -> int:
    """Bytes of one sample."""
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


def _measured(whole: int, model: Model) -> int:
    layers = model.layers or 1
    if not model.gradient_checkpointing or layers < 4:
        return whole
    segments = math.isqrt(layers)
    return math.ceil(Fraction(whole, segments) + Fraction(whole * segments, layers))
