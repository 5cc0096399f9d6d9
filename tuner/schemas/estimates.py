"""Request models of cost estimates."""

from typing import Annotated, Literal

from pydantic import Field

from tuner.schemas.base import Body, Request
from tuner.schemas.job import Duration

Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=1e-4, le=1, allow_inf_nan=False)]
Part = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Usd = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Parameters = Annotated[float, Field(ge=1, le=1e15, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=1, le=10**9)]
Gpus = Annotated[int, Field(ge=1, le=65536)]
Word = Annotated[str, Field(min_length=1, max_length=100)]
Words = Annotated[list[Word], Field(max_length=100)]
Format = Literal["fp32", "bf16", "fp16"]
Market = Literal["on_demand", "spot"]


def _markets() -> list[Market]:
    return ["on_demand", "spot"]


class Throughput(Request):
    """A measured speed.

    `per_second` is the number of samples or tokens per second, in the unit in which the run's work is given, over all `gpus` together.
    `accelerator` or `instance_type` names the hardware of the measurement, and `gpus` is the number of GPUs that were measured together.
    The run may use another number of GPUs.
    """

    per_second: Positive
    accelerator: Word | None = None
    instance_type: Word | None = None
    gpus: Annotated[int, Field(ge=0, le=1024)] = 1


class Model(Request):
    """The model to train, from which memory and the communication between GPUs are calculated.

    `batch` is the batch size of one step on one GPU. Give the memory of activations either as measured, in MiB per sample at `precision`,
    or as the `layers`, `hidden`, `heads` and `sequence` of a transformer.
    """

    parameters: Parameters
    optimizer: Literal["sgd", "momentum", "adam", "adamw", "adam_8bit", "adafactor"] = "adamw"
    precision: Format = "fp32"
    batch: Whole = 1
    activation_mib_per_sample: Positive | None = None
    layers: Whole | None = None
    hidden: Whole | None = None
    heads: Whole | None = None
    sequence: Whole | None = None
    vocabulary: Annotated[int, Field(ge=0, le=10**9)] = 0
    flash_attention: bool = False
    gradient_checkpointing: bool = False


class SpotTerms(Request):
    """Assumptions about spot machines.

    `interruptions_per_hour` is the rate for one machine. `checkpoint` is the time for which training stops to save a checkpoint. After an
    interruption, `wait` is the time until another machine is available, and `restore` the billed time until training continues on it.
    """

    interruptions_per_hour: Annotated[float, Field(ge=1e-6, le=60, allow_inf_nan=False)] = 0.5
    checkpoint: Duration = "10s"
    restore: Duration = "2m"
    wait: Duration = "5m"


class Run(Request):
    """One training run, evaluated on every machine of the catalogue. Whole machines are billed, even if the run uses only some of their
    GPUs.

    The work is given in samples or tokens (of one epoch, if `epochs` is given) or in FLOPs. Its speed is measured, or derived from FLOPs at
    a `utilisation` of the peak. Instead of work and speed, `hours` gives the time of the whole run on `gpus` GPUs of the one machine that
    `accelerators` or `instance_types` names. `scaling_job` names a job. For machines with the GPU model that this job used, the
    scaling efficiency that jobs with its trainable measured is then used, unless `scaling_efficiency` is given.
    """

    hours: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    samples: Positive | None = None
    tokens: Positive | None = None
    epochs: Positive = 1
    flops: Positive | None = None
    flops_per_sample: Positive | None = None
    throughput: Annotated[list[Throughput], Field(max_length=100)] = Field(default_factory=list)
    utilisation: Share | None = None
    model: Model | None = None
    gpus: Annotated[int, Field(ge=0, le=65536)] | Literal["all"] = 1
    scaling_efficiency: Share | None = None
    scaling_job: Word | None = None
    deadline: Duration | None = None
    clouds: Words = Field(default_factory=list)
    regions: Words = Field(default_factory=list)
    accelerators: Words = Field(default_factory=list)
    instance_types: Words = Field(default_factory=list)
    markets: list[Market] = Field(default_factory=_markets, max_length=100)
    spot: SpotTerms = Field(default_factory=SpotTerms)
    limit: Annotated[int, Field(ge=1, le=5000)] = 20


class ExportedVariant(Request):
    """A variant (one file) of an export. The estimate uses its measured speed and size."""

    job: Word
    export: Word
    variant: Word


