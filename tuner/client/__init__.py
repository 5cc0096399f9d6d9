"""The Python client: what REST offers, with types.

from tuner import Client

client = Client()                      # TUNER_URL, and the key from TUNER_API_KEY or $TUNER_HOME/api_key
job = client.submit({"name": "digits", ...})
client.wait(job.id)
print(client.best(job.id, max_cost_usd=0.01))
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack
from urllib.parse import quote

import httpx2

from tuner.client.changes import is_as_asked
from tuner.client.http import TRIES as TRIES
from tuner.client.http import ApiError as ApiError
from tuner.client.http import Http, problem_of, silent
from tuner.client.queries import BestQuery, Elsewhere
from tuner.schemas import answers as show
from tuner.schemas import best as choices
from tuner.schemas.advice import Advice
from tuner.schemas.budgets import BudgetAbove, BudgetList
from tuner.schemas.estimate_answers import Estimate
from tuner.schemas.job import Job, JobPage
from tuner.schemas.plan import Plan
from tuner.schemas.prices import Prices
from tuner.schemas.spend import SpendAnswer

ENDED = ("succeeded", "cancelled", "failed")
RESTART_S = 120.0  # who follows a job outlasts a restart of the service


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. `id` is None for those that only tell how things stand."""

    type: str
    data: dict[str, Any]
    id: int | None = None


