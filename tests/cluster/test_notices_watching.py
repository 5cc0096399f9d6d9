"""Test a watcher with each cloud's correctly working metadata service: each notice is reported once, and its
withdrawal, too.
"""

from tests.cluster.metadata_clouds import Aws, Azure, Gcp
from tests.cluster.metadata_server import MetadataServer
from tests.cluster.waiting import until
from tests.cluster.watchers import OPERATORS, RecordedCalls, looks_again, watching
from tuner.domain.time import parse_rfc3339

EVENT = "602d9444-d2cd-49c7-8624-8643e7171297"
ACTION = "instance-action"
EVENTS = "scheduledevents"


def test_aws_notice_and_withdrawal_are_each_reported_once() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Aws()) as server, watching(server, "aws", recorder) as watcher:
        looks_again(server, ACTION)
        assert recorder.calls == []
        server.cloud.interrupt()
        recorder.waits_for("+aws/instance-action")
        looks_again(server, ACTION)
        server.cloud.withdraw()
        recorder.waits_for("+aws/instance-action", "-aws/instance-action")
        looks_again(server, ACTION)
        server.cloud.interrupt()
        until(lambda: len(recorder.calls) == 3)
        assert recorder.calls == ["+aws/instance-action", "-aws/instance-action", "+aws/instance-action"]
        assert recorder.notices[0].deadline == parse_rfc3339("2026-04-24T17:11:44Z")
        assert not watcher.release(recorder.notices[0]), "only Azure's events can be released"


def test_aws_token_is_kept_and_renewed_after_expiry() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Aws()) as server, watching(server, "aws", recorder):
        looks_again(server, ACTION)
        assert server.request_count("token", "PUT") == 1
        server.cloud.expire_tokens()
        server.cloud.interrupt()
        recorder.waits_for("+aws/instance-action")
        looks_again(server, ACTION)
        assert server.request_count("token", "PUT") == 2


def test_only_a_closer_deadline_is_reported_again() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Aws()) as server, watching(server, "aws", recorder):
        for minute in (11, 12, 13):
            server.cloud.interrupt(at=f"2026-04-24T17:{minute}:44Z")
            looks_again(server, ACTION)
        assert recorder.calls == ["+aws/instance-action"]
        server.cloud.interrupt(at="2026-04-24T17:10:44Z")
        recorder.waits_for("+aws/instance-action", "+aws/instance-action")
        assert recorder.notices[1].deadline == parse_rfc3339("2026-04-24T17:10:44Z")


def test_google_notice_is_reported_as_soon_as_value_changes() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Gcp()) as server, watching(server, "gcp", recorder, gcp_hang_s=50, gcp_lead_s=120):
        until(lambda: any(request.query.get("wait_for_change") for request in tuple(server.requests)))
        server.cloud.preempt()
        recorder.waits_for("+gcp/preempted")
        assert "120 s" in recorder.notices[0].text
        waiting = [request for request in server.requests if request.query]
        assert all(request.query["last_etag"] and request.query["timeout_sec"] == "50" for request in waiting)


def test_repeated_google_value_is_reported_once() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Gcp()) as server, watching(server, "gcp", recorder):
        server.cloud.preempt()
        recorder.waits_for("+gcp/preempted")
        for _ in range(3):
            before = server.request_count("preempted")
            server.cloud.preempt()
            until(lambda before=before: server.request_count("preempted") > before)  # type: ignore[misc]
        looks_again(server, "preempted", 2)
        assert recorder.calls == ["+gcp/preempted"]


def test_google_maintenance_is_reported_and_withdrawn_but_not_a_migration() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Gcp()) as server, watching(server, "gcp", recorder):
        server.cloud.say("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
        looks_again(server, "maintenance-event")
        assert recorder.calls == []
        server.cloud.say("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        server.cloud.preempt()
        recorder.waits_for("+gcp/preempted", "+gcp/maintenance-event")
        server.cloud.say("maintenance-event", "NONE")
        recorder.waits_for("+gcp/preempted", "+gcp/maintenance-event", "-gcp/maintenance-event")


def test_azure_event_is_reported_once_and_withdrawn_at_its_end() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Azure()) as server, watching(server, "azure", recorder):
        looks_again(server, EVENTS)
        assert recorder.calls == []
        server.cloud.schedule(not_before="Thu, 19 Sep 2019 18:29:47 GMT")
        recorder.waits_for(f"+azure/{EVENT}")
        server.cloud.schedule(status="Started", not_before="")
        looks_again(server, EVENTS)
        assert recorder.calls == [f"+azure/{EVENT}"]
        server.cloud.withdraw()
        recorder.waits_for(f"+azure/{EVENT}", f"-azure/{EVENT}")


def test_azure_event_that_starts_early_is_reported_again() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Azure()) as server, watching(server, "azure", recorder):
        server.cloud.schedule(not_before="Tue, 19 Sep 2195 18:29:47 GMT")
        recorder.waits_for(f"+azure/{EVENT}")
        server.cloud.schedule(status="Started", not_before="")
        recorder.waits_for(f"+azure/{EVENT}", f"+azure/{EVENT}")
        looks_again(server, EVENTS)
        assert len(recorder.calls) == 2


def test_azure_event_of_another_machine_is_not_reported() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Azure("Worker_3")) as server, watching(server, "azure", recorder):
        server.cloud.schedule("other", machines=("worker_4",))
        looks_again(server, EVENTS)
        server.cloud.withdraw("other")
        looks_again(server, EVENTS)
        assert recorder.calls == []
        server.cloud.schedule("both", "Reboot", machines=("worker_4", "worker_3"))
        recorder.waits_for("+azure/both")
        assert server.request_count("compute/name") == 1


def test_simultaneous_notices_are_reported_and_withdrawn_separately() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Azure()) as server:
        server.cloud.schedule("a", "Reboot")
        server.cloud.schedule("b", "Preempt")
        server.cloud.schedule("c", "Freeze")
        with watching(server, "azure", recorder):
            recorder.waits_for("+azure/a", "+azure/b")
            server.cloud.withdraw("a")
            recorder.waits_for("+azure/a", "+azure/b", "-azure/a")


def test_only_unshared_standing_azure_event_can_be_released() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Azure()) as server:
        with watching(server, "azure", recorder) as watcher:
            server.cloud.schedule()
            server.cloud.schedule("shared", machines=("worker_3", "worker_4"))
            until(lambda: len(recorder.calls) == 2)
            by_id = {notice.id: notice for notice in recorder.notices}
            assert watcher.release(by_id[f"azure/{EVENT}"])
            assert server.cloud.released == [EVENT]
            assert not watcher.release(by_id["azure/shared"])
            assert not watcher.release(OPERATORS)
            server.cloud.withdraw()
            until(lambda: len(recorder.calls) == 3)
            assert not watcher.release(by_id[f"azure/{EVENT}"])
        assert server.cloud.released == [EVENT]
        assert not watcher.release(by_id[f"azure/{EVENT}"])
