"""Chargeback: the groups of any grouping equal the ledger's entries of that period, to the micro-dollar."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, select, update
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.test_bad_bodies import check_problem
from tests.strategies import examples
from tuner.database.tables import attempts, job_tags, jobs, trials
from tuner.domain.calendar import zone
from tuner.domain.money import Money
from tuner.domain.time import NS, rfc3339
from tuner.domain.usage import Usage
from tuner.ledger.readable import entries
from tuner.service.spend import spend_of
from tuner.simulator.world import Faults
from tuner.store import attempt_rows

GROUPS = ["tag:project", "owner", "trainable", "market", "day", "job"]
TAGS = [{"project": "a", "owner": "ann"}, {"project": "b", "owner": "ann"}, {"owner": "=1+1"}, {}]


class Books:
    """Jobs of several owners over some days, with crashes and preemptions, one still running, and all their rows."""

    def __init__(self, finished: Finished) -> None:
        self.service, self.client = finished.service, finished.client
        service = self.service
        for number, tags in enumerate([*TAGS, TAGS[0]]):
            algorithm = {"scheduler": "asha", "sampler": "random", "seed": number}
            fidelity = {"unit": "epoch", "min": 1, "max": 3, "reduction_factor": 3}
            given = {"tags": tags, "algorithm": algorithm, "fidelity": fidelity}
            job = fakes.submit(self.client, **given, budget={"usd": 0.0012})
            faults = Faults(crash=0.1, driver_restart=0.03)
            up_s = [*((10.5 * n, 10.5 * n + 9) for n in range(5)), (60, None)]
            service.now.pass_s(9 * 3600)
            last = {"messages": 60} if number == len(TAGS) else {}
            fakes.simulate(service, job, faults=faults, seed=number, up_s=up_s, at=service.now(), **last)
        with service.database.read() as db:
            self.entries = [dict(row._mapping) for row in db.execute(select(entries))]
            self.attempts = {(row.job, row.trial, row.attempt): row for row in db.execute(select(attempts))}
            self.states = {(row.job, row.trial): row.state for row in db.execute(select(trials))}
            self.trainables = {row.id: row.trainable for row in db.execute(select(jobs))}
            self.tags = {(row.job, row.key): row.value for row in db.execute(select(job_tags))}
        self.first, self.last = (pick(e["at"] for e in self.entries) for pick in (min, max))

    def key(self, group: str, job: str, at: int, attempt: Any, timezone: str) -> str | None:
        key_by_group: dict[str, Callable[[], str | None]] = {
            "trainable": lambda: self.trainables[job],
            "market": lambda: None if attempt is None else attempt.market,
            "day": lambda: datetime.fromtimestamp(at // NS, zone(timezone)).date().isoformat(),
            "job": lambda: job,
            "owner": lambda: self.tags.get((job, "owner")),
        }
        return key_by_group.get(group, lambda: self.tags.get((job, group.removeprefix("tag:"))))()

    def sums(self, groups: list[str], since: int, until: int, timezone: str) -> dict[Any, dict[str, Any]]:
        """Return the expected sums of each group, computed from all entries."""
        sums_by_group: dict[Any, dict[str, Any]] = defaultdict(lambda: defaultdict(set))
        for entry in self.entries:
            if entry["kind"] is None or not since <= entry["at"] < until:
                continue
            attempt = self.attempts.get((entry["job"], entry["trial"], entry["attempt"]))
            key = tuple(self.key(g, entry["job"], entry["at"], attempt, timezone) for g in groups)
            trial = (entry["job"], entry["trial"])
            sums = sums_by_group[key]
            sums["usd"] = (sums["usd"] or 0) + entry["usd"]
            sums["gpu_ms"] = (sums["gpu_ms"] or 0) + entry["gpu_ms"]
            sums["lost"] = (sums["lost"] or 0) + (entry["usd"] if entry["kind"] == "lost" else 0)
            sums["jobs"].add(entry["job"])
            sums["trials"].add(trial)
            if self.states[trial] == "completed":
                sums["completed"].add(trial)
        for (job, trial_name, number), attempt in self.attempts.items():
            before = self.attempts.get((job, trial_name, number - 1))
            for name, at, counts in (
                ("preemptions", attempt.ended_at, attempt.end == "preempted"),
                ("retries", attempt.began_at, before is not None and before.end in ("lost", "failed")),
            ):
                if counts and since <= at < until:
                    key = tuple(self.key(g, job, at, attempt, timezone) for g in groups)
                    sums_by_group[key][name] = (sums_by_group[key][name] or 0) + 1
        return sums_by_group


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    service = fakes.service_in(tmp_path_factory.mktemp("spend"))
    finished = object.__new__(Finished)
    finished.service, finished.client = service, fakes.client_of(service)
    yield Books(finished)
    service.database.dispose()


def get(client: TestClient, **query: Any) -> Any:
    answer = client.get("/v1/spend", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def micro(usd: float) -> int:
    return round(usd * 1_000_000)


@examples(25)
@given(data=st.data())
def test_any_grouping_equals_the_sum_of_the_ledger_entries(books: Books, data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.sampled_from(GROUPS), unique=True, max_size=4))
    timezone = data.draw(st.sampled_from(["UTC", "America/New_York", "Asia/Kathmandu"]))
    span = books.last - books.first
    since, until = sorted(
        books.first + data.draw(st.integers(-1, 1001)) * span // 1000 // 1000 * 1000 for _ in range(2)
    )
    until += NS
    shown = {"since": rfc3339(since), "until": rfc3339(until)}
    spend = (
        get(books.client, group_by=groups, timezone=timezone, **shown)
        if groups
        else get(books.client, group_by=[], **shown)
    )
    if not groups:  # a query without the parameter groups by project
        groups = ["tag:project"]
    since, until = since // 1000 * 1000, until // 1000 * 1000
    wanted = books.sums(groups, since, until, timezone)
    assert {tuple(row["keys"][g] for g in groups) for row in spend["items"]} == set(wanted)
    for row in spend["items"]:
        sums = wanted[tuple(row["keys"][g] for g in groups)]
        assert micro(row["usd"]) == (sums["usd"] or 0)
        assert round(row["gpu_hours"] * 3_600_000) == (sums["gpu_ms"] or 0)
        assert micro(row["lost_usd"]) == (sums["lost"] or 0)
        assert row["jobs"] == len(sums["jobs"])
        assert row["trials"] == len(sums["trials"])
        assert row["completed_trials"] == len(sums["completed"])
        assert row["preemptions"] == (sums["preemptions"] or 0)
        assert row["retries"] == (sums["retries"] or 0)
    total = sum(e["usd"] for e in books.entries if e["kind"] is not None and since <= e["at"] < until)
    assert micro(spend["total"]["usd"]) == total == sum(micro(row["usd"]) for row in spend["items"])


def test_total_includes_preemptions_retries_and_lost_work(books: Books) -> None:
    answer = get(books.client)
    projects = {row["keys"]["tag:project"]: row["jobs"] for row in answer["items"]}
    assert projects == {"a": 2, "b": 1, None: 2}
    total = answer["total"]
    assert total["preemptions"] > 0
    assert total["retries"] > 0
    assert total["lost_usd"] > 0
    per_trial = total["usd"] / total["completed_trials"]
    assert abs(total["usd_per_completed_trial"] - per_trial) < 1e-6


def test_days_are_in_order_with_the_most_expensive_group_first(books: Books) -> None:
    rows = get(books.client, group_by=["day", "owner"])["items"]
    places = [(row["keys"]["day"], -row["usd"]) for row in rows]
    assert places == sorted(places)
    assert len({day for day, _ in places}) > 1


def test_csv_has_the_same_figures_and_escapes_formulas(books: Books) -> None:
    query = {"group_by": ["owner", "day"]}
    answer = books.client.get("/v1/spend", params=query, headers={"Accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    table = list(csv.DictReader(io.StringIO(answer.text)))
    rows = get(books.client, **query)["items"]
    assert [micro(float(line["usd"])) for line in table] == [micro(row["usd"]) for row in rows]
    owners = {line["owner"] for line in table}
    assert owners == {"ann", "'=1+1", ""}


def test_spend_is_empty_before_any_job(tmp_path: Any) -> None:
    service = fakes.service_in(tmp_path)
    client = fakes.client_of(service)
    spend = get(client, group_by=["day", "owner"])
    assert spend["items"] == []
    assert spend["total"]["usd"] == 0
    assert spend["total"]["usd_per_completed_trial"] is None
    service.database.dispose()


@pytest.mark.parametrize(
    ("query", "pointer", "message"),
    [
        ({"group_by": "trainabel"}, "group_by", "did you mean trainable?"),
        ({"group_by": "tag:"}, "group_by", "tag:KEY"),
        ({"group_by": ["day", "day"]}, "group_by", "once"),
        ({"group_by": GROUPS}, "group_by", "at most 5"),
        ({"since": "yesterday"}, "since", "2026-01-31"),
        ({"until": "2026-13-01"}, "until", "2026-01-31"),
        ({"since": "2300-01-01"}, "since", "2261"),
        ({"since": "2026-02-01", "until": "2026-02-01"}, "until", "later than since"),
        ({"timezone": "Europe/Berln"}, "timezone", "Europe/Berlin"),
    ],
)
def test_invalid_query_is_refused_with_a_suggestion(
    books: Books, query: dict[str, Any], pointer: str, message: str
) -> None:
    problem = check_problem(books.client.get("/v1/spend", params=query), 422)
    assert [field["pointer"] for field in problem["errors"]] == [pointer]
    assert message in problem["errors"][0]["detail"]


def test_checkpoints_and_datasets_that_leave_a_region_are_priced_outside_the_bill(tmp_path: Path) -> None:
    """A region that is not known leaves the dollars unknown."""
    made = fakes.service_in(tmp_path)
    client = fakes.client_of(made)
    job = fakes.submit(client, tags={"owner": "ann"})
    fakes.simulate(made, job)
    settings = replace(
        made.settings,
        storage_region="eu-west-1",
        data_region="us-east-1",
        egress_usd_per_gb=Decimal("0.02"),
    )
    placed = replace(made, settings=settings)

    def put(trial: str, region: str | None, read: int, written: int) -> None:
        data = {"data_read_bytes": 9 * 10**9, "data_bucket_bytes": 8 * 10**9}
        usage = Usage(restored_bytes=read, saved_bytes=written, **data)
        with made.database.write() as db:
            attempt_rows.put(db, "default", (job, trial, 1), usage)
            mine = (attempts.c.job == job) & (attempts.c.trial == trial) & (attempts.c.attempt == 1)
            db.execute(update(attempts).where(mine).values(region=region))

    put("trial_00000", "EU-West-1", 10**9, 2 * 10**9)
    put("trial_00001", "us-east-1", 3 * 10**9, 4 * 10**9)
    (row,) = spend_of(placed, ("owner",)).rows
    assert (row.read_bytes, row.written_bytes, row.moved_bytes) == (4 * 10**9, 6 * 10**9, 7 * 10**9)
    assert row.transfer_usd == Money(140_000)
    assert (row.data_read_bytes, row.data_moved_bytes) == (18 * 10**9, 8 * 10**9)
    assert row.data_transfer_usd == Money(160_000)
    figures = get(client)["total"]
    assert (figures["read_bytes"], figures["written_bytes"], figures["transfer_usd"]) == (
        4 * 10**9,
        6 * 10**9,
        None,
    )
    assert (figures["data_read_bytes"], figures["data_transfer_usd"]) == (18 * 10**9, None)
    put("trial_00001", None, 1, 0)
    (row,) = spend_of(placed, ("owner",)).rows
    assert (row.unplaced_bytes, row.transfer_usd) == (1, None)
    assert (row.data_unplaced_bytes, row.data_transfer_usd) == (8 * 10**9, None)
    made.database.dispose()


def test_spend_of_a_day_is_found_by_indexes(books: Books) -> None:
    """Check the plans of SQLite, which do not depend on the number of rows, because the database has no statistics."""
    asked: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, parameters: Any, _x: object, _many: object) -> None:
        asked.append((statement, parameters))

    database = books.service.database
    event.listen(database.engine, "before_cursor_execute", note)
    try:
        get(books.client, group_by=["tag:owner"], since=rfc3339(books.last - 5 * NS))
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    selects = [query for query in asked if query[0].startswith("SELECT") and "attempts" in query[0]]
    assert len(selects) == 8, "four queries for the groups, and four for the total"
    with database.read() as db:
        for statement, parameters in selects:
            plan = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            scanned = [str(row[3]).split()[1] for row in plan if str(row[3]).startswith("SCAN ")]
            assert not {"attempts", "attempt_usage", "entries", "trials", "before"}.intersection(scanned), (
                plan
            )
