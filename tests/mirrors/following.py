"""A follower that is turned by hand."""

from collections.abc import Callable

from tests.fakes import FakeService
from tuner.mirrors.follower import Follower
from tuner.mirrors.record import Mirror
from tuner.service.mirroring import LeasedTurn, StoredRecord


def follower(service: FakeService, opens: Callable[[], Mirror], name: str = "it") -> Follower:
    return Follower(name, opens, StoredRecord(service), LeasedTurn(service, f"mirror:{name}"), rest=0)


def mirror_all(service: FakeService, opens: Callable[[], Mirror]) -> None:
    """One that begins anew, as after a start, and ends."""
    one = follower(service, opens)
    one.one_pass()
    assert not one.is_failing
    one._let_go()
