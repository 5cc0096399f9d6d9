"""Speeds and interruptions measured in other jobs of the same trainable."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService
from tuner.cluster import nodes
from tuner.database.tables import attempts
from tuner.domain.space import Config

service, client = fakes.fixtures("function")
KIND = "m7i.large"


class Slower(fakes.Curves):
    """Curves whose steps take three times as long."""

    def step_ns(self, config: Config, step: int) -> int:
        return 3 * super().step_ns(config, step)


def run(service: FakeService, client: TestClient, kind: str | None = None, **changes: Any) -> str:
    there = {} if kind is None else dict([(nodes.INSTANCE_TYPE[0], kind)])
    service.cluster.found = [replace(fakes.SMALL, labels=there)]
    job = fakes.submit(client, **changes)
    fakes.simulate(service, job, training=Slower() if kind else None)
    return job


def best(client: TestClient, job: str, **query: Any) -> Any:
    return client.get(f"/v1/jobs/{job}/best", params={"forecast": False, **query}).json()


def test_relative_speed_is_measured_if_the_trainable_ran_on_both_machine_types(
    service: FakeService, client: TestClient
) -> None:
    here = run(service, client, budget={"usd": 0.002})
    run(service, client, KIND, budget={"usd": 0.006})
    found = best(client, here, instance_type=KIND)
    pricing = found["pricing"]
    assert pricing["speed_source"] == "measured"
    assert pricing["relative_time_low"] <= 3 <= pricing["relative_time_high"]
    assert found["cost_low_usd"] < found["cost_usd"] < found["cost_high_usd"]
    other = run(service, client, constants={"data_dir": "elsewhere"})
    assert best(client, other, instance_type=KIND)["pricing"]["speed_source"] == "assumed_same"


def test_interruption_overhead_is_computed_from_the_bill_of_spot_attempts(
    service: FakeService, client: TestClient
) -> None:
    job = run(service, client)
    with service.database.write() as db:
        db.execute(update(attempts).where(attempts.c.job == job).values(market="spot"))
    bill = client.get(f"/v1/jobs/{job}/bill").json()["by_kind"]
    pricing = best(client, job, market="spot")["pricing"]
    share = (bill["lost"] + bill["restore"]) / (bill["setup"] + bill["train"])
    assert share > 0
    assert pricing["interruption_overhead"] == pytest.approx(share, abs=1e-6)
    assert any("in this job" in note for note in pricing["notes"])
