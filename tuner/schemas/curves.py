"""What is shown of all learning curves at once."""

from typing import Any

from tuner.schemas.base import Answer


class TrialCurve(Answer):
    """The arrays stand side by side: at `steps[i]` the trial reported `metric[i]` (null: none), training it that far takes `cost_usd[i]`,
    and the job had spent `spent_usd[i]` (null: inherited from an earlier job). `best_metric` and `total_usd`, which is what was
    spent on the trial, are exact. `preemptions_at`: the last steps before its machines were taken away; `promotions_at`: the
    rungs from which it went on."""

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
    """All that was told up to event `seq`: the stream of events goes on from there. `rounded`: there are so many points that the numbers
    in arrays are as fine as a picture needs; a trial's own answer has them whole."""

    job: str
    seq: int
    metric: str
    mode: str
    rounded: bool
    trials: list[TrialCurve]
