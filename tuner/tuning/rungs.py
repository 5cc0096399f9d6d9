"""The rungs of a job, and the ranking of trials on each."""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from tuner.domain.fidelity import Fidelity
from tuner.domain.job import JobSpec

# The rungs of `auto`: the first at a twelfth of all steps, each next one four times as high
# (docs/decisions/0006-search-by-a-model-of-curves.md).
AUTO_FIRST = 12
AUTO_FACTOR = 4


def ladder(spec: JobSpec) -> Fidelity:
    """Return the fidelity that the scheduler uses. `auto` chooses its own rungs, not below `min`."""
    fidelity = spec.fidelity
    if spec.algorithm.scheduler != "auto" or fidelity.max is None:
        return fidelity
    first = max(fidelity.min, round(fidelity.max / AUTO_FIRST))
    return Fidelity(fidelity.unit, first, fidelity.max, AUTO_FACTOR)


@dataclass(slots=True)
class Rung:
    """The trials that reached `step`."""

    step: int
    #: All trials that reached the step, best first, as (-score, number), so that ties go to the older trial.
    ranked: list[tuple[float, int]] = field(default_factory=list)
    #: The trials that were not promoted, in the same order, so that the next one to promote is found without a search of all.
    waiting: list[tuple[float, int]] = field(default_factory=list)
    promoted: set[int] = field(default_factory=set)
    recorded: dict[int, float] = field(default_factory=dict)  #: Score by trial number.

    def record(self, number: int, score: float) -> None:
        """Record the score of a trial. Each trial counts once, with its first score at this rung."""
        if number not in self.recorded:
            self.recorded[number] = score
            insort(self.ranked, (-score, number))
            insort(self.waiting, (-score, number))

    def promote(self, number: int) -> None:
        """Record that a trial was promoted from this rung. A repeat changes nothing."""
        if number not in self.promoted:
            self.promoted.add(number)
            del self.waiting[bisect_left(self.waiting, (-self.recorded[number], number))]

    def promotable(self, reduction_factor: int) -> list[int]:
        """Return the waiting trials that are among the best 1/η (rounded down) of all recorded trials."""
        count = len(self.ranked) // reduction_factor
        if not count:
            return []
        return [number for _, number in self.waiting[: bisect_right(self.waiting, self.ranked[count - 1])]]

    def keeps(self, number: int, reduction_factor: int) -> bool:
        """Return whether the trial is among the best 1/η (rounded up) of the trials recorded so far. Ties count as best."""
        kept = max(1, -(-len(self.ranked) // reduction_factor))
        worst_kept = -self.ranked[min(kept, len(self.ranked)) - 1][0]
        return self.recorded[number] >= worst_kept
