"""Make the snapshot of a trial for placement from the job's state, the trial's attempt and the measured step times. Pure functions."""

import math
from collections import Counter
from collections.abc import Mapping

from tuner.domain.cost import CostKind
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant
from tuner.driver.holds import AttemptLease
from tuner.driver.pace import JobPace
from tuner.driver.placement import TrialSnapshot
from tuner.tuning.state import State, TrialRecord

STARTS: tuple[CostKind, ...] = ("setup", "restore")
# How long a worker takes to start on another machine, where its process must first import Ray and torch.
WORKER_NS = 10 * NS
DOUBT = 0.5  # relative error of a duration estimated from a single step


def snapshot(
    state: State,
    name: str,
    leases: Mapping[str, AttemptLease],
    saved: Mapping[str, int],
    pace: JobPace,
    *,
    now: Instant,
    time_ns: int | None,
) -> TrialSnapshot:
    """Return the snapshot of a trial.

    Args:
        state: The state of the job.
        name: The trial.
        leases: The holds, leases and meter readings of the current attempts, by trial.
        saved: The step of the newest checkpoint, by trial.
        pace: The durations seen so far.
        now: The time on a monotonic clock.
        time_ns: Time until the wall-clock limit, in nanoseconds. None if the job has no limit.
    """
    trial, lease, kept = state.trial(name), leases.get(name), saved.get(name, 0)
    target = trial.target_step if trial.target_step is not None else state.max_step
    left_ns = least_ns = None
    if target is not None:
        left_ns = _left_ns(trial, target - kept, pace)
        least_ns = _least_ns(state, trial, target - max(kept, lease.last_step if lease else 0))
    waits = lease is not None and lease.waits
    # Until the first attempt ends, the only known start durations are those of the current attempts.
    starts = (sum(lease.meter.ns.get(kind, 0) for kind in STARTS) for lease in leases.values())
    longest_start_ns = max(pace.longest_overhead_ns, *starts, 0)
    return TrialSnapshot(
        trial=name,
        now=now,
        occupied=_occupied(leases, name),
        at=lease.place if lease is not None else None,
        waited_ns=now - lease.last_message_ns if lease is not None and waits else None,
        target=target,
        left_ns=left_ns,
        least_ns=least_ns or 0,
        unsaved_ns=0 if lease is None else unsaved_ns(lease, kept),
        changeover_ns=WORKER_NS + longest_start_ns + pace.slowest_ns * 5 // 4,
        time_ns=time_ns,
        preemptions_without_progress=trial.preemptions_without_progress if kept <= trial.kept else 0,
    )


def _left_ns(trial: TrialRecord, steps: int, pace: JobPace) -> int | None:
    """Return an upper bound for the time that the trial's next `steps` steps take, in nanoseconds. Return None if no step was measured.

    The bound is estimated from the trial's own steps if there are any, else from the slowest step of all trials. An
    estimate that is too low could make the trial miss its deadline.
    """
    if not trial.steps:
        return pace.slowest_ns * max(0, steps) or None
    return round(trial.trained_ns * max(0, steps) * (1 + _doubt(trial.steps))) // trial.steps


def _least_ns(state: State, trial: TrialRecord, steps: int) -> int:
    """Return a lower bound for the time that the trial's next `steps` steps take, in nanoseconds. Return 0 if no step was measured.

    The bound is estimated from the trial's own steps if there are any, else from the steps of all trials. If it exceeds the time left, the
    trial cannot meet the deadline.
    """
    trained_ns, done = (trial.trained_ns, trial.steps) if trial.steps else (state.trained_ns, state.steps)
    return round(trained_ns * max(0, steps) * (1 - _doubt(trial.steps))) // max(1, done)


def _doubt(steps: int) -> float:
    """Return the assumed relative error of a mean step duration that was measured over `steps` steps."""
    return DOUBT / math.sqrt(max(1, steps))


def may_move(trial: TrialRecord, lease: AttemptLease) -> bool:
    """Return whether the trial can move now: its running attempt can save a new checkpoint, and is neither moving nor losing its machine."""
    under_way = trial.status == "running" and lease.last_step > lease.from_step
    return under_way and trial.resumable and lease.moving is None and not lease.last_message.has_notice


def unsaved_ns(lease: AttemptLease, kept: int) -> int:
    """Return the attempt's training time, in nanoseconds, since the trial's newest checkpoint, which was saved at the step `kept`."""
    return max(0, lease.meter.ns.get("train", 0) - lease.trained_ns.get(kept, 0))


def lost_ns(lease: AttemptLease, kept: int, *, done_again: bool) -> int:
    """Return how much of an ended attempt's training time counts as lost, in nanoseconds.

    Training that repeated earlier training is lost. With `done_again`, training since the newest checkpoint (at step `kept`) is
    lost too, because the trial has to repeat it.
    """
    lost = lease.again_ns + (unsaved_ns(lease, kept) if done_again else 0)
    return min(lost, lease.meter.ns.get("train", 0))


def _occupied(leases: Mapping[str, AttemptLease], name: str) -> Counter[Offer]:
    """Count, for each offer, the trials other than `name` whose attempts run on it, wait for it or are about to move to it.

    An attempt whose machine is about to be taken away does not count for that machine's offer.
    """
    occupied: Counter[Offer] = Counter()
    for lease in leases.values():
        place, leaves = lease.moving or lease.place, lease.last_message.has_notice
        if lease.trial != name and place.offer is not None and (lease.moving or not leaves):
            occupied[place.offer] += 1
    return occupied
