"""How fast the trials of a job trained, and what interruptions cost on spot machines."""

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from tuner.domain.money import Money
from tuner.domain.time import NS
from tuner.store.tables import attempts, entries, reports, trials

TRIALS = 50
INTERRUPTED = ("lost", "restore")
TRAINED = ("setup", "train")


def step_seconds(db: Connection, job: str) -> list[float]:
    """Return the mean seconds per step of each of the job's first trials that have more than one step.

    The first step is left out, because it includes the setup.
    """
    t, r = trials.c, reports.c
    some = select(t.trial).where(t.job == job, t.steps > 1).order_by(t.number).limit(TRIALS)
    names = list(db.execute(some).scalars())
    query = (
        select(func.min(r.step), func.max(r.step), func.min(r.duration_ns), func.max(r.duration_ns))
        .where(r.job == job, r.trial.in_(names))
        .group_by(r.trial)
        .having(func.max(r.step) > func.min(r.step), func.max(r.duration_ns) > func.min(r.duration_ns))
    )
    return [(longest - least) / (last - first) / NS for first, last, least, longest in db.execute(query)]


def on_spot(db: Connection, jobs: Sequence[str]) -> tuple[Money, Money]:
    """Return two sums of what these jobs paid on spot machines: for lost and restored work, and for setup and training."""
    e, a = entries.c, attempts.c
    query = (
        select(e.kind, func.sum(e.usd))
        .join(attempts, (a.job == e.job) & (a.trial == e.trial) & (a.attempt == e.attempt))
        .where(e.job.in_(jobs), e.kind.in_((*INTERRUPTED, *TRAINED)), a.market == "spot")
        .group_by(e.kind)
    )
    paid = {kind: int(usd) for kind, usd in db.execute(query)}
    lost, trained = (sum(paid.get(kind, 0) for kind in kinds) for kinds in (INTERRUPTED, TRAINED))
    return Money(lost), Money(trained)
