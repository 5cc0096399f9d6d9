"""The calls of the REST API. Each is written once, as a generator of steps that `Client` runs and `AsyncClient` awaits."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import httpx2

from tuner.client import follow, http
from tuner.client.changes import once, raised, wants_more
from tuner.client.follow import progress_of
from tuner.client.http import (
    TRIES,
    A,
    ApiError,
    BestQuery,
    Elsewhere,
    ask,
    exchange,
    pages,
    quoted,
    refuse_unknown,
    request,
)
from tuner.client.steps import Series, Steps, call, job_call, job_series, series
from tuner.schemas import answers as show
from tuner.schemas import best as choices
from tuner.schemas.answers import TrialLog
from tuner.schemas.base import Problem
from tuner.schemas.job import Job, JobFacts, JobPage

if TYPE_CHECKING:
    from tuner.client.downloads import Downloaded
    from tuner.schemas.access import AuditEntry, Key, Member, Project, User, WhoAmI
    from tuner.schemas.answers import Advice, Curves, Package, Replay
    from tuner.schemas.budgets import BudgetAbove, BudgetList, Quota, SpendAnswer
    from tuner.schemas.estimate_answers import Estimate
    from tuner.schemas.plan import Plan
    from tuner.schemas.prices import Prices


class AuditCalls:
    url: str

    @series
    def audit(
        self,
        *,
        user: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
    ) -> Series[AuditEntry]:
        """Yield the changes that users requested in the project, newest first.

        Args:
            user: Only changes by this user.
            action: Only this kind of change, such as `job.pause`.
            target: Only changes of this job, by its id, or of this object, by its name.
            since: A UTC date or a time at which the period begins.
            until: A UTC date or a time at which the period ends.
            limit: Yield at most this many entries.
        """
        from tuner.schemas.access import AuditPage

        query = {"user": user, "action": action, "target": target, "since": since, "until": until}
        return pages(self.url, AuditPage, "/v1/audit", query, page=100, limit=limit)


class BudgetCalls:
    url: str

    @call
    def budgets(self) -> Steps[BudgetList]:
        """Return all shared budgets."""
        from tuner.schemas.budgets import BudgetList

        return ask(self.url, BudgetList, "GET", "/v1/budgets")

    @call
    def budget(self, name: str) -> Steps[BudgetAbove]:
        from tuner.schemas.budgets import BudgetAbove

        return ask(self.url, BudgetAbove, "GET", f"/v1/budgets/{quoted(name)}")

    @call
    def put_budget(self, /, name: str, **budget: Any) -> Steps[BudgetAbove]:
        """Create a shared budget, or replace it.

        Keyword arguments are `usd=`, `gpu_hours=`, `match={tag: value}`, `period=`, `timezone=`, `parent=`,
        `alerts=[{"at": 0.8, "url": ...}]` and `new_secret=True`. A new secret for signing the webhooks is returned only here.
        """
        from tuner.schemas.budgets import BudgetAbove

        refuse_unknown(budget, http.BUDGET)
        return ask(self.url, BudgetAbove, "PUT", f"/v1/budgets/{quoted(name)}", body=budget)

    @call
    def remove_budget(self, name: str) -> Steps[None]:
        yield from exchange(self.url, request("DELETE", f"/v1/budgets/{quoted(name)}"))

    @call
    def quota(self) -> Steps[Quota]:
        """Return the project's quota, and how much of it is used."""
        from tuner.schemas.budgets import Quota

        return ask(self.url, Quota, "GET", "/v1/quota")

    @call
    def put_quota(self, /, **quota: Any) -> Steps[Quota]:
        """Replace the project's quota.

        Keyword arguments are `usd=`, `gpu_hours=`, `period=`, `timezone=`, `concurrent_jobs=` and `concurrent_trials=`. A limit that is
        not given is removed.
        """
        from tuner.schemas.budgets import Quota

        refuse_unknown(quota, http.QUOTA)
        return ask(self.url, Quota, "PUT", "/v1/quota", body=quota)


PAGE = 100


