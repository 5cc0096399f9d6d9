"""Models of the best configurations under a budget."""

from pydantic import Field

from tuner.schemas.base import Answer, Six, Usd
from tuner.schemas.job import Best


class PricedBest(Best):
    """A trial at one of its steps, with the cost of training to that step.

    If the request names another machine, `cost_to_train_usd`, `gpu_hours` and `duration_seconds` are computed for that machine. The
    bounds `cost_low_usd` and `cost_high_usd` cover the uncertainty of its speed. `as_run_usd` and `as_run_seconds` are the recorded cost and
    time.
    """

    cost_low_usd: Usd
    cost_high_usd: Usd
    as_run_usd: Usd
    as_run_seconds: float


class Pricing(Answer):
    """The machine for which costs are calculated, if it is not the recorded one.

    Training on this machine takes the recorded time × `relative_time` × (1 + `interruption_overhead`). Each hour costs
    `trial_usd_per_hour`, which is the trial's share of `usd_per_hour`, the price of the whole machine.

    `relative_time` is the time that the same training takes on this machine, as a multiple of its recorded time; `relative_time_low` and
    `relative_time_high` bound it. `speed_source` is `same_machine` (both have the same instance type), `measured` (trials of this
    trainable ran on both machines; the bounds are the middle 80 %), `catalogued` (from the data sheets of both accelerators) or
    `assumed_same` (the speeds are not known and assumed to be the same). `interruption_overhead` is measured on spot machines. It is null
    if it is not known or does not apply.
    """

    instance_type: str
    market: str
    region: str | None
    usd_per_hour: float
    trial_usd_per_hour: float
    price_source: str
    relative_time: Six
    relative_time_low: Six
    relative_time_high: Six
    speed_source: str
    interruption_overhead: Six | None
    notes: list[str]


class NextPoint(Answer):
    """The cheapest point (a trial at one of its steps) whose metric is better than that of the best point within the limits.

    `extra_usd` is its training cost minus that of the best point within the limits. `gain` is how much better its metric is.
    """

    trial: str
    step: int
    metric: float | None
    cost_usd: float
    extra_usd: float
    gain: float
    gain_per_usd: float | None


class Continuation(Answer):
    """A forecast of the result if a trial that has not reached the last step (`to_step`) is trained to it.

    `from_step` is the step of the trial's newest checkpoint, or 0 if it would start from the beginning. `extra_usd` assumes that each
    further step costs as much as the trial's steps so far. `expected_metric` is based on the trials that continued from the same rung;
    `low_metric` and `high_metric` bound the middle 80 %. `expected_gain` is the improvement of `expected_metric` over the job's best
    metric, and is always above 0. `low_gain` and `high_gain` are the improvements at the two bounds, or 0 for a bound that is not better
    than the job's best metric.
    """

    trial: str
    from_step: int
    to_step: int
    extra_usd: Usd = Field(validation_alias="extra")
    expected_metric: float = Field(validation_alias="metric")
    low_metric: float
    high_metric: float
    expected_gain: float = Field(validation_alias="gain")
    low_gain: float
    high_gain: float
    expected_gain_per_usd: float | None = Field(validation_alias="gain_per_usd")


class Forecast(Answer):
    """The trials whose continuation is expected to gain most per dollar.

    `points_per_usd` is what the next dollar is expected to gain if the job continues as before, in points of 0.01 of the metric. The rule
    `stop.worth` uses this number. It is null if it is too early to tell. If `items` is empty, `reason` says why. `as_of_event` is the
    number of the newest event of the job that the forecast includes.
    """

    items: list[Continuation]
    reason: str | None
    points_per_usd: float | None
    interval: float
    as_of_event: int


class NextDollar(Answer):
    """What more money would buy. `next_point` is null if no trial found a better point at any cost. `forecast` is null if it was not requested."""

    next_point: NextPoint | None
    forecast: Forecast | None


class Confirmation(Answer):
    """How certain it is that the best configuration is better than the other candidates that were trained with several seeds.

    `trial` is the trial of the search that has this configuration, at step `step`. `seeds` is the number of seeds that the configuration
    was trained with, and `mean_metric` the mean of the metric over these seeds. `confidence` is the probability that the configuration is
    better than that of the trial `runner_up`. It is below 0.5 if a cheaper configuration was chosen that is as good as the one with the
    best mean. If only one candidate was trained, `runner_up` and `confidence` are null.
    """

    trial: str
    step: int
    seeds: int
    mean_metric: float = Field(validation_alias="mean")
    runner_up: str | None
    confidence: float | None


class BestAnswer(PricedBest):
    """The best configuration within the limits.

    `confirmation` is the result of training the best candidates again with other seeds. It is null if the job did not confirm its
    candidates, or if the request has limits or names another machine. `next_better` is the cheapest point with a better metric. It is null
    if none exists, and always if `confirmation` is given: the answer is then the best of several runs, which a single run cannot beat.
    `pricing` is null if the costs are the recorded ones.
    """

    next_better: PricedBest | None
    pricing: Pricing | None
    confirmation: Confirmation | None
    next_dollar: NextDollar


class BestOfAll(PricedBest):
    job: str
    pricing: Pricing | None


class Pareto(Answer):
    """The Pareto front, cheapest first.

    `second_metric` is the metric of the second objective, or null if the job has none. Its values are in the `metrics` of each point.
    """

    items: list[PricedBest]
    pricing: Pricing | None
    second_metric: str | None = None
