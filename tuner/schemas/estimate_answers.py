"""Answer models of cost estimates. Each figure can be computed from `given`, `assumptions` and the price shown with it."""

from typing import Any

from pydantic import AliasPath, Field

from tuner.schemas.base import Answer, Six, Usd
from tuner.schemas.exports import ServingPrice


class Memory(Answer):
    """Memory on each GPU in GiB. `around` is the memory that CUDA's context and fragmentation take; `total` includes it."""

    weights: Six
    gradients: Six
    optimizer: Six
    activations: Six
    around: Six
    total: Six


class Changes(Answer):
    """The changes with which the run fits into GPU memory, the resulting settings, and the memory they take."""

    changes: list[str]
    precision: str
    micro_batch: int
    accumulation: int
    gradient_checkpointing: bool
    memory_gib: Memory


class SpotFigures(Answer):
    """Averages for a run on a spot machine, compared with the same machine on demand.

    `overhead` is the amount paid beyond training, as a share of the amount paid for training. `list_saving` compares only the two prices.
    `saving_usd` compares the cost of the run, including the overhead. Both are null if the on-demand price is not known.
    """

    interruptions: Six
    checkpoint_interval_seconds: Six
    overhead: Six
    list_saving: Six | None
    saving_usd: Usd | None


class Candidate(Answer):
    """One machine in one region on one market. Whole machines are billed.

    `basis` says where the speed comes from: `measured` on this accelerator, `catalogued` (the data sheets' ratio to `measured_on`;
    `relative_speed` lists the lowest, the expected and the highest ratio) or `flops` (computed from the FLOPs of the run and the peak of the
    accelerator). The ranges cover the uncertainty of the speed. On spot machines, their upper end also covers more interruptions than
    average, a number that nine of ten runs do not exceed. `meets_deadline` is true if the longest time of `hours_range` meets the deadline.
    """

    cloud: str
    region: str
    zones: list[str]
    instance_type: str
    market: str
    accelerator: str
    accelerators: float
    gpu_memory_gib: float | None
    gpus: int
    usd_per_hour: Usd
    price_date: str
    price_source: str
    flags: list[str]
    basis: str
    measured_on: str | None
    relative_speed: list[Six] | None
    link: str | None
    efficiency: Six
    per_second: Six
    train_hours: Six
    hours: Six
    hours_range: list[Six]
    gpu_hours: Six
    usd: Usd
    usd_range: list[Usd]
    per_dollar: Six | None
    fit: Changes | None
    spot: SpotFigures | None
    meets_deadline: bool | None
    meets_deadline_on_average: bool | None


class LeftOut(Answer):
    reason: str
    count: int
    instance_types: list[str]


class Assumption(Answer):
    name: str
    value: str
    why: str


class RunEstimate(Answer):
    """The machines that one training run could use.

    `candidates` fit the run as described, cheapest first; `count` is their number, and at most `limit` of them are listed.
    `with_changes` are machines that fit only if the run is changed to need less memory.
    """

    count: int
    candidates: list[Candidate]
    with_changes_count: int
    with_changes: list[Candidate]
    cheapest: Candidate | None
    cheapest_on_demand: Candidate | None
    cheapest_in_time: Candidate | None
    fastest: Candidate | None
    work: dict[str, Any]
    memory_gib: Memory | None
    left_out: list[LeftOut]
    assumptions: list[Assumption]
    warnings: list[str]


class Chosen(Answer):
    name: str
    usd_per_hour: Usd
    machines: int
    hours: Six
    usd: Usd
    meets_deadline: bool | None


class ChoicesEstimate(Answer):
    options: list[Chosen]
    cheapest: str
    cheapest_in_time: str | None


class ScalingPoint(Answer):
    """The efficiency of data-parallel training on `gpus` GPUs that communicate over `link`.

    `efficiency` is the computed efficiency if no communication is hidden behind computation. `overlapped` is the computed efficiency if the
    backward pass hides as much communication as possible. `measured` is the efficiency that jobs of a trainable measured, or null.
    `speedup` is computed from `measured`, or from `efficiency` if `measured` is null.
    """

    gpus: int
    link: str
    bytes_per_second: Six
    allreduce_seconds: Six
    efficiency: Six
    overlapped: Six
    measured: Six | None
    speedup: Six


