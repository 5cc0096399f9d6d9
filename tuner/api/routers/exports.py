"""Routes that export a trained model, and download its files."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import StreamingResponse

from tuner.api.deps import Svc, duration_ns_of
from tuner.api.ranges import ranged
from tuner.api.serialize_jobs import fields_of
from tuner.domain.errors import Invalid
from tuner.domain.money import Money
from tuner.domain.time import NS
from tuner.schemas import exports as show
from tuner.service import exports
from tuner.service.exports import ExportSpec, ExportView, ServingQuery, VariantView

router = APIRouter(tags=["exports"])
BYTES = "application/octet-stream"


def _serving(
    requests_per_second: Annotated[float, Query(gt=0, le=1e9, allow_inf_nan=False)] = 10.0,
    start: str = "10s",
    instance_type: Annotated[str | None, Query(max_length=100)] = None,
) -> ServingQuery:
    """Read how predictions will be served.

    `start` is how long a machine and a process take to start. It is needed for the cost of serving that scales to zero.
    """
    return ServingQuery(requests_per_second, duration_ns_of("start", start) / NS, instance_type)


Serving = Annotated[ServingQuery, Depends(_serving)]


@router.post("/jobs/{job}/exports", status_code=202)
def create_export(job: str, body: show.ExportRequest, response: Response, service: Svc) -> show.Export:
    """Export a trial's best checkpoint to files that run elsewhere. The export is paid from the job's budget.

    The answer is 409 if the job is queued or running, if its driver is starting or ending, if another export of it has not ended,
    or if the budget does not pay for 30 s of a machine.
    """
    try:
        max_cost = Money.from_usd(body.max_cost_usd)
    except ValueError as error:
        raise Invalid.at("/max_cost_usd", str(error)) from error
    export_request = ExportSpec(tuple(dict.fromkeys(body.formats)), max_cost, body.max_drop)
    view = exports.create(service, job, body.trial, export_request)
    response.headers["Location"] = f"/v1/jobs/{job}/exports/{view.row.id}"
    return _export(view, ServingQuery())


@router.get("/jobs/{job}/exports")
def list_exports(job: str, service: Svc) -> show.ExportList:
    """List the exports of a job, newest first."""
    return show.ExportList(items=[_export(view, ServingQuery()) for view in exports.of_job(service, job)])


@router.get("/jobs/{job}/exports/{export}")
def get_export(job: str, export: str, service: Svc, serving: Serving) -> show.Export:
    """Return an export with the figures of its variants, and the cost of a million predictions for each of three ways to serve them."""
    return _export(exports.get(service, job, export, serving), serving)


@router.get(
    "/jobs/{job}/exports/{export}/variants/{variant}",
    response_class=StreamingResponse,
    responses={
        200: {"content": {BYTES: {}}, "description": "The file."},
        206: {"content": {BYTES: {}}, "description": "The requested range of bytes."},
        416: {"description": "The range begins after the end."},
    },
)
def get_variant(
    job: str,
    export: str,
    variant: str,
    service: Svc,
    range_: Annotated[str, Header(alias="Range")] = "",
    if_range: Annotated[str, Header()] = "",
) -> Response:
    """Download the file of a variant. `variant` is the variant's format, such as `onnx`. The `ETag` is the SHA-256 of the file."""
    stored_variant, file = exports.open_variant(service, job, export, variant)
    name = str(stored_variant.file).rpartition("/")[2]
    headers = {"Tuner-File": name}
    return ranged(file, range_, if_range, name=f"{variant}-{name}", media_type=BYTES, headers=headers)


def _export(view: ExportView, serving: ServingQuery) -> show.Export:
    row = view.row
    same = ("id", "job", "trial", "step", "state", "code", "detail", "created_at", "started_at", "ended_at")
    return show.Export.model_validate(
        {
            **{name: getattr(row, name) for name in same},
            "formats": row.spec.formats,
            "max_cost_usd": row.spec.max_cost,
            "max_drop": row.spec.max_drop,
            "cost_usd": view.cost,
            "held_usd": view.held,
            "metric_name": view.metric_name,
            "mode": view.mode,
            "metric": row.result.get("metric"),
            "threads": row.result.get("threads"),
            "instance_type": None if row.offer is None else row.offer.instance_type,
            "market": None if row.offer is None else row.offer.market,
            "requests_per_second": serving.per_second,
            "start_seconds": serving.start_s,
            "variants": [_variant(variant_view) for variant_view in view.variants],
            "pareto": view.pareto_front,
        }
    )


def _variant(view: VariantView) -> dict[str, Any]:
    return {**fields_of(view.variant), "serving": view.serving}