class AccessCalls:
    url: str

    @call
    def whoami(self) -> Steps[WhoAmI]:
        """Return the user, project and role that this client's API key belongs to."""
        from tuner.schemas.access import WhoAmI

        return ask(self.url, WhoAmI, "GET", "/v1/whoami")

    @series
    def projects(self) -> Series[Project]:
        """Yield projects, ordered by name. The operator gets all projects; other users get those that they are members of."""
        from tuner.schemas.access import ProjectPage

        return pages(self.url, ProjectPage, "/v1/projects", {}, page=PAGE)

    @call
    def project(self, name: str) -> Steps[Project]:
        from tuner.schemas.access import Project

        return ask(self.url, Project, "GET", f"/v1/projects/{quoted(name)}")

    @call
    def add_project(self, name: str) -> Steps[Project]:
        """Create a project. Only the operator may do this. To work in the new project, the operator uses `Client(project=name)`."""
        from tuner.schemas.access import Project

        return ask(self.url, Project, "POST", "/v1/projects", body={"name": name})

    @series
    def users(self) -> Series[User]:
        """Yield the users of all projects, ordered by name. Only the operator may do this."""
        from tuner.schemas.access import UserPage

        return pages(self.url, UserPage, "/v1/users", {}, page=PAGE)

    @call
    def disable_user(self, name: str, *, disabled: bool = True) -> Steps[User]:
        """Disable all API keys of a user, or re-enable them with `disabled=False`. Only the operator may do this."""
        from tuner.schemas.access import User

        body = {"disabled": disabled}
        return ask(self.url, User, "PATCH", f"/v1/users/{quoted(name)}", body=body, repeat=True)

    @series
    def members(self) -> Series[Member]:
        """Yield the members of the project, ordered by name. Only the project's admins may do this."""
        from tuner.schemas.access import MemberPage

        return pages(self.url, MemberPage, "/v1/members", {}, page=PAGE)

    @call
    def put_member(self, user: str, role: str) -> Steps[Member]:
        """Add a user to the project, or change a member's role. Roles are `viewer`, `submitter` and `admin`."""
        from tuner.schemas.access import Member

        path = f"/v1/members/{quoted(user)}"
        return ask(self.url, Member, "PUT", path, body={"role": role}, repeat=True)

    @call
    def remove_member(self, user: str) -> Steps[None]:
        """Remove a member from the project, and revoke all their API keys in it."""
        yield from exchange(self.url, request("DELETE", f"/v1/members/{quoted(user)}"))

    @series
    def keys(self) -> Series[Key]:
        """Yield API keys without their secrets, newest first. Admins get all keys of the project; other users get their own."""
        from tuner.schemas.access import KeyPage

        return pages(self.url, KeyPage, "/v1/keys", {}, page=PAGE)

    @call
    def make_key(self, user: str, name: str, *, expires_in: str = "90d") -> Steps[Key]:
        """Create an API key for a member. Only admins may do this. The complete key is returned only here, as `secret`."""
        from tuner.schemas.access import Key

        body = {"user": user, "name": name, "expires_in": expires_in}
        return ask(self.url, Key, "POST", "/v1/keys", body=body)

    @call
    def rotate_key(self, key: str, *, overlap: str = "1h") -> Steps[Key]:
        """Replace an API key. The answer contains the new key as `secret`. The old key stays valid for `overlap`."""
        from tuner.schemas.access import Key

        return ask(self.url, Key, "POST", f"/v1/keys/{quoted(key)}/rotate", body={"overlap": overlap})

    @call
    def revoke_key(self, key: str) -> Steps[None]:
        """Revoke an API key. It takes effect with the next request."""
        yield from exchange(self.url, request("DELETE", f"/v1/keys/{quoted(key)}"))


class Uploads:
    """Calls about packages. They raise ApiError with status 409 if packages are switched off in the service."""

    url: str

    @call
    def upload(self, path: str | Path, *, name: str | None = None) -> Steps[Package]:
        """Upload a package. A job uses it with `package: <id>`.

        Args:
            path: A .zip or .whl file, or a folder or .py file, which is packed first. Uploading the same files again returns the same
                package.
            name: The name of the package. None means that of the file or folder.

        Raises:
            ApiError: With status 422 if the path cannot be read or packed.
        """
        from tuner.client.packing import packed
        from tuner.schemas.answers import Package

        try:
            own, data = packed(Path(path))
        except (OSError, ValueError) as error:
            raise ApiError(Problem(title="This is no package", status=422, detail=str(error))) from error
        query = {"name": name or own}
        return (
            yield from ask(self.url, Package, "POST", "/v1/packages", query=query, data=data, repeat=True)
        )

    @series
    def packages(self) -> Series[Package]:
        """Yield the packages, newest first. Pages are fetched as needed."""
        from tuner.schemas.answers import PackagePage

        return pages(self.url, PackagePage, "/v1/packages", {}, page=PAGE)

    @call
    def package(self, package: str) -> Steps[Package]:
        """Return a package by its id."""
        from tuner.schemas.answers import Package

        return (yield from ask(self.url, Package, "GET", f"/v1/packages/{quoted(package)}"))


