"""Test a watcher with each cloud's correctly working metadata service: each notice is reported once, and its
withdrawal, too.
"""

from tests.cluster.metadata_clouds import Aws, Azure, Gcp
from tests.cluster.metadata_server import MetadataServer
from tests.cluster.told import OPERATORS, Told, looks_again, watching
from tests.cluster.waiting import until
from tuner.domain.time import parse_rfc3339

EVENT = "602d9444-d2cd-49c7-8624-8643e7171297"
ACTION, REBALANCE = "instance-action", "rebalance"
EVENTS = "scheduledevents"


def test_aws_is_told_once_and_withdrawn_once() -> None:
    told = Told()
    with MetadataServer(Aws()) as server, watching(server, "aws", told):
        looks_again(server, ACTION)
        assert told.calls == []
        server.cloud.interrupt()
        told.waits_for("+aws/instance-action")
        looks_again(server, ACTION)
        server.cloud.withdraw()
        told.waits_for("+aws/instance-action", "-aws/instance-action")
        looks_again(server, ACTION)
        server.cloud.interrupt()
        until(lambda: len(told.calls) == 3)
        assert told.calls == ["+aws/instance-action", "-aws/instance-action", "+aws/instance-action"]
        assert told.notices[0].deadline == parse_rfc3339("2026-04-24T17:11:44Z")


def test_a_recommendation_and_then_the_notice() -> None:
    told = Told()
    with MetadataServer(Aws()) as server, watching(server, "aws", told):
        server.cloud.recommend()
        told.waits_for("+aws/rebalance")
        server.cloud.interrupt("hibernate")
        told.waits_for("+aws/rebalance", "+aws/instance-action")
        looks_again(server, REBALANCE)
        assert len(told.calls) == 2


def test_one_token_serves_all_and_is_renewed_when_it_has_ended() -> None:
    told = Told()
    with MetadataServer(Aws()) as server, watching(server, "aws", told):
        looks_again(server, ACTION)
        looks_again(server, REBALANCE)
        assert server.asked("token", "PUT") == 1
        server.cloud.expire_tokens()
        server.cloud.interrupt()
        told.waits_for("+aws/instance-action")
        looks_again(server, ACTION)
        looks_again(server, REBALANCE)
        # Both requests may have been refused before either renewed the token.
        assert 2 <= server.asked("token", "PUT") <= 3


def test_a_deadline_that_moves_away_is_the_same_notice_and_one_that_comes_closer_is_told() -> None:
    told = Told()
    with MetadataServer(Aws()) as server, watching(server, "aws", told):
        for minute in (11, 12, 13):
            server.cloud.interrupt(at=f"2026-04-24T17:{minute}:44Z")
            looks_again(server, ACTION)
        assert told.calls == ["+aws/instance-action"]
        server.cloud.interrupt(at="2026-04-24T17:10:44Z")
        told.waits_for("+aws/instance-action", "+aws/instance-action")
        assert told.notices[1].deadline == parse_rfc3339("2026-04-24T17:10:44Z")


def test_google_is_told_as_soon_as_the_value_changes() -> None:
    told = Told()
    with MetadataServer(Gcp()) as server, watching(server, "gcp", told, gcp_hang_s=50, gcp_lead_s=120):
        until(lambda: any(one.query.get("wait_for_change") for one in tuple(server.requests)))
        server.cloud.preempt()
        told.waits_for("+gcp/preempted")
        assert "120 s" in told.notices[0].text
        waiting = [one for one in server.requests if one.query]
        assert all(one.query["last_etag"] and one.query["timeout_sec"] == "50" for one in waiting)


def test_google_says_the_same_again() -> None:
    told = Told()
    with MetadataServer(Gcp()) as server, watching(server, "gcp", told):
        server.cloud.preempt()
        told.waits_for("+gcp/preempted")
        for _ in range(3):
            before = server.asked("preempted")
            server.cloud.preempt()
            until(lambda before=before: server.asked("preempted") > before)  # type: ignore[misc]
        looks_again(server, "preempted", 2)
        assert told.calls == ["+gcp/preempted"]


