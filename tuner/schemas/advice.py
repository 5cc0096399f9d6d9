"""What is shown of how a job could have been cheaper."""

from typing import Any

from tuner.schemas.base import Answer


class Change(Answer):
    """`setting` is that of the job, as in its YAML, or of the trainable; `now` is null where its value is not known."""

    setting: str
    now: str | None
    then: str
    how: str


class Finding(Answer):
    """`saves_usd` is what this job would not have spent so far, had it been run so; null where that cannot be said, for the reason
    in `saves_note`, which else says how it was reckoned. `evidence` has every figure that it was reckoned from. What several
    findings save does not add up. `confidence` is `high`, `medium` or `low`."""

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
    """What could not be judged, and how to have it measured."""

    what: str
    why: str
    how: str


class Advice(Answer):
    """`findings` have what saves most first. `measured_usd` of `spent_usd` went into attempts of which something was measured;
    `prices` says which catalogue machines were compared by, and how old it is."""

    job: str
    state: str
    spent_usd: float
    measured_usd: float
    findings: list[Finding]
    not_measured: list[NotMeasured]
    prices: str
    prices_age: str
