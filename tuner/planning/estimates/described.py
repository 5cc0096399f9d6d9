"""The requests of an estimate, and the description of a run: its work, speed, memory and spot interruptions.

Most numbers are exact fractions. Durations whose name ends in `_ns` are in nanoseconds.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from tuner.domain.listing import MARKETS, Market
from tuner.domain.money import Money, Price
from tuner.domain.time import NS
from tuner.planning.measured_scaling import MeasuredSize, efficiency_at
from tuner.planning.serving import ServedModel

Optimizer = Literal["sgd", "momentum", "adam", "adamw", "adam_8bit", "adafactor"]
Format = Literal["fp32", "bf16", "fp16"]
Unit = Literal["samples", "tokens", "hours"]

# Model FLOPs utilisation of large trainings: GPT-3 0.213, MT-NLG 0.302, Gopher 0.325, PaLM 0.462 (Chowdhery et al. 2022, table 3).
UTILISATION = Fraction(3, 10)
UTILISATION_RANGE = Fraction(21, 100), Fraction(46, 100)
# The assumed efficiency of several GPUs in one machine if their communication is not known. It has no source.
EFFICIENCY = Fraction(9, 10)
# The share of a link's published bandwidth that a ring all-reduce reaches. An assumption: NCCL's own tests show 0.7 to 0.9.
LINK_SHARE = Fraction(7, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The properties of the model to train that determine its memory.

    The memory of the activations is either given as `activation_bytes`, or computed for a transformer from `layers`, `hidden`, `heads` and
    `sequence`.
    """

    parameters: int
    optimizer: Optimizer = "adamw"
    precision: Format = "fp32"
    batch: int = 1  #: Samples in one step on one GPU.
    #: Bytes per sample, as measured at `precision` without gradient checkpointing.
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
    """A measured training speed, on the accelerator `accelerator` or on the instance type `instance_type`."""

    per_second: Fraction  #: Samples, tokens or hours of work per second, of all `gpus` together.
    accelerator: str | None = None
    instance_type: str | None = None
    gpus: int = 1  #: The number of GPUs in the measurement. 0 if it was on CPUs.


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotAssumptions:
    """How often spot machines are interrupted, and what an interruption costs."""

    mean_ns: int  #: The mean time between interruptions of one machine.
    checkpoint_ns: int = 10 * NS  #: How long saving a checkpoint stalls training.
    restore_ns: int = 120 * NS  #: The paid time from the start of a new machine until training continues.
    wait_ns: int = 300 * NS  #: The time from an interruption until a new machine starts. It is not paid.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """The amount of work: samples, tokens, or hours on a named machine, or only FLOPs."""

    count: Fraction | None  #: None if only the FLOPs are known.
    unit: Unit = "samples"
    flops: Fraction | None = None  #: The FLOPs of all the work. None if they are not known.


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingFilter:
    """Which listings of the catalogue to evaluate. An empty field means all values."""

    clouds: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    markets: tuple[Market, ...] = MARKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredScaling:
    """The scaling efficiency on one GPU model, as measured by jobs of a trainable."""

    sizes: tuple[MeasuredSize, ...]
    accelerator: str  #: The name of the GPU model in the data sheets.
    link: str  #: The link between the GPUs within one machine, such as `nvlink`.

    def efficiency(self, accelerator: str, link: str, gpus: int) -> Fraction | None:
        """Return the efficiency of `gpus` GPUs that communicate over `link`. `ethernet` means that they are in several machines.

        Return None if the measurements do not cover this accelerator or this link.
        """
        least, *others = self.sizes
        nodes = 2 if link == "ethernet" else 1
        alike = [size for size in others if (size.resources.nodes > 1) == (nodes > 1)]
        if (
            accelerator != self.accelerator
            or link not in ("ethernet", self.link)
            or least.resources.nodes > 1
        ):
            return None
        measured = efficiency_at([least, *alike], gpus, nodes)
        return None if measured is None else min(Fraction(1), measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A single training run to estimate."""

    work: RunWork
    spot: SpotAssumptions
    measurements: tuple[Measurement, ...] = ()
    utilisation: Fraction | None = None
    model: ModelShape | None = None
    gpus: int | None = 1  #: The number of GPUs to use. None means all GPUs of each machine.
    #: The speed of several GPUs together, divided by the sum of the speeds that they have alone. None means that it is computed.
    efficiency: Fraction | None = None
    #: Measured efficiencies. They replace the computed efficiency on the GPU model and link on which they were measured.
    scaling: MeasuredScaling | None = None
    deadline_ns: int | None = None
    where: ListingFilter = field(default_factory=ListingFilter)
    limit: int = 20  #: The maximum number of candidates that are shown.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingQuestion:
    """A request for what predictions of a model cost."""

    model: ServedModel
    per_second: float  #: Requests per second, of one prediction each.
    start_s: float  #: Seconds to start a machine and a process.
    download_bytes_s: float  #: How fast a new machine downloads the file of the model, in bytes per second.
    cpus: float  #: The CPUs that one replica takes.
    gpus: float  #: The GPUs that one replica takes.
    where: ListingFilter = field(default_factory=ListingFilter)
    limit: int = 20  #: The maximum number of candidates that are shown.

    @property
    def cold_start_s(self) -> float:
        return self.start_s + self.model.size_bytes / self.download_bytes_s + self.model.load_s


@dataclass(frozen=True, slots=True)
class StatedAssumption:
    """A value that the request did not give, and the value that the estimate uses for it."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOption:
    """An option that the user describes: a way to run with a known price and a known duration."""

    name: str
    usd_per_hour: Price
    duration_ns: int
    machines: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOptions:
    options: tuple[PricedOption, ...]
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingQuestion:
    """A request for the efficiency of data-parallel training on several GPUs."""

    accelerator: str
    parameters: int
    precision: Format
    step_s: Fraction  #: The time of a step on one GPU.
    gpus: tuple[int, ...]
    ethernet_gbit_s: Fraction
    #: The hours that the whole run takes on one GPU. If None, no machines are compared.
    hours_on_one: Fraction | None = None
    measured: MeasuredScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeQuestion:
    """A request for the best model size for a training budget.

    The budget is either `flops`, or the FLOPs that `usd` buys on machines with `accelerator`.
    """

    flops: Fraction | None = None
    usd: Money | None = None
    accelerator: str | None = None
    market: Market = "on_demand"
    utilisation: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringQuestion:
    """A request for the yearly cost of a run that is repeated."""

    runs_per_month: Fraction
    failed_share: Fraction  #: The share of runs that fail and must be repeated.
    #: Alternative ways to run, each as a name and the cost of one run. If empty, the results of the request's run section are used.
    costs: tuple[tuple[str, Money], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The costs, the power and the use of one machine that the user owns or may buy."""

    purchase: Money
    resale: Money
    lifetime_years: Fraction
    upkeep_per_year: Money
    watts: Fraction  #: The power under load.
    pue: Fraction  #: The power usage effectiveness of the building.
    usd_per_kwh: Fraction
    utilisation: Fraction  #: The share of all hours in which the machine is used.


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipQuestion:
    """A request to compare owned hardware with the cloud.

    `cloud` is the price of a similar machine in the cloud. If it is None, the cheapest machine of the catalogue with at least `gpus` of the
    accelerator `accelerator` is used.
    """

    owned: Owned
    cloud: Price | None = None
    accelerator: str | None = None
    gpus: int = 1
    market: Market = "on_demand"
