"""What a rule finds: its evidence, the change to make, what it would save, and how to see that nothing was lost by it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tuner.domain.money import Money
from tuner.planning.advice.evidence import Evidence

Confidence = Literal["high", "medium", "low"]
Figure = int | str | Fraction | Money | None


@dataclass(frozen=True, slots=True)
class Change:
    """`setting` is that of the job, as in its YAML, or of the trainable; `now` and `then` are its values."""

    setting: str
    now: str | None
    then: str
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`saves` is what this job would not have spent so far, had it been run so; None: cannot be said, for the reason in
    `saves_note`, which else says how it was reckoned. Findings overlap: what they save does not add up."""

    kind: str
    title: str
    evidence: Mapping[str, Figure]
    change: Change
    alternatives: tuple[Change, ...] = ()
    saves: Money | None
    saves_note: str
    verify: str
    confidence: Confidence


Rule = Callable[[Evidence], Finding | None]
