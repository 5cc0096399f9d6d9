"""The result of a rule: the evidence, the change to make, the savings, and how to verify that the result is as good."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tuner.domain.money import Money
from tuner.planning.advice.evidence import JobEvidence

Confidence = Literal["high", "medium", "low"]
Figure = int | str | Fraction | Money | None


@dataclass(frozen=True, slots=True)
class AdvisedChange:
    """A change of a setting."""

    setting: str  #: A setting of the job, as in its YAML file, or of the trainable.
    now: str | None  #: The present value. None if it is not known.
    then: str  #: The recommended value.
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceFinding:
    """A change that would have made the job cheaper. Do not add the savings of several findings: they overlap."""

    kind: str
    title: str
    evidence: Mapping[str, Figure]
    change: AdvisedChange
    alternatives: tuple[AdvisedChange, ...] = ()
    #: The amount that the job would not have spent so far with this change. None if it is not known.
    saves: Money | None
    saves_note: str  #: How `saves` was computed, or why it is not known.
    verify: str  #: How to check that the change does not make the result worse.
    confidence: Confidence


Rule = Callable[[JobEvidence], AdviceFinding | None]
