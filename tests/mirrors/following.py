"""A follower whose passes the test runs."""

from collections.abc import Callable

from tests.fakes import FakeService
from tuner.mirrors.follower import MirrorThread
from tuner.mirrors.record import Mirror
from tuner.service.mirroring import LeasedTurn, StoredRecord


def follower(service: FakeService, opens: Callable[[], Mirror], name: str = "it") -> MirrorThread:
    return MirrorThread(name, opens, StoredRecord(service), LeasedTurn(service, f"mirror:{name}"), rest=0)


def mirror_all(service: FakeService, opens: Callable[[], Mirror]) -> None:
    """Run one pass of a new follower, as after a restart, and release its lease."""
    mirror_thread = follower(service, opens)
    mirror_thread.one_pass()
    assert not mirror_thread.is_failing
    mirror_thread._release()
