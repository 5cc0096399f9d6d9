"""Replays over REST: recorded jobs of every kind, records that were changed by hand, and other policies."""

import json
from typing import Any

import pytest
from sqlalchemy import func, select, update
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.database.codec import decode, encode
from tuner.database.tables import events, jobs, launches, warm_starts
from tuner.domain.budget import Quota
from tuner.service import replay as replaying
from tuner.simulator.world import Faults
from tuner.store import queue

service, client = fakes.fixtures("module")
AUTO = {"scheduler": "auto", "sampler": "auto", "seed": 4}


def replay(client: TestClient, job: str, **query: str) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job}/replay", params=query)
    assert answer.status_code == 200, answer.text
    replay_view: dict[str, Any] = answer.json()
    return replay_view


def submitted(client: TestClient, **more: Any) -> str:
    return fakes.submit(client, **{"algorithm": AUTO, "budget": {"usd": 0.004}, **more})


@pytest.fixture
def job(service: FakeService, client: TestClient) -> str:
    job = submitted(client)
    fakes.simulate(service, job, faults=Faults(driver_restart=0.03, crash=0.03), seed=4)
    return job


def count(service: FakeService, job: str) -> int:
    with service.database.read() as db:
        return int(db.execute(select(func.count()).where(events.c.job == job)).scalar_one())


def test_replay_of_every_kind_of_job_shows_no_difference(finished: Finished) -> None:
    for job in finished.all:
        replayed = replay(finished.client, job)
        assert (replayed["difference"], replayed["not_checked"], replayed["instead"]) == (None, [], None)
        assert replayed["events"] == count(finished.service, job)
        assert replayed["answers"] <= replayed["decisions"]
        assert replayed["policy"]["sampler"] in ("random", "auto")


def test_changed_suggestion_is_detected(service: FakeService, client: TestClient, job: str) -> None:
    e = events.c
    with service.database.write() as db:
        suggested = (e.job == job) & (e.type == "Suggested")
        seq, body = db.execute(select(e.seq, e.body).where(suggested).order_by(e.seq).offset(4)).first()  # type: ignore[misc]
        event = decode(body)
        forged = json.loads(body)
        forged["value"]["config"] = json.loads(encode({**event.config, "width": 9}))["value"]
        # Somebody who changes the record by hand has to remove this trigger first, too.
        db.exec_driver_sql("DROP TRIGGER events_no_update")
        db.execute(update(events).where(e.job == job, e.seq == seq).values(body=json.dumps(forged)))
    replayed = replay(client, job)
    difference = replayed["difference"]
    assert (difference["code"], difference["event"], difference["trial"]) == ("answer", seq, event.trial)
    assert difference["decided"]["fields"]["config"] == event.config
    assert difference["recorded"]["fields"]["config"] == {**event.config, "width": 9}
    assert difference["instead"] is None
    assert difference["at"].endswith("Z")
    assert replayed["not_checked"] == []


def test_changed_stop_reason_is_detected(service: FakeService, client: TestClient, job: str) -> None:
    with service.database.write() as db:
        db.execute(update(jobs).where(jobs.c.id == job).values(stop_reason="target"))
        db.execute(update(launches).where(launches.c.job == job).values(tuner_version="0.0.1"))
    replayed = replay(client, job)
    assert (replayed["difference"]["code"], replayed["difference"]["event"]) == (
        "job_end",
        count(service, job),
    )
    assert "tuner 0.0.1" in replayed["not_checked"][-1]["why"]


def test_later_quota_change_makes_no_difference(service: FakeService, client: TestClient, job: str) -> None:
    with service.database.write() as db:
        queue.put(db, service.project, Quota(concurrent_trials=1), service.now())
    assert replay(client, job)["difference"] is None
    with service.database.write() as db:
        queue.put(db, service.project, Quota(), service.now())


