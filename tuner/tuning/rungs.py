"""The rungs of a job, and the ranking of trials on each rung."""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from tuner.domain.job import JobSpec
from tuner.domain.objective import Fidelity

# The rungs of the scheduler `auto`: the first is at a twelfth of all steps, and each following rung at twice the step of the
# one before (docs/decisions/0006-search-by-a-model-of-curves.md).
AUTO_FIRST = 12
AUTO_FACTOR = 2
# A line that predicts scores at a rung from those at the rung before has a slope that is drawn towards 1.
SLOPE_WEIGHT = 3  # the prior slope 1 counts like this many pairs of scores
SLOPES = (0.3, 3.0)  # bounds of a fitted slope


def ladder(spec: JobSpec) -> Fidelity:
    """Return the job's fidelity with the rungs that its scheduler uses.

    `auto` chooses its own rungs, the first at `min` or above. If the job has proxies (settings that make early steps cheaper), `auto` keeps
    the job's rungs, because each value of a proxy belongs to one of them.
    """
    fidelity = spec.fidelity
    if spec.algorithm.scheduler != "auto" or fidelity.max is None or fidelity.proxies:
        return fidelity
    first = max(fidelity.min, round(fidelity.max / AUTO_FIRST))
    return Fidelity(fidelity.unit, first, fidelity.max, AUTO_FACTOR)


def rungs_of(spec: JobSpec) -> tuple[int, ...]:
    """Return the steps at which the job's scheduler compares trials, lowest first. The tuple is empty if every trial runs to its last step."""
    return () if spec.algorithm.scheduler == "none" else ladder(spec).rungs()


Rank = tuple[float, float]  # (violation of the constraints, negated score); lower is better


@dataclass(slots=True)
class Rung:
    """A rung: the trials that reached `step`, with their ranking."""

    step: int
    #: All trials that reached the step, best first, as (violation, -score, number), so that ties go to the older trial.
    ranked: list[tuple[float, float, int]] = field(default_factory=list)
    #: The entries of `ranked` whose trials were not promoted yet, so that finding the next trial to promote is fast.
    waiting: list[tuple[float, float, int]] = field(default_factory=list)
    promoted: set[int] = field(default_factory=set)
    recorded: dict[int, Rank] = field(default_factory=dict)  #: The rank by trial number.

    def record(self, number: int, score: float, violation: float = 0.0) -> None:
        """Record the score of a trial. Each trial counts once, with its first score at this rung.

        Trials that violate no constraint are ranked first, by score. The other trials follow, the smallest violation first.
        """
        if number not in self.recorded:
            self.recorded[number] = (violation, -score)
            insort(self.ranked, (violation, -score, number))
            insort(self.waiting, (violation, -score, number))

    def promote(self, number: int) -> None:
        """Record that a trial was promoted from this rung. Recording it again changes nothing."""
        if number not in self.promoted:
            self.promoted.add(number)
            del self.waiting[bisect_left(self.waiting, (*self.recorded[number], number))]

    def promotable(self, reduction_factor: int) -> list[int]:
        """Return the trials that are among the best 1/η (rounded down) of all recorded trials and were not promoted, best first.

        η is `reduction_factor`.
        """
        count = len(self.ranked) // reduction_factor
        if not count:
            return []
        return [number for *_, number in self.waiting[: bisect_right(self.waiting, self.ranked[count - 1])]]

    def keeps(self, number: int, reduction_factor: int) -> bool:
        """Return whether a trial is among the best 1/η (rounded up) of the trials recorded so far. η is `reduction_factor`.

        A trial with the same rank as the last of these best trials is among them too.
        """
        kept = max(1, -(-len(self.ranked) // reduction_factor))
        *worst_kept, _ = self.ranked[min(kept, len(self.ranked)) - 1]
        return self.recorded[number] <= tuple(worst_kept)
