"""Compare a database with the answers that clients and drivers received, using plain SQL and no code of the
service.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import create_engine, text

FIGURES = ("jobs", "reports", "lost", "doubled", "over_micro_usd", "not_ended")
FINAL = ("succeeded", "cancelled", "failed")


@dataclass
class CheckResult:
    """The result of the check. `wrong` describes each error and is empty if all is correct."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, figure: str, what: str, count: int = 1) -> None:
        self.counts[figure] += count
        self.wrong.append(what)


def check(url: str, words: Iterable[list[Any]]) -> CheckResult:
    messages = defaultdict(list)
    for kind, *rest in words:
        messages[kind].append(rest)
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as db:

        def rows(table: str, columns: str) -> list[Any]:
            return list(db.execute(text(f"SELECT {columns} FROM {table} ORDER BY {columns.split(', ')[0]}")))

        result = CheckResult()
        _jobs(result, messages, rows("jobs", "id, state"))
        kept = rows("reports", "job, trial, step, value, usd")
        _reports(result, messages, kept)
        _money(
            result,
            messages,
            rows("entries", "seq, job, entry, trial, attempt, slice, usd"),
            {row.job: row for row in rows("accounts", "job, limit_usd, posted_usd, held_usd")},
        )
        _best(result, messages, kept)
        left = rows("holds", "id, state")
        result.wrong += [f"the hold {row.id} is open" for row in left if row.state == "open"]
        left = rows("attempts", "job, trial, attempt, ended_at")
        result.wrong += [f"{row} has not ended" for row in left if row.ended_at is None]
    engine.dispose()
    result.wrong += [f"the books: {what}" for (whats,) in messages["violations"] for what in whats]
    if not messages["violations"]:
        result.wrong.append("the last process did not look at the books")
    return result


def _jobs(result: CheckResult, messages: dict[str, list[Any]], kept: list[Any]) -> None:
    asked = Counter(name for step, name in messages["ack"] if step.startswith("submit "))
    there = Counter(row.id for row in kept)
    result.counts["jobs"] += len(there)
    for name in asked - there:
        result.add("lost", f"the acknowledged job {name} is lost")
    for name in there - asked:
        result.add("doubled", f"no answer has named the job {name}")
    for row in kept:
        if row.state not in FINAL:
            result.add("not_ended", f"{row.id} is {row.state}")


def _reports(result: CheckResult, messages: dict[str, list[Any]], kept: list[Any]) -> None:
    there = {(row.job, row.trial, row.step): (row.value, row.usd) for row in kept}
    result.counts["reports"] += len(there)
    for job, trial, step, value, usd in messages["report"]:
        if there.get((job, trial, step)) != (value, usd):
            result.add(
                "lost",
                f"{job} {trial} step {step}: {value}, {usd} was acknowledged, stored is {there.get((job, trial, step))}",
            )
    reported_counts = Counter(tuple(report[:3]) for report in messages["report"])
    for where, times in reported_counts.items():
        if times > 1:
            result.add("doubled", f"the report {where} was taken {times} times")


def _money(
    result: CheckResult, messages: dict[str, list[Any]], entries: list[Any], accounts: dict[str, Any]
) -> None:
    """Check the entries, oldest first.

    A job never spends more than the client allowed, and no part of a hold is posted or released twice. At the end,
    a job has spent at most its limit, which is lower for a restored job.
    """
    allowed: dict[str, int] = defaultdict(int)
    for job, usd in messages["budget"]:
        allowed[job] = max(allowed[job], usd)
    holds: dict[tuple[Any, ...], int] = defaultdict(int)
    posted: dict[str, int] = defaultdict(int)
    held: dict[str, int] = defaultdict(int)
    for row in entries:
        change = {"hold": row.usd, "post": -row.usd, "release": -row.usd}.get(row.entry, 0)
        where = (row.job, row.trial, row.attempt, row.slice)
        holds[where] += change
        held[row.job] += change
        if row.entry in ("post", "correct"):
            posted[row.job] += row.usd
        over = posted[row.job] + held[row.job] - allowed[row.job]
        if over > 0 and row.job in allowed:
            result.add("over_micro_usd", f"{row.job} is over by {over} at entry {row.seq}", over)
        if holds[where] < 0:
            result.add("doubled", f"more than was held is posted or released of {where}")
    for job, account in accounts.items():
        if (account.posted_usd, account.held_usd) != (posted[job], held[job]) or held[job]:
            result.wrong.append(f"the account {account} is not {posted[job]} posted and nothing held")
        if posted[job] > account.limit_usd:
            result.add("over_micro_usd", f"{job} is over its limit", posted[job] - account.limit_usd)


def _best(result: CheckResult, messages: dict[str, list[Any]], kept: list[Any]) -> None:
    for job, metric in messages["best"]:
        values = [row.value for row in kept if row.job == job and row.value is not None]
        if metric != (max(values) if values else None):
            result.wrong.append(f"the best of {job} is {metric}, not {max(values, default=None)}")
