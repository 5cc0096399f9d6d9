"""The ladder of rungs and the ranking of trials on each."""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from tuner.domain.fidelity import Fidelity
from tuner.domain.job import JobSpec

# The ladder of `auto`: the first rung at a twelfth of the whole, each next one four times as high (docs/decisions/0006-search-by-a-model-of-curves.md).
AUTO_FIRST = 12
AUTO_FACTOR = 4


def ladder(spec: JobSpec) -> Fidelity:
    """The fidelity as the scheduler climbs it: `auto` chooses its own rungs, from `min` on."""
    fidelity = spec.fidelity
    if spec.algorithm.scheduler != "auto" or fidelity.max is None:
        return fidelity
    first = max(fidelity.min, round(fidelity.max / AUTO_FIRST))
    return Fidelity(fidelity.unit, first, fidelity.max, AUTO_FACTOR)


@dataclass(slots=True)
class Rung:
    """The trials that reached `step`, best first, by (-score, number): ties go to the older trial. `waiting` are those of them
    that were not promoted, so that a promotion is found without looking at all."""

    step: int
    ranked: list[tuple[float, int]] = field(default_factory=list)
    waiting: list[tuple[float, int]] = field(default_factory=list)
    promoted: set[int] = field(default_factory=set)
    recorded: dict[int, float] = field(default_factory=dict)

    def record(self, number: int, score: float) -> None:
        """Each trial counts once, with the first score it crossed the rung with."""
        if number not in self.recorded:
            self.recorded[number] = score
            insort(self.ranked, (-score, number))
            insort(self.waiting, (-score, number))

    def promote(self, number: int) -> None:
        """Notes that a recorded trial went on from here; once more changes nothing."""
        if number not in self.promoted:
            self.promoted.add(number)
            del self.waiting[bisect_left(self.waiting, (-self.recorded[number], number))]

    def promotable(self, reduction_factor: int) -> list[int]:
        """Those that wait among the best 1/η, rounded down, of all that were recorded."""
        count = len(self.ranked) // reduction_factor
        if not count:
            return []
        return [number for _, number in self.waiting[: bisect_right(self.waiting, self.ranked[count - 1])]]

    def keeps(self, number: int, reduction_factor: int) -> bool:
        """Whether a stopping rule lets the trial go on: it is at or above the (1 - 1/η) quantile of the scores so far."""
        kept = max(1, -(-len(self.ranked) // reduction_factor))
        worst_kept = -self.ranked[min(kept, len(self.ranked)) - 1][0]
        return self.recorded[number] >= worst_kept