T = TypeVar("T")
AnyJob = str | JobFacts


class Calls(AccessCalls, BudgetCalls, AuditCalls, Uploads, ABC):
    """The methods of `Client` and `AsyncClient`. They raise ApiError if the service refuses or does not answer.

    Requests that are safe to repeat are retried for some seconds if the service does not answer. The argument `job` is a job or its id.
    """

    # Jobs

    @job_call
    def submit(self, job: Mapping[str, Any], *, idempotency_key: str | None = None) -> Steps[JobFacts]:
        """Submit a tuning job.

        Args:
            job: The fields of a job file, as a dictionary.
            idempotency_key: A second submission with the same key returns the first job. Without a key, the client generates one,
                so that its own retries never create a second job.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._ask_job("POST", "/v1/jobs", body=job, headers=headers, repeat=True)

    @job_call
    def job(self, job: AnyJob) -> Steps[JobFacts]:
        return self._ask_job("GET", path_of(job))

    @job_series
    def jobs(self, *, state: str | None = None, tag: str | None = None) -> Series[JobFacts]:
        """Yield the jobs, newest first. Pages are fetched as needed. `tag` has the form `key:value`."""
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
        """Change a job's budget, tags or priority.

        Args:
            job: A job or its id.
            if_match: The `revision` of the job that the change is based on.
            change: The new values, such as `budget={...}`, `tags={...}` or `priority=1`.

        Raises:
            ApiError: With status 412 if the job's revision is no longer `if_match`. It is not raised if an earlier try of this call
                already made the change and only its response was lost.
            TypeError: A keyword argument is not known.
        """
        refuse_unknown(change, http.CHANGE)
        headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
        sent = self._ask_job("PATCH", path_of(job), body=change, headers=headers, repeat=True)
        return sent if if_match is None else once(sent, lambda: self._ask_job("GET", path_of(job)), change)

    @job_call
    def top_up(
        self, job: AnyJob, *, usd: float | None = None, gpu_hours: float | None = None
    ) -> Steps[JobFacts]:
        """Add to the job's current budget. Resume the job if it had stopped because its budget was spent.

        The amount is added exactly once, even if the connection breaks.

        Raises:
            ApiError: With status 412 if somebody else changes the job at the same time. In that case nothing was added.
            ValueError: No amount was given, or the job has no limit of that kind.
        """
        before = yield from self._ask_job("GET", path_of(job))
        change = raised(before.budget, usd=usd, gpu_hours=gpu_hours)
        after: JobFacts = yield from Calls.patch.steps(self, job, if_match=before.revision, budget=change)
        if wants_more(after):
            after = yield from Calls.resume.steps(self, job)
        return after

    @job_call
    def pilot(self, job: Mapping[str, Any], *, usd: float | None = None) -> Steps[JobFacts]:
        """Start a pilot: run a few steps of a few configurations of a job under a separate budget. Later plans use its measurements.

        If the same code, search space and resources already had a pilot, return that one.

        Args:
            job: The fields of a job file.
            usd: The pilot's budget in US dollars. It replaces `planning.pilot.usd` of `job`.
        """
        body = job if usd is None else _with_pilot(job, usd)
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._ask_job("POST", "/v1/pilots", body=body, headers=headers, repeat=True)

    @call
    def plan(self, job: Mapping[str, Any]) -> Steps[Plan]:
        """Predict what a job would cost, how long it would take and what it would find, without running anything.

        The `planning` section of `job` may add facts that you know, such as the time of a step.
        """
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
        """Wait until the job has ended or is paused, and return it.

        Args:
            job: A job or its id.
            timeout_s: Raise TimeoutError after this many seconds. None means no limit.
            until: The states to wait for.
            progress: Whether to show the progress: updated in place in a notebook, as lines on standard error elsewhere. None means
                only in a notebook or on a terminal.
        """
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
        and continue after the last event.

        Args:
            job: A job or its id.
            after: The id of an event. Only later events are yielded.
            on_connection: Called with False when the service does not answer, and with True whenever a connection is established.
            on_silence: Called before `on_connection(False)`, with the time of the last answer.
            patience_s: Raise ApiError when the service has not answered for this many seconds.
        """
        path = path_of(job, "/events")
        return follow.events(self.url, path, after, on_connection, on_silence, patience_s)

    # Answers

    @call
    def best(
        self, job: AnyJob, *, forecast: bool = True, **limits: Unpack[BestQuery]
    ) -> Steps[choices.BestAnswer]:
        """Return the best configuration that can be trained within the limits. Raise ApiError with status 404 if none can."""
        refuse_unknown(limits, http.BEST)
        query = {**limits, "forecast": None if forecast else "false"}
        return self._ask(choices.BestAnswer, "GET", path_of(job, "/best"), query=query)

    @call
    def best_of_all(
        self, trainable: str, metric: str, **limits: Unpack[BestQuery]
    ) -> Steps[choices.BestOfAll]:
        """Return the best configuration among all jobs that tuned `trainable` for `metric`."""
        refuse_unknown(limits, http.BEST)
        query = {"trainable": trainable, "metric": metric, **limits}
        return self._ask(choices.BestOfAll, "GET", "/v1/best", query=query)

    @call
    def pareto(self, job: AnyJob, **elsewhere: Unpack[Elsewhere]) -> Steps[choices.Pareto]:
        """Return the Pareto front of metric against cost. `best` chooses from the same points."""
        refuse_unknown(elsewhere, http.ELSEWHERE)
        return self._ask(choices.Pareto, "GET", path_of(job, "/pareto"), query=elsewhere)

    @call
    def bill(self, job: AnyJob) -> Steps[show.Bill]:
        """Return the bill: the job's cost by kind and by trial, and the savings."""
        return self._ask(show.Bill, "GET", path_of(job, "/bill"))

    @call
    def report(self, job: AnyJob) -> Steps[show.JobReport]:
        """Return the best result by amount spent, and estimates of what other search strategies would have spent for the same result."""
        return self._ask(show.JobReport, "GET", path_of(job, "/report"))

    @call
    def advice(self, job: AnyJob) -> Steps[Advice]:
        """Return advice: what would have made the job cheaper, with evidence and dollars, and what could not be judged."""
        from tuner.schemas.answers import Advice

        return self._ask(Advice, "GET", path_of(job, "/advice"))

    @call
    def replay(
        self, job: AnyJob, *, scheduler: str | None = None, sampler: str | None = None
    ) -> Steps[Replay]:
        """Replay the job's recorded events, and return the first difference between what is decided and what is recorded.

        Args:
            job: A job or its id.
            scheduler: Compare the job with the same job under this scheduler instead. The record is not compared then.
            sampler: The same for another sampler.
        """
        from tuner.schemas.answers import Replay

        query = {"scheduler": scheduler, "sampler": sampler}
        return self._ask(Replay, "GET", path_of(job, "/replay"), query=query)

    @series
    def trials(self, job: AnyJob, *, sort: str = "number", limit: int | None = None) -> Series[show.Trial]:
        """Yield the trials, at most `limit` if it is given. Pages are fetched as needed."""
        path, query = path_of(job, "/trials"), {"sort": sort}
        return pages(self.url, show.TrialPage, path, query, page=500, limit=limit)

    @call
    def trial(self, job: AnyJob, trial: str) -> Steps[show.TrialDetail]:
        """Return a trial with its learning curve, its bill and every attempt."""
        return self._ask(show.TrialDetail, "GET", path_of(job, f"/trials/{quoted(trial)}"))

    @call
    def curves(self, job: AnyJob, *, metric: str | None = None) -> Steps[Curves]:
        """Return the learning curves of all trials up to the event `seq`. `events(after=seq)` continues from there.

        Args:
            job: A job or its id.
            metric: Any reported metric. None means the objective's.
        """
        from tuner.schemas.answers import Curves

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
        """Return the output that the trial's own code printed.

        Args:
            job: A job or its id.
            trial: The trial's id.
            attempt: The attempt's number. None means the newest attempt that printed anything.
            tail: Return at most this many bytes, from the end.
            after: Skip this many bytes at the beginning.

        Raises:
            ApiError: With status 404 if nothing was printed.
        """
        query = {"attempt": attempt, "tail": tail, "after": after}
        return self._ask(TrialLog, "GET", path_of(job, f"/trials/{quoted(trial)}/logs"), query=query)

    @call
    def download_checkpoint(
        self, job: AnyJob, trial: str | None = None, *, to: str | Path, step: int | None = None
    ) -> Steps[Downloaded]:
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
        """Return all ledger entries of the job, oldest first."""
        return self._ask(show.LedgerPage, "GET", path_of(job, "/ledger"))

    @call
    def spend(
        self,
        group_by: Sequence[str] = ("tag:project",),
        *,
        since: str | None = None,
        until: str | None = None,
        timezone: str = "UTC",
    ) -> Steps[SpendAnswer]:
        """Return the spend of all jobs, grouped.

        Args:
            group_by: One or more of `tag:KEY`, `owner`, `trainable`, `market`, `day` and `job`.
            since: A date or time at which the period begins.
            until: A date or time at which the period ends.
            timezone: The time zone of days and dates.
        """
        from tuner.schemas.budgets import SpendAnswer

        query = {"group_by": list(group_by), "since": since, "until": until, "timezone": timezone}
        return self._ask(SpendAnswer, "GET", "/v1/spend", query=query)

    @call
    def spend_csv(self, /, group_by: Sequence[str] = ("tag:project",), **query: Any) -> Steps[str]:
        """Return the same as `spend`, as a CSV table."""
        refuse_unknown(query, http.SPEND)
        asked = {"group_by": list(group_by), **query}
        send = request("GET", "/v1/spend", query=asked, headers={"Accept": "text/csv"})
        answer = yield from exchange(self.url, send, tries=TRIES)
        return answer.text

    @call
    def trainables(self) -> Steps[show.Trainables]:
        """Return the trainables that can be tuned here. They are found in the source files, without importing them."""
        return self._ask(show.Trainables, "GET", "/v1/trainables")

    @call
    def trainable(self, name: str) -> Steps[show.Trainable]:
        """Have the service import a trainable, such as `my_module:train`, and describe it. `error` says why it cannot be tuned."""
        return self._ask(show.Trainable, "GET", f"/v1/trainables/{quoted(name)}")

    @call
    def prices(self, /, *, limit: int = 100, **filters: str | None) -> Steps[Prices]:
        """Return prices of the catalogue, cheapest first.

        Filters are `cloud`, `region`, `zone`, `instance_type`, `accelerator` and `market`.
        """
        from tuner.schemas.prices import Prices

        refuse_unknown(filters, http.PRICES)
        return self._ask(Prices, "GET", "/v1/prices", query={**filters, "limit": limit})

    @call
    def estimate(self, /, **parts: Any) -> Steps[Estimate]:
        """Estimate the cost of a single training run, and related questions.

        Any of these keyword arguments may be given, each a dictionary: `run`, `choices`, `scaling`, `compute_optimal`, `recurring`,
        `ownership`.
        """
        from tuner.schemas.estimate_answers import Estimate

        refuse_unknown(parts, http.ESTIMATE)
        return self._ask(Estimate, "POST", "/v1/estimates", body=parts, repeat=True)

    @call
    def is_ready(self) -> Steps[bool]:
        """Return whether the service answers and is ready. Wait at most 5 seconds, and never raise ApiError."""
        try:
            answer: httpx2.Response = yield request("GET", "/readyz", timeout_s=5)
        except httpx2.HTTPError:
            return False
        return answer.is_success

    # Helpers

    def _ask(self, kind: type[A], method: str, path: str, **options: Any) -> Steps[A]:
        return ask(self.url, kind, method, path, **options)

    def _ask_job(self, method: str, path: str, **options: Any) -> Steps[JobFacts]:
        found = yield from self._ask(Job, method, path, **options)
        return self._acting(found)

    @abstractmethod
    def _acting(self, job: Job) -> JobFacts:
        """Return the job with methods that call the service through this client."""


def id_of(job: AnyJob) -> str:
    return job if isinstance(job, str) else job.id


def path_of(job: AnyJob, of_it: str = "") -> str:
    return f"/v1/jobs/{quoted(id_of(job))}{of_it}"


def _with_pilot(job: Mapping[str, Any], usd: float) -> dict[str, Any]:
    planning = dict(job.get("planning") or {})
    pilot = {**(planning.get("pilot") or {}), "usd": usd}
    return {**job, "planning": {**planning, "pilot": pilot}}
