"""What a sampler is asked and told."""

from random import Random
from typing import Protocol

from tuner.domain.space import Config


class Sampler(Protocol):
    """Deterministic: the nth suggestion is a function of the seed, n and what was told before. Used by one thread.

    Trials are known by number, from 0. After a restart the same tellings and adoptions rebuild it.
    """

    def suggest(self, number: int) -> Config | None:
        """The configuration of trial `number`, the next one; None: there are no more, ever."""

    def adopt(self, number: int, config: Config | None) -> None:
        """What trial `number` really is: what `suggest(number)` answered before a restart (cheaper than asking again, where that
        is possible), or what was made of it just now."""

    def tell(self, number: int, step: int, score: float, trained_ns: int) -> None:
        """Trial `number` reached a rung, or ended, at `step`; a higher score is better. `trained_ns`: what its steps so far took."""

    def finish(self, number: int, *, failed: bool) -> None:
        """Trial `number` will not go on."""


def number_rng(seed: int, number: int) -> Random:
    """The generator of one suggestion. Random(str) is the same in every process; hash(str) is not."""
    return Random(f"{seed}/{number}")
