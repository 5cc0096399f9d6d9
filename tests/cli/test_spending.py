"""`tuner spend` and `tuner bill`: idle machines and spend without a trial are listed below the tables, and unknown costs are marked."""

import re
from decimal import Decimal

from starlette.testclient import TestClient

from tests import fakes
from tests.cli.conftest import Tuner
from tests.fakes import FakeService
from tuner.cluster.nodes import Node
from tuner.domain.ids import RESTORED, SELF_TEST, export_id, hold_id
from tuner.domain.money import Cost, Money
from tuner.domain.records import EntryPlace
from tuner.ledger import ledger

service, rest = fakes.fixtures("function")
TINY = Node("s1", 2, 0, 0, {"ray.io/market-type": "spot", "instance-type": "tiny", "usd-per-hour": "0.6"})
NAMELESS = Node("g1", 4, 1, 0, {"instance-type": "g6.xlarge", "region": "nowhere"})


def test_idle_machines_are_listed_below_the_spend_table(tuner: Tuner, service: FakeService) -> None:
    fakes.stand_idle(service, TINY, NAMELESS, looks=12, seconds=30)
    shown = tuner("spend").stdout
    assert (
        "idle machines: $0.06 of the $0.06 that workers cost, not counted in bills; 0.1 node-hours" in shown
    )
    assert "counted since 20" in shown
    assert shown.splitlines()[-1].split() == ["tiny", "spot", "0.1", "0.1", "$0.06", "$0.06"]
    assert "| tiny | spot |" in tuner("spend", "--format", "markdown").stdout


def test_idle_cost_without_a_price_is_shown_as_unknown(tuner: Tuner, service: FakeService) -> None:
    fakes.stand_idle(service, NAMELESS, looks=12, seconds=30)
    shown = tuner("spend").stdout
    assert "idle machines: their cost is not known; 0.1 node-hours have no known price" in shown
    assert "idle machines: $" not in shown


def test_cluster_without_workers_shows_no_idle_machines(tuner: Tuner, rest: TestClient) -> None:
    assert rest.get("/v1/spend").json()["cluster"] is None
    assert "idle machines" not in tuner("spend").stdout


def test_trials_and_other_spend_add_up_to_the_total_of_the_bill(
    tuner: Tuner, rest: TestClient, service: FakeService
) -> None:
    job = fakes.submit(rest, budget={"usd": 1})
    fakes.simulate(service, job, messages=300)
    assert "self-test" not in tuner("bill", job).stdout
    at = service.now()
    with service.database.write() as db:
        for trial, micro_usd in ((SELF_TEST, 11), (export_id(1), 23), (RESTORED, 47)):
            where = EntryPlace(hold_id(job, trial, 1, 1), trial, 1, 1)
            ledger.note_spent(db, service.project, job, where, Cost(Money(micro_usd)), at)
    answer = rest.get(f"/v1/jobs/{job}/bill").json()
    for words in ([], ["--all"]):
        shown = tuner("bill", job, *words).stdout
        for line in (
            "restore self-test: $0.000011",
            "exports: $0.000023",
            "spent after the backup that was restored: $0.000047",
        ):
            assert line in shown.splitlines()
        listed = re.findall(r"^trial_.*\$(\S+)$", shown, re.MULTILINE)
        others = re.findall(r"^(?:and .*, |.*: )\$(\S+)(?: together)?$", shown, re.MULTILINE)
        assert len(others) == (4 if not words else 3)
        (total,) = re.findall(r"^total +\$(\S+)$", shown, re.MULTILINE)
        assert sum(map(Decimal, listed + others)) == Decimal(total) == Decimal(str(answer["total_usd"]))