def test_record_without_concurrency_is_replayed_with_the_admitted_one(
    service: FakeService, client: TestClient, job: str
) -> None:
    e = events.c
    with service.database.write() as db:
        db.exec_driver_sql("DROP TRIGGER IF EXISTS events_no_update")
        launched = (e.job == job) & (e.type == "Launched")
        for seq, body in db.execute(select(e.seq, e.body).where(launched)).all():
            older = json.loads(body)
            del older["value"]["concurrency"]
            db.execute(update(events).where(e.job == job, e.seq == seq).values(body=json.dumps(older)))
    outcome = replay(client, job)
    assert (outcome["difference"], outcome["not_checked"]) == (None, [])
    with service.database.write() as db:
        db.execute(update(jobs).where(jobs.c.id == job).values(concurrency=1))
    outcome = replay(client, job)
    assert outcome["difference"] is not None
    assert [part["what"] for part in outcome["not_checked"]] == ["how many trials could run at once"]


def test_control_requests_not_handled_by_a_driver_are_not_checked(
    service: FakeService, client: TestClient
) -> None:
    job = submitted(client)
    run = fakes.simulate(service, job, messages=40)
    assert client.post(f"/v1/jobs/{job}/pause").status_code == 202
    assert replay(client, job)["difference"] is None
    run.loop.handle_event(_pause(service))
    run.run()
    assert replay(client, job)["difference"] is None
    assert client.post(f"/v1/jobs/{job}/resume").status_code == 202
    replayed = replay(client, job)
    assert replayed["difference"] is None
    assert [part["what"] for part in replayed["not_checked"]] == ["why the job is running"]
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    replayed = replay(client, job)
    assert (replayed["state"], replayed["difference"]) == ("cancelled", None)
    assert [part["what"] for part in replayed["not_checked"]] == ["why the job is cancelled"]


def _pause(service: FakeService) -> Any:
    from tuner.domain.events import ControlRequested

    return ControlRequested(service.now(), "pause")


def test_replay_of_warm_start_without_its_source_record_says_so(
    service: FakeService, client: TestClient, job: str
) -> None:
    warm = submitted(client, warm_start={"jobs": [job]}, algorithm={**AUTO, "sampler": "random"})
    fakes.simulate(service, warm)
    assert replay(client, warm)["not_checked"] == []
    with service.database.write() as db:
        db.execute(update(warm_starts).where(warm_starts.c.job == warm).values(until_seq=1_000_000))
    replayed = replay(client, warm)
    assert replayed["difference"] is None
    assert replayed["answers"] == 0
    assert [part["what"] for part in replayed["not_checked"]] == ["the answers of the sampler"]


def test_other_policies_are_compared(client: TestClient, job: str) -> None:
    same = replay(client, job, scheduler="auto", sampler="auto")
    assert (same["difference"], same["instead"]) == (None, {"scheduler": "auto", "sampler": "auto"})
    other = replay(client, job, sampler="grid")
    assert other["instead"] == {"scheduler": "auto", "sampler": "grid"}
    difference = other["difference"]
    assert (difference["code"], difference["trial"], difference["recorded"]) == (
        "answer",
        "trial_00000",
        None,
    )
    assert difference["decided"]["fields"]["config"] != difference["instead"]["fields"]["config"]
    commands = replay(client, job, scheduler="none", sampler="random")["difference"]
    assert commands["code"] == "commands"
    assert commands["instead"]["summary"].startswith("start trial_00000, to run to step 9")
    assert commands["decided"]["fields"]["commands"][0]["target_step"] < 9


def test_unknown_policies_are_refused_with_a_suggestion(client: TestClient, job: str) -> None:
    answer = client.get(f"/v1/jobs/{job}/replay", params={"scheduler": "ashaa", "sampler": "randon"})
    check_problem(answer, 422)
    first, second = answer.json()["errors"]
    assert first["pointer"] == "scheduler"
    assert "did you mean 'asha'?" in first["detail"]
    assert second["pointer"] == "sampler"
    assert "did you mean 'random'?" in second["detail"]


def test_replay_stops_at_its_time_limit(
    client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "LIMIT_S", 0.0)
    replayed = replay(client, job)
    assert (replayed["events"], replayed["difference"]) == (0, None)
    assert replayed["not_checked"][0]["what"].startswith("later events")
    assert replay(client, job, sampler="grid")["not_checked"][0]["what"] == "later events"


def test_only_one_job_is_replayed_at_a_time(
    client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "WAIT_S", 0.01)
    with replaying._ROOM:
        check_problem(client.get(f"/v1/jobs/{job}/replay"), 503)
    assert replay(client, job)["difference"] is None