class Machines(Answer):
    gpus: int
    machines: int
    cloud: str
    region: str
    instance_type: str
    usd_per_hour: Usd
    link: str | None
    efficiency: Six
    hours: Six
    usd: Usd
    usd_per_hour_saved: Six | None
    pays: str


class ScalingEstimate(Answer):
    """How training speeds up with more GPUs, and the cheapest machines for each number of GPUs.

    In `machines`, `usd_per_hour` is the on-demand price of all machines together. `usd_per_hour_saved` is the
    additional cost of each hour by which they are faster than the cheapest machines with fewer GPUs.
    """

    gradient_bytes: int
    points: list[ScalingPoint]
    machines: list[Machines]
    assumptions: list[str]


class Bought(Answer):
    cloud: str
    region: str
    instance_type: str
    accelerators: int
    usd_per_hour: Usd
    hours: Six
    peak_tflops: Six
    utilisation: Six


class Optimum(Answer):
    law: str
    parameters: int
    tokens: int
    tokens_per_parameter: Six
    loss: Six | None


class ComputeEstimate(Answer):
    """Compute-optimal numbers of parameters and tokens for a number of FLOPs. Rely on the first entry of `optima`; the other entries are
    for comparison.
    """

    flops: float
    bought: Bought | None
    optima: list[Optimum]
    caveats: list[str]


class Yearly(Answer):
    name: str
    usd_per_run: Usd
    runs_per_year: Six
    usd_per_month: Usd
    usd_per_year: Usd
    saving_usd_per_year: Usd | None


class OwnershipEstimate(Answer):
    """Owning a machine compared with renting one, over the machine's lifetime.

    Break-even figures are null if owning never pays. A break-even utilisation above 1 cannot be reached within the lifetime.
    """

    hours_used: Six
    fixed_usd: Usd
    power_usd_per_hour: Usd
    owned_usd: Usd
    owned_usd_per_hour: Usd
    cloud_usd_per_hour: Usd
    cloud_instance_type: str | None
    cloud_region: str | None
    cloud_usd: Usd
    cheaper: str
    saving_usd: Usd
    break_even_hours: Six | None
    break_even_utilisation: Six | None


class ServingCandidate(ServingPrice):
    """One machine in one region on one market.

    `cheaper` names the cheaper of the two ways to answer each request immediately: `real_time` or `scale_to_zero`. `usd_per_million` is the
    cost of that way, and `usd_per_month` its cost for the requests of a month of 730 hours.
    """

    cloud: str = Field(validation_alias=AliasPath("listing", "cloud"))
    zones: list[str]
    accelerator: str = Field(validation_alias=AliasPath("listing", "accelerator"))
    price_date: str = Field(validation_alias="date")
    cheaper: str
    usd_per_million: Six
    usd_per_month: Six


class ServingEstimate(Answer):
    """What a million predictions of one model cost on different machines.

    `candidates` are sorted by `usd_per_million`; `count` is their number, and at most `limit` of them are listed. `cold_start_seconds` is
    the time from a request until a new replica can answer it.
    """

    latency_ms: Six
    per_second: Six
    batch_per_second: Six
    cold_start_seconds: Six
    count: int
    candidates: list[ServingCandidate]
    cheapest_real_time: ServingCandidate | None
    cheapest_batch: ServingCandidate | None
    cheapest_scale_to_zero: ServingCandidate | None
    left_out: list[LeftOut]
    assumptions: list[Assumption]
    warnings: list[str]


class Estimate(Answer):
    """The requested parts of an estimate. `given` is the request with its defaults filled in."""

    given: dict[str, Any]
    catalogue: str
    prices: str
    run: RunEstimate | None = None
    choices: ChoicesEstimate | None = None
    scaling: ScalingEstimate | None = None
    compute_optimal: ComputeEstimate | None = None
    recurring: list[Yearly] | None = None
    ownership: OwnershipEstimate | None = None
    serving: ServingEstimate | None = None
