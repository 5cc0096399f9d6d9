"""Test the money of one attempt: what is metered, held and posted."""

import pytest

from tests.store.builders import JOB, OFFER, budget
from tuner.domain.cost import Meter
from tuner.domain.ids import hold_id
from tuner.domain.job import Resources
from tuner.domain.money import Cost, Money, Price, Rate
from tuner.domain.offer import Offer
from tuner.domain.records import OpenHold
from tuner.domain.time import NS, Instant
from tuner.driver.holds import AttemptLease, HoldService, LeaseRequest
from tuner.driver.placement import Place
from tuner.simulator.journal import MemoryJournal, MemoryTx

AT = Instant(0)
TRIAL = "trial_00000"
PLACE = Place(OFFER, OFFER.rate(Resources()))
EXPENSIVE = Offer("m5.24xlarge", Price(1_000_000), cpus=2, gpus=0)


class Refuses(MemoryTx):
    """A ledger that reports enough money, but refuses every hold."""

    def hold(self, hold: OpenHold) -> bool:
        return False


def begun(usd: int = 10**6) -> tuple[MemoryJournal, HoldService, AttemptLease]:
    """Open an attempt with a first lease of 10 s, of which it has used 8."""
    journal, hold_service = MemoryJournal(JOB, budget(usd)), HoldService(JOB, 10 * NS)
    with journal.transaction() as tx:
        opened = hold_service.open(tx, TRIAL, 1, [PLACE], LeaseRequest(NS, 1, None, AT))
    assert opened is not None
    place, lease_ns, held = opened
    lease = AttemptLease(TRIAL, 1, place, AT, lease_ns, 1, held, 0, None, 0)
    lease.read(Meter({"train": 8 * NS}), last_message_ns=0)
    return journal, hold_service, lease


def test_bill_does_not_exceed_the_hold() -> None:
    """The worker keeps running after its lease. Costs that were already reported do not change."""
    journal, hold_service, lease = begun()
    lease.read(Meter({"setup": NS, "train": 60 * NS, "idle": 5 * NS}), last_message_ns=0)
    assert lease.meter.total_ns == lease.lease_ns == 10 * NS
    with journal.transaction() as tx:
        hold_service.close(tx, lease, lost_ns=0, at=AT)
    assert journal.account().posted == PLACE.rate.cost(10 * NS)


def test_cut_lease_keeps_what_was_already_posted() -> None:
    journal, hold_service, lease = begun()
    with journal.transaction() as tx:
        assert hold_service.extend(tx, lease, LeaseRequest(NS, 1, None, AT))
    lease.read(Meter({"train": 12 * NS, "idle": 3 * NS}), last_message_ns=0)
    lease.cut(13 * NS)
    assert dict(lease.meter.ns) == {"train": 10 * NS, "idle": 3 * NS}
    lease.cut(20 * NS)
    assert lease.lease_ns == 13 * NS


@pytest.mark.parametrize("left_s", [1000, 13])
def test_worker_that_uses_time_while_it_asks_gets_the_lease_that_it_needs(left_s: int) -> None:
    """Or it is refused. A step of 12 s is longer than the usual lease, so the worker gets a lease only for what it needs."""
    journal, hold_service, lease = begun(PLACE.rate.cost(left_s * NS + 8 * NS).usd.micro_usd)
    with journal.transaction() as tx:
        for _ in range(4):
            need_ns = 12 * NS
            is_longer = hold_service.extend(tx, lease, LeaseRequest(need_ns, 1, None, AT))
            lease.read(
                Meter({**lease.meter.ns, "idle": lease.meter.ns.get("idle", 0) + NS}), last_message_ns=0
            )
            if not is_longer or lease.lease_ns - lease.meter.total_ns >= need_ns:
                break
        else:
            pytest.fail("the worker asks without end")
    assert is_longer is (left_s == 1000)


def test_refused_hold_after_sufficient_balance_raises_and_records_nothing() -> None:
    """The transaction is rolled back, and the driver restarts from the recorded state."""
    journal, hold_service, lease = begun()
    other = Place(EXPENSIVE, Rate(EXPENSIVE.price))
    with pytest.raises(AssertionError, match="hold of a lease was refused"):
        hold_service.extend(Refuses(journal.tables), lease, LeaseRequest(NS, 1, None, AT))
    journal, hold_service, lease = begun()
    with pytest.raises(AssertionError, match="hold of a lease was refused"):
        hold_service.reprice(Refuses(journal.tables), lease, other, AT)
    assert [hold_row.id for hold_row in journal.open_holds()] == [hold_id(JOB, TRIAL, 1, 1)]
    assert journal.account().posted == Cost()


def test_posted_training_that_is_lost_moves_to_lost_kind() -> None:
    journal, hold_service, lease = begun()
    with journal.transaction() as tx:
        assert hold_service.extend(tx, lease, LeaseRequest(NS, 1, None, AT))
    with journal.transaction() as tx:
        hold_service.close(tx, lease, lost_ns=100 * NS, at=AT)
    spent = PLACE.rate.cost(8 * NS)
    assert journal.account().posted == spent
    assert {kind: cost for kind, cost in lease.posted.items() if not cost.nothing} == {"lost": spent}


def test_refusal_names_the_exhausted_limit() -> None:
    hold_service = HoldService(JOB, 10 * NS)

    def why(limits: Cost, rate: Rate, *, deadline_ns: int | None = None) -> str:
        journal = MemoryJournal(JOB, budget(limits.usd.micro_usd, limits.gpu_ms or None))
        with journal.transaction() as tx:
            request = LeaseRequest(5 * NS, 1, deadline_ns, AT)
            assert hold_service.open(tx, TRIAL, 1, [Place(OFFER, rate)], request) is None
            return hold_service.limit(tx, rate, request, gpus=bool(limits.gpu_ms))[0]

    second = Rate(Price(3600), 1000)  # one micro-dollar and one GPU-second per second
    assert why(Cost(Money(4)), Rate(Price(3600))) == "budget_usd"
    assert why(Cost(Money(4), 10**6), second) == "budget_usd"
    assert why(Cost(Money(100), 4000), second) == "budget_gpu_hours"
    assert why(Cost(Money(100), 10**6), second, deadline_ns=4 * NS) == "wall_clock"


@pytest.mark.parametrize(
    ("sharers", "need_s", "lease_s"),
    [(1, 1, 8), (4, 1, 2), (4, 5, 5), (4, 8, 8), (4, 9, None)],
    ids=["alone", "shared", "needs more", "needs all", "needs too much"],
)
def test_lease_that_others_share_ends_before_the_wall_clock_if_it_can(
    sharers: int, need_s: int, lease_s: int | None
) -> None:
    """8 s are left. A lease that four attempts may share can last four times as long, unless the attempt needs more."""
    journal, hold_service = MemoryJournal(JOB, budget(10**6)), HoldService(JOB, 10 * NS)
    with journal.transaction() as tx:
        opened = hold_service.open(tx, TRIAL, 1, [PLACE], LeaseRequest(need_s * NS, 1, 8 * NS, AT, sharers))
    assert (opened and opened[1]) == (lease_s and lease_s * NS)
