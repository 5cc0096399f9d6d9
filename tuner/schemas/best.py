"""What is shown of choices under a budget."""

from tuner.schemas.base import Answer
from tuner.schemas.job import Best


class PricedBest(Best):
    """Where it was asked for another machine, `cost_to_train_usd`, `gpu_hours` and `duration_seconds` are those there, `low` and `high` bound
    the cost by what is known of the speed, and `as_run_usd` and `as_run_seconds` are what was recorded."""

    cost_low_usd: float
    cost_high_usd: float
    as_run_usd: float
    as_run_seconds: float


class Pricing(Answer):
    """The machine that points are priced for. What a training takes there is its recorded time × `relative_time` × (1 +
    `interruption_overhead`) hours at `trial_usd_per_hour`, the trial's share of `usd_per_hour` for the whole machine.

    `relative_time` is how long the same training takes there as a multiple of its time here, with the least and the most that
    it may be. `speed_source` is `same_machine`, `measured` (trials of this trainable on both; the middle 80 %), `catalogued`
    (data sheets of both accelerators) or `assumed_same`. `interruption_overhead` is measured on spot machines, null where it is
    not known or there are none."""

    instance_type: str
    market: str
    region: str | None
    usd_per_hour: float
    trial_usd_per_hour: float
    price_source: str
    relative_time: float
    relative_time_low: float
    relative_time_high: float
    speed_source: str
    interruption_overhead: float | None
    notes: list[str]


class NextPoint(Answer):
    """The next point on the front: what training it costs more than the best within the limits, and how much better it is."""

    trial: str
    step: int
    metric: float | None
    cost_usd: float
    extra_usd: float
    gain: float
    gain_per_usd: float | None


class Continuation(Answer):
    """A trial that was cut short, trained on to the last step: from its newest checkpoint, or from the beginning (`from_step` 0).

    `extra_usd` is at the pace and price of its steps so far. `expected_metric` is by the trials that went on from the same rung; the
    interval is the middle 80 %. `expected_gain` is `expected_metric` less the job's best, and always above 0. `low_gain` and
    `high_gain` are those of the interval, and 0 where it ends below the best."""

    trial: str
    from_step: int
    to_step: int
    extra_usd: float
    expected_metric: float
    low_metric: float
    high_metric: float
    expected_gain: float
    low_gain: float
    high_gain: float
    expected_gain_per_usd: float | None


class Forecast(Answer):
    """The trials whose continuation is expected to gain most for a dollar; none, for the `reason`. `as_of_event` is the newest of
    the job's events that was seen."""

    items: list[Continuation]
    reason: str | None
    interval: float
    as_of_event: int


class NextDollar(Answer):
    """`next_point` is null where nothing better was found at any cost, `forecast` where it was not asked for."""

    next_point: NextPoint | None
    forecast: Forecast | None


class BestAnswer(PricedBest):
    """`next_better` is the cheapest point with a better metric, null where there is none. `pricing` is null where costs are as they
    were recorded."""

    next_better: PricedBest | None
    pricing: Pricing | None
    next_dollar: NextDollar


class BestOfAll(PricedBest):
    job: str
    pricing: Pricing | None


class Pareto(Answer):
    items: list[PricedBest]
    pricing: Pricing | None
