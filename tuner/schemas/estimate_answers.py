"""What would it cost, as it is answered: each figure can be computed from `given`, `assumptions` and the price beside it."""

from typing import Any

from tuner.schemas.base import Answer


class Memory(Answer):
    """GiB on each GPU; `total` with CUDA's context and fragmentation (`around`)."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    around: float
    total: float


class Changes(Answer):
    """What must change so that it fits, what it then is, and the memory it takes."""

    changes: list[str]
    precision: str
    micro_batch: int
    accumulation: int
    gradient_checkpointing: bool
    memory_gib: Memory


class SpotFigures(Answer):
    """On average. `overhead` is what is paid beyond training, as a share of it; `list_saving` of the prices alone, `saving_usd`
    with the overhead, against the same machine on demand; null: its price on demand is not known."""

    interruptions: float
    checkpoint_interval_seconds: float
    overhead: float
    list_saving: float | None
    saving_usd: float | None


class Candidate(Answer):
    """One machine at one place on one market; whole machines are paid for. `basis`: `measured` on this accelerator, `catalogued`
    (data sheets' ratio to `measured_on`, `relative_speed` at least, counted on, at most) or `flops`. Ranges are of the speed; on
    spot they end where one run in ten has more interruptions. The deadline is met where the longest of `hours_range` meets it."""

    cloud: str
    region: str
    zones: list[str]
    instance_type: str
    market: str
    accelerator: str
    accelerators: float
    gpu_memory_gib: float | None
    gpus: int
    usd_per_hour: float
    price_date: str
    price_source: str
    flags: list[str]
    basis: str
    measured_on: str | None
    relative_speed: list[float] | None
    link: str | None
    efficiency: float
    per_second: float
    train_hours: float
    hours: float
    hours_range: list[float]
    gpu_hours: float
    usd: float
    usd_range: list[float]
    per_dollar: float | None
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
    """`candidates` fit as the run was described, cheapest first, at most `limit` of `count`; `with_changes` would fit with less
    than what was asked for."""

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
    usd_per_hour: float
    machines: int
    hours: float
    usd: float
    meets_deadline: bool | None


class ChoicesEstimate(Answer):
    options: list[Chosen]
    cheapest: str
    cheapest_in_time: str | None


class ScalingPoint(Answer):
    """`efficiency` with no communication hidden; `overlapped` with as much hidden as the backward pass can."""

    gpus: int
    link: str
    bytes_per_second: float
    allreduce_seconds: float
    efficiency: float
    overlapped: float
    speedup: float


class Machines(Answer):
    gpus: int
    machines: int
    cloud: str
    region: str
    instance_type: str
    usd_per_hour: float
    link: str | None
    efficiency: float
    hours: float
    usd: float
    usd_per_hour_saved: float | None
    pays: str


class ScalingEstimate(Answer):
    """`machines` pay in `usd_per_hour` for all of them, on demand; `usd_per_hour_saved` is the price of each hour gained."""

    gradient_bytes: int
    points: list[ScalingPoint]
    machines: list[Machines]
    assumptions: list[str]


class Bought(Answer):
    cloud: str
    region: str
    instance_type: str
    accelerators: int
    usd_per_hour: float
    hours: float
    peak_tflops: float
    utilisation: float


class Optimum(Answer):
    law: str
    parameters: int
    tokens: int
    tokens_per_parameter: float
    loss: float | None


class ComputeEstimate(Answer):
    """The first of `optima` is to be counted on."""

    flops: float
    bought: Bought | None
    optima: list[Optimum]
    caveats: list[str]


class Yearly(Answer):
    name: str
    usd_per_run: float
    runs_per_year: float
    usd_per_month: float
    usd_per_year: float
    saving_usd_per_year: float | None


class OwnershipEstimate(Answer):
    """Over the machine's lifetime. Break-even figures are null where owning never pays; a utilisation above 1 is not within it."""

    hours_used: float
    fixed_usd: float
    power_usd_per_hour: float
    owned_usd: float
    owned_usd_per_hour: float
    cloud_usd_per_hour: float
    cloud_instance_type: str | None
    cloud_region: str | None
    cloud_usd: float
    cheaper: str
    saving_usd: float
    break_even_hours: float | None
    break_even_utilisation: float | None


class Estimate(Answer):
    """The parts that were asked for; `given` is the request with its defaults."""

    given: dict[str, Any]
    catalogue: str
    prices: str
    run: RunEstimate | None = None
    choices: ChoicesEstimate | None = None
    scaling: ScalingEstimate | None = None
    compute_optimal: ComputeEstimate | None = None
    recurring: list[Yearly] | None = None
    ownership: OwnershipEstimate | None = None
