"""What REST offers, each call once for both clients: as steps, which they do or await."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import httpx2

from tuner.client import follow, queries
from tuner.client.access_calls import AccessCalls
from tuner.client.audit_calls import AuditCalls
from tuner.client.budget_calls import BudgetCalls
from tuner.client.changes import once, raised, wants_more
from tuner.client.http import TRIES, A, ask, exchange, quoted, request
from tuner.client.methods import call, job_call, job_series, series
from tuner.client.paging import pages
from tuner.client.progress import progress_of
from tuner.client.queries import BestQuery, Elsewhere, refuse_unknown
from tuner.client.steps import Series, Steps
from tuner.client.uploads import Uploads
from tuner.schemas import answers as show
from tuner.schemas import best as choices
from tuner.schemas.job import Job, JobFacts, JobPage
from tuner.schemas.logs import TrialLog

if TYPE_CHECKING:  # each is loaded when it is asked for
    from tuner.client.downloads import Downloaded
    from tuner.schemas.advice import Advice
    from tuner.schemas.curves import Curves
    from tuner.schemas.estimate_answers import Estimate
    from tuner.schemas.plan import Plan
    from tuner.schemas.prices import Prices
    from tuner.schemas.spend import SpendAnswer

T = TypeVar("T")
AnyJob = str | JobFacts


class Calls(AccessCalls, BudgetCalls, AuditCalls, Uploads, ABC):
    """Everything raises ApiError. What is safe to repeat is tried again for some seconds when the service does not answer. `job` is
    a job's id, or the job."""

    # Jobs

    @job_call
    def submit(self, job: Mapping[str, Any], *, idempotency_key: str | None = None) -> Steps[JobFacts]:
        """`job` as in the YAML file. A key is made where none is given, so that a retry makes no second job."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._ask_job("POST", "/v1/jobs", body=job, headers=headers, repeat=True)

    @job_call
    def job(self, job: AnyJob) -> Steps[JobFacts]:
        return self._ask_job("GET", path_of(job))

    @job_series
    def jobs(self, *, state: str | None = None, tag: str | None = None) -> Series[JobFacts]:
        """Newest first, page by page. `tag` is `key:value`."""
        query = {"state": state, "tag": tag}
        return pages(self.url, JobPage, "/v1/jobs", query, page=100, made=self._acting)

    @job_call
    def pause(self, job: AnyJob) -> Steps[JobFacts]:
        return self._ask_job("POST", path_of(job, "/pause"), repeat=True)

    @job_call
    def resume(self, job: AnyJob) -> Steps[JobFacts]:
        return self._ask_job("POST", path_of(job, "/resume"), repeat=True)

    @job_call
    def cancel(self, job: AnyJob) -> Steps[JobFacts]:
        return self._ask_job("POST", path_of(job, "/cancel"), repeat=True)

    @job_call
    def patch(self, /, job: AnyJob, *, if_match: str | None = None, **change: Any) -> Steps[JobFacts]:
        """`budget={...}`, `tags={...}`, `priority=1`. `if_match`: the `revision` of the job that the change was made for; where it has
        another by now, ApiError with status 412, unless what is asked for is done: by an earlier try, whose answer was lost."""
        refuse_unknown(change, queries.CHANGE)
        headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
        sent = self._ask_job("PATCH", path_of(job), body=change, headers=headers, repeat=True)
        return sent if if_match is None else once(sent, lambda: self._ask_job("GET", path_of(job)), change)

    @job_call
    def top_up(
        self, job: AnyJob, *, usd: float | None = None, gpu_hours: float | None = None
    ) -> Steps[JobFacts]:
        """Adds to the budget as it is now, once, whatever becomes of the connection; the job goes on if it had stopped for want of it.
        ApiError 412 where somebody else changes it at the same time: then nothing was added."""
        before = yield from self._ask_job("GET", path_of(job))
        change = raised(before.budget, usd=usd, gpu_hours=gpu_hours)
        after: JobFacts = yield from Calls.patch.steps(self, job, if_match=before.revision, budget=change)
        if wants_more(after):
            after = yield from Calls.resume.steps(self, job)
        return after

    @job_call
    def pilot(self, job: Mapping[str, Any], *, usd: float | None = None) -> Steps[JobFacts]:
        """Runs a few steps of a few configurations of a job under a budget of their own, for plans to learn from, unless there is
        such a pilot: then it answers that one. `usd` where `job` does not say it under `planning`."""
        body = job if usd is None else _with_pilot(job, usd)
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._ask_job("POST", "/v1/pilots", body=body, headers=headers, repeat=True)

    @call
    def plan(self, job: Mapping[str, Any]) -> Steps["Plan"]:
        """What the job would cost, take and find; nothing runs. What is known beside it is under `planning`."""
        from tuner.schemas.plan import Plan

        return self._ask(Plan, "POST", "/v1/plans", body=job, repeat=True)

    @job_call
    def wait(
        self,
        job: AnyJob,
        *,
        timeout_s: float | None = None,
        until: tuple[str, ...] = (*follow.ENDED, "paused"),
        progress: bool | None = False,
    ) -> Steps[JobFacts]:
        """Until the job has ended or is paused. `progress` shows how far it is: in place in a notebook, by lines on standard error
        elsewhere; None: where somebody looks. Raises TimeoutError."""
        path, show = path_of(job), progress_of(wanted=progress)
        return follow.wait(
            lambda limit_s: self._ask_job("GET", path, limit_s=limit_s),
            id_of(job),
            timeout_s=timeout_s,
            until=until,
            show=show,
        )

    @series
    def events(
        self,
        job: AnyJob,
        *,
        after: int | None = None,
        on_connection: Callable[[bool], None] | None = None,
        on_silence: Callable[[datetime], None] | None = None,
        patience_s: float = follow.RESTART_S,
    ) -> Series[follow.Event]:
        """Yield the job's events until it has ended. If the connection breaks, or the service sends nothing for 4 seconds, reconnect
        and continue behind the last event.

        `on_connection` is called with False when the service does not answer, and with True when it answers again. `on_silence` is
        called before, with the time of the last answer. ApiError if it does not answer for `patience_s`."""
        path = path_of(job, "/events")
        return follow.events(self.url, path, after, on_connection, on_silence, patience_s)

    # Answers

    @call
    def best(
        self, job: AnyJob, *, forecast: bool = True, **limits: Unpack[BestQuery]
    ) -> Steps[choices.BestAnswer]:
        """The best configuration that may be trained within the limits. ApiError 404 where none is affordable."""
        refuse_unknown(limits, queries.BEST)
        query = {**limits, "forecast": None if forecast else "false"}
        return self._ask(choices.BestAnswer, "GET", path_of(job, "/best"), query=query)

    @call
    def best_of_all(
        self, trainable: str, metric: str, **limits: Unpack[BestQuery]
    ) -> Steps[choices.BestOfAll]:
        """Over all jobs that tuned it for this metric."""
        refuse_unknown(limits, queries.BEST)
        query = {"trainable": trainable, "metric": metric, **limits}
        return self._ask(choices.BestOfAll, "GET", "/v1/best", query=query)

    @call
    def pareto(self, job: AnyJob, **elsewhere: Unpack[Elsewhere]) -> Steps[choices.Pareto]:
        """The front of metric against cost that `best` answers from."""
        refuse_unknown(elsewhere, queries.ELSEWHERE)
        return self._ask(choices.Pareto, "GET", path_of(job, "/pareto"), query=elsewhere)

    @call
    def bill(self, job: AnyJob) -> Steps[show.Bill]:
        """What it cost, by kind and by trial, and what was saved."""
        return self._ask(show.Bill, "GET", path_of(job, "/bill"))

    @call
    def report(self, job: AnyJob) -> Steps[show.JobReport]:
        """What the money bought, and estimates of what other ways to search would have spent for it."""
        return self._ask(show.JobReport, "GET", path_of(job, "/report"))

    @call
    def advice(self, job: AnyJob) -> Steps["Advice"]:
        """What would have made it cheaper, with evidence and dollars, and what could not be judged."""
        from tuner.schemas.advice import Advice

        return self._ask(Advice, "GET", path_of(job, "/advice"))

    @series
    def trials(self, job: AnyJob, *, sort: str = "number", limit: int | None = None) -> Series[show.Trial]:
        """Page by page; at most `limit` where it is given."""
        path, query = path_of(job, "/trials"), {"sort": sort}
        return pages(self.url, show.TrialPage, path, query, page=500, limit=limit)

    @call
    def trial(self, job: AnyJob, trial: str) -> Steps[show.TrialDetail]:
        """With the learning curve, the bill and every attempt."""
        return self._ask(show.TrialDetail, "GET", path_of(job, f"/trials/{quoted(trial)}"))

    @call
    def curves(self, job: AnyJob, *, metric: str | None = None) -> Steps["Curves"]:
        """Return the learning curves of all trials, up to the event `seq`, from which `events(after=seq)` continues. `metric` names any
        reported metric; without it, the objective's is returned."""
        from tuner.schemas.curves import Curves

        return self._ask(Curves, "GET", path_of(job, "/curves"), query={"metric": metric})

    @call
    def logs(
        self,
        job: AnyJob,
        trial: str,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        after: int | None = None,
    ) -> Steps[TrialLog]:
        """What the trial's own code printed: the last `tail` bytes, of those behind the first `after`; of the newest attempt that
        printed anything, where none is named. ApiError 404 where nothing was printed."""
        query = {"attempt": attempt, "tail": tail, "after": after}
        return self._ask(TrialLog, "GET", path_of(job, f"/trials/{quoted(trial)}/logs"), query=query)

    @call
    def download_checkpoint(
        self, job: AnyJob, trial: str | None = None, *, to: str | Path, step: int | None = None
    ) -> Steps["Downloaded"]:
        """Download a trial's checkpoint, and check its files.

        Args:
            job: A job or its id.
            trial: The trial's id. None means the job's best trial, at its best step.
            to: A directory that is empty or does not exist yet.
            step: The step of the checkpoint. None means the one with the best metric.

        Raises:
            ApiError: With status 404 if there is no such checkpoint, with 422 if the directory has files.
        """
        from tuner.client.downloads import download

        if trial is None:
            best = yield from self._ask(
                choices.BestAnswer, "GET", path_of(job, "/best"), query={"forecast": "false"}
            )
            trial, step = best.trial, step or best.step
        path = path_of(job, f"/trials/{quoted(trial)}/checkpoint")
        return (yield from download(self.url, path, trial, Path(to), step))

    @call
    def ledger(self, job: AnyJob) -> Steps[show.LedgerPage]:
        """Every entry, oldest first."""
        return self._ask(show.LedgerPage, "GET", path_of(job, "/ledger"))

    @call
    def spend(
        self,
        group_by: Sequence[str] = ("tag:project",),
        *,
        since: str | None = None,
        until: str | None = None,
        timezone: str = "UTC",
    ) -> Steps["SpendAnswer"]:
        """By `tag:KEY`, `owner`, `trainable`, `market`, `day`, `job`, or several of them; `since` and `until` are dates or times."""
        from tuner.schemas.spend import SpendAnswer

        query = {"group_by": list(group_by), "since": since, "until": until, "timezone": timezone}
        return self._ask(SpendAnswer, "GET", "/v1/spend", query=query)

    @call
    def spend_csv(self, /, group_by: Sequence[str] = ("tag:project",), **query: Any) -> Steps[str]:
        """The same as a table."""
        refuse_unknown(query, queries.SPEND)
        asked = {"group_by": list(group_by), **query}
        send = request("GET", "/v1/spend", query=asked, headers={"Accept": "text/csv"})
        answer = yield from exchange(self.url, send, tries=TRIES)
        return answer.text

    @call
    def trainables(self) -> Steps[show.Trainables]:
        """List what may be tuned here, as the source files say, without importing them."""
        return self._ask(show.Trainables, "GET", "/v1/trainables")

    @call
    def trainable(self, name: str) -> Steps[show.Trainable]:
        """Have the service import a trainable, such as `my_module:train`, and describe it. `error` says why it cannot be tuned."""
        return self._ask(show.Trainable, "GET", f"/v1/trainables/{quoted(name)}")

    @call
    def prices(self, /, *, limit: int = 100, **filters: str | None) -> Steps["Prices"]:
        """`cloud`, `region`, `zone`, `instance_type`, `accelerator`, `market`; the cheapest first."""
        from tuner.schemas.prices import Prices

        refuse_unknown(filters, queries.PRICES)
        return self._ask(Prices, "GET", "/v1/prices", query={**filters, "limit": limit})

    @call
    def estimate(self, /, **parts: Any) -> Steps["Estimate"]:
        """`run={...}`, `choices`, `scaling`, `compute_optimal`, `recurring`, `ownership`: any of them."""
        from tuner.schemas.estimate_answers import Estimate

        refuse_unknown(parts, queries.ESTIMATE)
        return self._ask(Estimate, "POST", "/v1/estimates", body=parts, repeat=True)

    @call
    def is_ready(self) -> Steps[bool]:
        try:
            answer: httpx2.Response = yield request("GET", "/readyz", timeout_s=5)
        except httpx2.HTTPError:
            return False
        return answer.is_success

    # How they are made

    def _ask(self, kind: type[A], method: str, path: str, **options: Any) -> Steps[A]:
        return ask(self.url, kind, method, path, **options)

    def _ask_job(self, method: str, path: str, **options: Any) -> Steps[JobFacts]:
        found = yield from self._ask(Job, method, path, **options)
        return self._acting(found)

    @abstractmethod
    def _acting(self, job: Job) -> JobFacts:
        """The job, with the methods that go through this client."""


def id_of(job: AnyJob) -> str:
    return job if isinstance(job, str) else job.id


def path_of(job: AnyJob, of_it: str = "") -> str:
    return f"/v1/jobs/{quoted(id_of(job))}{of_it}"


def _with_pilot(job: Mapping[str, Any], usd: float) -> dict[str, Any]:
    planning = dict(job.get("planning") or {})
    pilot = {**(planning.get("pilot") or {}), "usd": usd}
    return {**job, "planning": {**planning, "pilot": pilot}}
