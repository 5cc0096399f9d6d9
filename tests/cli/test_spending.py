"""`tuner spend`: the cost of idle machines is listed below the table, and unknown costs are marked."""

from starlette.testclient import TestClient

from tests import fakes
from tests.cli.conftest import Tuner
from tests.fakes import FakeService
from tuner.cluster.nodes import Node

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
