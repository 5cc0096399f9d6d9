"""What a sampler is asked and told."""

import math
from collections.abc import Mapping
from random import Random
from typing import Protocol

from tuner.domain.space import Config

# Mean and standard deviation of the score at the last step, on a scale of the model's own.
Forecast = tuple[float, float]


class Sampler(Protocol):
    """Deterministic: the nth suggestion is a function of the seed, n and what was told before. Used by one thread.

    Trials are known by number, from 0. After a restart the same tellings and adoptions rebuild it.
    """

    def suggest(self, number: int, step_s: float = math.inf) -> Config | None:
        """The configuration of trial `number`, the next one; None: there are no more, ever. `step_s`: the seconds that one of its
        steps may take for its last one to be affordable, which a sampler heeds that can foretell them."""

    def adopt(self, number: int, config: Config | None) -> None:
        """What trial `number` really is: what `suggest(number)` answered before a restart (cheaper than asking again, where that
        is possible), or what was made of it just now."""

    def tell(self, number: int, step: int, score: float, trained_ns: int, *, at_rung: bool) -> None:
        """Trial `number` reported a new step, a rung or its last where `at_rung`; a higher score is better. `trained_ns`: what
        its steps so far took."""

    def finish(self, number: int, *, failed: bool) -> None:
        """Trial `number` will not go on."""

    def forecast(self) -> Mapping[int, Forecast] | None:
        """Where the most promising trials would end; None from samplers that foretell nothing, or nothing yet."""


def number_rng(seed: int, number: int) -> Random:
    """The generator of one suggestion. Random(str) is the same in every process; hash(str) is not."""
    return Random(f"{seed}/{number}")
