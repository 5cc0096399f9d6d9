"""A run as it is described: the work, its speed, its memory, and the terms of spot. Numbers are exact; durations are nanoseconds."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from tuner.domain.listing import MARKETS, Market
from tuner.domain.time import NS

Optimizer = Literal["sgd", "momentum", "adam", "adamw", "adam_8bit", "adafactor"]
Format = Literal["fp32", "bf16", "fp16"]
Unit = Literal["samples", "tokens", "hours"]

# Model FLOPs utilisation of large trainings: GPT-3 0.213, MT-NLG 0.302, Gopher 0.325, PaLM 0.462 (Chowdhery et al. 2022, table 3).
UTILISATION = Fraction(3, 10)
UTILISATION_RANGE = Fraction(21, 100), Fraction(46, 100)
# Of so many GPUs in one machine where nothing says how much they talk. An assumption, without a source.
EFFICIENCY = Fraction(9, 10)
# Of the vendor's figure of a link that a ring of collectives reaches. An assumption: NCCL's own tests show 0.7 to 0.9.
LINK_SHARE = Fraction(7, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """`batch` is of one step on one GPU. Activations are either given, in bytes a sample as measured at `precision` without
    gradient checkpointing, or those of a transformer with `layers`, `hidden`, `heads` and `sequence`."""

    parameters: int
    optimizer: Optimizer = "adamw"
    precision: Format = "fp32"
    batch: int = 1
    activation_bytes: int | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    sequence: int | None = None
    vocabulary: int = 0
    flash_attention: bool = False
    gradient_checkpointing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """`per_second` samples or tokens, of all `gpus` together, on an accelerator or on one instance type (CPUs: gpus 0)."""

    per_second: Fraction
    accelerator: str | None = None
    instance_type: str | None = None
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTerms:
    """`mean_ns` between interruptions of one machine; `checkpoint_ns` that a save stalls; `restore_ns` that is paid until training
    goes on; `wait_ns` without a machine, which is not paid."""

    mean_ns: int
    checkpoint_ns: int = 10 * NS
    restore_ns: int = 120 * NS
    wait_ns: int = 300 * NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """So many samples or tokens, or hours of a machine that was named; or FLOPs alone, then `count` is None. `flops` of all the work,
    where they are known."""

    count: Fraction | None
    unit: Unit = "samples"
    flops: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which listings are looked at. Empty: all."""

    clouds: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    markets: tuple[Market, ...] = MARKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`gpus` None: all that each machine has. `efficiency` of several GPUs against as many single ones; None: as computed."""

    work: Work
    spot: SpotTerms
    measurements: tuple[Measurement, ...] = ()
    utilisation: Fraction | None = None
    model: Model | None = None
    gpus: int | None = 1
    efficiency: Fraction | None = None
    deadline_ns: int | None = None
    where: Where = field(default_factory=Where)
    limit: int = 20


@dataclass(frozen=True, slots=True)
class Assumption:
    """What was not given, and what is taken for it."""

    name: str
    value: str
    why: str
