"""Minimal jobs, budgets and holds for tests."""

from collections.abc import Mapping

from tuner.database.database import Database
from tuner.domain.budget import Budget
from tuner.domain.ids import hold_id, trial_id
from tuner.domain.job import JobSpec
from tuner.domain.money import Cost, Money, Price
from tuner.domain.objective import Objective
from tuner.domain.offer import Offer
from tuner.domain.records import OpenHold
from tuner.domain.space import Float, Space
from tuner.domain.time import NS, Instant
from tuner.store import jobs

PROJECT = "lab"
JOB = "job_0000000000000001"
OFFER = Offer("m5.large", Price(100_000), cpus=2, gpus=0, source="a test")


def cost(usd: int, gpu_ms: int = 0) -> Cost:
    """Return a cost. `usd` is in micro-dollars."""
    return Cost(Money(usd), gpu_ms)


def budget(usd: int = 100, gpu_ms: int | None = None) -> Budget:
    """Return a budget. `usd` is in micro-dollars."""
    return Budget(usd=Money(usd), gpu_ms=gpu_ms)


def spec(limits: Budget, tags: Mapping[str, str] | None = None) -> JobSpec:
    return JobSpec("digits", "m:f", Objective("acc"), Space({"lr": Float(0, 1)}), limits, tags=tags or {})


def new_job(
    job: str = JOB,
    *,
    project: str = PROJECT,
    limits: Budget | None = None,
    tags: Mapping[str, str] | None = None,
    at: int = 0,
    key: str | None = None,
    body: str = "",
) -> jobs.NewJob:
    return jobs.NewJob(job, project, spec(limits or budget(), tags), OFFER, 2, Instant(at), key, body)


def create(database: Database, new: jobs.NewJob) -> str:
    with database.write() as db:
        return jobs.made_before(db, new) or jobs.create(db, new)


def hold(slice_number: int, held: Cost, *, job: str = JOB, trial: int = 0, attempt: int = 1) -> OpenHold:
    name = hold_id(job, trial_id(trial), attempt, slice_number)
    times = Instant(slice_number * NS), Instant((slice_number + 1) * NS)
    return OpenHold(name, trial_id(trial), attempt, slice_number, held, *times)
