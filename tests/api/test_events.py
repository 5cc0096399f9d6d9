"""The event stream: continues after any event without a gap, and ends when the job has ended."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import func, select
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.api import event_stream
from tuner.database.tables import events as recorded
from tuner.domain.events import Reported
from tuner.domain.money import FREE, Money
from tuner.domain.records import ReportRow
from tuner.service import answers, control
from tuner.service.bootstrap import Service
from tuner.service.views import JobView
from tuner.store.journal import SqlJournal


@dataclass(frozen=True)
class Message:
    kind: str
    data: dict[str, Any]
    id: int | None


def parse(text: str) -> list[Message]:
    """Parse frames as in the HTML standard: fields, then an empty line."""
    messages = []
    assert text.endswith("\n\n")
    for frame in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
        if "event" in fields:
            number = fields.get("id")
            kind, data = fields["event"], json.loads(fields["data"])
            messages.append(Message(kind, data, None if number is None else int(number)))
    return messages


def numbered(messages: list[Message]) -> list[Message]:
    """Return the messages about changes, without those about the current state."""
    return [message for message in messages if message.kind in ("report", "trial")]


def stream(client: TestClient, job: str, after: int | None = None) -> list[Message]:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    answer = client.get(f"/v1/jobs/{job}/events", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parse(answer.text)


def newest(service: FakeService, job: str) -> int:
    with service.database.read() as db:
        return db.execute(select(func.max(recorded.c.seq)).where(recorded.c.job == job)).scalar() or 0


def test_every_report_is_sent_once_in_order(finished: Finished) -> None:
    for job in finished.ended:
        reports = [m for m in stream(finished.client, job) if m.kind == "report"]
        places = [(m.data["trial"], m.data["step"]) for m in reports]
        steps = finished.client.get(f"/v1/jobs/{job}").json()["progress"]["steps"]
        assert len(places) == len(set(places)) == steps
        numbers = [m.data["seq"] for m in reports]
        assert numbers == sorted(numbers)


def test_trial_events_equal_the_trial_listing(finished: Finished) -> None:
    for job in finished.ended:
        streamed = [m.data for m in stream(finished.client, job) if m.kind == "trial"]
        path = f"/v1/jobs/{job}/trials"
        listed = finished.client.get(path, params={"limit": 500}).json()["items"]
        assert sorted(streamed, key=lambda trial: str(trial["id"])) == listed


def test_event_ids_increase_and_the_last_message_has_an_id(finished: Finished) -> None:
    messages = numbered(stream(finished.client, finished.troubled))
    ids = [message.id for message in messages if message.id is not None]
    assert ids == sorted(set(ids))
    assert messages[-1].id == ids[-1]
    reports = [message for message in messages if message.kind == "report"]
    assert [message.id for message in reports] == [message.data["seq"] for message in reports]


def test_final_spend_and_job_messages_match_the_job(finished: Finished) -> None:
    for job in finished.ended:
        messages = stream(finished.client, job)
        shown = finished.client.get(f"/v1/jobs/{job}").json()
        last = {message.kind: message.data for message in messages}
        assert last["spend"] == {**shown["spend"], "budget_usd": shown["budget"]["usd"]}
        assert last["job"] == {name: shown[name] for name in last["job"]}
        assert (messages[-1].kind, last["job"]["state"]) == ("job", "succeeded")


def test_stream_after_any_number_sends_only_later_events(finished: Finished) -> None:
    job, service = finished.troubled, finished.service
    whole = numbered(stream(finished.client, job))
    ends = {message.id: index + 1 for index, message in enumerate(whole) if message.id is not None}
    assert len(ends) > 20
    for after, index in ends.items():
        assert numbered(stream(finished.client, job, after)) == whole[index:]
    for after in range(0, newest(service, job) + 20, 17):
        later = numbered(stream(finished.client, job, after))
        assert later == whole[len(whole) - len(later) :]
        before = [m.id for m in whole[: len(whole) - len(later)] if m.id is not None]
        assert all(number <= after for number in before)
        assert all(m.id is None or m.id > after for m in later)


def test_after_parameter_equals_last_event_id_and_the_header_takes_precedence(finished: Finished) -> None:
    path = f"/v1/jobs/{finished.plain}/events"
    first = next(m.id for m in stream(finished.client, finished.plain) if m.id is not None)
    by_header = finished.client.get(path, headers={"Last-Event-ID": str(first)}).text
    assert finished.client.get(path, params={"after": first}).text == by_header
    both = finished.client.get(path, params={"after": 10**9}, headers={"Last-Event-ID": str(first)})
    assert both.text == by_header


@pytest.mark.parametrize("number", ["x", "-1", "1.5", "", "9" * 19, "1e3", "0x1"])
def test_invalid_event_id_is_refused(finished: Finished, number: str) -> None:
    answer = finished.client.get(f"/v1/jobs/{finished.plain}/events", headers={"Last-Event-ID": number})
    assert [error["pointer"] for error in check_problem(answer)["errors"]] == ["Last-Event-ID"]


def at_look(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Call `act` when the stream reads changes for the `number`th time."""
    looks, changes = iter(range(1, 10_000)), answers.changes

    def looked(service: Service, job: str, after: int) -> tuple[answers.ChangesSince, JobView]:
        if next(looks) == number:
            act()
        return changes(service, job, after)

    monkeypatch.setattr(answers, "changes", looked)


