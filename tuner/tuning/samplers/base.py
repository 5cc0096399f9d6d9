"""The sampler interface."""

import math
from collections.abc import Mapping
from random import Random
from typing import Protocol

from tuner.domain.space import Config

# Mean and standard deviation of a trial's predicted score at the last step, on a scale that the sampler chooses.
Forecast = tuple[float, float]


class Sampler(Protocol):
    """Suggests the configurations of a job's trials. Use a sampler from one thread only.

    It is deterministic: the nth suggestion is a function of the seed, n and the earlier calls. After a restart, the same calls of
    `tell`, `finish` and `adopt` rebuild it. Trials are identified by number, from 0.
    """

    def suggest(self, number: int, step_s: float = math.inf) -> Config | None:
        """Return a configuration for the next trial, which has this number. Return None if the sampler will never have another one.

        Args:
            step_s: The longest step time, in seconds, with which the trial's last step is affordable. Samplers that cannot predict
                step times ignore it.
        """

    def adopt(self, number: int, config: Config | None) -> None:
        """Set the actual configuration of trial `number`.

        Call it in two cases: instead of `suggest` when a sampler is rebuilt after a restart, which is often cheaper, and after
        `suggest` if the trial runs with another configuration.
        """

    def tell(
        self,
        number: int,
        step: int,
        score: float,
        trained_ns: int,
        *,
        at_rung: bool,
        violation: float = 0.0,
    ) -> None:
        """Learn from the report of a new step of trial `number`.

        Args:
            score: A higher score is better.
            trained_ns: Training time of all steps of the trial so far, in nanoseconds.
            at_rung: Whether the step is a rung or the last step.
            violation: The total violation of the job's constraints. It is 0 if the report is feasible.
        """

    def finish(self, number: int, *, failed: bool) -> None:
        """Record that trial `number` has ended for good, and whether it failed."""

    def forecast(self) -> Mapping[int, Forecast] | None:
        """Return the predicted final scores of the most promising trials, by number.

        Return None if the sampler makes no forecasts, or has too few scores for one yet.
        """


def number_rng(seed: int, number: int) -> Random:
    """Return the random generator of one suggestion.

    The seed is a string because Random(str) is the same in every process; hash(str) is not.
    """
    return Random(f"{seed}/{number}")
