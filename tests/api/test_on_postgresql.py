"""Every answer of the service with its jobs in production's database: nothing of it is SQLite's alone."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests import fakes, postgres
from tests.api.conftest import Finished
from tests.fakes import FakeService
from tests.system import books
from tests.test_surfaces import ENDPOINTS
from tuner.service.figures import Reader
from tuner.store.database import Database

ASKED = sorted(path for method, path in ENDPOINTS if method == "get")
# What is asked beside the defaults, where a question has a query of its own.
MORE = ["/v1/spend?by=day", "/v1/jobs?state=running", "/v1/jobs/{job}/trials?sort=cost_usd"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    home = tmp_path_factory.mktemp("postgresql")
    with postgres.server() as url:
        database = Database(url)
        database.migrate()
        settings = replace(fakes.service_in(home).settings, database_url=url)
        yield Finished(FakeService(settings, database))
        database.dispose()


def test_every_question_has_an_answer(kept: Finished) -> None:
    """What cannot be asked of a job is refused, and is no error of the service."""
    for path in [*ASKED, *MORE]:
        answer = kept.client.get(path.format(job=kept.troubled, trial="trial_00000", name="owner:alice"))
        assert answer.status_code < 500 or path == "/readyz", (path, answer.text)


def test_figures_are_those_of_the_bills(kept: Finished) -> None:
    posted = Reader(kept.service).read().posted
    bills = [kept.client.get(f"/v1/jobs/{job}/bill").json()["total_usd"] for job in kept.all]
    assert sum(cost.usd.micro_usd for cost in posted.values()) == sum(books.micro(usd) for usd in bills) > 0
    assert {market for _, _, market in posted} == {"on_demand"}
