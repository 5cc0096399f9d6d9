"""Routes that submit, list and change jobs."""

import json
import re
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from tuner.api import serialize_jobs, translate
from tuner.api.deps import Limit, Svc, page_of, time_and_id
from tuner.api.document import problems
from tuner.api.response_cache import AnswerCache, as_json
from tuner.domain.errors import Invalid
from tuner.domain.job import JobState
from tuner.schemas.answers import TrialDetail
from tuner.schemas.job import EnqueueRequest, Job, JobPage, JobPatch, JobRequest
from tuner.service import answers, control
from tuner.service.bootstrap import Service
from tuner.service.submit import submit
from tuner.service.views import JobView, job_view, revision_of

router = APIRouter(tags=["jobs"])
REVISION = re.compile(r'"([^"]*)"')
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]


@router.post("/jobs", status_code=201)
def create_job(body: JobRequest, response: Response, service: Svc, key: Key = None) -> Job:
    """Submit a job. A request that is repeated with the same `Idempotency-Key` within a day is answered with the same job."""
    asked = body.without_defaults()
    spec = translate.spec_of(body)
    view, _new = submit(service, spec, body=asked, priority=body.priority, idempotency_key=key)
    response.headers["Location"] = f"/v1/jobs/{view.row.id}"
    return serialize_jobs.job_of(view)


@router.get("/jobs", response_model=JobPage)
def list_jobs(
    request: Request,
    service: Svc,
    state: JobState | None = None,
    tag: str | None = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> Response:
    """List the jobs of the project, newest first. `tag` is `key:value`."""
    before = time_and_id(cursor)
    views = answers.page_of_jobs(service, state=state, tag=_tag(tag), before=before, limit=limit + 1)
    page = page_of(views, limit, lambda view: (view.row.created_at, view.row.id))
    items = b",".join(_text(request, service, view) for view in page["items"])
    return as_json(b'{"items":[%b],"next_cursor":%b}' % (items, json.dumps(page["next_cursor"]).encode()))


@router.get("/jobs/{job}", response_model=Job)
def get_job(job: str, request: Request, service: Svc) -> Response:
    """Return a job. The `ETag` is the job's `revision`."""
    view = job_view(service, job)
    answer = as_json(_text(request, service, view))
    answer.headers["ETag"] = f'"{revision_of(view.row)}"'
    return answer


def _text(request: Request, service: Service, view: JobView) -> bytes:
    """Return a job as JSON text.

    The text is cached unless the job runs: the running time of a running job changes all the time. Lists benefit from the cache, because
    most jobs in them are not running.
    """

    def make() -> bytes:
        return serialize_jobs.job_of(view).model_dump_json().encode()

    version = view.version
    if version is None:
        return make()
    shared: AnswerCache[bytes] = request.app.state.responses
    return shared.get(("job", version), None, make)


@router.patch("/jobs/{job}", responses=problems(412))
def patch_job(
    job: str,
    body: JobPatch,
    response: Response,
    service: Svc,
    if_match: Annotated[str | None, Header()] = None,
) -> Job:
    """Change the limits of the budget, replace the tags, or set the priority or `max_concurrent_trials`. Either all given changes are
    made, or none. If fewer trials may run at once than run now, the driver pauses those with the fewest steps.

    With `If-Match: "<revision>"`, the answer is 412 if the job has changed since that revision.
    """
    budget = None if body.budget is None else translate.budget_patch_of(body.budget)
    view = control.patch(
        service,
        job,
        budget=budget,
        tags=body.tags,
        priority=body.priority,
        max_concurrent_trials=body.max_concurrent_trials,
        revisions=_revisions(if_match),
    )
    return _revised(serialize_jobs.job_of(view), response)


@router.post("/jobs/{job}/pause", status_code=202)
def pause_job(job: str, service: Svc) -> Job:
    """Pause a job. Running trials are checkpointed at their next step and paused."""
    return serialize_jobs.job_of(control.pause(service, job))


@router.post("/jobs/{job}/resume", status_code=202)
def resume_job(job: str, service: Svc) -> Job:
    """Continue a paused job, or a job that has succeeded and has money left. If its budget is used up, raise it first."""
    return serialize_jobs.job_of(control.resume(service, job))


@router.post("/jobs/{job}/cancel", status_code=202)
def cancel_job(job: str, service: Svc) -> Job:
    """Cancel a job. All its work stops at once."""
    return serialize_jobs.job_of(control.cancel(service, job))


@router.post("/jobs/{job}/trials", status_code=202)
def enqueue_trial(job: str, body: EnqueueRequest, service: Svc) -> Job:
    """Try a configuration as soon as a worker is free, before new configurations and promotions. A configuration that is already
    waiting is not added again. At most 1000 may wait.
    """
    return serialize_jobs.job_of(control.enqueue(service, job, body.config))


@router.post("/jobs/{job}/trials/{trial}/stop", status_code=202)
def stop_trial(job: str, trial: str, service: Svc) -> TrialDetail:
    """Stop a trial for good. Its reports stay, and it can still be the best. Stopping a stopped trial changes nothing."""
    return serialize_jobs.trial_detail_of(control.stop_trial(service, job, trial))


@router.post("/jobs/{job}/trials/{trial}/promote", status_code=202)
def promote_trial(job: str, trial: str, service: Svc) -> TrialDetail:
    """Let a trial run to its next rung, before other trials. A running trial passes its next rung without a pause."""
    return serialize_jobs.trial_detail_of(control.promote_trial(service, job, trial))


def _revised(shown: Job, response: Response) -> Job:
    response.headers["ETag"] = f'"{shown.revision}"'
    return shown


def _revisions(if_match: str | None) -> set[str] | None:
    """Return the revisions that an If-Match header lists, or None if it accepts any revision.

    A proxy that compresses answers makes an entity tag weak. Weak tags are accepted, because a tag here identifies the state of the job
    and not the bytes of an answer.
    """
    if if_match is None or if_match.strip() == "*":
        return None
    revisions = set(REVISION.findall(if_match))
    if not revisions:
        raise Invalid.at(
            "If-Match",
            'must be the ETag of an answer, including the quotes, such as "0123456789abcdef", or *',
        )
    return revisions


def _tag(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, colon, value = text.partition(":")
    if not colon or not key:
        raise Invalid.at("tag", "write it as key:value")
    return key, value
