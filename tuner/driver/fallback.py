"""Placement on spot machines with fallback to on-demand ones, for all trials of a job.

The rules of `tuner.tuning.placement` are applied to each trial, with the machines that the cluster has or may start. A
trial falls back to an on-demand machine

- once it has waited for spot for `spot_wait_ns`,
- at once if it would otherwise not reach its target before the job's wall-clock limit,
- after a series of preemptions: its spot machines were taken away `SERIES_LENGTH` times before it saved a newer checkpoint.

The trial returns to spot once spot is available again and the saving is worth the cost of the move. From the second series of
preemptions on, it avoids spot for some time before it returns, and each further series doubles this time. If the job has a
wall-clock limit and the duration of a step is not known yet, the trial begins on demand, because there may be no time to spare.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant
from tuner.driver.placement import EPOCH, AllowedPlaces, CheapestFree, Place, Placement, TrialSnapshot
from tuner.tuning.placement import (
    HALF_LIFE_NS,
    Observation,
    PlacementChoice,
    PlacementMemory,
    PlacementRequest,
    choose,
)

# After this many preemptions in a row without a newer checkpoint, the next attempt runs on demand, so that it can save a checkpoint.
SERIES_LENGTH = 3
# How long a trial stays on demand after its second series of preemptions. Each further series doubles the time.
BACKOFF_NS = 900 * NS
# How long an offer counts as full after a trial waited in vain for a machine of this offer, although the job still had room there.
# For spot offers, the time doubles each time that this happens again.
FULL_NS = 300 * NS
UNKNOWN_NS = 1


@dataclass(slots=True)
class FallbackState:
    """The state that `SpotWithFallback` keeps about one trial."""

    target: int | None = None  #: The step for which `request` was made: the trial may train up to it.
    #: The input of the placement rules (offers, deadline, limit on waiting for spot) for training up to `target`.
    request: PlacementRequest | None = None
    memory: PlacementMemory | None = None  #: The progress of the trial so far.
    #: The offer on which the trial was placed last. None once the trial runs there.
    waits_for: Offer | None = None
    #: How many times the waiting attempt was moved to another offer because it had waited too long. 0 once an attempt runs.
    turns: int = 0
    preemption_series: int = 0  #: How many series of preemptions the trial had.
    in_preemption_series: bool = False  #: Whether the trial is in a series of preemptions now.
    backoff_until: Instant = EPOCH  #: The trial avoids spot until this time.

    def note_preemptions(self, preemptions_without_progress: int, now: Instant) -> None:
        """Count the trial's series of preemptions, and avoid spot for some time if it has had several.

        A series is `SERIES_LENGTH` preemptions in a row without a newer checkpoint. The first series may be bad luck, so it causes no backoff.
        After the second one, the trial avoids spot for `BACKOFF_NS`. Each further series doubles this time, up to `HALF_LIFE_NS`.
        """
        begins, self.in_preemption_series = (
            preemptions_without_progress >= SERIES_LENGTH and not self.in_preemption_series,
            preemptions_without_progress >= SERIES_LENGTH,
        )
        self.preemption_series += begins
        if begins and self.preemption_series > 1:
            self.backoff_until = Instant(now + min(BACKOFF_NS << (self.preemption_series - 2), HALF_LIFE_NS))


def placement_of(places: AllowedPlaces, *, spot_wait_ns: int) -> Placement:
    """Return the placement policy of a job. It falls back to on-demand if `places` include both markets."""
    if {place.offer.market for place in places.all if place.offer} == {"spot", "on_demand"}:
        return SpotWithFallback(places, spot_wait_ns=spot_wait_ns)
    return CheapestFree(places, coming_ns=spot_wait_ns)


class SpotWithFallback:
    """Place attempts on spot offers, with fallback to on-demand ones.

    A new driver starts without the experience of the job's earlier drivers, such as which offers were full.
    """

    def __init__(self, places: AllowedPlaces, *, spot_wait_ns: int) -> None:
        self._places, self._spot_wait_ns = places, spot_wait_ns
        # The same offers, but with the price of one trial instead of one machine. A trial uses a different share of each machine type, so
        # the prices of whole machines cannot be compared.
        self._priced = {
            place.offer: replace(place.offer, price=place.rate.price) for place in places.all if place.offer
        }
        self._place = {self._priced[place.offer]: place for place in places.all if place.offer}
        self._offers = tuple(self._place)
        self._states: defaultdict[str, FallbackState] = defaultdict(FallbackState)
        # What progress has cost on each offer, over all trials.
        self._shared = PlacementMemory(Instant(0), 0)
        # For each full offer: the time until which it counts as full, and the length of that period.
        self._full: dict[Offer, tuple[Instant, int]] = {}
        # When a trial last waited for a spot machine and got none.
        self._last_failed_wait = -FULL_NS

    def choose(self, trial: TrialSnapshot) -> Sequence[Place]:
        state = self._states[trial.trial]
        state.memory = state.memory and state.memory.waits(trial.now)
        state.waits_for = self._wanted(trial)
        first = self._place[state.waits_for]
        return [first, *(place for place in self._places.all if place != first)]

    def relocation(self, trial: TrialSnapshot) -> Place | None:
        if trial.at is None or trial.at.offer is None:
            return None
        at = self._priced[trial.at.offer]
        self._note_wait(at, trial)
        wanted = self._wanted(trial)
        is_available = wanted != at and self._room(wanted, trial) > 0
        destination = wanted if is_available else self._another(at, trial)
        if destination is None:
            return None
        self._states[trial.trial].waits_for = destination
        return self._place[destination]

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        if place.offer is not None:
            offer = self._priced[place.offer]
            self._shared = self._shared.after(offer, now=now, paid_ns=paid_ns, gained_ns=gained_ns)

    def _another(self, at: Offer, trial: TrialSnapshot) -> Offer | None:
        """Return the cheapest other offer on which the job has room, if the trial's attempt has waited too long for `at`.

        Return None if it has not waited too long, or if no other offer has room. An offer that counts as full is tried too, because it may
        no longer be full. The attempt waits twice as long after each move, because the autoscaler may need longer than `spot_wait_ns` to
        start a machine.
        """
        state = self._states[trial.trial]
        if trial.waited_ns is None or trial.waited_ns < self._spot_wait_ns << min(state.turns, 10):
            return None
        others = [
            o for o in self._offers if o != at and self._places.room(self._place[o], trial.occupied) > 0
        ]
        state.turns += bool(others)
        return self._shared.cheapest(others, trial.now)

    def _note_wait(self, at: Offer, trial: TrialSnapshot) -> None:
        """Record whether the offer `at`, which the trial waits for or runs on, counts as full.

        The offer counts as full if the trial has waited for one of its machines for `spot_wait_ns`, although this job's own trials do not
        use all of them. Trials of other jobs probably use the rest. Once an attempt that waited for the offer runs there, the offer stops
        counting as full.
        """
        state = self._states[trial.trial]
        if trial.waited_ns is None:
            if state.waits_for == at:
                self._full.pop(at, None)
            state.waits_for, state.turns = None, 0
            return
        state.waits_for = at
        if trial.waited_ns >= self._spot_wait_ns and self._room(at, trial) > 0:
            until, full_ns = self._full.get(at, (trial.now, FULL_NS))
            # The period grows for spot offers only. On-demand offers are tried again sooner, because a deadline may require one.
            if at.market == "spot" and at in self._full and trial.now - trial.waited_ns >= until:
                full_ns *= 2
            self._full[at] = Instant(trial.now + full_ns), full_ns

    def _wanted(self, trial: TrialSnapshot) -> Offer:
        """Return the offer that the trial should run on or wait for.

        This is the offer that suits the trial best. If that offer is on demand and has no room for another trial, return the cheapest
        spot offer that has room instead, if any.
        """
        best = self._best(trial)
        there = [] if best.market == "spot" or self._room(best, trial) > 0 else self._there(trial)
        return self._shared.cheapest(there, trial.now) or best

    def _best(self, trial: TrialSnapshot) -> Offer:
        """Return the offer that suits the trial best, even if it has no room for another trial."""
        in_the_dark = trial.time_ns is not None and trial.left_ns is None
        state = self._states[trial.trial]
        state.note_preemptions(trial.preemptions_without_progress, trial.now)
        if state.in_preemption_series or trial.now < state.backoff_until or in_the_dark:
            return self._runs_at(trial) or self._cheapest("on_demand", trial.now)
        choice = self._choice(state, trial)
        assert state.memory is not None
        if trial.now - state.memory.progressed >= self._spot_wait_ns and trial.runs_at is None:
            self._last_failed_wait = trial.now if choice.why in ("waits", "waited too long") else -FULL_NS
        # If the rules return no offer, the trial may wait for spot. A trial that already runs keeps its machine instead.
        if offer := choice.offer or self._runs_at(trial):
            return offer
        # If a trial has recently waited for spot in vain, other trials do not wait for it.
        late = trial.now < self._last_failed_wait + FULL_NS
        return self._cheapest("on_demand" if late else "spot", trial.now)

    def _choice(self, state: FallbackState, trial: TrialSnapshot) -> PlacementChoice:
        """Apply the rules of `tuner.tuning.placement` to the trial, and return their choice.

        The rules also depend on the trial's progress so far, which this method stores in `state` for its next call.
        """
        request = self._request_of(state, trial)
        # If the remaining training time is not known, use a positive value: the rules would take zero for a trial that has finished.
        left_ns = max(UNKNOWN_NS, trial.left_ns or 0)
        observation = Observation(
            now=trial.now,
            left_ns=left_ns,
            changeover_ns=trial.changeover_ns,
            unsaved_ns=min(trial.unsaved_ns, left_ns - 1),
            at=self._runs_at(trial),
            there=self._there(trial),
        )
        memory = replace(state.memory or PlacementMemory(trial.now, left_ns), records=self._shared.records)
        state.memory, choice = choose(request, memory, observation)
        return choice

    def _request_of(self, state: FallbackState, trial: TrialSnapshot) -> PlacementRequest:
        """Return the input of the placement rules (offers, deadline, limit on waiting for spot) for training up to the trial's
        target step.

        The request has a deadline (the wall-clock limit) only if step durations are known and uninterrupted training could meet it. If
        training cannot meet the deadline, on-demand machines are not worth their price. The request is stored and used again until the
        target changes, or until a request without a deadline can get one.
        """
        request = state.request
        meets = trial.left_ns is not None and trial.time_ns is not None and trial.least_ns <= trial.time_ns
        if request is None or state.target != trial.target or (meets and request.deadline is None):
            deadline = Instant(trial.now + (trial.time_ns or 0)) if meets else None
            request = PlacementRequest(
                market="spot_with_fallback",
                offers=self._offers,
                begun=trial.now,
                work_ns=trial.left_ns or UNKNOWN_NS,
                deadline=deadline,
                spot_wait_ns=self._spot_wait_ns,
            )
            state.target, state.request, state.memory = trial.target, request, None
        return request

    def _there(self, trial: TrialSnapshot) -> list[Offer]:
        """Return the spot offers that have room for another trial.

        For a running trial, only machines that already exist count as room. For other trials, machines that the autoscaler may
        still start count too.
        """
        runs = trial.at is not None and trial.waited_ns is None
        return [offer for offer in self._of("spot") if self._room(offer, trial, now=runs) > 0]

    def _runs_at(self, trial: TrialSnapshot) -> Offer | None:
        return None if trial.runs_at is None else self._priced[trial.runs_at]

    def _room(self, offer: Offer, trial: TrialSnapshot, *, now: bool = False) -> int:
        """Return how many more trials of the job fit on the machines of this offer. Return 0 while the offer counts as full.

        With `now`, machines that the autoscaler has yet to start are not counted.
        """
        if offer in self._full and self._full[offer][0] > trial.now:
            return 0
        return self._places.room(self._place[offer], trial.occupied, now=now)

    def _cheapest(self, market: str, now: Instant) -> Offer:
        offer = self._shared.cheapest(self._of(market), now)
        assert offer is not None
        return offer

    def _of(self, market: str) -> list[Offer]:
        return [offer for offer in self._offers if offer.market == market]
