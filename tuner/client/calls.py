"""The calls of the REST API. Each is written once, as a coroutine that `Client` runs to its end and `AsyncClient` returns to be awaited."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import httpx2

from tuner.client import follow, http
from tuner.client.bridge import Items, call, series
from tuner.client.changes import is_made, not_resumed, raised, wants_more
from tuner.client.follow import progress_of
from tuner.client.http import ApiError, BestQuery, Http, MachineOptions, quoted, refuse_unknown
from tuner.schemas import answers
from tuner.schemas import best as choices
from tuner.schemas.access import (
    AuditEntry,
    AuditPage,
    Key,
    KeyPage,
    Member,
    MemberPage,
    Project,
    ProjectPage,
    User,
    UserPage,
    WhoAmI,
)
from tuner.schemas.base import Problem
from tuner.schemas.budgets import BudgetList, Quota, SharedBudgetAnswer, SpendAnswer
from tuner.schemas.job import Job, JobFacts, JobPage
from tuner.schemas.prices import Prices

if TYPE_CHECKING:
    from tuner.client.downloads import Downloaded
    from tuner.schemas.estimate_answers import Estimate
    from tuner.schemas.exports import Export, ExportList
    from tuner.schemas.finops import MonthlyReport
    from tuner.schemas.plan import Plan

AnyJob = str | JobFacts


class Calls(ABC):
    """The methods of `Client` and `AsyncClient`. They raise ApiError if the service refuses or does not answer.

    Requests that are safe to repeat are retried for some seconds if the service does not answer. The argument `job` is a job or its id.
    """

    _http: Http

    # Jobs

    @call
    async def submit(
        self,
        /,
        job: Mapping[str, Any] | Callable[..., Any],
        *,
        space: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | float | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> JobFacts:
        """Submit a tuning job.

        Args:
            job: The fields of a job file, as a dictionary, or a function to tune. A function is pickled by value and uploaded as a
                package. The service must allow packages, and its workers must have the modules that the function imports.
            space: The `search_space` of a function. It may be omitted for an Optuna objective, for which you pass `kind="optuna"`: the
                service then runs the objective and records the parameters that it suggests.
            budget: The budget of a function, in dollars or as in a job file.
            idempotency_key: A second submission with the same key returns the first job. Without a key, the client generates one,
                so that its own retries never create a second job.
            fields: Further fields of the job file, such as `objective`, for a function. Without `name`, the job has the function's name.

        Raises:
            ApiError: With status 409 if the service does not allow packages, and with 422 if the function cannot be pickled.
        """
        if callable(job):
            given = {
                "search_space": space,
                "budget": {"usd": budget} if isinstance(budget, int | float) else budget,
            }
            fields |= {name: value for name, value in given.items() if value is not None}
            job = await self._packaged(job, fields)
            if fields.get("kind") == "optuna" and "search_space" not in fields:
                job["search_space"] = await self._recorded_space(job["trainable"], job["package"])
        elif space is not None or budget is not None or fields:
            raise TypeError(
                "keyword arguments are allowed only with a function; put the fields into the job's dictionary"
            )
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return await self._ask_job("POST", "/v1/jobs", body=job, headers=headers, repeat=True)

    async def _packaged(self, function: Callable[..., Any], fields: Mapping[str, Any]) -> dict[str, Any]:
        """Upload a function as a package, and return the fields of a job that tunes it. `fields` are the fields that the caller gave."""
        from tuner.client.packing import packed_function

        try:
            packed = packed_function(function)
        except ValueError as error:
            raise ApiError(Problem(title="Not a trainable", status=422, detail=str(error))) from error
        package = await self._upload(packed.name, packed.data)
        return {"name": packed.name, **fields, "trainable": packed.entry, "package": package.id}

    async def _recorded_space(self, objective: str, package: str) -> dict[str, Any]:
        described = await self._described(objective, "optuna", package)
        if described.search_space is None:
            title, detail = "The search space cannot be recorded", str(described.error)
            raise ApiError(Problem(title=title, status=422, detail=f"{described.code}: {detail}"))
        return described.search_space

    @call
    async def job(self, job: AnyJob) -> JobFacts:
        return await self._ask_job("GET", path_of(job))

    @series
    def jobs(self, *, state: str | None = None, tag: str | None = None) -> Items[JobFacts]:
        """Yield the jobs, newest first. Pages are fetched as needed. `tag` has the form `key:value`."""
        query = {"state": state, "tag": tag}
        return self._http.pages(JobPage, "/v1/jobs", query, made=self._job_of)

    @call
    async def pause(self, job: AnyJob) -> JobFacts:
        """Pause the job. Running trials save a checkpoint at their next step and pause."""
        return await self._ask_job("POST", path_of(job, "/pause"), repeat=True)

    @call
    async def resume(self, job: AnyJob) -> JobFacts:
        """Resume a paused job, or a job that has succeeded and has money left. If its budget is used up, raise it first."""
        return await self._ask_job("POST", path_of(job, "/resume"), repeat=True)

    @call
    async def cancel(self, job: AnyJob) -> JobFacts:
        """Cancel the job. All work stops at once."""
        return await self._ask_job("POST", path_of(job, "/cancel"), repeat=True)

    @call
    async def patch(self, /, job: AnyJob, *, if_match: str | None = None, **change: Any) -> JobFacts:
        """Change a job's budget, tags, priority or maximum number of concurrent trials.

        Args:
            if_match: The `revision` of the job that the change is based on.
            change: The new values, such as `budget={...}`, `tags={...}`, `priority=1` or `max_concurrent_trials=4`.

        Raises:
            ApiError: With status 412 if the job has another revision than `if_match`. It is not raised if an earlier try of this call
                already made the change and only its response was lost.
            TypeError: A keyword argument is not known.
        """
        refuse_unknown(change, http.CHANGE)
        headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
        try:
            return await self._ask_job("PATCH", path_of(job), body=change, headers=headers, repeat=True)
        except ApiError as error:
            if if_match is None or not error.in_doubt or error.status not in (0, 412, 503):
                raise
            # If only a response was lost, the service has made the change. Fetch the job to find out.
            try:
                current = await self._ask_job("GET", path_of(job))
            except ApiError:
                raise error from None
            if not is_made(change, current):
                raise
            return current

    @call
    async def enqueue(self, job: AnyJob, config: Mapping[str, Any]) -> JobFacts:
        """Try a configuration as soon as a worker is free. A configuration that is already waiting is not added again.

        Args:
            config: A value for every active parameter of the search space.
        """
        body = {"config": dict(config)}
        return await self._ask_job("POST", path_of(job, "/trials"), body=body, repeat=True)

    @call
    async def stop_trial(self, job: AnyJob, trial: str) -> answers.TrialDetail:
        """Stop a trial for good. The driver stops it within a second, or when the trial sends its next message."""
        path = path_of(job, f"/trials/{quoted(trial)}/stop")
        answer = await self._http.ask(answers.TrialDetail, "POST", path, repeat=True)
        return self._trial_of(answer, id_of(job))

    @call
    async def promote_trial(self, job: AnyJob, trial: str) -> answers.TrialDetail:
        """Promote a trial: let it run to its next rung, before other trials. Each call promotes it by one rung."""
        path = path_of(job, f"/trials/{quoted(trial)}/promote")
        answer = await self._http.ask(answers.TrialDetail, "POST", path)
        return self._trial_of(answer, id_of(job))

    @call
    async def top_up(
        self, job: AnyJob, *, usd: float | None = None, gpu_hours: float | None = None
    ) -> JobFacts:
        """Add to the job's current budget. Resume the job if it had stopped because its budget was spent.

        The amount is added exactly once, even if the connection breaks. The `warnings` of the returned job say if it may spend the rest of
        its budget on the start of its workers, before the first step.

        Raises:
            ApiError: With status 412 if somebody else changes the job at the same time. In that case nothing was added. If the budget was
                raised but the job was not resumed, the error says so.
            TypeError: An amount is not a number.
            ValueError: No amount was given, an amount is below 0.000001, or the job has no limit of that kind.
        """
        before = await self._ask_job("GET", path_of(job))
        change = raised(before.budget, usd=usd, gpu_hours=gpu_hours)
        after = await Calls.patch.body(self, job, if_match=before.revision, budget=change)
        if not wants_more(after):
            return after
        try:
            return await Calls.resume.body(self, job)
        except ApiError as error:
            raise not_resumed(before, after, error) from error

    @call
    async def pilot(self, job: Mapping[str, Any], *, usd: float | None = None) -> JobFacts:
        """Start a pilot: run a few steps of a few configurations of a job under a separate budget. Later plans use its measurements.

        If the same code, search space and resources already had a pilot, return that pilot.

        Args:
            job: The fields of a job file.
            usd: The pilot's budget in US dollars. It replaces `planning.pilot.usd` of `job`.
        """
        body = job if usd is None else _with_pilot(job, usd)
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return await self._ask_job("POST", "/v1/pilots", body=body, headers=headers, repeat=True)

    @call
    async def plan(self, job: Mapping[str, Any]) -> Plan:
        """Predict what a job would cost, how long it would take and what it would find, without running anything.

        The `planning` section of `job` may add facts that you know, such as the time of a step.
        """
        from tuner.schemas.plan import Plan

        return await self._http.ask(Plan, "POST", "/v1/plans", body=job, repeat=True)

    @call
    async def wait(
        self,
        job: AnyJob,
        *,
        timeout_s: float | None = None,
        until: tuple[str, ...] = (*follow.ENDED, "paused"),
        progress: bool | None = False,
    ) -> JobFacts:
        """Wait until the job has ended or is paused, and return it.

        Args:
            timeout_s: Raise TimeoutError after this many seconds. None means no limit.
            until: The states to wait for.
            progress: Whether to show the progress: updated in place in a notebook, as lines on standard error elsewhere. None means
                only in a notebook or on a terminal.
        """
        path = path_of(job)
        return await follow.wait(
            self._http,
            lambda limit_s: self._ask_job("GET", path, limit_s=limit_s),
            id_of(job),
            timeout_s=timeout_s,
            until=until,
            show=progress_of(wanted=progress),
        )

    @series
    def events(
        self,
        job: AnyJob,
        *,
        after: int | None = None,
        on_connection: Callable[[bool], None] | None = None,
        on_silence: Callable[[datetime], None] | None = None,
        reconnect_s: float = follow.RESTART_S,
    ) -> Items[follow.Event]:
        """Yield the job's events until it has ended. If the connection breaks, or the service sends nothing for 4 seconds, reconnect
        and continue after the last event.

        Args:
            after: The id of an event. Only later events are yielded.
            on_connection: Called with False when the service does not answer, and with True whenever a connection is established.
            on_silence: Called before `on_connection(False)`, with the time of the last answer.
            reconnect_s: Raise ApiError when the service has not answered for this many seconds, or after 5 s if no
                connection could be made since the call began.
        """
        limit = follow.ReconnectLimit(reconnect_s, on_connection, on_silence)
        return follow.events(self._http, path_of(job, "/events"), after, limit)

    # Answers

    @call
    async def best(
        self, job: AnyJob, *, forecast: bool = True, **limits: Unpack[BestQuery]
    ) -> choices.BestAnswer:
        """Return the best configuration that can be trained within the limits. Raise ApiError with status 404 if none can."""
        refuse_unknown(limits, http.BEST)
        query = {**limits, "forecast": None if forecast else "false"}
        return await self._http.ask(choices.BestAnswer, "GET", path_of(job, "/best"), query=query)

    @call
    async def best_of_all(
        self, trainable: str, metric: str, **limits: Unpack[BestQuery]
    ) -> choices.BestOfAll:
        """Return the best configuration that can be trained within the limits, among all jobs that tuned `trainable` for `metric`."""
        refuse_unknown(limits, http.BEST)
        query = {"trainable": trainable, "metric": metric, **limits}
        return await self._http.ask(choices.BestOfAll, "GET", "/v1/best", query=query)

    @call
    async def pareto(self, job: AnyJob, **machine: Unpack[MachineOptions]) -> choices.Pareto:
        """Return the Pareto front of metric against cost, or of both metrics against cost if the job has two objectives. `best` chooses from
        the points on this front.
        """
        refuse_unknown(machine, http.MACHINE_OPTIONS)
        return await self._http.ask(choices.Pareto, "GET", path_of(job, "/pareto"), query=machine)

    @call
    async def bill(self, job: AnyJob) -> answers.Bill:
        """Return the bill: the job's cost by kind and by trial, and the savings from early stopping and spot machines."""
        return await self._http.ask(answers.Bill, "GET", path_of(job, "/bill"))

    @call
    async def report(self, job: AnyJob) -> answers.JobReport:
        """Return how the best result improved with the amount spent, and estimates of what other search strategies would have spent to reach
        it.
        """
        return await self._http.ask(answers.JobReport, "GET", path_of(job, "/report"))

    @call
    async def advice(self, job: AnyJob) -> answers.Advice:
        """Return advice: changes that would have made the job cheaper, with the evidence and the dollars saved.

        The answer also lists the questions that cannot be answered because a measurement is missing.
        """
        return await self._http.ask(answers.Advice, "GET", path_of(job, "/advice"))

    @call
    async def replay(
        self, job: AnyJob, *, scheduler: str | None = None, sampler: str | None = None
    ) -> answers.Replay:
        """Replay the job's recorded events, and return the first difference between the replayed decisions and the record.

        If a scheduler or a sampler is given, return instead the first difference between the job's decisions and the decisions that this
        scheduler or sampler would make in the same job.

        Args:
            scheduler: The scheduler to compare with the job's own.
            sampler: The sampler to compare with the job's own.
        """
        query = {"scheduler": scheduler, "sampler": sampler}
        return await self._http.ask(answers.Replay, "GET", path_of(job, "/replay"), query=query)

    @series
    def trials(self, job: AnyJob, *, sort: str = "number", limit: int | None = None) -> Items[answers.Trial]:
        """Yield the trials, at most `limit` if it is given. Pages are fetched as needed."""
        path, query = path_of(job, "/trials"), {"sort": sort}
        return self._http.pages(answers.TrialPage, path, query, page=500, limit=limit)

    @call
    async def trial(self, job: AnyJob, trial: str) -> answers.TrialDetail:
        """Return a trial with its learning curve, its bill and every attempt."""
        answer = await self._http.ask(answers.TrialDetail, "GET", path_of(job, f"/trials/{quoted(trial)}"))
        return self._trial_of(answer, id_of(job))

    @call
    async def curves(self, job: AnyJob, *, metric: str | None = None) -> answers.Curves:
        """Return the learning curves of all trials up to the event `seq`. `events(after=seq)` continues from there.

        Args:
            metric: Any reported metric. None means the objective's.
        """
        return await self._http.ask(answers.Curves, "GET", path_of(job, "/curves"), query={"metric": metric})

    @call
    async def logs(
        self,
        job: AnyJob,
        trial: str,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        after: int | None = None,
        node: int | None = None,
    ) -> answers.TrialLog:
        """Return the output that the trial's own code printed.

        Args:
            trial: The trial's id.
            attempt: The attempt's number. None means the newest attempt that printed anything.
            tail: Return at most this many bytes, from the end.
            after: Skip this many bytes at the beginning.
            node: One of the nodes of a trial on several nodes, counted from 0. None means the first.

        Raises:
            ApiError: With status 404 if nothing was printed.
        """
        query = {"attempt": attempt, "tail": tail, "after": after, "node": node}
        return await self._http.ask(
            answers.TrialLog, "GET", path_of(job, f"/trials/{quoted(trial)}/logs"), query=query
        )

    @call
    async def download_checkpoint(
        self, job: AnyJob, trial: str | None = None, *, to: str | Path, step: int | None = None
    ) -> Downloaded:
        """Download a trial's checkpoint, and check its files.

        Args:
            trial: The trial's id. None means the job's best trial.
            to: A directory that is empty or does not exist yet.
            step: The step of the checkpoint. None means the best step of the trial that has a checkpoint.

        Raises:
            ApiError: With status 404 if the checkpoint does not exist, with 422 if the directory has files.
        """
        from tuner.client.downloads import download

        if trial is None:
            best = await Calls.best.body(self, job, forecast=False)
            trial = best.trial
            # Without a step, the service chooses the best one that has a checkpoint.
            if step is None and best.checkpoint is not None:
                step = best.step
        path = path_of(job, f"/trials/{quoted(trial)}/checkpoint")
        return await download(self._http, path, trial, Path(to), step)

    @call
    async def artifacts(self, job: AnyJob, trial: str) -> answers.ArtifactList:
        """Return a list, sorted by name, of the files that a trial reported with its metrics."""
        return await self._http.ask(
            answers.ArtifactList, "GET", path_of(job, f"/trials/{quoted(trial)}/artifacts")
        )

    @call
    async def download_artifacts(self, job: AnyJob, trial: str, *, to: str | Path) -> answers.ArtifactList:
        """Download the files that a trial reported, and check their digests. Files of the same names are replaced.

        Args:
            trial: The trial's id.
            to: A directory. It is created if it does not exist.

        Raises:
            ApiError: With status 404 if the trial does not exist, with 422 if the directory cannot be written, and with 0 if a file was
                damaged on the way.
        """
        from tuner.client.downloads import write_checked

        listed = await Calls.artifacts.body(self, job, trial)
        for artifact in listed.items:
            path = path_of(job, f"/trials/{quoted(trial)}/artifacts/{quoted(artifact.name)}")
            response = await self._http.exchange("GET", path)
            write_checked(Path(to), artifact.name, response.content, artifact.sha256)
        return listed

    @call
    async def delete_artifacts(self, job: AnyJob, *, retain: str = "none") -> answers.DeletedArtifacts:
        """Delete the checkpoints and artifacts of a job that has ended. A resumed job then trains its trials from the beginning.

        Args:
            retain: The trials whose files are kept: `none`, `best`, `front` or `all`.

        Raises:
            ApiError: With status 409 if the job has not ended, or a warm start of another job needs the files.
        """
        return await self._http.ask(
            answers.DeletedArtifacts,
            "DELETE",
            path_of(job, "/artifacts"),
            query={"retain": retain},
            repeat=True,
        )

    @call
    async def monthly_report(self, month: str | None = None, *, timezone: str = "UTC") -> MonthlyReport:
        """Return the spend of the project in a month, its efficiency, and possible savings.

        Args:
            month: The month, such as `2026-11`. None means the present one.
            timezone: The time zone in which the month begins.
        """
        from tuner.schemas.finops import MonthlyReport as Answer

        return await self._http.ask(Answer, "GET", "/v1/report", query={"month": month, "timezone": timezone})

    @call
    async def storage(self, job: AnyJob | None = None) -> answers.StoredFiles:
        """Return the stored files of the project by job, or of one job: their size, their cost, and when they will be deleted."""
        query = {} if job is None else {"job": id_of(job)}
        return await self._http.ask(answers.StoredFiles, "GET", "/v1/storage", query=query)

    @call
    async def export(
        self,
        job: AnyJob,
        *,
        trial: str | None = None,
        formats: Sequence[str] | None = None,
        max_cost_usd: float = 0.5,
        max_drop: float | None = None,
        wait: bool = True,
    ) -> Export:
        """Export a trial's best checkpoint to files that run elsewhere, and measure them.

        The job pays for the export and must not be running.

        Args:
            trial: The trial's id. None means the job's best trial.
            formats: Any of `onnx`, `torch`, `int8-dynamic`, `int8-static`, `int4-weight`, `pruned` and
                `pruned-unstructured`. None means all.
            max_cost_usd: Maximum cost of the export, in dollars.
            max_drop: The largest loss of quality, in the unit of the metric, with which an exported file is delivered. None means no limit.
            wait: Whether to wait until the export has ended.

        Raises:
            ApiError: With status 409 if the job runs, another export of it has not ended, or its budget does not pay for one.
        """
        from tuner.schemas.exports import Export

        body: dict[str, Any] = {"trial": trial, "max_cost_usd": max_cost_usd, "max_drop": max_drop}
        if formats is not None:
            body["formats"] = list(formats)
        export = await self._http.ask(Export, "POST", path_of(job, "/exports"), body=body)
        return await Calls.wait_export.body(self, job, export.id) if wait else export

    @call
    async def wait_export(self, job: AnyJob, export: str) -> Export:
        """Wait until an export has ended, and return it. A restart of the service does not end the wait.

        Args:
            export: The export's id.
        """
        from tuner.schemas.exports import Export

        path, limit = path_of(job, f"/exports/{quoted(export)}"), follow.ReconnectLimit()
        while True:
            pause_s = follow.PAUSE_S
            try:
                current = await self._http.ask(Export, "GET", path, limit_s=limit.answer_s)
                limit.note_answer()
                if current.state not in ("queued", "running"):
                    return current
            except ApiError as error:
                pause_s = limit.pause_after(error)
            await self._http.sleep(pause_s)

    @call
    async def exports(self, job: AnyJob) -> ExportList:
        """Return the exports of the job, newest first."""
        from tuner.schemas.exports import ExportList

        return await self._http.ask(ExportList, "GET", path_of(job, "/exports"))

    @call
    async def get_export(
        self,
        job: AnyJob,
        export: str,
        *,
        requests_per_second: float | None = None,
        start: str | None = None,
        instance_type: str | None = None,
    ) -> Export:
        """Return an export with its figures, and what a million predictions cost.

        Args:
            export: The export's id.
            requests_per_second: The rate of requests, for serving in real time. None means 10.
            start: How long a machine and a process take to start, such as `10s`, for scaling to zero. None means 10 s.
            instance_type: The machine to serve on. None means the machine on which the export ran.
        """
        from tuner.schemas.exports import Export

        query = {"requests_per_second": requests_per_second, "start": start, "instance_type": instance_type}
        return await self._http.ask(Export, "GET", path_of(job, f"/exports/{quoted(export)}"), query=query)

    @call
    async def download_variant(self, job: AnyJob, export: str, format: str, *, to: str | Path) -> Path:
        """Download one variant (exported file), check it, and return its path.

        Args:
            export: The export's id.
            format: The format of the variant, such as `onnx`.
            to: The file to write, or an existing directory.

        Raises:
            ApiError: With status 404 if the variant was not delivered.
        """
        from tuner.client.downloads import download_file

        path = path_of(job, f"/exports/{quoted(export)}/variants/{quoted(format)}")
        return await download_file(self._http, path, Path(to))

    @call
    async def ledger(self, job: AnyJob) -> answers.LedgerPage:
        """Return all ledger entries of the job, oldest first."""
        return await self._http.ask(answers.LedgerPage, "GET", path_of(job, "/ledger"))

    @call
    async def spend(
        self,
        group_by: Sequence[str] = ("tag:project",),
        *,
        since: str | None = None,
        until: str | None = None,
        timezone: str = "UTC",
    ) -> SpendAnswer:
        """Return the spend of all jobs in groups.

        Args:
            group_by: One or more of `tag:KEY`, `owner`, `trainable`, `market`, `day` and `job`.
            since: A date or time at which the period begins.
            until: A date or time at which the period ends.
            timezone: The time zone of days and dates.
        """
        query = {"group_by": list(group_by), "since": since, "until": until, "timezone": timezone}
        return await self._http.ask(SpendAnswer, "GET", "/v1/spend", query=query)

    @call
    async def spend_csv(self, /, group_by: Sequence[str] = ("tag:project",), **query: Any) -> str:
        """Return the same as `spend`, as a CSV table."""
        refuse_unknown(query, http.SPEND)
        params = {"group_by": list(group_by), **query}
        response = await self._http.exchange("GET", "/v1/spend", query=params, headers={"Accept": "text/csv"})
        return response.text

    @call
    async def trainables(self) -> answers.Trainables:
        """Return the trainables that the service can tune. They are found in the source files, without importing them."""
        return await self._http.ask(answers.Trainables, "GET", "/v1/trainables")

    @call
    async def trainable(
        self, name: str, *, kind: str | None = None, package: str | None = None
    ) -> answers.Trainable:
        """Have the service import a trainable, such as `my_module:train`, and describe it.

        If the trainable cannot be tuned, `error` in the answer says why.

        Args:
            name: The trainable.
            kind: "optuna" to run the objective, which takes up to 30 s, and to return the search space that it suggests.
            package: The id of the package that contains the trainable.
        """
        return await self._described(name, kind, package)

    async def _described(self, name: str, kind: str | None, package: str | None) -> answers.Trainable:
        query = {"kind": kind, "package": package}
        return await self._http.ask(answers.Trainable, "GET", f"/v1/trainables/{quoted(name)}", query=query)

    @call
    async def prices(self, /, *, limit: int = 100, **filters: str | None) -> Prices:
        """Return prices of the catalogue, cheapest first.

        Filters are `cloud`, `region`, `zone`, `instance_type`, `accelerator` and `market`.
        """
        refuse_unknown(filters, http.PRICES)
        return await self._http.ask(Prices, "GET", "/v1/prices", query={**filters, "limit": limit})

    @call
    async def estimate(self, /, **parts: Any) -> Estimate:
        """Estimate the cost of a single training run, and related questions.

        Any of these keyword arguments may be given, each a dictionary: `run`, `choices`, `scaling`, `compute_optimal`, `recurring`,
        `ownership`, `serving`. `serving` estimates the cost of a million predictions of a model.
        """
        from tuner.schemas.estimate_answers import Estimate

        refuse_unknown(parts, http.ESTIMATE)
        return await self._http.ask(Estimate, "POST", "/v1/estimates", body=parts, repeat=True)

    @call
    async def is_ready(self) -> bool:
        """Return whether the service answers and is ready. Wait at most 5 seconds, and never raise ApiError."""
        try:
            response = await self._http.request("GET", "/readyz", timeout=5)
        except httpx2.HTTPError:
            return False
        return response.is_success

    # Budgets and quotas

    @call
    async def budgets(self) -> BudgetList:
        """Return all shared budgets."""
        return await self._http.ask(BudgetList, "GET", "/v1/budgets")

    @call
    async def budget(self, name: str) -> SharedBudgetAnswer:
        return await self._http.ask(SharedBudgetAnswer, "GET", f"/v1/budgets/{quoted(name)}")

    @call
    async def put_budget(self, /, name: str, **budget: Any) -> SharedBudgetAnswer:
        """Create a shared budget, or replace it.

        Keyword arguments are `usd=`, `gpu_hours=`, `match={tag: value}`, `period=`, `timezone=`, `parent=`,
        `alerts=[{"at": 0.8, "url": ...}]` and `new_secret=True`. A new secret for signing the webhooks is returned only here.
        """
        refuse_unknown(budget, http.BUDGET)
        return await self._http.ask(SharedBudgetAnswer, "PUT", f"/v1/budgets/{quoted(name)}", body=budget)

    @call
    async def remove_budget(self, name: str) -> None:
        await self._http.exchange("DELETE", f"/v1/budgets/{quoted(name)}")

    @call
    async def quota(self) -> Quota:
        """Return the project's quota, and how much of it is used."""
        return await self._http.ask(Quota, "GET", "/v1/quota")

    @call
    async def put_quota(self, /, **quota: Any) -> Quota:
        """Replace the project's quota.

        Keyword arguments are `usd=`, `gpu_hours=`, `period=`, `timezone=`, `concurrent_jobs=` and `concurrent_trials=`. A limit that is
        not given is removed.
        """
        refuse_unknown(quota, http.QUOTA)
        return await self._http.ask(Quota, "PUT", "/v1/quota", body=quota)

    # Packages. They raise ApiError with status 409 if packages are switched off in the service.

    @call
    async def upload(self, path: str | Path, *, name: str | None = None) -> answers.Package:
        """Upload a package. A job uses it with `package: <id>`.

        Args:
            path: A .zip or .whl file, or a folder or .py file, which is packed first. Uploading the same files again returns the same
                package.
            name: The name of the package. None means the name of the file or folder.

        Raises:
            ApiError: With status 422 if the path cannot be read or packed.
        """
        from tuner.client.packing import packed

        try:
            own, data = packed(Path(path))
        except (OSError, ValueError) as error:
            raise ApiError(Problem(title="Not a package", status=422, detail=str(error))) from error
        return await self._upload(name or own, data)

    async def _upload(self, name: str, data: bytes) -> answers.Package:
        return await self._http.ask(
            answers.Package, "POST", "/v1/packages", query={"name": name}, body=data, repeat=True
        )

    @series
    def packages(self) -> Items[answers.Package]:
        """Yield the packages, newest first. Pages are fetched as needed."""
        return self._http.pages(answers.PackagePage, "/v1/packages")

    @call
    async def package(self, package: str) -> answers.Package:
        """Return a package by its id."""
        return await self._http.ask(answers.Package, "GET", f"/v1/packages/{quoted(package)}")

    # Access

    @call
    async def whoami(self) -> WhoAmI:
        """Return the user, project and role that this client's API key belongs to."""
        return await self._http.ask(WhoAmI, "GET", "/v1/whoami")

    @series
    def projects(self) -> Items[Project]:
        """Yield projects, ordered by name. The operator gets all projects; other users get those that they are members of."""
        return self._http.pages(ProjectPage, "/v1/projects")

    @call
    async def project(self, name: str) -> Project:
        return await self._http.ask(Project, "GET", f"/v1/projects/{quoted(name)}")

    @call
    async def add_project(self, name: str) -> Project:
        """Create a project. Only the operator may do this, and then works in the new project with `Client(project=name)`."""
        return await self._http.ask(Project, "POST", "/v1/projects", body={"name": name})

    @series
    def users(self) -> Items[User]:
        """Yield the users of all projects, ordered by name. Only the operator may do this."""
        return self._http.pages(UserPage, "/v1/users")

    @call
    async def disable_user(self, name: str, *, disabled: bool = True) -> User:
        """Disable all API keys of a user, or re-enable them with `disabled=False`. Only the operator may do this."""
        body = {"disabled": disabled}
        return await self._http.ask(User, "PATCH", f"/v1/users/{quoted(name)}", body=body, repeat=True)

    @series
    def members(self) -> Items[Member]:
        """Yield the members of the project, ordered by name. Only the project's admins may do this."""
        return self._http.pages(MemberPage, "/v1/members")

    @call
    async def put_member(self, user: str, role: str) -> Member:
        """Add a user to the project, or change a member's role. Roles are `viewer`, `submitter` and `admin`."""
        path = f"/v1/members/{quoted(user)}"
        return await self._http.ask(Member, "PUT", path, body={"role": role}, repeat=True)

    @call
    async def remove_member(self, user: str) -> None:
        """Remove a member from the project, and revoke all their API keys in it."""
        await self._http.exchange("DELETE", f"/v1/members/{quoted(user)}")

    @series
    def keys(self) -> Items[Key]:
        """Yield API keys without their secrets, newest first. Admins get all keys of the project; other users get their own."""
        return self._http.pages(KeyPage, "/v1/keys")

    @call
    async def make_key(self, user: str, name: str, *, expires_in: str = "90d") -> Key:
        """Create an API key for a member. Only admins may do this. The complete key is returned only here, as `secret`."""
        body = {"user": user, "name": name, "expires_in": expires_in}
        return await self._http.ask(Key, "POST", "/v1/keys", body=body)

    @call
    async def rotate_key(self, key: str, *, overlap: str = "1h") -> Key:
        """Replace an API key. The answer contains the new key as `secret`. The old key stays valid for `overlap`."""
        return await self._http.ask(Key, "POST", f"/v1/keys/{quoted(key)}/rotate", body={"overlap": overlap})

    @call
    async def revoke_key(self, key: str) -> None:
        """Revoke an API key. It takes effect with the next request."""
        await self._http.exchange("DELETE", f"/v1/keys/{quoted(key)}")

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
    ) -> Items[AuditEntry]:
        """Yield the changes that users requested in the project, newest first.

        Args:
            user: Only changes by this user.
            action: Only this kind of change, such as `job.pause`.
            target: Only changes of this job, by its id, or of this object, by its name.
            since: A UTC date or a time at which the period begins.
            until: A UTC date or a time at which the period ends.
            limit: Yield at most this many entries.
        """
        query = {"user": user, "action": action, "target": target, "since": since, "until": until}
        return self._http.pages(AuditPage, "/v1/audit", query, limit=limit)

    async def _ask_job(self, method: str, path: str, **options: Any) -> JobFacts:
        return self._job_of(await self._http.ask(Job, method, path, **options))

    @abstractmethod
    def _job_of(self, answer: Job) -> JobFacts:
        """Return the job in `answer` as an object whose methods call the service through this client."""

    @abstractmethod
    def _trial_of(self, answer: answers.TrialDetail, job: str) -> answers.TrialDetail:
        """Return the trial in `answer` as an object whose methods call the service through this client."""


def id_of(job: AnyJob) -> str:
    return job if isinstance(job, str) else job.id


def path_of(job: AnyJob, suffix: str = "") -> str:
    return f"/v1/jobs/{quoted(id_of(job))}{suffix}"


def _with_pilot(job: Mapping[str, Any], usd: float) -> dict[str, Any]:
    planning = dict(job.get("planning") or {})
    pilot = {**(planning.get("pilot") or {}), "usd": usd}
    return {**job, "planning": {**planning, "pilot": pilot}}
