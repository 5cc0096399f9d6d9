"""Start the pilot of a job: a small job that measures step times for plans."""

from collections.abc import Mapping
from typing import Any

from tuner.database.database import Connection
from tuner.domain.errors import Fault, Invalid
from tuner.domain.job import JobSpec
from tuner.planning.pilot import PilotLimits as PilotLimits
from tuner.planning.pilot import pilot_key, pilot_of
from tuner.service.bootstrap import Service
from tuner.service.cluster import import_path
from tuner.service.comparable_jobs import pilot_of_code, pilot_of_job
from tuner.service.submit import check, submit
from tuner.service.views import JobView
from tuner.store import jobs
from tuner.worker.environment import code_of

PILOT = "/planning/pilot"
# Stands for the digest of code that is not in a plain file. Changes of such code cannot be noticed, so its pilots are never reused.
UNKNOWN_CODE = "unknown"


def start_pilot(
    service: Service,
    spec: JobSpec,
    limits: PilotLimits,
    *,
    body: Mapping[str, Any],
    idempotency_key: str | None = None,
) -> tuple[JobView, bool]:
    """Start the pilot of a job: a small job that measures step times for plans. Return the pilot and whether it is new.

    One pilot serves all plans of a job with the same code, search space and resources. If the job already has a pilot that is under way
    or has reports, return that one.

    Raises:
        Invalid: The job or the pilot's limits are wrong.
    """
    faults = [
        *spec.faults(),
        *(Fault(PILOT + fault.pointer, fault.detail) for fault in limits.faults(spec)),
    ]
    if faults:
        raise Invalid(*faults)
    # `code_of` below reads the files that a command names. The check comes first, so that no file of a refused command is read.
    check(service, spec)
    known = pilot_of_job(service, spec)
    if known is not None:
        return known, False
    code = code_of(spec, import_path()) or UNKNOWN_CODE
    key = pilot_key(spec, code)

    def existing(db: Connection) -> str | None:
        """Return a pilot that another request has started since `known` was read. Two would both be paid."""
        if code == UNKNOWN_CODE:
            return None
        jobs.lock_pilots(db, service.project, key)
        view = pilot_of_code(db, service, spec, code)
        return None if view is None else view.row.id

    try:
        pilot = pilot_of(spec, limits, key)
        return submit(service, pilot, body=body, idempotency_key=idempotency_key, existing=existing)
    except Invalid as error:
        raise Invalid(*(_of_the_pilot(fault) for fault in error.faults)) from error


def _of_the_pilot(fault: Fault) -> Fault:
    inside = fault.pointer == "/budget" or fault.pointer.startswith("/budget/")
    return Fault(PILOT + fault.pointer.removeprefix("/budget"), fault.detail) if inside else fault
