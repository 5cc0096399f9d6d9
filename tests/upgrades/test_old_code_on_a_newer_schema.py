"""Drivers and services of this version keep working and the ledger stays correct while a newer version upgrades the schema."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fakes
from tests.fakes import FakeService
from tests.service.passes import launch_of
from tests.store import hammer
from tests.store.builders import JOB, budget, create, new_job
from tests.store.crowd import crowd
from tests.upgrades import made_up
from tuner.database.database import Database, newest_revision
from tuner.domain.errors import Unavailable
from tuner.ledger import ledger
from tuner.service.controller import Controller
from tuner.service.ledger_audit import Audit
from tuner.service.reconciler import Reconciler
from tuner.store import jobs


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeService]:
    made = fakes.service_in(tmp_path / "home")
    if request.param == "postgresql":
        made.database.dispose()
        made = FakeService(made.settings, Database(request.getfixturevalue("postgres_url")))
    yield made
    made.database.dispose()


def upgrade(service: FakeService, folder: Path) -> None:
    made_up.migrate(service.database.url.render_as_string(hide_password=False), folder)
    assert service.database.revision() == made_up.REVISION


def test_driver_finishes_with_the_same_bill_after_a_schema_upgrade(
    service: FakeService, tmp_path: Path
) -> None:
    client = fakes.client_of(service)
    undisturbed, upgraded = (fakes.submit(client, budget={"usd": 0.0004}) for _ in range(2))
    fakes.simulate(service, undisturbed)
    run = fakes.simulate(service, upgraded, messages=15)
    with service.database.read() as db:
        assert jobs.get(db, upgraded).state == "running"
    upgrade(service, tmp_path / "newer")
    run.run(turns_max=100_000)
    bills = [client.get(f"/v1/jobs/{job}/bill").json() for job in (undisturbed, upgraded)]
    assert bills[0]["total_usd"] == bills[1]["total_usd"] > 0
    assert bills[0]["by_kind"] == bills[1]["by_kind"]
    shown = client.get(f"/v1/jobs/{upgraded}").json()
    assert (shown["state"], shown["stop_reason"]) == ("succeeded", "budget_usd")
    with service.database.read() as db:
        assert ledger.faults_of(db, [upgraded]) == {upgraded: []}


def test_running_service_continues_after_an_upgrade_and_a_starting_one_is_refused(
    service: FakeService, tmp_path: Path
) -> None:
    client, controller = fakes.client_of(service), Controller(service)
    before = fakes.submit(client, budget={"usd": 0.0003})
    controller.one_pass()
    upgrade(service, tmp_path / "newer")
    after = fakes.submit(client, resources={"max_concurrent_trials": 1}, tags={"team": "vision"})
    assert client.put("/v1/budgets/all", json={"usd": 5}).status_code in (200, 201)
    assert client.post(f"/v1/jobs/{after}/pause").status_code == 202
    assert client.post(f"/v1/jobs/{after}/resume").status_code == 202
    assert client.patch(f"/v1/jobs/{after}", json={"budget": {"usd": 0.005}}).status_code == 200
    fakes.simulate(service, before)
    service.now.pass_s(5)
    controller.one_pass()
    Reconciler(service).one_pass()
    assert service.cluster.submitted == [f"{before}-1", f"{after}-{launch_of(service, after).epoch}"]
    assert client.post(f"/v1/jobs/{after}/cancel").status_code == 202
    for path in (
        "jobs",
        f"jobs/{before}/bill",
        f"jobs/{before}/ledger",
        f"jobs/{before}/best",
        "spend",
        "budgets",
    ):
        assert client.get(f"/v1/{path}").status_code == 200, path
    Audit(service).some()
    assert service.health.violations == {}
    with pytest.raises(
        Unavailable, match=f"at revision 9001, .* only knows revisions up to {newest_revision()}"
    ):
        Database(service.database.url.render_as_string(hide_password=False)).migrate()


@pytest.mark.needs("postgresql")
def test_migration_gives_way_to_active_drivers_and_succeeds(postgres_url: str, tmp_path: Path) -> None:
    """The migration locks tables in another order than a driver's transaction does, so it gives way and retries."""
    names = [f"job_{number:016}" for number in range(70, 72)]
    database = Database(postgres_url)
    create(database, new_job(JOB))
    for name in names:
        create(database, new_job(name, limits=budget(10**6, 10**6)))
    with crowd(hammer.renew_for, database, [(number, 30) for number in range(70, 72)]):
        made_up.migrate(postgres_url, tmp_path)
    assert database.revision() == made_up.REVISION
    with database.read() as db:
        assert list(ledger.faults_of(db, names).values()) == [[]] * 2
        assert all(ledger.account(db, name).posted.usd.micro_usd > 0 for name in names)
    database.dispose()
