"""Test reading the clouds' answers: for any bytes, the result is a notice, no notice, or an error."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.cluster.notices.aws import read_action, read_token
from tuner.cluster.notices.azure import read_document, read_name
from tuner.cluster.notices.gcp import read_maintenance, read_preempted
from tuner.cluster.notices.notice import MalformedNotice, MetadataAnswer, Notice, changes, moment
from tuner.domain.time import NS, Instant, parse_rfc3339

SEEN = parse_rfc3339("2026-09-19T18:29:00Z")
GOOGLE = {"metadata-flavor": "Google"}
EVENT = {
    "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["worker_3"],
    "EventStatus": "Scheduled",
    "NotBefore": "Sat, 19 Sep 2026 18:29:47 GMT",
}


def ok(body: object, **headers: str) -> MetadataAnswer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return MetadataAnswer(200, headers, raw)


def google(text: str, status: int = 200) -> MetadataAnswer:
    return MetadataAnswer(status, GOOGLE, text.encode())


def preempted(answer: MetadataAnswer) -> Notice | None:
    return read_preempted(answer, SEEN, lead_s=30)


def maintenance(answer: MetadataAnswer) -> Notice | None:
    return read_maintenance(answer, SEEN)


def ours(*events: object, incarnation: object = 2) -> list[Notice]:
    document = read_document(ok({"DocumentIncarnation": incarnation, "Events": list(events)}), "worker_3")
    assert document.unread == ""
    return [event.notice(SEEN) for event in document.events]


READERS: dict[str, Callable[[MetadataAnswer], Any]] = {
    "action": read_action,
    "token": read_token,
    "preempted": preempted,
    "maintenance": maintenance,
    "events": lambda answer: read_document(answer, "worker_3"),
    "name": read_name,
}
GOOD = {
    "action": ok({"action": "terminate", "time": "2026-04-24T17:11:44Z"}),
    "preempted": google("TRUE"),
    "maintenance": google("TERMINATE_ON_HOST_MAINTENANCE"),
    "events": ok({"DocumentIncarnation": 2, "Events": [EVENT]}),
}


def test_aws_action_has_a_deadline() -> None:
    notice = read_action(GOOD["action"])
    assert notice is not None
    assert notice.deadline == parse_rfc3339("2026-04-24T17:11:44Z")


def test_answers_that_mean_no_notice() -> None:
    assert read_action(MetadataAnswer(404, {}, b"<html>404 - Not Found</html>")) is None
    assert preempted(google("FALSE")) is None
    assert preempted(google("FALSE\n")) is None
    assert maintenance(google("NONE")) is None
    assert maintenance(google("MIGRATE_ON_HOST_MAINTENANCE")) is None
    assert ours({**EVENT, "EventType": "Freeze"}) == []


@pytest.mark.parametrize(
    ("read", "value", "lead_s"), [(preempted, "TRUE", 30), (maintenance, "TERMINATE_ON_HOST_MAINTENANCE", 60)]
)
def test_google_notice_deadline_comes_from_lead_time(
    read: Callable[[MetadataAnswer], Notice | None], value: str, lead_s: int
) -> None:
    notice = read(google(value))
    assert notice is not None
    assert notice.deadline == SEEN + lead_s * NS


def test_answer_without_google_header_is_malformed() -> None:
    with pytest.raises(MalformedNotice, match="not from Google"):
        preempted(MetadataAnswer(200, {}, b"TRUE"))


@pytest.mark.parametrize("type_", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_azure_event_has_an_id_and_a_deadline(type_: str) -> None:
    (notice,) = ours({**EVENT, "EventType": type_})
    assert notice.id == f"azure/{EVENT['EventId']}"
    assert notice.deadline == parse_rfc3339("2026-09-19T18:29:47Z")


@pytest.mark.parametrize("blank", ["", None])
def test_started_event_is_due_when_seen(blank: str | None) -> None:
    (notice,) = ours({**EVENT, "EventStatus": "Started", "NotBefore": blank})
    assert notice.deadline == SEEN


def test_event_applies_only_if_it_names_this_machine() -> None:
    assert ours({**EVENT, "Resources": ["worker_4"]}, {**EVENT, "Resources": []}) == []
    (notice,) = read_document(
        ok({"DocumentIncarnation": 1, "Events": [{**EVENT, "Resources": ["a", "WORKER_3"]}]}), "worker_3"
    ).events
    assert notice.shared


def test_malformed_event_of_another_machine_is_ignored() -> None:
    assert ours({"Resources": ["worker_4"], "EventType": "New"}, EVENT) == ours(EVENT)


@pytest.mark.parametrize(
    "change",
    [
        {"EventId": ""},
        {"EventId": "a b"},
        {"EventId": 7},
        {"EventType": "Vanish"},
        {"NotBefore": "soon"},
        {"NotBefore": 1},
        {"Resources": "worker_3"},
        {"Resources": [3]},
    ],
)
def test_unreadable_event_does_not_hide_another(change: dict[str, object]) -> None:
    document = read_document(
        ok({"DocumentIncarnation": 2, "Events": [{**EVENT, **change}, {**EVENT, "EventId": "b"}]}), "worker_3"
    )
    assert [event.id for event in document.events] == ["b"]
    assert document.unread


@pytest.mark.parametrize(
    ("reader", "body"),
    [
        ("action", b""),
        ("action", b"terminate"),
        ("action", b"[]"),
        ("action", b'{"action": "terminate"}'),
        ("action", b'{"action": "terminate", "time": "2026-04-24T17:11:44"}'),
        ("action", b'{"action": "terminate", "time": 1}'),
        ("action", b'{"action": "dance", "time": "2026-04-24T17:11:44Z"}'),
        ("action", b'{"action": "terminate", "time": "9999-04-24T17:11:44Z"}'),
        ("preempted", b""),
        ("preempted", b"true"),
        ("preempted", b"<html>TRUE</html>"),
        ("maintenance", b"TERMINATE"),
        ("events", b"{}"),
        ("events", b'{"DocumentIncarnation": "1", "Events": []}'),
        ("events", b'{"DocumentIncarnation": 1, "Events": {}}'),
        ("token", b"two words"),
        ("token", b"a\r\nb"),
        ("name", b""),
        ("name", b"<html>"),
    ],
)
def test_invalid_body_is_malformed(reader: str, body: bytes) -> None:
    with pytest.raises(MalformedNotice):
        READERS[reader](MetadataAnswer(200, GOOGLE, body))


@pytest.mark.parametrize("status", [204, 206, 301, 302, 400, 401, 403, 429, 500, 503])
@pytest.mark.parametrize("reader", GOOD)
def test_other_status_codes_are_malformed(reader: str, status: int) -> None:
    with pytest.raises(MalformedNotice, match=str(status)):
        READERS[reader](MetadataAnswer(status, GOOD[reader].headers, GOOD[reader].body))


@pytest.mark.parametrize("reader", GOOD)
def test_truncated_answer_is_malformed(reader: str) -> None:
    good = GOOD[reader]
    for length in range(len(good.body)):
        with pytest.raises(MalformedNotice):
            READERS[reader](MetadataAnswer(200, good.headers, good.body[:length]))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"a":' * 200_000, b"9" * 200_000, b"\xff\xfe", b"\0" * 9])
def test_extreme_bodies_are_malformed_and_do_not_break_parsers(reader: str, body: bytes) -> None:
    with pytest.raises(MalformedNotice):
        READERS[reader](MetadataAnswer(200, GOOGLE, body))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
nearly_a_time = st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "-1", "24:00"]) | (
    st.from_regex(r"(Mon, )?\d{1,3} [A-Z][a-z]{2} \d{1,5} \d\d:\d\d:\d\d (GMT|[+-]\d{4})", fullmatch=True)
)
value = anything | nearly_a_time | st.sampled_from(["terminate", "Preempt", ["worker_3"], "TRUE"])


def objects(*names: str) -> st.SearchStrategy[object]:
    return st.fixed_dictionaries({}, optional={name: value for name in names})


event = objects("EventId", "EventType", "Resources", "NotBefore") | anything
documents = st.fixed_dictionaries(
    {"DocumentIncarnation": st.integers() | anything, "Events": st.lists(event)}
)
bodies = st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))
bodies |= (anything | objects("action", "time", "noticeTime") | documents).map(
    lambda document: json.dumps(document).encode()
)
answers = st.builds(
    MetadataAnswer,
    st.sampled_from([200, 404, 500]) | st.integers(100, 599),
    st.dictionaries(
        st.sampled_from(["metadata-flavor", "etag", "x-aws-ec2-metadata-token-ttl-seconds"]),
        st.sampled_from(["Google", "21600", "²"]) | st.text(),
    ),
    bodies,
)


@given(answer=answers, reader=st.sampled_from(sorted(READERS)))
def test_any_answer_raises_at_most_malformed_notice(answer: MetadataAnswer, reader: str) -> None:
    complaint = ""
    try:
        READERS[reader](answer)
    except MalformedNotice as error:
        complaint = str(error)
    assert complaint.isprintable()
    assert len(complaint) < 1000


@given(seconds=st.integers(0, 7_000_000_000))
def test_iso_and_http_dates_parse_to_the_same_instant(seconds: int) -> None:
    at = datetime.fromtimestamp(seconds, UTC)
    assert moment(at.isoformat()) == moment(format_datetime(at, usegmt=True)) == seconds * NS


notices = st.builds(
    Notice,
    id=st.sampled_from("abc"),
    deadline=st.sampled_from([Instant(s * NS) for s in (10, 11, 20)]),
    text=st.just(""),
)


@given(looks=st.lists(st.lists(notices, unique_by=lambda notice: notice.id), max_size=8))
def test_changes_report_each_current_notice_once(looks: list[list[Notice]]) -> None:
    known: dict[str, Notice] = {}
    for current in looks:
        new, gone = changes(known, current)
        for notice in new:
            before = known.get(notice.id)
            assert before is None or notice.deadline < before.deadline
            known[notice.id] = notice
        for notice in gone:
            del known[notice.id]
        assert known.keys() == {notice.id for notice in current}
        assert changes(known, current) == ([], [])