def test_stream_ends_when_its_job_ends(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "READ_EVERY_S", 0.01)
    job = fakes.submit(client)
    at_look(monkeypatch, 3, lambda: control.cancel(service, job))
    states = [message.data["state"] for message in stream(client, job) if message.kind == "job"]
    assert states == ["queued", "cancelled"]


def test_stream_of_a_waiting_job_has_its_position_in_the_queue(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "READ_EVERY_S", 0.01)
    first, job = fakes.submit(client, priority=1), fakes.submit(client)
    at_look(monkeypatch, 3, lambda: fakes.begin(service, first))
    at_look(monkeypatch, 5, lambda: control.cancel(service, job))
    positions = [message.data["queue_position"] for message in stream(client, job) if message.kind == "job"]
    assert positions == [2, 1, None]


def test_passing_time_sends_a_job_message_only_per_percent_of_the_wall_clock_limit(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "READ_EVERY_S", 0.01)
    job = fakes.submit(client, budget={"usd": 1, "wall_clock": "1h"})
    fakes.begin(service, job)
    at_look(monkeypatch, 3, lambda: service.now.pass_s(1))
    at_look(monkeypatch, 5, lambda: service.now.pass_s(36))
    at_look(monkeypatch, 7, lambda: fakes.move(service, job, "succeeded"))
    shown = [message.data for message in stream(client, job) if message.kind == "job"]
    assert [(data["state"], data["progress"]["running_seconds"]) for data in shown] == [
        ("running", 0),
        ("running", 37),
        ("succeeded", 37),
    ]


def test_stream_of_an_ended_job_has_the_revision_that_a_change_needs(
    client: TestClient, service: FakeService
) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job)
    stream(client, job)
    for change in ({"tags": {"team": "x"}}, {"priority": 7}):
        revision = stream(client, job)[-1].data["revision"]
        answer = client.patch(f"/v1/jobs/{job}", json=change, headers={"If-Match": f'"{revision}"'})
        assert answer.status_code == 200, answer.text
    last = stream(client, job)[-1].data
    assert (last["tags"], last["priority"]) == ({"team": "x"}, 7)


def test_stream_that_was_read_during_a_change_is_not_shown_after_the_change_is_undone(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job)
    revision_before = answers.revision

    def tag(team: str) -> None:
        client.patch(f"/v1/jobs/{job}", json={"tags": {"team": team}}).raise_for_status()

    def revision(service: Service, job: str) -> str:
        monkeypatch.setattr(answers, "revision", revision_before)
        before = revision_before(service, job)
        tag("y")
        return before

    tag("x")
    monkeypatch.setattr(answers, "revision", revision)
    assert stream(client, job)[-1].data["tags"] == {"team": "y"}
    tag("x")
    assert stream(client, job)[-1].data["tags"] == {"team": "x"}


