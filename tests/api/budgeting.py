"""Create, read and spend shared budgets."""

from typing import Any

from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService

ASHA = {"scheduler": "asha", "sampler": "random", "seed": 1}


def put(client: TestClient, name: str = "vision", **budget: Any) -> Any:
    answer = client.put(f"/v1/budgets/{name}", json={"usd": 1, **budget})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def get(client: TestClient, name: str = "vision") -> Any:
    return client.get(f"/v1/budgets/{name}").json()


def spend(service: FakeService, client: TestClient, usd: float) -> None:
    fakes.simulate(service, fakes.submit(client, algorithm=ASHA, budget={"usd": usd}))