def test_google_takes_maintenance_back() -> None:
    told = Told()
    with MetadataServer(Gcp()) as server, watching(server, "gcp", told):
        server.cloud.say("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        server.cloud.preempt()
        there = "+gcp/maintenance-event/TERMINATE_ON_HOST_MAINTENANCE"
        told.waits_for("+gcp/preempted", there)
        server.cloud.say("maintenance-event", "NONE")
        told.waits_for("+gcp/preempted", there, there.replace("+", "-"))


def test_one_maintenance_after_another_is_never_none_at_all() -> None:
    told = Told()
    with MetadataServer(Gcp()) as server, watching(server, "gcp", told):
        server.cloud.say("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
        until(lambda: len(told.calls) == 1)
        server.cloud.say("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        until(lambda: len(told.calls) == 3)
        assert [call[0] for call in told.calls] == ["+", "+", "-"]
        assert told.calls[2].endswith("MIGRATE_ON_HOST_MAINTENANCE")


def test_azure_from_scheduled_to_started_to_gone() -> None:
    told = Told()
    with MetadataServer(Azure()) as server, watching(server, "azure", told):
        looks_again(server, EVENTS)
        assert told.calls == []
        server.cloud.schedule(not_before="Thu, 19 Sep 2019 18:29:47 GMT")
        told.waits_for(f"+azure/{EVENT}")
        server.cloud.schedule(status="Started", not_before="")
        looks_again(server, EVENTS)
        assert told.calls == [f"+azure/{EVENT}"]
        server.cloud.withdraw()
        told.waits_for(f"+azure/{EVENT}", f"-azure/{EVENT}")


def test_an_event_that_begins_before_its_time_is_told_again() -> None:
    told = Told()
    with MetadataServer(Azure()) as server, watching(server, "azure", told):
        server.cloud.schedule(not_before="Tue, 19 Sep 2195 18:29:47 GMT")
        told.waits_for(f"+azure/{EVENT}")
        server.cloud.schedule(status="Started", not_before="")
        told.waits_for(f"+azure/{EVENT}", f"+azure/{EVENT}")
        looks_again(server, EVENTS)
        assert len(told.calls) == 2


def test_what_happens_to_another_machine_is_not_told() -> None:
    told = Told()
    with MetadataServer(Azure("Worker_3")) as server, watching(server, "azure", told):
        server.cloud.schedule("other", machines=("worker_4",))
        looks_again(server, EVENTS)
        server.cloud.withdraw("other")
        looks_again(server, EVENTS)
        assert told.calls == []
        server.cloud.schedule("both", "Reboot", machines=("worker_4", "worker_3"))
        told.waits_for("+azure/both")
        assert server.asked("compute/name") == 1


def test_a_name_that_is_given_is_not_asked_for() -> None:
    told = Told()
    with MetadataServer(Azure()) as server, watching(server, "azure", told, azure_machine="WORKER_4"):
        server.cloud.schedule("theirs")
        server.cloud.schedule("ours", machines=("worker_4",))
        told.waits_for("+azure/ours")
        assert server.asked("compute/name") == 0


def test_two_notices_at_once() -> None:
    told = Told()
    with MetadataServer(Azure()) as server:
        server.cloud.schedule("a", "Freeze")
        server.cloud.schedule("b", "Preempt")
        with watching(server, "azure", told):
            told.waits_for("+azure/a", "+azure/b")
            server.cloud.withdraw("a")
            told.waits_for("+azure/a", "+azure/b", "-azure/a")


def test_an_event_is_released_to_save_what_the_rest_of_its_time_costs() -> None:
    told = Told()
    with MetadataServer(Azure()) as server:
        with watching(server, "azure", told) as watcher:
            server.cloud.schedule()
            server.cloud.schedule("shared", machines=("worker_3", "worker_4"))
            until(lambda: len(told.calls) == 2)
            by_id = {notice.id: notice for notice in told.notices}
            assert watcher.release(by_id[f"azure/{EVENT}"])
            assert server.cloud.released == [EVENT]
            assert not watcher.release(by_id["azure/shared"])
            assert not watcher.release(OPERATORS)
            server.cloud.withdraw()
            until(lambda: len(told.calls) == 3)
            assert not watcher.release(by_id[f"azure/{EVENT}"])
        assert server.cloud.released == [EVENT]
        assert not watcher.release(by_id[f"azure/{EVENT}"])


def test_only_azure_is_told_that_it_need_not_wait() -> None:
    told = Told()
    with MetadataServer(Aws()) as server, watching(server, "aws", told) as watcher:
        server.cloud.interrupt()
        told.waits_for("+aws/instance-action")
        assert not watcher.release(told.notices[0])
