"""Models of the learning curves of a whole job."""

from typing import Any

from tuner.schemas.base import Answer


class TrialCurve(Answer):
    """The learning curve of one trial, as parallel arrays.

    At `steps[i]` the trial reported `metric[i]`, which is null if that report lacks the metric. Training it to that step takes
    `cost_usd[i]`. By then the job had spent `spent_usd[i]`, which is null if the step comes from an earlier job. `best_metric` (the
    best value of the objective) and `total_usd` (the amount spent on the trial) are exact. `preemptions_at` lists the last steps before
    its machines were taken away. `promotions_at` lists the rungs from which it was promoted.
    """

    id: str
    state: str
    reason: str
    config: dict[str, Any]
    attempts: int
    preemptions: int
    best_metric: float | None
    total_usd: float
    steps: list[int]
    metric: list[float | None]
    cost_usd: list[float]
    spent_usd: list[float | None]
    preemptions_at: list[int]
    promotions_at: list[int]


class Curves(Answer):
    """The learning curves of all trials of a job, with all reports up to event `seq`. The stream of events continues from there.

    `metric` is the metric of the arrays. `metrics` are the names that `?metric=` accepts. `objective` and `mode` belong to the metric
    that the job optimizes. If `rounded` is true, there are so many points that numbers in arrays are rounded to the precision of a
    chart. `GET /v1/jobs/{job}/trials/{trial}` has the exact numbers.
    """

    job: str
    seq: int
    metric: str
    metrics: list[str] = []
    objective: str = ""
    mode: str
    rounded: bool
    trials: list[TrialCurve]
