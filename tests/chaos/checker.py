"""Check the rules that must hold after the faults, from the history and the final state. Pure.

P1: each acknowledged submission exists once. P2: each acknowledged report exists once, unchanged. P3: the
ledger adds up and never exceeds its budget. P4: no process runs without a live attempt. P5: every job ends. P6:
a job that has ended stays as it is. P7: the best trial shown is the best.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.chaos.history import Line
from tests.system.books import Amount, total

FINAL = ("succeeded", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class Broken:
    rule: str
    job: str
    detail: str


@dataclass(frozen=True, slots=True)
class Entry:
    id: str
    entry: str
    kind: str | None
    where: tuple[str, int, int]
    amount: Amount


@dataclass(frozen=True, slots=True)
class Report:
    trial: str
    step: int
    attempt: int
    value: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """A job as the database has it, and as REST shows it (`shown_*`). `running` counts the attempts without an
    end.
    """

    id: str
    state: str
    limit: Amount
    posted: Amount
    held: Amount
    is_max: bool = True
    entries: Sequence[Entry] = ()
    open_holds: Sequence[tuple[tuple[str, int, int], Amount]] = ()
    reports: Sequence[Report] = ()
    running: int = 0
    shown_state: str = ""
    shown_spend: Amount = field(default_factory=Amount)
    shown_best: tuple[str, int, float] | None = None
    shown_curves: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class After:
    """The final state.

    `keys` pairs each idempotency key with the job that it created. `processes` describes each process that
    still trains or drives a job.
    """

    jobs: Sequence[Found]
    keys: Sequence[tuple[str, str]] = ()
    processes: Sequence[str] = ()


def broken(history: Iterable[Line], after: After) -> list[Broken]:
    """Return the violations of all rules, or an empty list if all hold."""
    lines = list(history)
    violations = [*_submissions(lines, after), *_states(lines, after), *_processes(after)]
    acknowledged = _acknowledged(lines)
    for job in after.jobs:
        violations += [*_reports(acknowledged[job.id], job), *_ledger(job), *_best(job)]
    return violations


def over(jobs: Iterable[Found]) -> Amount:
    """Return what is posted and held beyond the budgets."""
    beyond = [job.posted + job.held - job.limit for job in jobs]
    return total(Amount(max(0, amount.usd), max(0, amount.gpu_ms)) for amount in beyond)


def _submissions(lines: Sequence[Line], after: After) -> Iterator[Broken]:
    """P1: each key has exactly one job, the one in the answer, and no job exists that was not submitted."""
    answered: dict[str, str] = {}
    exist, made = Counter(job.id for job in after.jobs), dict(after.keys)
    for key, job in [(line.facts["key"], line.facts["job"]) for line in lines if line.what == "submitted"]:
        if answered.setdefault(key, job) != job:
            yield Broken("P1 doubled", job, f"{key} was answered by {answered[key]}, too")
        if exist[job] != 1:
            yield Broken("P1 lost", job, f"it was acknowledged, and is there {exist[job]} times")
        if made.get(key) != job:
            yield Broken("P1 lost", job, f"{key} belongs to {made.get(key)}")
    asked = {line.facts["key"] for line in lines if line.what == "ask"}
    for key, times in Counter(key for key, _ in after.keys).items():
        if times > 1 or key not in asked:
            yield Broken(
                "P1 doubled", "", f"{key} is there {times} times; it was {'' if key in asked else 'not '}sent"
            )
    for job in exist.keys() - set(made.values()):
        yield Broken("P1 doubled", job, "it is there without a key")


def _acknowledged(lines: Iterable[Line]) -> dict[str, list[tuple[str, int, float | None]]]:
    acknowledged_reports: dict[str, list[tuple[str, int, float | None]]] = defaultdict(list)
    for line in lines:
        if line.what == "report":
            acknowledged_reports[line.facts["job"]].append(
                (line.facts["trial"], line.facts["step"], line.facts["value"])
            )
    return acknowledged_reports


def _reports(acknowledged: Sequence[tuple[str, int, float | None]], job: Found) -> Iterator[Broken]:
    """P2: each acknowledged report is stored once and unchanged, each step of a trial exists once, and REST
    shows the same.
    """
    kept = {(report.trial, report.step): report.value for report in job.reports}
    for place, count in Counter((report.trial, report.step) for report in job.reports).items():
        if count > 1:
            yield Broken("P2 doubled", job.id, f"{place} is there {count} times")
    for trial, step, value in acknowledged:
        if (trial, step) not in kept:
            yield Broken("P2 lost", job.id, f"step {step} of {trial} was reported, and is gone")
        elif kept[trial, step] != value:
            yield Broken(
                "P2 changed", job.id, f"step {step} of {trial} was {value} and is {kept[trial, step]}"
            )
    yield from _curves(kept, job)


def _curves(kept: dict[tuple[str, int], float | None], job: Found) -> Iterator[Broken]:
    curves: dict[str, list[tuple[int, float | None]]] = defaultdict(list)
    for (trial, step), value in sorted(kept.items(), key=lambda pair: pair[0]):
        curves[trial].append((step, value))
    for trial, curve in curves.items():
        if [step for step, _ in curve] != list(range(1, len(curve) + 1)):
            yield Broken("P2 lost", job.id, f"{trial} has a gap: {[step for step, _ in curve]}")
    if {trial: curve for trial, curve in job.shown_curves.items() if curve} != curves:
        yield Broken("P2 changed", job.id, "the curves that are shown are not those that are kept")


def _ledger(job: Found) -> Iterator[Broken]:
    """P3: no entry is doubled, no hold gives out more than it holds, no entry takes posted plus held above the
    budget, and the account equals the sum of its entries and what REST shows.
    """
    if doubled := [
        name for name, count in Counter(ledger_entry.id for ledger_entry in job.entries).items() if count > 1
    ]:
        yield Broken("P3 doubled", job.id, f"entry {doubled[0]} is there twice")
    holds: dict[tuple[str, int, int], Amount] = defaultdict(Amount)
    posted = Amount()
    for entry in job.entries:
        if entry.entry == "hold":
            holds[entry.where] += entry.amount
        elif entry.entry != "correct":
            holds[entry.where] -= entry.amount
        if entry.entry in ("post", "correct"):
            posted += entry.amount
        if not Amount().fits(holds[entry.where]):
            yield Broken("P3 sums", job.id, f"{entry.id} takes more than its hold has")
        if not (total(holds.values()) + posted).fits(job.limit):
            detail = f"{entry.id}: {posted} posted, {total(holds.values())} held of {job.limit}"
            yield Broken("P3 overspent", job.id, detail)
    yield from _account(job, posted, {where: held for where, held in holds.items() if held != Amount()})


def _account(job: Found, posted: Amount, held: dict[tuple[str, int, int], Amount]) -> Iterator[Broken]:
    """P3: compare the sums of the entries with the account."""
    if (posted, total(held.values())) != (job.posted, job.held):
        sums = f"{posted} posted and {total(held.values())} held"
        yield Broken("P3 sums", job.id, f"{sums} by its entries, {job.posted} and {job.held} by its account")
    if held != {where: amount for where, amount in job.open_holds if amount != Amount()}:
        yield Broken("P3 sums", job.id, "the open holds are not those of its entries")
    if not (job.posted + job.held).fits(job.limit):
        yield Broken("P3 overspent", job.id, f"{job.posted} and {job.held} held of {job.limit}")
    if job.state in FINAL and job.held != Amount():
        yield Broken("P3 held", job.id, f"it is over, and holds {job.held}")
    if job.shown_spend != job.posted:
        yield Broken("P3 sums", job.id, f"the bill says {job.shown_spend}, the account {job.posted}")


def _processes(after: After) -> Iterator[Broken]:
    """P4: no attempt of an ended job is running, and no process is left when all jobs have ended."""
    for job in after.jobs:
        if job.state in FINAL and job.running:
            yield Broken("P4 attempt", job.id, f"it is over, and {job.running} of its attempts are not")
    if all(job.state in FINAL for job in after.jobs):
        for process in after.processes:
            yield Broken("P4 process", "", process)


def _states(lines: Sequence[Line], after: After) -> Iterator[Broken]:
    """P5 and P6: every job ends, and an ended job does not change its state."""
    ended: dict[str, str] = {}
    for line in lines:
        if line.what != "state":
            continue
        job, state = line.facts["job"], line.facts["state"]
        if ended.get(job, state) != state:
            yield Broken("P6 changed", job, f"it was {ended[job]} at its end, and then {state}")
        if state in FINAL:
            ended.setdefault(job, state)
    for found_job in after.jobs:
        if found_job.state not in FINAL:
            yield Broken("P5 not over", found_job.id, f"it is {found_job.state}")
        if (
            found_job.shown_state != found_job.state
            or ended.get(found_job.id, found_job.state) != found_job.state
        ):
            detail = f"{found_job.state} in the database, shown as {found_job.shown_state}, was {ended.get(found_job.id)}"
            yield Broken("P6 changed", found_job.id, detail)


def _best(job: Found) -> Iterator[Broken]:
    """P7: the best that REST shows is the best finite report."""
    sign = 1 if job.is_max else -1
    values = {(report.trial, report.step): report.value for report in job.reports if report.value is not None}
    finite = {place: value for place, value in values.items() if math.isfinite(value)}
    if job.shown_best is None:
        if finite:
            yield Broken("P7 best", job.id, f"none is shown of {len(finite)} reports")
        return
    trial, step, value = job.shown_best
    if finite.get((trial, step)) != value:
        yield Broken("P7 best", job.id, f"no report of {trial} at step {step} has {value}")
    elif sign * value != max(sign * finite_value for finite_value in finite.values()):
        yield Broken("P7 best", job.id, f"{value} is shown, and there is a better one")
