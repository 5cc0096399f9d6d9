"""A budget that cannot pay for the setup and the first step of a trial is refused before any money is spent."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeProber, FakeService
from tuner.domain.space import Config
from tuner.domain.time import NS
from tuner.service.trainables import Described

SECOND_USD = 0.1 / 3600  # the price of one second of a trial on the only machine


@dataclass
class MeasuringProber(FakeProber):
    """A prober for which importing any trainable takes 4 s."""

    def describe(self, entry: str, package: Path | None = None, *, kind: str = "") -> Described:
        return replace(super().describe(entry, package), import_ns=4 * NS)


class SlowSteps(fakes.Curves):
    """Curves whose steps take 3 s."""

    def step_ns(self, config: Config, step: int) -> int:
        return 3 * NS


def refusal(client: TestClient, path: str, usd: float) -> str:
    answer = client.post(path, json=fakes.body(budget={"usd": usd}))
    problem = check_problem(answer, 422)
    assert [error["pointer"] for error in problem["errors"]] == ["/budget/usd"]
    detail: str = problem["detail"]
    return detail


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/plans"])
def test_import_time_of_the_trainable_counts_as_setup(service: FakeService, path: str) -> None:
    client = fakes.client_of(replace(service, prober=MeasuringProber()))
    why = refusal(client, path, round(2 * SECOND_USD, 6))
    assert (
        "a trial takes 4.000 s for setup before its first report (the time of importing the trainable alone); give at least $"
        in why
    )
    enough = client.post(path, json=fakes.body(budget={"usd": round(5 * SECOND_USD, 6)}))
    assert enough.status_code in (200, 201), enough.text


def test_setup_measured_in_earlier_jobs_takes_precedence_over_import_time(
    service: FakeService, client: TestClient
) -> None:
    for _ in range(2):
        fakes.simulate(service, fakes.submit(client), training=SlowSteps())
    why = refusal(client, "/v1/jobs", round(2 * SECOND_USD, 6))
    assert "s for setup and " in why
    assert "(the shortest of 4 measured in earlier jobs)" in why
