"""Routes for trials and their logs, bills, reports, the ledger and trainables."""

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from tuner.api import response_cache
from tuner.api.deps import Limit, Svc, page_of, read_cursor
from tuner.api.serialize_jobs import fields_of, trial_detail_of
from tuner.domain.cost import CostKind, total
from tuner.domain.ids import RESTORED, SELF_TEST
from tuner.domain.money import Cost, plain
from tuner.domain.time import rfc3339
from tuner.schemas import answers as show
from tuner.schemas.answers import TrialLog
from tuner.service import answers, packages, trainable_search
from tuner.service.answers import After, Sort
from tuner.service.bill import BillView, bill
from tuner.service.job_report import ReportView, report
from tuner.service.logs import log
from tuner.service.replay import Difference, replay

router = APIRouter(tags=["answers"])
SortBy = Literal["number", "-number", "metric", "-metric", "cost_usd", "-cost_usd", "steps", "-steps"]


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
    by: Sort = sort.removeprefix("-")  # type: ignore[assignment]
    descending = sort.startswith("-")

    def make() -> show.TrialPage:
        rows = answers.page_of_trials(
            service, job, sort=by, descending=descending, after=after, limit=limit + 1
        )
        place = lambda row: (answers.sort_key_of(row, by, descending=descending), row.number)  # noqa: E731
        return show.TrialPage.model_validate(page_of(rows, limit, place))

    return response_cache.answer(request, service, ("trials", sort, limit, after), job, make, once_ended=True)


@router.get("/jobs/{job}/trials/{trial}", response_model=show.TrialDetail)
def get_trial(job: str, trial: str, request: Request, service: Svc) -> Response:
    """Return a trial with its learning curve, its bill and all its attempts."""

    def make() -> show.TrialDetail:
        return trial_detail_of(answers.trial(service, job, trial))

    return response_cache.answer(request, service, ("trial", trial), job, make, once_ended=True)


@router.get("/jobs/{job}/bill", response_model=show.Bill)
def get_bill(job: str, request: Request, service: Svc) -> Response:
    """Return the cost of the job by cost kind, per trial and in total, and the savings. The answer for a running job may be up to two
    seconds old.
    """
    return response_cache.answer(request, service, "bill", job, lambda: _bill(bill(service, job)))


@router.get("/jobs/{job}/report", response_model=show.JobReport)
def get_report(job: str, request: Request, service: Svc) -> Response:
    """Return the best result as a function of the amount spent, and estimates of what other search methods would have spent to reach the same
    result. The answer for a running job may be up to two seconds old.
    """
    return response_cache.answer(request, service, "report", job, lambda: _report(report(service, job)))


@router.get("/jobs/{job}/replay")
def get_replay(
    job: str, service: Svc, scheduler: str | None = None, sampler: str | None = None
) -> show.Replay:
    """Replay the job's recorded events, and return the first difference between the replayed and the recorded decisions.

    A job that still runs is compared up to its newest event. `scheduler` and `sampler` are values that a job file allows. If
    one of them is given, the job's own decisions are compared with those of that scheduler or sampler, and not with the record. The
    answer then has the first event at which they differ. A replay ends after 60 seconds; `not_checked` names what it did not reach. The
    service replays one job at a time: the answer is 503 if another replay takes long.
    """
    view = replay(service, job, scheduler=scheduler, sampler=sampler)
    replayed, difference = view.replayed, view.replayed.difference
    return show.Replay(
        job=view.job.id,
        state=view.job.state,
        events=replayed.events,
        decisions=replayed.decisions,
        answers=replayed.answers,
        concurrent_trials=replayed.concurrency,
        policy=show.ReplayPolicy.model_validate(view.job.spec.algorithm),
        instead=None if view.instead is None else show.ReplayPolicy.model_validate(view.instead),
        difference=None if difference is None else _difference(difference, policies=view.instead is not None),
        not_checked=[show.NotChecked.model_validate(unchecked) for unchecked in replayed.unchecked],
    )


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
    if limit is None:
        entries = list(answers.ledger_lines(service, job, after=after, limit=None))
        return show.LedgerPage.model_validate({"items": entries, "next_cursor": None})
    entries = list(answers.ledger_lines(service, job, after=after, limit=limit + 1))
    return show.LedgerPage.model_validate(page_of(entries, limit, lambda entry: (entry.seq,)))


@router.get("/trainables")
def list_trainables(service: Svc) -> show.Trainables:
    """List the trainables that may be tuned here, with their documentation and a suggested search space, as read from the source files.

    Nothing is imported. `error` says why an `async` function cannot be tuned, and is null otherwise. If
    `truncated` is true, there are more source files than were read.
    """
    return show.Trainables.model_validate(trainable_search.listed(service.settings.allowed_modules))


