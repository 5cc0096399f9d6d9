"""Pilots: run once for a trainable's code, space and resources, and read by every plan after."""

from collections.abc import Mapping
from typing import Any

from tuner.domain.errors import Fault, Invalid
from tuner.domain.job import JobSpec
from tuner.engine.code_digest import code_of
from tuner.planning.pilot import TAG, pilot_key, pilot_of
from tuner.planning.pilot import PilotLimits as PilotLimits
from tuner.service.cluster import import_path
from tuner.service.submit import submit
from tuner.service.views import JobView, view_of
from tuner.service.wiring import Service
from tuner.store import jobs
from tuner.store.jobs import JobRow

AT = "/planning/pilot"
LOOKED_AT = 20
UNKNOWN_CODE = "unknown"  # of a trainable that is not plainly a file: its pilot is never taken for another's


def start(
    service: Service,
    spec: JobSpec,
    limits: PilotLimits,
    *,
    body: Mapping[str, Any],
    idempotency_key: str | None = None,
) -> tuple[JobView, bool]:
    """The pilot of this job, and whether it is new: one that runs, or that has told something, is not run again. Raises Invalid."""
    faults = [
        *spec.faults(),
        *(Fault(AT + fault.pointer, fault.detail) for fault in limits.faults(spec)),
    ]
    if faults:
        raise Invalid(*faults)
    known = of_job(service, spec)
    if known is not None:
        return known, False
    code = code_of(spec, import_path()) or UNKNOWN_CODE
    pilot = pilot_of(spec, limits, pilot_key(spec, code))
    try:
        return submit(service, pilot, body=body, idempotency_key=idempotency_key)
    except Invalid as error:
        raise Invalid(*(_of_the_pilot(fault) for fault in error.faults)) from error


def of_job(service: Service, spec: JobSpec) -> JobView | None:
    """The newest pilot that holds for this job and is under way, or has ended with reports."""
    code = code_of(spec, import_path())
    if code is None:
        return None
    key = pilot_key(spec, code)
    with service.database.read() as db:
        found = jobs.page(db, service.project, state=None, tag=(TAG, key), before=None, limit=LOOKED_AT)
        views = (view_of(db, service, row) for row in found if _may_tell(row))
        return next((view for view in views if view.row.state != "succeeded" or view.steps), None)


def _may_tell(row: JobRow) -> bool:
    return row.state not in ("failed", "cancelled")


def _of_the_pilot(fault: Fault) -> Fault:
    inside = fault.pointer == "/budget" or fault.pointer.startswith("/budget/")
    return Fault(AT + fault.pointer.removeprefix("/budget"), fault.detail) if inside else fault
