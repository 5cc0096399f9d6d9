"""The configuration that a job confirmed by training its best ones with several seeds."""

from dataclasses import dataclass

from tuner.database.database import Connection
from tuner.store.best import repeated
from tuner.store.jobs import JobRow
from tuner.tuning.confirm import confidence, mean

#: The configuration with the better mean is really better only with some probability. Two configurations count as equally
#: good if this probability is below `EQUAL_BELOW`.
EQUAL_BELOW = 0.6


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A configuration that was chosen after the best ones were trained with several seeds, and how certain the choice is."""

    trial: str  #: The trial that found the configuration. The trainings with other seeds are separate trials.
    step: int
    seeds: int  #: Number of seeds that the configuration was trained with.
    mean: float  #: Mean of the metric over the seeds.
    #: Trial of the best other configuration that was trained with several seeds. None if there was only one configuration.
    runner_up: str | None
    #: Probability that the configuration is better than the runner-up. None without a runner-up.
    confidence: float | None


def confirmation_of(db: Connection, row: JobRow) -> Confirmation | None:
    """Return the confirmed configuration of a job, or None if the job has not repeated configurations with several seeds.

    The first candidate is the configuration with the best mean over its seeds. Another configuration is a candidate too if
    the probability that the first candidate is really better is below `EQUAL_BELOW`. The cheapest candidate is confirmed.
    """
    configs = repeated(db, row.id) if row.spec.confirm is not None else []
    if not configs:
        return None
    score = row.spec.objective.score
    configs.sort(key=lambda config: (-mean([score(value) for value in config.values]), config.trial))
    results = [[score(value) for value in config.values] for config in configs]
    equal = [i for i in range(len(configs)) if i == 0 or confidence(results, 0, i) < EQUAL_BELOW]
    chosen = min(equal, key=lambda i: (configs[i].usd, i))
    other = next((i for i in range(len(configs)) if i != chosen), None)
    config = configs[chosen]
    return Confirmation(
        config.trial,
        config.step,
        len(config.values),
        mean(config.values),
        None if other is None else configs[other].trial,
        None if other is None else confidence(results, chosen, other),
    )
