"""Spot with fallback: `tuner.tuning.placement` asked for each trial of a job, with what is known of the cluster.

A trial falls back to a machine on demand once it has waited for spot for as long as it may, at once where it would not get where
it was sent before the wall clock ends, and where spot takes it away again and again before anything is saved. It goes
back once spot is there again and the move pays, and later after each such storm. With a wall clock it begins on demand where
nothing is known yet of how long a step takes: there might be no time to spare.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant
from tuner.engine.placement import EPOCH, CheapestFree, Place, Placement, Places, Standing
from tuner.tuning.placement import Choice, Sight, Terms, choose
from tuner.tuning.progress_price import HALF_LIFE_NS, Memory

# So many preemptions in a row without a newer checkpoint: the next attempt is to bring one, at whatever price.
STORM = 3
# On demand after the second storm, and for twice as long after each further one.
SHELTER_NS = 900 * NS
# Until a kind that should have been free, and was not, is asked for again; twice as long each time that it was in vain again.
FULL_NS = 300 * NS
UNKNOWN_NS = 1


@dataclass(slots=True)
class Course:
    """What is remembered of one trial. `terms` are those of its way to the step `target`; `waits_for` is where it was sent last and
    has not been seen to run yet; `turns`: so often was it sent on where all kinds counted as full; of the `storms` it was in one
    `rages` still, and until `shelters_until` it avoids spot."""

    target: int | None = None
    terms: Terms | None = None
    memory: Memory | None = None
    waits_for: Offer | None = None
    turns: int = 0
    storms: int = 0
    rages: bool = False
    shelters_until: Instant = EPOCH

    def note_storm(self, in_vain: int, now: Instant) -> None:
        """A machine or three may be unlucky; who is sent back into the next storm learns to wait."""
        begins, self.rages = in_vain >= STORM and not self.rages, in_vain >= STORM
        self.storms += begins
        if begins and self.storms > 1:
            self.shelters_until = Instant(now + min(SHELTER_NS << (self.storms - 2), HALF_LIFE_NS))


def placement_of(places: Places, *, patience_ns: int) -> Placement:
    """For a job that may have these."""
    if {place.offer.market for place in places.all if place.offer} == {"spot", "on_demand"}:
        return SpotWithFallback(places, patience_ns=patience_ns)
    return CheapestFree(places, coming_ns=patience_ns)


class SpotWithFallback:
    """For offers of both markets. It knows what this driver has seen, not what the ones before it saw."""

    def __init__(self, places: Places, *, patience_ns: int) -> None:
        self._places, self._patience_ns = places, patience_ns
        # What is chosen between has the price of a trial in it: machines may be of several sizes.
        self._priced = {
            place.offer: replace(place.offer, price=place.rate.price) for place in places.all if place.offer
        }
        self._place = {self._priced[place.offer]: place for place in places.all if place.offer}
        self._offers = tuple(self._place)
        self._courses: defaultdict[str, Course] = defaultdict(Course)
        self._shared = Memory(Instant(0), 0)
        # Until when a kind counts as full, and for how long it did.
        self._full: dict[Offer, tuple[Instant, int]] = {}
        self._waited_in_vain = -FULL_NS

    def choose(self, trial: Standing) -> Sequence[Place]:
        course = self._courses[trial.trial]
        course.memory = course.memory and course.memory.waits(trial.now)
        course.waits_for = self._wanted(trial)
        first = self._place[course.waits_for]
        return [first, *(place for place in self._places.all if place != first)]

    def elsewhere(self, trial: Standing) -> Place | None:
        if trial.at is None or trial.at.offer is None:
            return None
        at = self._priced[trial.at.offer]
        self._note_wait(at, trial)
        wanted = self._wanted(trial)
        is_to_be_had = wanted != at and self._room(wanted, trial) > 0
        found = wanted if is_to_be_had else self._another(at, trial)
        if found is None:
            return None
        self._courses[trial.trial].waits_for = found
        return self._place[found]

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        if place.offer is not None:
            offer = self._priced[place.offer]
            self._shared = self._shared.after(offer, now=now, paid_ns=paid_ns, gained_ns=gained_ns)

    def _another(self, at: Offer, trial: Standing) -> Offer | None:
        """Where all kinds count as full, one that waits tries them in turn, each for twice as long as the one before: none may be
        full any more, and one that has yet to come may take longer than a machine is waited for."""
        course = self._courses[trial.trial]
        if trial.waited_ns is None or trial.waited_ns < self._patience_ns << min(course.turns, 10):
            return None
        others = [o for o in self._offers if o != at and self._places.room(self._place[o], trial.taken) > 0]
        course.turns += bool(others)
        return self._shared.cheapest(others, trial.now)

    def _note_wait(self, at: Offer, trial: Standing) -> None:
        """A kind is full of which there should be room, as other jobs may have it, once it was waited for in vain; and no more once
        one that waited has got some of it."""
        course = self._courses[trial.trial]
        if trial.waited_ns is None:
            if course.waits_for == at:
                self._full.pop(at, None)
            course.waits_for, course.turns = None, 0
            return
        course.waits_for = at
        if trial.waited_ns >= self._patience_ns and self._room(at, trial) > 0:
            until, full_ns = self._full.get(at, (trial.now, FULL_NS))
            # What is on demand may be needed for a deadline.
            if at.market == "spot" and at in self._full and trial.now - trial.waited_ns >= until:
                full_ns *= 2
            self._full[at] = Instant(trial.now + full_ns), full_ns

    def _wanted(self, trial: Standing) -> Offer:
        """The kind to be on, or to wait for. Where a machine on demand is wanted, and the job has filled them all, spot will do."""
        found = self._best(trial)
        there = [] if found.market == "spot" or self._room(found, trial) > 0 else self._there(trial)
        return self._shared.cheapest(there, trial.now) or found

    def _best(self, trial: Standing) -> Offer:
        in_the_dark = trial.time_ns is not None and trial.left_ns is None
        course = self._courses[trial.trial]
        course.note_storm(trial.in_vain, trial.now)
        if course.rages or trial.now < course.shelters_until or in_the_dark:
            return self._runs_at(trial) or self._cheapest("on_demand", trial.now)
        choice = self._choice(course, trial)
        assert course.memory is not None
        if trial.now - course.memory.progressed >= self._patience_ns and trial.runs_at is None:
            self._waited_in_vain = trial.now if choice.why in ("waits", "out of patience") else -FULL_NS
        # One that has time to spare on demand could wait for spot, too; it keeps what it has.
        if found := choice.offer or self._runs_at(trial):
            return found
        # What one trial has waited for in vain, the next one need not wait for.
        late = trial.now < self._waited_in_vain + FULL_NS
        return self._cheapest("on_demand" if late else "spot", trial.now)

    def _choice(self, course: Course, trial: Standing) -> Choice:
        terms = self._terms_of(course, trial)
        # Training of which nothing is known is there to be done all the same.
        left_ns = max(UNKNOWN_NS, trial.left_ns or 0)
        sight = Sight(
            now=trial.now,
            left_ns=left_ns,
            changeover_ns=trial.changeover_ns,
            unsaved_ns=min(trial.unsaved_ns, left_ns - 1),
            at=self._runs_at(trial),
            there=self._there(trial),
        )
        memory = replace(course.memory or Memory(trial.now, left_ns), records=self._shared.records)
        course.memory, choice = choose(terms, memory, sight)
        return choice

    def _terms_of(self, course: Course, trial: Standing) -> Terms:
        """Anew whenever the trial is sent further, and once it is known how long its training takes. What surely cannot be done in
        time on demand either is not worth its price."""
        terms = course.terms
        meets = trial.left_ns is not None and trial.time_ns is not None and trial.least_ns <= trial.time_ns
        if terms is None or course.target != trial.target or (meets and terms.deadline is None):
            deadline = Instant(trial.now + (trial.time_ns or 0)) if meets else None
            terms = Terms(
                market="spot_with_fallback",
                offers=self._offers,
                begun=trial.now,
                work_ns=trial.left_ns or UNKNOWN_NS,
                deadline=deadline,
                patience_ns=self._patience_ns,
            )
            course.target, course.terms, course.memory = trial.target, terms, None
        return terms

    def _there(self, trial: Standing) -> list[Offer]:
        """One that runs is moved to a machine that is there, not to one that might come."""
        runs = trial.at is not None and trial.waited_ns is None
        return [offer for offer in self._of("spot") if self._room(offer, trial, now=runs) > 0]

    def _runs_at(self, trial: Standing) -> Offer | None:
        return None if trial.runs_at is None else self._priced[trial.runs_at]

    def _room(self, offer: Offer, trial: Standing, *, now: bool = False) -> int:
        if offer in self._full and self._full[offer][0] > trial.now:
            return 0
        return self._places.room(self._place[offer], trial.taken, now=now)

    def _cheapest(self, market: str, now: Instant) -> Offer:
        found = self._shared.cheapest(self._of(market), now)
        assert found is not None
        return found

    def _of(self, market: str) -> list[Offer]:
        return [offer for offer in self._offers if offer.market == market]