class Serving(Request):
    """A model that answers requests, priced on every machine of the catalogue.

    Its speed is taken from `measured`, a variant of an export, or is given by these fields: `latency_ms` is the time of a single
    prediction, `per_second` how many such predictions one replica makes in a second, and `batch_per_second` how many at the fastest batch
    size. If `latency_ms` or `per_second` is missing, it is computed from the other one. To start a replica, a machine starts in the time
    `start`, downloads `bytes`, and loads the file in `load_ms`. A replica uses `cpus` and `gpus` of a machine and pays for that share of
    it. If one of them is null, the replica uses as many as the trial from which the variant was exported. Without a variant, the defaults are
    one CPU and no GPUs.
    """

    measured: ExportedVariant | None = None
    latency_ms: Annotated[float, Field(ge=1e-4, le=1e7, allow_inf_nan=False)] | None = None
    per_second: Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False)] | None = None
    batch_per_second: Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False)] | None = None
    bytes: Annotated[int, Field(ge=0, le=10**15)] = 0
    load_ms: Annotated[float, Field(ge=0, le=1e8, allow_inf_nan=False)] = 0
    requests_per_second: Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)] = 10
    start: Duration = "10s"
    download_mbit_s: Annotated[float, Field(ge=1e-3, le=1e6, allow_inf_nan=False)] = 1000
    cpus: Annotated[float, Field(gt=0, le=4096, allow_inf_nan=False)] | None = None
    gpus: Annotated[float, Field(ge=0, le=1024, allow_inf_nan=False)] | None = None
    clouds: Words = Field(default_factory=list)
    regions: Words = Field(default_factory=list)
    accelerators: Words = Field(default_factory=list)
    instance_types: Words = Field(default_factory=list)
    markets: list[Market] = Field(default_factory=_markets, max_length=100)
    limit: Annotated[int, Field(ge=1, le=5000)] = 20


class Choice(Request):
    """A machine whose price and run time are known."""

    name: Word
    usd_per_hour: Usd
    duration: Duration
    machines: Whole = 1


class Choices(Request):
    options: Annotated[list[Choice], Field(min_length=1, max_length=100)]
    deadline: Duration | None = None


class Scaling(Request):
    """Data-parallel training over NVLink, PCIe and Ethernet.

    `step_seconds` is the time of a step on one GPU. `hours_on_one` is the time of the whole run on one GPU; if it is given, the answer
    lists the cheapest machines for each number of GPUs and says whether more GPUs pay. If `job` names a job, the efficiency that jobs
    with its trainable measured replaces the computed one. Links on which nothing was measured keep the computed efficiency.
    """

    accelerator: Word
    parameters: Parameters
    step_seconds: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
    precision: Format = "bf16"
    gpus: Annotated[list[Gpus], Field(min_length=1, max_length=20)] = Field(
        default_factory=lambda: [1, 2, 4, 8, 16, 32, 64]
    )
    ethernet_gbit_s: Annotated[float, Field(ge=1e-3, le=1e6, allow_inf_nan=False)] = 100
    job: Word | None = None
    hours_on_one: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None


class ComputeOptimal(Request):
    """A compute budget, in FLOPs or in dollars spent on an accelerator, for which to find the best model size and number of tokens."""

    flops: Annotated[float, Field(ge=1e9, le=1e30, allow_inf_nan=False)] | None = None
    usd: Usd | None = None
    accelerator: Word | None = None
    market: Market = "on_demand"
    utilisation: Share | None = None


class RunCost(Request):
    name: Word
    usd_per_run: Usd


class Recurring(Request):
    """A training run that is repeated.

    `costs` lists alternative costs of one run, and each is compared with the first. Without `costs`, the cost of the request's `run` is
    used. A failed run is paid for and repeated.
    """

    runs_per_month: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    failed_share: Part = 0
    costs: Annotated[list[RunCost], Field(max_length=100)] = Field(default_factory=list)


class Ownership(Request):
    """Buying a machine, compared with renting a similar one in the cloud for the same hours.

    The cloud price is `cloud_usd_per_hour`, or else the catalogue's cheapest for `gpus` GPUs of `accelerator`.
    """

    purchase_usd: Usd
    lifetime_years: Annotated[float, Field(ge=0.01, le=30, allow_inf_nan=False)] = 4
    resale_usd: NotNegative = 0
    upkeep_usd_per_year: NotNegative = 0
    watts: Positive
    pue: Annotated[float, Field(ge=1, le=5, allow_inf_nan=False)] = 1.56
    usd_per_kwh: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
    utilisation: Share
    cloud_usd_per_hour: Usd | None = None
    accelerator: Word | None = None
    gpus: Gpus = 1
    market: Market = "on_demand"


class EstimateRequest(Body):
    """A request for one or more estimates. At least one part is required."""

    run: Run | None = None
    choices: Choices | None = None
    scaling: Scaling | None = None
    compute_optimal: ComputeOptimal | None = None
    recurring: Recurring | None = None
    ownership: Ownership | None = None
    serving: Serving | None = None
