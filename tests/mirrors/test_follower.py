"""Test the follower on a record that changes while it is read."""

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext

import pytest

from tests.cluster.waiting import until
from tests.fakes import FakeService
from tuner.domain.money import FREE
from tuner.domain.time import NS, Instant
from tuner.mirrors.follower import MirrorThread
from tuner.mirrors.record import MirroredChanges, MirroredJob, Position
from tuner.service import mirroring
from tuner.service.mirroring import TURN_NS, LeasedTurn


class Lively:
    """A record in which the first job gets another event between any two reads."""

    def __init__(self) -> None:
        self.seqs = {"a": 1, "b": 1}

    def heads(self, among: Collection[str] | None) -> dict[str, Position]:
        return {job: Position(seq, "running") for job, seq in self.seqs.items()}

    def changes(self, job: str, after: Position | None) -> MirroredChanges:
        self.seqs["a"] += 1
        return MirroredChanges(new_job(job), [], Position(self.seqs[job], "running"))


class Held:
    """A mirror that fails after 20 writes."""

    def __init__(self) -> None:
        self.upto: dict[str, Position] = {}
        self.left = 20

    def positions(self) -> dict[str, Position]:
        return {}

    def write(self, changes: MirroredChanges) -> bool:
        if self.left == 0:
            raise RuntimeError("too many portions")
        self.left -= 1
        self.upto[changes.job.id] = changes.upto
        return True

    def close(self) -> None:
        pass


class Always:
    def is_mine(self) -> bool:
        return True

    def kept(self) -> AbstractContextManager[None]:
        return nullcontext()

    def give_back(self) -> None:
        pass


def test_job_that_keeps_changing_does_not_block_other_jobs() -> None:
    record, held = Lively(), Held()
    follower = MirrorThread("it", lambda: held, record, Always(), rest=0)
    for job in ("a", "b", "c"):
        record.seqs.setdefault(job, 1)
        follower.one_pass()
        assert not follower.is_failing, "a pass goes on as long as a job does"
        assert job in held.upto, "the next pass reports it"


def test_lease_is_renewed_during_a_write(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "RENEWALS_MAX", 10**9)
    mine, other = LeasedTurn(service, "it"), LeasedTurn(service, "it")
    assert mine.is_mine()
    with mine.kept(every_s=0.005):
        service.now.at = Instant(service.now.at + TURN_NS - NS)
        until(lambda: mine._until > service.now.at + NS)
        service.now.at = Instant(service.now.at + TURN_NS - NS)
        assert not other.is_mine()
    mine.give_back()
    assert other.is_mine()


def test_lease_can_be_taken_over_after_the_clock_is_set_back(service: FakeService) -> None:
    mine, other = LeasedTurn(service, "it"), LeasedTurn(service, "it")
    assert mine.is_mine()
    service.now.at = Instant(service.now.at - 3600 * NS)
    assert other.is_mine()
    assert not mine.is_mine()


def new_job(name: str) -> MirroredJob:
    return MirroredJob(
        name,
        "default",
        name,
        None,
        {},
        "module:function",
        "loss",
        "min",
        {},
        None,
        (),
        1.0,
        None,
        "running",
        None,
        FREE,
        "http://localhost",
        Instant(0),
        None,
    )
