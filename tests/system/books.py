"""Recompute the ledger of a job from its REST answers alone, in integer micro-dollars and without any code of
the service.
"""

from collections import defaultdict
from typing import Any

from tuner.client import Client


def micro(usd: float) -> int:
    return round(usd * 1_000_000)


def check(client: Client, job: str) -> dict[str, int]:
    """Assert that the books are correct, and return the spend by kind in micro-dollars."""
    shown, bill = client.job(job), client.bill(job)
    entries = [entry.model_dump() for entry in client.ledger(job).items]
    budget = shown.budget["usd"]
    limit = 2**62 if budget is None else micro(budget)
    by_kind = _walk(entries, limit)
    assert len({entry["id"] for entry in entries}) == len(entries)
    assert sum(by_kind.values()) == micro(shown.spend.usd) == micro(bill.total_usd)
    assert {kind: micro(usd) for kind, usd in bill.by_kind.items() if usd} == {
        k: v for k, v in by_kind.items() if v
    }
    in_trials = sum(micro(trial.total_usd) for trial in bill.trials)
    assert micro(bill.total_usd) == in_trials + micro(bill.self_test_usd) + micro(bill.restored_usd)
    assert micro(shown.spend.usd) + micro(shown.spend.held_usd) <= limit
    return by_kind


def _walk(entries: list[dict[str, Any]], limit: int) -> dict[str, int]:
    """Walk the entries, oldest first. Posted plus held never exceeds the budget, and no hold gives out more
    than it holds.
    """
    holds: dict[tuple[str, int, int], int] = {}
    by_kind: dict[str, int] = defaultdict(int)
    for entry in entries:
        where, amount = (entry["trial"], entry["attempt"], entry["slice"]), micro(entry["usd"])
        match entry["entry"]:
            case "hold":
                holds[where] = holds.get(where, 0) + amount
            case "post":
                holds[where] -= amount
                by_kind[entry["kind"]] += amount
            case "release":
                holds[where] -= amount
            case "correct":
                by_kind[entry["kind"]] += amount
        assert all(left >= 0 for left in holds.values())
        assert sum(holds.values()) + sum(by_kind.values()) <= limit
    return dict(by_kind)
