"""A job rebuilt from its record, after its driver ended in whatever way.

The recorded events are told again to the core and to the sampler, which gives the state in which the job was; nothing is
asked of the ledger or of a worker meanwhile. Then what the dead driver left open is closed: its holds are settled, its
attempts ended as lost.
"""

from collections.abc import Mapping
from dataclasses import replace

from tuner.domain import events as ev
from tuner.domain.cost import CostKind
from tuner.domain.ids import hold_id
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.records import DRIVER_ENDED, AttemptRow, OpenHold
from tuner.domain.time import Instant
from tuner.engine.journal import JournalTx
from tuner.engine.loop import Loop
from tuner.tuning.decide import decide

Landed = Mapping[tuple[str, int], Instant | None]
"""Since when attempts have had their machines, by trial and number; None: they wait for one."""


def recover(loop: Loop, *, died_at: Instant | None, now: Instant) -> None:
    """Brings a fresh loop to where its job is, and tells it `Launched`.

    `died_at` is when the workers of the driver before are known to have stopped, None: now. It only shortens what is
    billed; their leases bound it in any case.
    """
    for event in loop.journal.events():
        loop.state, _ = decide(loop.state, event)
        loop.learner.learn(loop.state, event)
    loop.state.touched.clear()
    loop.saved.update(loop.journal.newest_checkpoints())
    attempts = {row.trial: row for row in loop.journal.attempts()}
    landed = {(row.trial, row.attempt): row.landed_at for row in attempts.values()}
    loop.attempts.update({trial: row.attempt for trial, row in attempts.items()})
    holds = loop.journal.open_holds()
    with loop.journal.transaction() as tx:
        for hold in holds:
            lost = lost_since(landed, hold, died_at or now)
            tx.settle(hold.id, lost, at=now)
        for row in attempts.values():
            if row.ended_at is None:
                _end_attempt(loop, tx, row, now)
        ran = [loop.state.trials[number].id for number in sorted(loop.state.active)]
        launched = ev.Launched(now, {trial: loop.saved.get(trial, 0) for trial in ran})
        tx.append(launched)
        loop.state, _ = decide(loop.state, launched)
        loop.learner.learn(loop.state, launched)
        loop.record_touched(tx, now)


def lost_since(landed: Landed, hold: OpenHold, died_at: Instant) -> dict[CostKind, Cost]:
    """As `lost_of`, of an attempt that had its machine since then only: before, it waited for one and used nothing."""
    since = landed.get(
        (hold.trial, hold.attempt), hold.placed_at
    )  # what is no attempt waits before its hold is placed
    if since is None:
        return {}
    late_ns = max(0, since - hold.placed_at)
    moved = replace(
        hold, placed_at=Instant(hold.placed_at + late_ns), ends_at=Instant(hold.ends_at + late_ns)
    )
    return lost_of(moved, died_at)


def lost_of(hold: OpenHold, died_at: Instant) -> dict[CostKind, Cost]:
    """What a dead worker used since its last post cannot be known: it is taken to have worked until it died, and to have
    lost that work. Whatever rate the hold was placed at, a part of its time costs that part of it, rounded up."""
    whole_ns = hold.ends_at - hold.placed_at
    used_ns = max(0, min(died_at, hold.ends_at) - hold.placed_at)
    if not used_ns:
        return {}
    usd, gpu_ms = (-(-whole * used_ns // whole_ns) for whole in (hold.cost.usd.micro_usd, hold.cost.gpu_ms))
    lost = Cost(Money(usd), gpu_ms)
    return {} if lost.nothing else {"lost": lost}


def _end_attempt(loop: Loop, tx: JournalTx, row: AttemptRow, now: Instant) -> None:
    """Training after the newest checkpoint has to be done again: its cost moves from train to lost."""
    trial = loop.state.trial(row.trial)
    kept = max(loop.saved.get(row.trial, 0), row.from_step)
    reached = tx.reached(row.trial, trial.steps) if trial.steps > kept else None
    at_kept = tx.reached(row.trial, kept) if kept else (FREE, 0)
    if reached is not None and at_kept is not None:
        trained, again = tx.posted(row.trial, row.attempt).get("train", FREE), reached[0] - at_kept[0]
        again = Cost(min(again.usd, trained.usd), min(again.gpu_ms, trained.gpu_ms))
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