def test_reader_of_a_running_job_misses_no_event(client: TestClient, service: FakeService) -> None:
    """The job runs and ends while it is read."""
    job = fakes.submit(client, budget={"usd": 0.001})
    streams: list[list[Message]] = []
    reader = threading.Thread(target=lambda: streams.append(stream(fakes.client_of(service), job)))
    reader.start()
    fakes.simulate(service, job)
    reader.join(240)
    reports = [m.data for m in streams[0] if m.kind == "report"]
    assert reports == [m.data for m in stream(client, job) if m.kind == "report"]
    assert len(reports) > 5
    last = {m.data["id"]: m.data for m in streams[0] if m.kind == "trial"}
    assert last == {m.data["id"]: m.data for m in stream(client, job) if m.kind == "trial"}


def report_many(service: FakeService, job: str) -> None:
    """Record more reports of a running job than one read returns."""
    journal = SqlJournal(service.database, job, service.project, 1, service.now())
    with journal.transaction() as tx:
        for step in range(1, 1202):
            row = ReportRow("trial_00000", 1, step, service.now(), 0.5, {"acc": 0.5}, FREE, 0)
            tx.put_report(row)
            tx.append(Reported(service.now(), "trial_00000", step, 0.5, Money(0)))
        tx.put_trial("trial_00000", "completed", at=service.now(), config={"lr": 0.1})


@pytest.mark.parametrize("look", [1, 3], ids=["while the stream begins", "while it is read"])
def test_message_that_a_job_is_paused_follows_all_of_its_events(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """A client that stops watching a paused job, such as `tuner watch --json`, has then received all events."""
    monkeypatch.setattr(event_stream, "READ_EVERY_S", 0.01)
    job = fakes.submit(client)
    fakes.begin(service, job)

    def pause() -> None:
        report_many(service, job)
        fakes.move(service, job, "paused")

    at_look(monkeypatch, look, pause)
    at_look(monkeypatch, 20, lambda: fakes.move(service, job, "cancelled"))
    messages = stream(client, job)
    paused = next(m for m in messages if m.kind == "job" and m.data["state"] == "paused")
    received = numbered(messages[: messages.index(paused)])
    assert [m.data["step"] for m in received if m.kind == "report"] == list(range(1, 1202))
    assert numbered(messages) == received


def test_job_with_more_reports_than_one_read_is_streamed_completely(
    client: TestClient, service: FakeService
) -> None:
    job = fakes.submit(client)
    fakes.begin(service, job)
    report_many(service, job)
    fakes.move(service, job, "succeeded")
    messages = numbered(stream(client, job))
    assert [m.data["step"] for m in messages if m.kind == "report"] == list(range(1, 1202))
    assert [m.kind for m in messages].count("trial") == 1
    assert numbered(stream(client, job, 700)) == messages[700:]


def test_head_of_a_stream_ends_at_once_and_leaves_no_stream_open(
    client: TestClient, finished: Finished
) -> None:
    """The job of the first request has not ended, so that a stream of its events would stay open."""
    for reader, job in ((client, fakes.submit(client)), (finished.client, finished.plain)):
        answer = reader.head(f"/v1/jobs/{job}/events")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"].startswith("text/event-stream")
        state = fakes.shared_app().state
        assert (len(state.broadcaster), state.streams.total()) == (0, 0)


def test_idle_stream_sends_keepalive_comments(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "READ_EVERY_S", 0.01)
    monkeypatch.setattr(event_stream, "ALIVE_S", 0.02)
    job = fakes.submit(client)
    at_look(monkeypatch, 20, lambda: control.cancel(service, job))
    assert ": still here\n\n" in client.get(f"/v1/jobs/{job}/events").text
