"""Configurations that users give, and requests about single trials and the number of trials at once."""

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem, pointers


def test_start_configurations_are_checked_and_shown(client: TestClient) -> None:
    start = [{"lr": 0.5, "width": 16}, {"config": {"lr": 1, "width": 8}, "metric": 0.7}]
    job = fakes.submit(client, start=start)
    assert client.get(f"/v1/jobs/{job}").json()["start"] == start
    wrong = [{"lr": 0.5, "width": 7}, {"config": {"lr": 0.1}, "metric": 1}, {"lr": 0.2, "width": 8, "x": 1}]
    answer = client.post("/v1/jobs", json=fakes.body(start=[*wrong, wrong[0]]))
    assert pointers(answer) == [
        "/start/0/width",
        "/start/1/config/width",
        "/start/2/x",
        "/start/3/width",
        "/start/3",
    ]


@pytest.mark.parametrize("count", [2, 3])
def test_start_configurations_count_as_trials(client: TestClient, count: int) -> None:
    start = [{"lr": 0.5, "width": 8 + n} for n in range(count)]
    known = {"config": {"lr": 0.5, "width": 20}, "metric": 0.7}
    answer = client.post("/v1/jobs", json=fakes.body(start=[*start, known], budget={"usd": 1, "trials": 2}))
    assert answer.status_code == (201 if count == 2 else 422)
    if count == 3:
        assert pointers(answer) == ["/start"]
        check_problem(answer)
