"""Conditional changes with revisions: no concurrent change is lost, and none is made twice."""

import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService


def patch(client: TestClient, job: str, revision: str, **change: Any) -> Any:
    return client.patch(f"/v1/jobs/{job}", json=change, headers={"If-Match": revision})


def get(client: TestClient, job: str) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job}")
    found: dict[str, Any] = answer.json()
    assert answer.headers["ETag"] == f'"{found["revision"]}"'
    return found


def test_revision_changes_only_with_user_changes(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    seen = [get(client, job)["revision"]]
    changes: list[dict[str, Any]] = [
        {"budget": {"usd": 1}},
        {"budget": {"on_exhausted": "pause"}},
        {"tags": {"owner": "alice"}},
        {"priority": 3},
    ]
    for change in changes:
        answer = client.patch(f"/v1/jobs/{job}", json=change)
        assert answer.headers["ETag"] == f'"{answer.json()["revision"]}"'
        seen.append(get(client, job)["revision"])
    assert len(set(seen)) == len(seen)
    fakes.simulate(service, job, messages=60)
    assert get(client, job)["spend"]["usd"] > 0
    assert get(client, job)["revision"] == seen[-1]


def test_change_with_the_current_revision_is_made(client: TestClient) -> None:
    job = fakes.submit(client)
    found = patch(client, job, f'"{get(client, job)["revision"]}"', budget={"usd": 5})
    assert (found.status_code, found.json()["budget"]["usd"]) == (200, 5)


@pytest.mark.parametrize("form", ["*", '"other", "{}"', 'W/"{}"'])
def test_other_if_match_forms_are_accepted(client: TestClient, form: str) -> None:
    job = fakes.submit(client)
    assert patch(client, job, form.format(get(client, job)["revision"]), priority=1).status_code == 200


def test_change_with_an_old_revision_is_refused_and_changes_nothing(client: TestClient) -> None:
    job = fakes.submit(client)
    old = get(client, job)["revision"]
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 12.5, "gpu_hours": 3}})
    before = get(client, job)
    found = check_problem(
        patch(client, job, f'"{old}"', budget={"usd": 20}, tags={"a": "b"}, priority=9), 412
    )
    assert "$12.5" in found["detail"]
    assert "3 GPU-hours" in found["detail"]
    assert get(client, job) == before


def test_if_match_without_quotes_is_refused(client: TestClient) -> None:
    job = fakes.submit(client)
    found = check_problem(patch(client, job, get(client, job)["revision"], priority=1))
    assert [error["pointer"] for error in found["errors"]] == ["If-Match"]


def test_only_one_of_several_concurrent_changes_is_made(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    revision, start, found = get(client, job)["revision"], threading.Barrier(6), dict[int, int]()

    def ask(number: int) -> None:
        own = fakes.client_of(service)
        start.wait()
        found[number] = patch(own, job, f'"{revision}"', budget={"usd": number}).status_code

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found.values()) == [200, *[412] * 5]
    winner = next(number for number, status in found.items() if status == 200)
    assert get(client, job)["budget"]["usd"] == winner
