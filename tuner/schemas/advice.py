"""Models of advice: how a job could have been cheaper."""

from typing import Any

from tuner.schemas.base import Answer


class Change(Answer):
    """A suggested change. `setting` is a setting of the job, named as in its YAML file, or of the trainable. `now` is null if the
    present value is not known.
    """

    setting: str
    now: str | None
    then: str
    how: str


class Finding(Answer):
    """A way in which the job could have been cheaper.

    `saves_usd` is the amount of this job's spend so far that the change would have avoided. It is null if it cannot be calculated;
    `saves_note` then gives the reason, and otherwise explains the calculation. `evidence` contains every figure that the calculation
    uses. The savings of several findings must not be added up. `confidence` is `high`, `medium` or `low`.
    """

    kind: str
    title: str
    confidence: str
    evidence: dict[str, Any]
    change: Change
    alternatives: list[Change]
    saves_usd: float | None
    saves_note: str
    verify: str


class NotMeasured(Answer):
    """Something that could not be judged, why not, and how to have it measured."""

    what: str
    why: str
    how: str


class Advice(Answer):
    """All advice for a job.

    `findings` are sorted by savings, largest first. `measured_usd` is the part of `spent_usd` that went into attempts with at least one
    measurement. `prices` names the price catalogue that machines were compared with, and `prices_age` says how old it is.
    """

    job: str
    state: str
    spent_usd: float
    measured_usd: float
    findings: list[Finding]
    not_measured: list[NotMeasured]
    prices: str
    prices_age: str
