"""Recompute the ledger of a job or a shared budget from REST answers alone, in whole micro-dollars and GPU milliseconds and without any
code of the service.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.client import Client
from tuner.schemas.answers import LedgerEntry

UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class Amount:
    usd: int = 0  #: In micro-dollars.
    gpu_ms: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.usd + other.usd, self.gpu_ms + other.gpu_ms)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.usd - other.usd, self.gpu_ms - other.gpu_ms)

    def fits(self, limit: "Amount") -> bool:
        return self.usd <= limit.usd and self.gpu_ms <= limit.gpu_ms


def total(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())


def micro(usd: float) -> int:
    return round(usd * 1_000_000)


def amount(usd: float, gpu_hours: float) -> Amount:
    return Amount(micro(usd), round(gpu_hours * 3_600_000))


def _limit(usd: float | None, gpu_hours: float | None) -> Amount:
    finite = amount(usd or 0, gpu_hours or 0)
    return Amount(UNLIMITED if usd is None else finite.usd, UNLIMITED if gpu_hours is None else finite.gpu_ms)


def check(client: Client, job: str) -> dict[str, int]:
    """Assert that the books are correct, and return the spend by kind in micro-dollars."""
    shown, bill = client.job(job), client.bill(job)
    entries = list(client.ledger(job).items)
    limit = _limit(shown.budget["usd"], shown.budget["gpu_hours"])
    by_kind = _walk([(job, entry) for entry in entries], limit)
    spent = amount(shown.spend.usd, shown.spend.gpu_hours)
    assert len({entry.id for entry in entries}) == len(entries)
    assert total(by_kind.values()) == spent == amount(bill.total_usd, bill.gpu_hours)
    spent_usd = {kind: spent_amount.usd for kind, spent_amount in by_kind.items()}
    assert {kind: micro(usd) for kind, usd in bill.by_kind.items() if usd} == {
        k: v for k, v in spent_usd.items() if v
    }
    in_trials = sum(micro(trial.total_usd) for trial in bill.trials)
    assert micro(bill.total_usd) == in_trials + micro(bill.self_test_usd) + micro(bill.restored_usd)
    assert spent.usd + micro(shown.spend.held_usd) <= limit.usd
    return spent_usd


def check_shared(client: Client, name: str, jobs: Sequence[str]) -> None:
    """Assert that a shared budget has counted these jobs, which have ended, and was never exceeded."""
    shown = client.budget(name)
    entries = [(job, entry) for job in jobs for entry in client.ledger(job).items]
    entries.sort(key=lambda pair: pair[1].seq)
    by_kind = _walk(entries, _limit(shown.usd, shown.gpu_hours))
    assert total(by_kind.values()) == amount(shown.spend.usd, shown.spend.gpu_hours)
    assert amount(shown.spend.held_usd, shown.spend.held_gpu_hours) == Amount()


def _walk(entries: Iterable[tuple[str, LedgerEntry]], limit: Amount) -> dict[str, Amount]:
    """Walk the entries with their jobs, oldest first. Return the spend by kind.

    Posted plus held never exceeds the budget, and no hold gives out more than it holds.
    """
    holds: dict[tuple[str, str, int, int], Amount] = defaultdict(Amount)
    by_kind: dict[str, Amount] = defaultdict(Amount)
    for job, entry in entries:
        where, moved = (job, entry.trial, entry.attempt, entry.slice), amount(entry.usd, entry.gpu_hours)
        if entry.entry == "hold":
            holds[where] += moved
        elif entry.entry in ("post", "release"):
            holds[where] -= moved
        if entry.entry in ("post", "correct"):
            assert entry.kind is not None
            by_kind[entry.kind] += moved
        assert all(Amount().fits(left) for left in holds.values())
        assert (total(holds.values()) + total(by_kind.values())).fits(limit)
    return dict(by_kind)
