"""What is shown of all learning curves at once."""

from typing import Any

from tuner.schemas.base import Answer


class TrialCurve(Answer):
    """The arrays stand side by side: at `steps[i]` the trial reported `metric[i]`, which is null if that report lacks the metric. Training it
    that far takes `cost_usd[i]`, and the job had spent `spent_usd[i]`, which is null if the step comes from an earlier job.
    `best_metric`, the best of the objective, and `total_usd`, which was spent on the trial, are exact. `preemptions_at` has the last
    steps before its machines were taken away, `promotions_at` the rungs from which it went on."""

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
    """All reports up to event `seq`: the stream of events goes on from there. `metric` is the metric of the arrays, `metrics` the names that
    `?metric=` takes. `objective` and `mode` are of the metric that the job optimizes. If `rounded`, there are so many points that the
    numbers in arrays are only as fine as a picture needs; a trial's own answer has them exactly."""

    job: str
    seq: int
    metric: str
    metrics: list[str] = []
    objective: str = ""
    mode: str
    rounded: bool
    trials: list[TrialCurve]
