"""What must hold once the faults are over, recomputed from a history and what was found afterwards. Pure: says what is broken.

The rules are P1 to P7: each acknowledged submission exists once; each acknowledged report once and unchanged; the ledger adds up and
never exceeds its budget; no process without a live attempt; every job ends; what has ended stays as it is; the best is the best.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.chaos.history import Line

FINAL = ("succeeded", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class Broken:
    rule: str
    job: str
    said: str


@dataclass(frozen=True, slots=True)
class Entry:
    """`usd`: micro-dollars, as everywhere here."""

    id: str
    entry: str
    kind: str | None
    where: tuple[str, int, int]
    usd: int


@dataclass(frozen=True, slots=True)
class Report:
    trial: str
    step: int
    attempt: int
    value: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """A job as the database has it, and as REST shows it (`shown_*`). `running`: attempts that have no end."""

    id: str
    state: str
    limit_usd: int
    posted_usd: int
    held_usd: int
    is_max: bool = True
    entries: Sequence[Entry] = ()
    open_holds: Sequence[tuple[tuple[str, int, int], int]] = ()
    reports: Sequence[Report] = ()
    running: int = 0
    shown_state: str = ""
    shown_usd: int = 0
    shown_best: tuple[str, int, float] | None = None
    shown_curves: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class After:
    """`keys`: which jobs were made for an idempotency key. `processes` that train or conduct, each in words."""

    jobs: Sequence[Found]
    keys: Sequence[tuple[str, str]] = ()
    processes: Sequence[str] = ()


def broken(history: Iterable[Line], after: After) -> list[Broken]:
    """Empty where all rules hold."""
    lines = list(history)
    found = [*_submissions(lines, after), *_states(lines, after), *_processes(after)]
    acknowledged = _acknowledged(lines)
    for job in after.jobs:
        found += [*_reports(acknowledged[job.id], job), *_ledger(job), *_best(job)]
    return found


def over(jobs: Iterable[Found]) -> int:
    """Micro-dollars spent and held beyond budgets."""
    return sum(max(0, job.posted_usd + job.held_usd - job.limit_usd) for job in jobs)


def _submissions(lines: Sequence[Line], after: After) -> Iterator[Broken]:
    """P1: a key has one job, the one that was answered; no job is there that nobody asked for."""
    answered: dict[str, str] = {}
    exist, made = Counter(job.id for job in after.jobs), dict(after.keys)
    for key, job in [(line.told["key"], line.told["job"]) for line in lines if line.what == "submitted"]:
        if answered.setdefault(key, job) != job:
            yield Broken("P1 doubled", job, f"{key} was answered by {answered[key]}, too")
        if exist[job] != 1:
            yield Broken("P1 lost", job, f"it was acknowledged, and is there {exist[job]} times")
        if made.get(key) != job:
            yield Broken("P1 lost", job, f"{key} belongs to {made.get(key)}")
    asked = {line.told["key"] for line in lines if line.what == "ask"}
    for key, times in Counter(key for key, _ in after.keys).items():
        if times > 1 or key not in asked:
            yield Broken(
                "P1 doubled", "", f"{key} is there {times} times; it was {'' if key in asked else 'not '}sent"
            )
    for job in exist.keys() - set(made.values()):
        yield Broken("P1 doubled", job, "it is there without a key")


def _acknowledged(lines: Iterable[Line]) -> dict[str, list[tuple[str, int, float | None]]]:
    found: dict[str, list[tuple[str, int, float | None]]] = defaultdict(list)
    for line in lines:
        if line.what == "report":
            found[line.told["job"]].append((line.told["trial"], line.told["step"], line.told["value"]))
    return found


def _reports(acknowledged: Sequence[tuple[str, int, float | None]], job: Found) -> Iterator[Broken]:
    """P2: what was told is kept once as it was told; each trial has every step once; REST shows the same."""
    kept = {(report.trial, report.step): report.value for report in job.reports}
    for place, count in Counter((report.trial, report.step) for report in job.reports).items():
        if count > 1:
            yield Broken("P2 doubled", job.id, f"{place} is there {count} times")
    for trial, step, value in acknowledged:
        if (trial, step) not in kept:
            yield Broken("P2 lost", job.id, f"step {step} of {trial} was told, and is gone")
        elif kept[trial, step] != value:
            yield Broken(
                "P2 changed", job.id, f"step {step} of {trial} was {value} and is {kept[trial, step]}"
            )
    yield from _curves(kept, job)


def _curves(kept: dict[tuple[str, int], float | None], job: Found) -> Iterator[Broken]:
    curves: dict[str, list[tuple[int, float | None]]] = defaultdict(list)
    for (trial, step), value in sorted(kept.items(), key=lambda one: one[0]):
        curves[trial].append((step, value))
    for trial, curve in curves.items():
        if [step for step, _ in curve] != list(range(1, len(curve) + 1)):
            yield Broken("P2 lost", job.id, f"{trial} has a gap: {[step for step, _ in curve]}")
    if {trial: curve for trial, curve in job.shown_curves.items() if curve} != curves:
        yield Broken("P2 changed", job.id, "the curves that are shown are not those that are kept")


def _ledger(job: Found) -> Iterator[Broken]:
    """P3: no entry twice, no hold gives out more than it holds, at no entry more is posted and held than the budget; the account
    is the sum of its entries, and what is shown."""
    if doubled := [name for name, count in Counter(one.id for one in job.entries).items() if count > 1]:
        yield Broken("P3 doubled", job.id, f"entry {doubled[0]} is there twice")
    holds: dict[tuple[str, int, int], int] = defaultdict(int)
    posted = 0
    for one in job.entries:
        holds[one.where] += {"hold": one.usd, "correct": 0}.get(one.entry, -one.usd)
        posted += one.usd if one.entry in ("post", "correct") else 0
        if holds[one.where] < 0:
            yield Broken("P3 sums", job.id, f"{one.id} takes more than its hold has")
        if sum(holds.values()) + posted > job.limit_usd:
            said = f"{one.id}: {posted} posted, {sum(holds.values())} held of {job.limit_usd}"
            yield Broken("P3 overspent", job.id, said)
    yield from _account(job, posted, {where: usd for where, usd in holds.items() if usd})


def _account(job: Found, posted: int, held: dict[tuple[str, int, int], int]) -> Iterator[Broken]:
    """What its entries come to, and what its account says."""
    if (posted, sum(held.values())) != (job.posted_usd, job.held_usd):
        sums = f"{posted} posted and {sum(held.values())} held"
        yield Broken(
            "P3 sums", job.id, f"{sums} by its entries, {job.posted_usd} and {job.held_usd} by its account"
        )
    if held != {where: usd for where, usd in job.open_holds if usd}:
        yield Broken("P3 sums", job.id, "the open holds are not those of its entries")
    if job.posted_usd + job.held_usd > job.limit_usd:
        yield Broken("P3 overspent", job.id, f"{job.posted_usd} and {job.held_usd} held of {job.limit_usd}")
    if job.state in FINAL and job.held_usd:
        yield Broken("P3 held", job.id, f"it is over, and holds {job.held_usd}")
    if job.shown_usd != job.posted_usd:
        yield Broken("P3 sums", job.id, f"the bill says {job.shown_usd}, the account {job.posted_usd}")


def _processes(after: After) -> Iterator[Broken]:
    """P4, once all jobs are over."""
    for job in after.jobs:
        if job.state in FINAL and job.running:
            yield Broken("P4 attempt", job.id, f"it is over, and {job.running} of its attempts are not")
    if all(job.state in FINAL for job in after.jobs):
        for one in after.processes:
            yield Broken("P4 process", "", one)


def _states(lines: Sequence[Line], after: After) -> Iterator[Broken]:
    """P5 and P6."""
    ended: dict[str, str] = {}
    for line in lines:
        if line.what != "state":
            continue
        job, state = line.told["job"], line.told["state"]
        if ended.get(job, state) != state:
            yield Broken("P6 changed", job, f"it was {ended[job]} at its end, and then {state}")
        if state in FINAL:
            ended.setdefault(job, state)
    for found in after.jobs:
        if found.state not in FINAL:
            yield Broken("P5 not over", found.id, f"it is {found.state}")
        if found.shown_state != found.state or ended.get(found.id, found.state) != found.state:
            said = f"{found.state} in the database, shown as {found.shown_state}, was {ended.get(found.id)}"
            yield Broken("P6 changed", found.id, said)


def _best(job: Found) -> Iterator[Broken]:
    """P7."""
    sign = 1 if job.is_max else -1
    values = {(one.trial, one.step): one.value for one in job.reports if one.value is not None}
    finite = {place: value for place, value in values.items() if math.isfinite(value)}
    if job.shown_best is None:
        if finite:
            yield Broken("P7 best", job.id, f"none is shown of {len(finite)} reports")
        return
    trial, step, value = job.shown_best
    if finite.get((trial, step)) != value:
        yield Broken("P7 best", job.id, f"no report of {trial} at step {step} has {value}")
    elif sign * value != max(sign * one for one in finite.values()):
        yield Broken("P7 best", job.id, f"{value} is shown, and there is a better one")
