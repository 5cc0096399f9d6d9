"""Jobs: asked for, listed, changed."""

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Response

from tuner.api import present, translate
from tuner.api.deps import Limit, Svc, cursor_of, read_cursor
from tuner.domain.errors import Invalid
from tuner.schemas.job import Job, JobPage, JobPatch, JobRequest
from tuner.service import answers, control
from tuner.service.submit import submit
from tuner.service.views import job_view

router = APIRouter(tags=["jobs"])
State = Literal["queued", "running", "paused", "succeeded", "cancelled", "failed"]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]


@router.post("/jobs", status_code=201)
def create_job(body: JobRequest, response: Response, service: Svc, key: Key = None) -> Job:
    """Submits a job. With an `Idempotency-Key`, a repeat within a day answers with the same job."""
    asked = body.model_dump(mode="json")
    spec = translate.spec_of(body)
    view, _new = submit(service, spec, body=asked, priority=body.priority, idempotency_key=key)
    response.headers["Location"] = f"/v1/jobs/{view.row.id}"
    return present.job_of(view)


@router.get("/jobs")
def list_jobs(
    service: Svc,
    state: State | None = None,
    tag: str | None = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> JobPage:
    """Newest first. `tag` is `key:value`."""
    place = read_cursor(cursor, int, str)
    before = None if place is None else (place[0], place[1])
    found = answers.page_of_jobs(service, state=state, tag=_tag(tag), before=before, limit=limit + 1)
    last = found[limit - 1].row if len(found) > limit else None
    return JobPage(
        items=[present.job_of(view) for view in found[:limit]],
        next_cursor=None if last is None else cursor_of(last.created_at, last.id),
    )


@router.get("/jobs/{job}")
def get_job(job: str, service: Svc) -> Job:
    return present.job_of(job_view(service, job))


@router.patch("/jobs/{job}")
def patch_job(job: str, body: JobPatch, service: Svc) -> Job:
    """Tops up the budget, replaces the tags, sets the priority: all that is given, or nothing."""
    budget = None if body.budget is None else translate.budget_patch_of(body.budget)
    return present.job_of(control.patch(service, job, budget=budget, tags=body.tags, priority=body.priority))


@router.post("/jobs/{job}/pause", status_code=202)
def pause_job(job: str, service: Svc) -> Job:
    """Running trials are checkpointed at their next step and parked."""
    return present.job_of(control.pause(service, job))


@router.post("/jobs/{job}/resume", status_code=202)
def resume_job(job: str, service: Svc) -> Job:
    """Goes on with a paused job, or with a succeeded one whose budget was raised."""
    return present.job_of(control.resume(service, job))


@router.post("/jobs/{job}/cancel", status_code=202)
def cancel_job(job: str, service: Svc) -> Job:
    """Stops all work at once."""
    return present.job_of(control.cancel(service, job))


def _tag(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, colon, value = text.partition(":")
    if not colon or not key:
        raise Invalid.at("tag", "write it as key:value")
    return key, value
