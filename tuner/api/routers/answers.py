"""Routes for trials, bills, reports, the ledger and trainables."""

import csv
import io
from collections.abc import Iterator
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from tuner.api import response_cache, serialize_jobs
from tuner.api.deps import Limit, Svc, cursor_of, read_cursor
from tuner.schemas import answers as show
from tuner.service import answers, listing, trainables
from tuner.service.answers import After, Sort
from tuner.service.bootstrap import Service
from tuner.service.replay import replay
from tuner.service.spend import report

router = APIRouter(tags=["answers"])
SortBy = Literal["number", "-number", "metric", "-metric", "cost_usd", "-cost_usd", "steps", "-steps"]
FIELDS = ("seq", "id", "entry", "kind", "trial", "attempt", "slice", "usd", "gpu_hours", "at")


@router.get("/jobs/{job}/trials", response_model=show.TrialPage)
def list_trials(
    job: str,
    request: Request,
    service: Svc,
    sort: SortBy = "number",
    limit: Limit = 50,
    cursor: str | None = None,
) -> Response:
    """List the trials of a job. A `sort` with a minus sign is descending. Trials without a metric come last."""
    place = read_cursor(cursor, int | float, int)
    after = None if place is None else After(place[0], place[1])
    name = ("trials", sort, limit, after)
    return response_cache.answer_once_ended(
        request, service, name, job, lambda: _page_of_trials(service, job, sort, after, limit)
    )


def _page_of_trials(
    service: Service, job: str, sort: SortBy, after: After | None, limit: int
) -> show.TrialPage:
    by, descending = _sort(sort)
    found = answers.page_of_trials(service, job, sort=by, descending=descending, after=after, limit=limit + 1)
    more = None
    if len(found) > limit:
        last = found[limit - 1]
        more = cursor_of(answers.sort_key_of(last, by, descending=descending), last.number)
    return show.TrialPage(items=[serialize_jobs.trial_of(row) for row in found[:limit]], next_cursor=more)


@router.get("/jobs/{job}/trials/{trial}", response_model=show.TrialDetail)
def get_trial(job: str, trial: str, request: Request, service: Svc) -> Response:
    """Return a trial with its learning curve, its bill and all its attempts."""
    return response_cache.answer_once_ended(
        request,
        service,
        ("trial", trial),
        job,
        lambda: serialize_jobs.trial_detail_of(answers.trial(service, job, trial)),
    )


@router.get("/jobs/{job}/bill", response_model=show.Bill)
def get_bill(job: str, request: Request, service: Svc) -> Response:
    """Return the cost of the job by kind, per trial and in total, and the savings. The answer for a running job may be up to two
    seconds old.
    """
    return response_cache.answer(
        request, service, "bill", job, lambda: serialize_jobs.bill_of(answers.bill(service, job))
    )


@router.get("/jobs/{job}/report", response_model=show.JobReport)
def get_report(job: str, request: Request, service: Svc) -> Response:
    """Return the best result against the amount spent, and estimates of what other search methods would have spent to reach the same
    result. The answer for a running job may be up to two seconds old.
    """
    return response_cache.answer(
        request, service, "report", job, lambda: serialize_jobs.report_of(report(service, job))
    )


@router.get("/jobs/{job}/replay")
def get_replay(
    job: str, service: Svc, scheduler: str | None = None, sampler: str | None = None
) -> show.Replay:
    """Replay the job's recorded events, and return the first difference between what is decided and what is recorded.

    A job that still runs is compared up to its newest event. With `scheduler` or `sampler`, each a value that a job file allows, return
    the first event at which the job would have decided differently with it. The record is not compared then. A replay ends after 60
    seconds; `not_checked` says so. The service replays one job at a time: the answer is 503 if another replay takes long.
    """
    return serialize_jobs.replay_of(replay(service, job, scheduler=scheduler, sampler=sampler))


@router.get(
    "/jobs/{job}/ledger", response_model=show.LedgerPage, responses={200: {"content": {"text/csv": {}}}}
)
def get_ledger(
    job: str,
    service: Svc,
    limit: Annotated[int | None, Query(ge=1, le=10_000)] = None,
    cursor: str | None = None,
    accept: Annotated[str, Header()] = "",
) -> Response | show.LedgerPage:
    """List the entries of the job's ledger, oldest first. Without `limit`, all entries are returned. `Accept: text/csv` returns a
    table.
    """
    place = read_cursor(cursor, int)
    after = 0 if place is None else place[0]
    if "text/csv" in accept:
        answers.check_exists(service, job)
        rows = answers.ledger_lines(service, job, after=after, limit=limit)
        return StreamingResponse(_csv(rows), media_type="text/csv; charset=utf-8")
    found = list(answers.ledger_lines(service, job, after=after, limit=None if limit is None else limit + 1))
    more = limit is not None and len(found) > limit
    shown = found[:limit]
    return show.LedgerPage(
        items=[serialize_jobs.entry_of(row) for row in shown],
        next_cursor=cursor_of(shown[-1].seq) if more else None,
    )


@router.get("/trainables")
def list_trainables(service: Svc) -> show.Trainables:
    """List the trainables that may be tuned here, with their documentation and a suggested search space, as read from the source files.

    Nothing is imported, so `error` is null. If `truncated` is true, there are more source files than were read.
    """
    found = listing.listed(service.settings.allowed_modules)
    return show.Trainables(
        items=[serialize_jobs.trainable_of(one) for one in found.items], truncated=found.truncated
    )


@router.get("/trainables/{trainable}")
def get_trainable(trainable: str, service: Svc) -> show.Trainable:
    """Import a trainable and describe it. `error` says why it cannot be tuned. The answer is 422 if its module is not allowed on this
    service.
    """
    found = trainables.described(service.prober, trainable, service.settings.allowed_modules)
    return serialize_jobs.trainable_of(found)


def _sort(text: SortBy) -> tuple[Sort, bool]:
    name: Sort = text.removeprefix("-")  # type: ignore[assignment]
    return name, text.startswith("-")


def _csv(rows: Iterator[answers.EntryRow]) -> Iterator[str]:
    yield ",".join(FIELDS) + "\r\n"
    for row in rows:
        line = io.StringIO()
        shown = serialize_jobs.entry_of(row).model_dump()
        csv.writer(line).writerow([shown[name] if shown[name] is not None else "" for name in FIELDS])
        yield line.getvalue()
