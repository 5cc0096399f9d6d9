"""How a trial stands, for whoever says where it is to run: gathered from the state, its attempt, and the pace so far. Pure."""

from collections import Counter
from collections.abc import Mapping

from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant
from tuner.engine.holds import Purse
from tuner.engine.pace import Pace
from tuner.engine.placement import Standing
from tuner.tuning.state import State, TrialRecord

# From the order to another machine's worker, where it is new: a process that imports Ray and torch.
WORKER_NS = 10 * NS


def standing(
    state: State,
    name: str,
    purses: Mapping[str, Purse],
    saved: Mapping[str, int],
    pace: Pace,
    *,
    now: Instant,
    time_ns: int | None,
) -> Standing:
    trial, purse, kept = state.trial(name), purses.get(name), saved.get(name, 0)
    target = trial.until if trial.until is not None else state.max_step
    # The slowest step of all, as machines differ; a trial's own where it has done some.
    step_ns = pace.step_ns.get(name, pace.slowest_ns)
    left_ns = step_ns * max(0, target - kept) if step_ns and target is not None else None
    waits = purse is not None and purse.waits
    return Standing(
        trial=name,
        now=now,
        taken=_taken(purses, name),
        at=purse.place if purse is not None else None,
        waited_ns=now - purse.heard_ns if purse is not None and waits else None,
        target=target,
        left_ns=left_ns,
        unsaved_ns=0 if purse is None else unsaved_ns(purse, kept),
        changeover_ns=WORKER_NS + pace.longest_overhead_ns + pace.slowest_ns,
        time_ns=time_ns,
        in_vain=trial.in_vain if kept <= trial.kept else 0,
    )


def may_move(trial: TrialRecord, purse: Purse) -> bool:
    """Whether its attempt can be ended for the sake of another machine: it goes on there from what it saves here."""
    under_way = trial.status == "running" and purse.last_step > purse.from_step
    return under_way and trial.resumable and purse.moving is None and not purse.leaving


def unsaved_ns(purse: Purse, kept: int) -> int:
    """Training after the trial's newest checkpoint."""
    return max(0, purse.meter.ns.get("train", 0) - purse.trained_ns.get(kept, 0))


def lost_ns(purse: Purse, kept: int, *, done_again: bool) -> int:
    """Of an attempt that ends: training that was done before, and, with `done_again`, that has to be after it."""
    lost = purse.again_ns + (unsaved_ns(purse, kept) if done_again else 0)
    return min(lost, purse.meter.ns.get("train", 0))


def _taken(purses: Mapping[str, Purse], name: str) -> Counter[Offer]:
    """How many of each kind of machine the other trials have, wait for, or move to. What is about to be taken away counts as
    gone."""
    found: Counter[Offer] = Counter()
    for purse in purses.values():
        place = purse.moving or purse.place
        if purse.trial != name and place.offer is not None and (purse.moving or not purse.leaving):
            found[place.offer] += 1
    return found