class Client(Http):
    """May be shared between threads. Everything raises ApiError. What is safe to repeat is tried again for some seconds when
    the service does not answer."""

    # Jobs

    def submit(self, job: Mapping[str, Any], *, idempotency_key: str | None = None) -> Job:
        """`job` as in the YAML file. A key is made where none is given, so that a retry makes no second job."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._ask(Job, "POST", "/v1/jobs", body=job, headers=headers, repeat=True)

    def job(self, job: str) -> Job:
        return self._ask(Job, "GET", f"/v1/jobs/{job}")

    def jobs(self, *, state: str | None = None, tag: str | None = None) -> Iterator[Job]:
        """Newest first, page by page."""
        cursor: str | None = None
        while True:
            query = {"state": state, "tag": tag, "cursor": cursor, "limit": 100}
            page = self._ask(JobPage, "GET", "/v1/jobs", query=query)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def pause(self, job: str) -> Job:
        return self._ask(Job, "POST", f"/v1/jobs/{job}/pause", repeat=True)

    def resume(self, job: str) -> Job:
        return self._ask(Job, "POST", f"/v1/jobs/{job}/resume", repeat=True)

    def cancel(self, job: str) -> Job:
        return self._ask(Job, "POST", f"/v1/jobs/{job}/cancel", repeat=True)

    def patch(self, job: str, *, if_match: str | None = None, **change: Any) -> Job:
        """`budget={...}`, `tags={...}`, `priority=1`. `if_match`: the `revision` of the job that the change was made for; where it has
        another by now, ApiError with status 412, unless what is asked for is done: by an earlier try, whose answer was lost."""
        headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
        try:
            return self._ask(Job, "PATCH", f"/v1/jobs/{job}", body=change, headers=headers, repeat=True)
        except ApiError as error:
            if if_match is None or not error.in_doubt or error.status not in (0, 412, 503):
                raise
            try:
                found = self.job(job)
            except ApiError:
                raise error from None
            if not is_as_asked(found, change):
                raise
            return found

    def pilot(self, job: Mapping[str, Any], *, usd: float | None = None) -> Job:
        """Runs a few steps of a few configurations of a job under a budget of their own, for plans to learn from, unless there is
        such a pilot: then it answers that one. `usd` where `job` does not say it under `planning`."""
        body = job if usd is None else _with_pilot(job, usd)
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._ask(Job, "POST", "/v1/pilots", body=body, headers=headers, repeat=True)

    def plan(self, job: Mapping[str, Any]) -> Plan:
        """What the job would cost, take and find; nothing runs. What is known beside it is under `planning`."""
        return self._ask(Plan, "POST", "/v1/plans", body=job, repeat=True)

    def wait(
        self, job: str, *, timeout_s: float | None = None, until: tuple[str, ...] = (*ENDED, "paused")
    ) -> Job:
        """Until the job has ended or is paused. Raises TimeoutError."""
        began, patience, state = time.monotonic(), _Patience(), "unknown"
        while True:
            try:
                found = self.job(job)
                patience.heard()
                state = found.state
                if state in until:
                    return found
            except ApiError as error:
                patience.bear(error)
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                raise TimeoutError(f"{job} is still {state} after {timeout_s:g} s")
            time.sleep(0.5)

    # Answers

    def best(self, job: str, *, forecast: bool = True, **limits: Unpack[BestQuery]) -> choices.BestAnswer:
        query = {**limits, "forecast": None if forecast else "false"}
        return self._ask(choices.BestAnswer, "GET", f"/v1/jobs/{job}/best", query=query)

    def best_of_all(self, trainable: str, metric: str, **limits: Unpack[BestQuery]) -> choices.BestOfAll:
        """Over all jobs that tuned it for this metric."""
        query = {"trainable": trainable, "metric": metric, **limits}
        return self._ask(choices.BestOfAll, "GET", "/v1/best", query=query)

    def pareto(self, job: str, **elsewhere: Unpack[Elsewhere]) -> choices.Pareto:
        return self._ask(choices.Pareto, "GET", f"/v1/jobs/{job}/pareto", query=elsewhere)

    def bill(self, job: str) -> show.Bill:
        return self._ask(show.Bill, "GET", f"/v1/jobs/{job}/bill")

    def report(self, job: str) -> show.JobReport:
        """What the money bought, and estimates of what other ways to search would have spent for it."""
        return self._ask(show.JobReport, "GET", f"/v1/jobs/{job}/report")

    def advice(self, job: str) -> Advice:
        """What would have made it cheaper, with evidence and dollars, and what could not be judged."""
        return self._ask(Advice, "GET", f"/v1/jobs/{job}/advice")

    def trials(self, job: str, *, sort: str = "number", limit: int | None = None) -> Iterator[show.Trial]:
        """Page by page; at most `limit` where it is given."""
        cursor, left = None, limit
        while left is None or left > 0:
            query = {"sort": sort, "cursor": cursor, "limit": min(500, left or 500)}
            page = self._ask(show.TrialPage, "GET", f"/v1/jobs/{job}/trials", query=query)
            yield from page.items
            cursor = page.next_cursor
            left = None if left is None else left - len(page.items)
            if cursor is None:
                return

    def trial(self, job: str, trial: str) -> show.TrialDetail:
        return self._ask(show.TrialDetail, "GET", f"/v1/jobs/{job}/trials/{trial}")

    def ledger(self, job: str) -> show.LedgerPage:
        """Every entry, oldest first."""
        return self._ask(show.LedgerPage, "GET", f"/v1/jobs/{job}/ledger")

    def spend(
        self,
        group_by: Sequence[str] = ("tag:project",),
        *,
        since: str | None = None,
        until: str | None = None,
        timezone: str = "UTC",
    ) -> SpendAnswer:
        """By `tag:KEY`, `owner`, `trainable`, `market`, `day`, `job`, or several of them; `since` and `until` are dates or times."""
        query = {"group_by": list(group_by), "since": since, "until": until, "timezone": timezone}
        return self._ask(SpendAnswer, "GET", "/v1/spend", query=query)

    def spend_csv(self, group_by: Sequence[str] = ("tag:project",), **query: Any) -> str:
        """The same as a table."""
        asked = {"group_by": list(group_by), **query}
        return self._request(
            "GET", "/v1/spend", query=asked, headers={"Accept": "text/csv"}, tries=TRIES
        ).text

    def budgets(self) -> BudgetList:
        """Budgets above jobs."""
        return self._ask(BudgetList, "GET", "/v1/budgets")

    def budget(self, name: str) -> BudgetAbove:
        return self._ask(BudgetAbove, "GET", f"/v1/budgets/{quote(name, safe='')}")

    def put_budget(self, name: str, **budget: Any) -> BudgetAbove:
        """Makes it or puts another in its place: `usd=`, `gpu_hours=`, `match={tag: value}`, `period=`, `timezone=`, `parent=`,
        `alerts=[{"at": 0.8, "url": ...}]`, `new_secret=True`. The answer alone has the webhooks' secret, where that is new."""
        return self._ask(BudgetAbove, "PUT", f"/v1/budgets/{quote(name, safe='')}", body=budget)

    def remove_budget(self, name: str) -> None:
        self._request("DELETE", f"/v1/budgets/{quote(name, safe='')}")

    def trainables(self) -> show.Trainables:
        return self._ask(show.Trainables, "GET", "/v1/trainables")

    def prices(self, *, limit: int = 100, **filters: str | None) -> Prices:
        """`cloud`, `region`, `zone`, `instance_type`, `accelerator`, `market`; the cheapest first."""
        return self._ask(Prices, "GET", "/v1/prices", query={**filters, "limit": limit})

    def estimate(self, **parts: Any) -> Estimate:
        """`run={...}`, `choices`, `scaling`, `compute_optimal`, `recurring`, `ownership`: any of them."""
        return self._ask(Estimate, "POST", "/v1/estimates", body=parts, repeat=True)

    def events(
        self, job: str, *, after: int | None = None, on_connection: Callable[[bool], None] | None = None
    ) -> Iterator[Event]:
        """Until the job has ended and all is told; goes on behind the last event by itself when the connection breaks, which
        `on_connection` is told: False when it broke, True when the service answers again."""
        patience, ended, tell = _Patience(), False, on_connection or (lambda _: None)
        while not ended:
            headers = {} if after is None else {"Last-Event-ID": str(after)}
            try:
                with self._http.stream("GET", f"/v1/jobs/{job}/events", headers=headers) as answer:
                    if not answer.is_success:
                        answer.read()
                        raise ApiError(problem_of(answer))
                    tell(True)
                    told = False
                    for event in parse_events(answer.iter_lines()):
                        after = event.id if event.id is not None else after
                        patience.heard()
                        yield event
                        told = event.data["state"] in ENDED if event.type == "job" else told
                    ended = told  # the service ends the stream once it has told everything
            except httpx2.HTTPError as error:
                patience.bear(silent(self.url, error))
            except ApiError as error:
                patience.bear(error)
            if not ended:
                tell(False)
                time.sleep(0.5)

    def is_ready(self) -> bool:
        try:
            return self._http.get("/readyz", timeout=5).is_success
        except httpx2.HTTPError:
            return False


class _Patience:
    """Of one who follows a job, once it was heard of."""

    def __init__(self) -> None:
        self._heard_at = -RESTART_S

    def heard(self) -> None:
        self._heard_at = time.monotonic()

    def bear(self, error: ApiError) -> None:
        """Raises what will not pass, or has lasted too long: the service, or something before it, does not answer."""
        silent_s = time.monotonic() - self._heard_at
        if 0 < error.status < 500 or silent_s > RESTART_S:
            raise error


def _with_pilot(job: Mapping[str, Any], usd: float) -> dict[str, Any]:
    planning = dict(job.get("planning") or {})
    pilot = {**(planning.get("pilot") or {}), "usd": usd}
    return {**job, "planning": {**planning, "pilot": pilot}}


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Server-sent events, as the HTML standard has them, from lines."""
    kind, data, number = "message", "", None
    for line in lines:
        if line == "":
            if data:
                yield Event(kind, json.loads(data), number)
            kind, data, number = "message", "", None
        elif line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif line.startswith("id:"):
            number = int(line[3:].strip())
