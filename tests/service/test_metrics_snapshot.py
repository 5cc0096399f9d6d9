"""Metrics over all jobs equal the database, however they are summed."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from tests import fakes
from tests.copies import copy_job
from tests.fakes import FakeService
from tuner.database.ledger_tables import accounts, holds
from tuner.database.tables import reports
from tuner.domain.errors import Unavailable
from tuner.domain.ledger import Account
from tuner.domain.money import Cost, Money
from tuner.domain.time import NS, Instant
from tuner.ledger import ledger
from tuner.service import metrics_snapshot
from tuner.service.cluster_meter import ClusterMeter
from tuner.service.ledger_audit import Audit
from tuner.service.maintenance import StorageWatch
from tuner.service.metrics_snapshot import (
    KEEP_NS,
    MetricsReader,
    TrialCounter,
    by_kind,
    check_database,
    has_live_jobs,
    promotions,
    spent,
    watched,
)
from tuner.service.reconciler import Reconciler
from tuner.simulator.world import Faults
from tuner.store import exports, jobs, totals
from tuner.store.totals import Running


def test_figures_of_an_empty_service_are_empty(tmp_path: Path) -> None:
    """Runs without a warning filter, so that deprecations show."""
    service = fakes.service_in(tmp_path)
    check_database(service)
    assert not has_live_jobs(service)
    snapshot = MetricsReader(service).read()
    assert (snapshot.totals.jobs, +snapshot.counts, snapshot.posted, snapshot.budgets) == ({}, {}, {}, ())
    assert snapshot.totals.open == Account(Cost())
    assert (snapshot.watched.reported_since, snapshot.watched.cpu_share, snapshot.watched.stalled) == (
        None,
        None,
        0,
    )


def test_queued_and_running_exports_keep_the_cluster(service: FakeService) -> None:
    client = fakes.client_of(service)
    job = fakes.submit(client)
    fakes.simulate(service, job)
    assert not has_live_jobs(service)
    assert client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.1}}).is_success
    assert client.post(f"/v1/jobs/{job}/exports", json={}).status_code == 202
    assert has_live_jobs(service)
    with service.database.write() as db:
        export = exports.get(db, job, "export_00001")
        assert exports.start(db, export, jobs.get(db, job).offer, service.now())
    assert has_live_jobs(service)
    with service.database.write() as db:
        assert exports.end(db, export, "failed", service.now(), code="worker_failed")
    assert not has_live_jobs(service)


def test_snapshot_is_cached_for_five_seconds(service: FakeService) -> None:
    reader = MetricsReader(service)
    first = reader.read()
    service.now.at += KEEP_NS - 1
    assert reader.read() is first
    service.now.at += 1
    assert reader.read() is not first


def simulated(service: FakeService, seed: int, scheduler: str = "asha", **how: object) -> str:
    algorithm = {"scheduler": scheduler, "sampler": "random", "seed": seed}
    job = fakes.submit(fakes.client_of(service), algorithm=algorithm, budget={"usd": 0.001})
    fakes.simulate(service, job, seed=seed, **how)  # type: ignore[arg-type]
    return job


def promoted(service: FakeService, job: str) -> int:
    """Return the number of trials that reported beyond a rung, summed over the rungs that the job shows."""
    rungs = fakes.client_of(service).get(f"/v1/jobs/{job}").json()["rungs"]
    with service.database.read() as db:
        steps = db.execute(select(reports.c.trial, reports.c.step).where(reports.c.job == job)).all()
    return sum(len({trial for trial, step in steps if step > rung}) for rung in rungs)


def test_incremental_totals_equal_totals_of_the_whole_database(service: FakeService) -> None:
    """Read ledger entries in small pages, while jobs begin, end and resume."""
    reader, jobs = MetricsReader(service), list[str]()
    with patch.multiple(metrics_snapshot, ENTRIES_PAGE=7, UNSETTLED=5):
        assert reader.read().posted == {}
        for seed, messages in ((1, 40), (2, None), (3, None)):
            faults = Faults(crash=0.1, driver_restart=0.03)
            jobs.append(simulated(service, seed, messages=messages, faults=faults))
            service.now.pass_s(6)
            snapshot = reader.read()
        with service.database.read() as db:
            whole = totals.of_all(db)
            posted = [ledger.account(db, job).posted for job in jobs]
            kinds = [ledger.posted_by_kind(db, job) for job in jobs]
    assert {key: n for key, n in snapshot.counts.items() if n and key != ("promotions",)} == whole
    assert snapshot.counts["promotions",] == sum(promoted(service, job) for job in jobs) > 0
    assert sum(spent(snapshot.posted).values(), Cost()) == sum(posted, Cost())
    for kind, market in by_kind(snapshot.posted):
        assert by_kind(snapshot.posted)[kind, market] == sum(
            (posted_by_kind.get(kind, Cost()) for posted_by_kind in kinds), Cost()
        )
        assert market == "on_demand"
    assert by_kind(snapshot.posted)["lost", "on_demand"].usd > Money(0)


@pytest.mark.parametrize("scheduler", ["auto", "asha_stopping", "none"])
def test_promotions_count_the_rungs_of_the_scheduler(service: FakeService, scheduler: str) -> None:
    tally = TrialCounter()
    tally.read(service, service.now())
    job = simulated(service, 1, scheduler)
    service.now.pass_s(6)
    counts = tally.read(service, service.now())
    assert counts["promotions",] == promoted(service, job)
    assert (counts["promotions",] > 0) == (scheduler != "none")


@pytest.mark.parametrize("ends_again", [False, True])
def test_job_resumed_after_its_end_is_not_counted_twice(service: FakeService, ends_again: bool) -> None:
    job = simulated(service, 1)
    tally = TrialCounter()
    tally.read(service, service.now())
    before = promoted(service, job)
    client = fakes.client_of(service)
    assert client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.02}}).status_code == 200
    assert client.post(f"/v1/jobs/{job}/resume").status_code == 202
    if ends_again:
        fakes.simulate(service, job, at=service.now())
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
    else:
        fakes.begin(service, job)
    service.now.pass_s(6)
    counts = tally.read(service, service.now())
    with service.database.read() as db:
        assert {key: n for key, n in counts.items() if n and key != ("promotions",)} == totals.of_all(db)
    if not ends_again:
        assert counts["promotions",] == promoted(service, job) - before


@given(st.dictionaries(st.integers(1, 81), st.integers(1, 9)), st.sampled_from([(), (1,), (1, 3, 9, 27)]))
def test_promotions_count_each_rung_that_was_passed(
    reached: Mapping[int, int], rungs: tuple[int, ...]
) -> None:
    passed = sum(1 for step, n in reached.items() for _ in range(n) for rung in rungs if step > rung)
    assert promotions(reached, rungs) == passed


AT = Instant(10_000 * NS)


def running(
    job: str = "a",
    *,
    ago_s: float | None = 60,
    step_s: int = 1,
    usd: int = 50,
    improved: int = 20,
    **used: int,
) -> Running:
    reported = None if ago_s is None else Instant(AT - round(ago_s * NS))
    account = Account(Cost(Money(100)), Cost(Money(usd)))
    step_ns = None if ago_s is None else step_s * NS
    return Running(job, Instant(AT - 3000 * NS), account, reported, step_ns, Money(improved), used)


@pytest.mark.parametrize(
    ("running", "stalled"),
    [
        (running(ago_s=600), 0),
        (running(ago_s=601), 1),
        (running(ago_s=601, step_s=121), 0),
        (running(ago_s=606, step_s=121), 1),
        (running(ago_s=None), 1),
    ],
)
def test_job_is_stalled_after_ten_minutes_and_five_steps(running: Running, stalled: int) -> None:
    assert watched([running], {"a": Fraction(1)}, AT).stalled == stalled


def test_worst_figures_of_running_jobs_are_reported() -> None:
    used = {"cpu_ns": 3, "cpu_wall_ns": 2, "gpu_percent": 150, "gpu_samples": 3}
    jobs = [running(ago_s=5, usd=90), running("b", ago_s=700, usd=10, **used), running("c", **used)]
    figures = watched(jobs, {"a": Fraction(1), "b": Fraction(2), "c": Fraction(4)}, AT)
    assert (figures.reported_since, figures.stalled) == (AT - 700 * NS, 1)
    assert (figures.unimproved, figures.unimproved_share) == (Money(70), Fraction(70, 100))
    assert (figures.cpu_share, figures.gpu_share) == (Fraction(6, 12), Fraction(1, 2))


def test_running_job_shows_last_report_and_spend_since_its_best_result(service: FakeService) -> None:
    job = fakes.submit(fakes.client_of(service))
    fakes.simulate(service, job, messages=40)
    snapshot = MetricsReader(service).read()
    shown = fakes.client_of(service).get(f"/v1/jobs/{job}/report").json()
    with service.database.read() as db:
        last = db.execute(select(reports.c.at).order_by(reports.c.at.desc())).scalars().first()
        account = ledger.account(db, job)
    assert snapshot.watched.reported_since == last
    improved = Money.from_usd(shown["best_curve"][-1]["spent_usd"])
    assert snapshot.watched.unimproved == max(Money(0), account.posted.usd - improved)
    assert (snapshot.totals.open.posted, snapshot.totals.open.held) == (account.posted, account.held)
    assert snapshot.totals.open.limit == Cost(account.limit.usd)
    assert snapshot.totals.nearly_spent == 0


def test_first_queued_job_sets_the_queue_waiting_time(service: FakeService) -> None:
    client = fakes.client_of(service)
    first = fakes.submit(client)
    service.now.pass_s(30)
    fakes.submit(client)
    snapshot = MetricsReader(service).read()
    assert (snapshot.totals.waiting, service.now() - (snapshot.totals.waiting_since or 0)) == (2, 30 * NS)
    fakes.begin(service, first)
    service.now.pass_s(10)
    snapshot = MetricsReader(service).read()
    assert (snapshot.totals.waiting, service.now() - (snapshot.totals.waiting_since or 0)) == (1, 10 * NS)
    assert snapshot.totals.silent_since == service.now() - 10 * NS


class TestAudit:
    """The audit of the ledger passes until something else writes into its tables."""

    @pytest.fixture
    def job(self, service: FakeService) -> str:
        job = simulated(service, 1, messages=30)
        copy_job(service.database, job, 120)
        return job

    def audited(self, service: FakeService) -> dict[str, str]:
        audit = Audit(service)
        for _ in range(3):
            assert service.health.checked_at is None
            audit.some()
        assert service.health.checked_at == service.now()
        assert service.health.counted("ledger_checks") == 121
        audit.some()
        assert service.health.counted("ledger_checks") == 121, "a round a minute"
        return service.health.violations

    def test_correct_ledger_has_no_violations(self, service: FakeService, job: str) -> None:
        assert self.audited(service) == {}

    def test_error_of_another_step_does_not_prevent_the_audit(
        self, service: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: object) -> None:
            raise Unavailable("the meter failed")

        monkeypatch.setattr(ClusterMeter, "measure", fail)
        with pytest.raises(Unavailable, match="the meter failed"):
            Reconciler(service).one_pass()
        assert service.health.checked_at is not None

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                update(accounts).values(posted_usd=accounts.c.posted_usd - 1),
                "the posted amount differs from the sum of its entries",
            ),
            (
                update(accounts).values(held_usd=accounts.c.held_usd + 1),
                "the held amount differs from the sum of its entries",
            ),
            (
                update(accounts).values(posted_gpu_ms=1),
                "the posted amount differs from the sum of its entries",
            ),
            (update(holds).values(state="settled"), "the held amount differs from the sum of the open holds"),
        ],
    )
    def test_manually_changed_ledger_rows_are_reported(
        self, service: FakeService, job: str, change: object, message: str
    ) -> None:
        with service.database.write() as db:
            db.execute(change.where(change.table.c.job == job))  # type: ignore[attr-defined]
        violations = self.audited(service)
        assert violations.keys() == {job}
        assert violations[job].startswith(message)

    def test_violation_of_a_removed_budget_is_cleared(self, service: FakeService) -> None:
        service.health.violations["budget gone"] = "the posted and held amounts exceed its limit"
        Audit(service).some()
        assert service.health.violations == {}

    def test_next_round_begins_after_the_clock_was_set_back(self, service: FakeService) -> None:
        simulated(service, 1, messages=5)
        audit = Audit(service)
        audit.some()
        before = service.health.counted("ledger_checks")
        service.now.pass_s(-3600)
        audit.some()
        assert service.health.counted("ledger_checks") == 2 * before > 0

    def test_violation_is_cleared_once_fixed(self, service: FakeService, job: str) -> None:
        spoilt = update(accounts).where(accounts.c.job == job)
        with service.database.write() as db:
            db.execute(spoilt.values(posted_usd=accounts.c.posted_usd - 1))
        assert self.audited(service)
        with service.database.write() as db:
            db.execute(spoilt.values(posted_usd=accounts.c.posted_usd + 1))
        service.now.pass_s(61)
        service.health.checked_at = Instant(0)
        audit = Audit(service)
        service.now.pass_s(61)
        for _ in range(3):
            audit.some()
        assert service.health.violations == {}


def test_probe_of_working_storage_leaves_no_objects(service: FakeService) -> None:
    StorageWatch(service).one_pass()
    assert service.health.storage is True
    assert [*Path(service.settings.storage).rglob("*")] == [Path(service.settings.storage) / ".probes"]


def test_failing_storage_is_reported_until_it_works_again(service: FakeService) -> None:
    root = Path(service.settings.storage)
    root.write_text("a file where the folder should be")
    watch = StorageWatch(service)
    watch.one_pass()
    assert service.health.storage is False
    root.unlink()
    watch.one_pass()
    assert service.health.storage is True
