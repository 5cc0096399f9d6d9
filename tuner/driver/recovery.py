"""Rebuild a job from its record after its driver ended for any reason.

The recorded events are passed to `decide` and to the sampler again, which restores the job's state. This replay
uses neither the ledger nor any worker. Then the holds that the previous driver left open are settled, and
its open attempts end as lost.
"""

from collections.abc import Callable
from dataclasses import replace

from tuner.domain import events as ev
from tuner.domain.cost import CostKind
from tuner.domain.ids import hold_id
from tuner.domain.ledger import lost_of
from tuner.domain.money import FREE, ZERO, Cost
from tuner.domain.records import DRIVER_ENDED, AttemptRow
from tuner.domain.time import Instant
from tuner.driver.loop import Loop
from tuner.driver.ports import JournalTx
from tuner.tuning.decide import decide


def recover(
    loop: Loop, *, died_at: Instant | None, now: Instant, turned: Callable[[], None] = lambda: None
) -> None:
    """Bring a new loop to the recorded state of its job, and record `Launched`.

    Args:
        loop: The new loop.
        died_at: When the workers of the previous driver are known to have stopped. Time after this instant is not billed. None means
            `now`. No attempt is billed beyond its lease, either.
        now: The current time.
        turned: Called for each recorded event, because the replay of a long job takes longer than a driver may be silent.
    """
    for event in loop.journal.events():
        turned()
        loop.state, _ = decide(loop.state, event)
        loop.learner.learn(loop.state, event)
        loop.pace.recall(event)
    loop.state.changed.clear()
    loop.saved.update(loop.journal.newest_checkpoints())
    attempts = {row.trial: row for row in loop.journal.attempts()}
    assigned_at = {(row.trial, row.attempt): row.assigned_at for row in attempts.values()}
    loop.attempts.update({trial: row.attempt for trial, row in attempts.items()})
    holds = loop.journal.open_holds()
    with loop.journal.transaction() as tx:
        for hold in holds:
            tx.settle(hold.id, lost_of(hold, assigned_at, died_at or now, now), at=now)
        for row in attempts.values():
            if row.ended_at is None:
                _end_attempt(loop, tx, row, now)
        ran = [loop.state.trials[number].id for number in sorted(loop.state.active)]
        saved = {trial: loop.saved.get(trial, 0) for trial in ran}
        launched = ev.Launched(now, saved, loop.concurrency, ev.RULES)
        tx.append(launched)
        loop.state, _ = decide(loop.state, launched)
        loop.learner.learn(loop.state, launched)
        loop.record_changed(tx, now)


def _end_attempt(loop: Loop, tx: JournalTx, row: AttemptRow, now: Instant) -> None:
    """Record that an attempt of the previous driver was lost.

    Training after the newest checkpoint has to be repeated, so its cost is moved from `train` to `lost`. If the trial is complete, nothing
    has to be repeated.
    """
    trial = loop.state.trial(row.trial)
    saved = loop.saved.get(row.trial, 0)
    kept = trial.steps if loop.state.is_complete(trial, saved) else max(saved, row.from_step)
    reached = tx.reached(row.trial, trial.steps) if trial.steps > kept else None
    at_kept = tx.reached(row.trial, kept) if kept else (FREE, 0)
    if reached is not None and at_kept is not None:
        posted = tx.posted(row.trial, row.attempt)
        base = (tx.reached(row.trial, row.from_step) if row.from_step else None) or (FREE, 0)
        # The reports of an attempt that began without a checkpoint include its setup.
        setup = FREE if row.from_step else posted.get("setup", FREE)
        durable = _positive(at_kept[0] - base[0] - setup)
        # The training after the last post was billed as lost when the open hold was settled, so only posted training is moved. A report has
        # the cost of the first attempt that reached its step. If that attempt cost more than a later repetition, a difference is negative.
        unsaved = posted.get("train", FREE) - durable
        again = _positive((reached[0] - at_kept[0]).at_most(unsaved))
        moved: dict[CostKind, Cost] = {"train": -again, "lost": again}
        tx.correct(
            f"{hold_id(loop.job, row.trial, row.attempt, 0)}/driver-lost",
            trial=row.trial,
            attempt=row.attempt,
            costs=moved,
            at=now,
        )
    reason, to_step = DRIVER_ENDED, max(trial.steps, row.from_step)
    costs = tx.posted(row.trial, row.attempt)
    tx.put_attempt(
        replace(row, ended_at=now, end="lost", reason=reason, to_step=to_step, costs=costs, cause="driver")
    )


def _positive(cost: Cost) -> Cost:
    """Return the cost with negative dollars and negative GPU time replaced by 0."""
    return Cost(max(ZERO, cost.usd), max(0, cost.gpu_ms))
