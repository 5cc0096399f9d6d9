"""Models of exports: a trained model as files, with the measurements and the serving cost of each file."""

from typing import Annotated, Literal

from pydantic import AliasPath, Field

from tuner.schemas.base import Answer, Body, Six, Time, Usd

Format = Literal[
    "torch", "onnx", "int8-dynamic", "int8-static", "int4-weight", "pruned", "pruned-unstructured"
]


class ExportRequest(Body):
    """An export of a trial's best checkpoint.

    The export never costs more than `max_cost_usd`, or than what is left of the job's budget if that is less. This amount is held until the
    export has ended. A variant (one exported file) is not delivered if its metric is worse by more than `max_drop`, in the unit of the metric.
    """

    trial: str | None = Field(None, max_length=40, description="The trial. Default: the job's best trial.")
    formats: list[Format] = Field(
        default=[
            "onnx",
            "torch",
            "int8-dynamic",
            "int8-static",
            "int4-weight",
            "pruned",
            "pruned-unstructured",
        ],
        min_length=1,
        max_length=7,
    )
    max_cost_usd: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 0.5
    max_drop: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None


class ServingPrice(Answer):
    """Dollars per million predictions on one machine and market. See docs/export.md for the calculation.

    `usd_per_hour` is the price of the share of the machine that one replica uses. `scale_to_zero_usd_per_million` is null if one replica is
    too slow for `requests_per_second`.
    """

    instance_type: str
    market: str
    region: str | None
    usd_per_hour: Usd = Field(validation_alias="price")
    price_source: str = Field(validation_alias="source")
    replicas: int = Field(validation_alias=AliasPath("cost", "replicas"))
    real_time_usd_per_million: Six = Field(validation_alias=AliasPath("cost", "real_time"))
    batch_usd_per_million: Six = Field(validation_alias=AliasPath("cost", "batch"))
    scale_to_zero_usd_per_million: Six | None = Field(validation_alias=AliasPath("cost", "scale_to_zero"))
    break_even_per_second: Six = Field(validation_alias=AliasPath("cost", "break_even_per_second"))


class VariantLatency(Answer):
    """The time of a call with one batch size. `per_second` is the number of predictions in a second."""

    batch: int
    p50_ms: Six
    p99_ms: Six
    per_second: Six


class ExportVariant(Answer):
    """One exported file. If it was not delivered, `file` is null, and `code` and `detail` say why.

    The file is compared with the model before the export: `drop` is how much worse the metric of the file is, and `difference` the
    largest difference between the outputs of the two. `sparsity` is the share of the weights that are zero. It is null
    for all formats except `pruned-unstructured`.
    """

    format: str
    file: str | None
    bytes: int | None
    metric: float | None
    drop: float | None
    difference: float | None
    sparsity: float | None
    load_ms: Six | None
    latency: list[VariantLatency]
    seconds: Six
    serving: list[ServingPrice]
    code: str | None
    detail: str | None


class Export(Answer):
    """An export of a job.

    `state` is `queued`, `running`, `succeeded` (at least one variant was delivered) or `failed`. `code` says why the export failed, or why
    variants are missing. `metric` is the metric of the model before the export. `threads` is the number of threads with which
    the figures were measured. `instance_type` and `market` name the machine that the export was paid for. `pareto` lists the formats on the
    Pareto front of the metric and the dollars per million predictions in batches, cheapest first.
    """

    id: str
    job: str
    trial: str
    step: int
    state: str
    code: str | None
    detail: str
    formats: list[str]
    max_cost_usd: Usd
    max_drop: float | None
    cost_usd: Usd
    held_usd: Usd
    metric_name: str
    mode: str
    metric: float | None
    threads: int | None
    instance_type: str | None
    market: str | None = None
    requests_per_second: float
    start_seconds: float
    variants: list[ExportVariant]
    pareto: list[str]
    created_at: Time
    started_at: Time | None
    ended_at: Time | None


class ExportList(Answer):
    items: list[Export]