@router.get("/trainables/{trainable}")
def get_trainable(
    trainable: str,
    service: Svc,
    kind: Literal["optuna"] | None = None,
    package: Annotated[str | None, Query(max_length=100)] = None,
) -> show.Trainable:
    """Import a trainable and describe it. `error` says why it cannot be tuned. The answer is 422 if its module is not allowed on this
    service.

    `package` names the package that contains it. With `kind=optuna`, the objective is run until its first report or its end, several
    times within 30 s, and `search_space` has the parameters that it suggests. If they cannot be recorded, `code` says why. A request
    with `package` or `kind` is refused with 409 if packages are disabled.
    """
    return show.Trainable.model_validate(packages.described(service, trainable, package, kind or ""))


def _csv(rows: Iterator[answers.EntryRow]) -> Iterator[str]:
    yield ",".join(show.LedgerEntry.model_fields) + "\r\n"
    for row in rows:
        line = io.StringIO()
        entry = show.LedgerEntry.model_validate(row).model_dump()
        csv.writer(line).writerow([_cell(value) for value in entry.values()])
        yield line.getvalue()


def _cell(value: str | float | None) -> str:
    """Format a value for a CSV file. Numbers have no exponent, because some programs that read CSV do not understand exponents."""
    return "" if value is None else value if isinstance(value, str) else plain(value)


def _bill(view: BillView) -> show.Bill:
    spent, search = view.account.posted, view.search
    full, on_demand = view.full_fidelity, view.on_demand
    savings = {
        "full_fidelity_usd": full,
        "against_full_fidelity_usd": None if full is None else full - search,
        "on_demand_usd": on_demand,
        "against_on_demand_usd": None if on_demand is None else on_demand - search,
    }
    return show.Bill.model_validate(
        {
            "job": view.job.id,
            "total_usd": spent,
            "gpu_hours": spent,
            "held_usd": view.account.held,
            "by_kind": view.by_kind,
            "self_test_usd": total(view.by_trial.get(SELF_TEST, {})),
            "exports_usd": view.exports,
            "restored_usd": total(view.by_trial.get(RESTORED, {})),
            "trials": [_trial_bill(row, view.by_trial.get(row.trial, {})) for row in view.trials],
            "savings": savings,
            "completed_trials": view.completed,
            "cost_per_completed_trial_usd": round(search.usd / view.completed, 6) if view.completed else None,
            "preemptions": view.preemptions,
        }
    )


def _trial_bill(row: answers.TrialRow, kinds: Mapping[CostKind, Cost]) -> dict[str, Any]:
    cost = total(kinds)
    shown = {"trial": row.trial, "state": row.state, "steps": row.steps}
    return {**shown, "total_usd": cost, "gpu_hours": cost, "by_kind": kinds}


def _report(view: ReportView) -> show.JobReport:
    objective = view.job.spec.objective
    return show.JobReport.model_validate(
        {
            "job": view.job.id,
            "metric": objective.metric,
            "mode": objective.mode,
            "spent_usd": view.spent,
            "best_spent_usd": view.best_spent,
            "best": view.best,
            "confirmed_trial": view.confirmed_trial,
            "best_curve": view.curve,
            "trials": view.trials,
            "inherited": view.inherited,
            "estimates": [
                {**fields_of(estimate), "saved_usd": view.saved(estimate), "estimate": True}
                for estimate in view.estimates
            ],
        }
    )


def _difference(difference: Difference, *, policies: bool) -> show.ReplayDifference:
    decided, other = map(show.ReplayDecision.model_validate, (difference.decided, difference.other))
    return show.ReplayDifference(
        code=difference.code,
        event=difference.number,
        at=rfc3339(difference.at),
        trial=difference.trial,
        decided=decided,
        recorded=None if policies else other,
        instead=other if policies else None,
    )


TAIL_BYTES = 64 << 10
MOST_BYTES = 512 << 10


@router.get(
    "/jobs/{job}/trials/{trial}/logs",
    response_model=TrialLog,
    responses={200: {"content": {"text/plain": {}}}},
)
def get_log(
    job: str,
    trial: str,
    service: Svc,
    *,
    attempt: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    tail: Annotated[int, Query(ge=1, le=MOST_BYTES)] = TAIL_BYTES,
    after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
    node: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    accept: Annotated[str, Header()] = "",
) -> Response | TrialLog:
    """Return the output of the trial's own code in an attempt.

    Without `attempt`, the newest attempt that has a log is used. The first `after` bytes of the output are skipped, and the answer has
    the last `tail` bytes of the rest. `node` is one of the nodes of a trial on several nodes, counted from 0. Output is stored every
    few seconds and when the attempt ends. `Accept: text/plain` returns the text alone.
    """
    view = log(service, job, trial, attempt, tail=tail, after=after, node=node)
    return PlainTextResponse(view.text) if "text/plain" in accept else TrialLog.model_validate(view)
