"""A shared answer is computed once for many requests, and never served beyond its maximum age."""

import threading
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService
from tuner.api import response_cache
from tuner.api.app import create_app
from tuner.api.response_cache import AnswerCache


def test_concurrent_requests_share_one_computation() -> None:
    kept, made, start = AnswerCache[int](), list[int](), threading.Barrier(8)

    def ask(version: int) -> None:
        start.wait()
        kept.get("job", version, lambda: made.append(1) or 7)

    threads = [threading.Thread(target=ask, args=(1,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert made == [1]


def test_shared_answer_is_reused_briefly_after_its_job_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.05, 0.5, 1.5, 1.6])
    monkeypatch.setattr(response_cache, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    kept, values = AnswerCache[str](), iter("ab")
    assert kept.get("job", 1, lambda: next(values)) == "a"  # took 0.05 s, so it stays fresh for 1 s
    assert kept.get("job", 1, lambda: next(values)) == "a"
    assert kept.get("job", 2, lambda: next(values)) == "a"  # at 0.5 s
    clock = iter([1.5, 1.5, 1.6])
    assert kept.get("job", 2, lambda: next(values)) == "b"


def test_oldest_answer_is_evicted() -> None:
    kept, made = AnswerCache[int](), list[int]()
    for number in range(response_cache.KEPT + 1):
        kept.get(number, 1, lambda: 0)
    kept.get(0, 1, lambda: made.append(1) or 0)
    assert made == [1]


def test_cache_size_in_bytes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_cache, "MOST_BYTES", 10)
    kept, made = AnswerCache[bytes](len), list[str]()

    def ask(key: str, size: int) -> None:
        kept.get(key, 1, lambda: made.append(key) or bytes(size))

    ask("a", 4)
    ask("b", 4)
    ask("a", 4)  # requested after b
    ask("c", 4)
    for key in "ac":
        ask(key, 4)
    assert made == ["a", "b", "c"]
    ask("b", 4)
    assert made == ["a", "b", "c", "b"]
    ask("larger than all", 11)
    ask("larger than all", 11)
    assert made[4:] == ["larger than all"]


def test_failed_computation_is_repeated() -> None:
    kept = AnswerCache[int]()

    def fails() -> int:
        raise ValueError

    with pytest.raises(ValueError):
        kept.get("job", 1, fails)
    assert kept.get("job", 1, lambda: 3) == 3


def test_failed_requests_are_not_cached(service: FakeService) -> None:
    app = create_app(service)
    client = TestClient(app, headers={"Authorization": f"Bearer {fakes.KEY}"})
    job = fakes.submit(client, budget={"usd": 0.004})
    fakes.simulate(service, job)
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
    assert client.get(f"/v1/jobs/{job}/trials").is_success
    shared_: AnswerCache[bytes] = app.state.responses
    before = len(shared_)
    for number in range(3):
        assert client.get(f"/v1/jobs/{job}/trials/trial_9{number:04}").status_code == 404
        assert client.get("/v1/spend", params={"timezone": f"Mars/{number}"}).status_code == 422
    assert len(shared_) == before


def test_answers_of_an_ended_job_are_up_to_date(service: FakeService) -> None:
    client = TestClient(create_app(service), headers={"Authorization": f"Bearer {fakes.KEY}"})
    job = fakes.submit(client)
    run = fakes.simulate(service, job, messages=60)
    before = {name: client.get(f"/v1/jobs/{job}/{name}").json() for name in ("bill", "report", "pareto")}
    run.run(turns_max=100_000)
    shown = client.get(f"/v1/jobs/{job}").json()
    assert shown["state"] == "succeeded"
    after = {name: client.get(f"/v1/jobs/{job}/{name}").json() for name in before}
    assert after["bill"]["total_usd"] == after["report"]["spent_usd"] == shown["spend"]["usd"]
    assert after["bill"] != before["bill"]
    assert after["report"] != before["report"]
