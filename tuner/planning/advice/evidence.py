"""The evidence for advice: a job, the bills and measurements of its attempts, its learning curves, and prices."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal

from tuner.domain.checkpointing import InterruptionRisk
from tuner.domain.cost import CostKind
from tuner.domain.job import JobSpec
from tuner.domain.listing import Listing, Market
from tuner.domain.money import ZERO, Money, Price, Rate
from tuner.domain.offer import Offer
from tuner.domain.records import AttemptRow, SelfTestRow
from tuner.domain.time import HOUR_NS
from tuner.domain.usage import COUNTS, Fact, Usage
from tuner.planning.catalogue import Catalogue
from tuner.planning.measured_scaling import MeasuredSize, devices


@dataclass(frozen=True)
class MeasuredAttempt:
    """An attempt of the job, with its bill and its measurements."""

    row: AttemptRow
    bill: Mapping[CostKind, Money]  #: The amounts posted to the ledger, including corrections, by cost kind.
    usage: Usage | None = None  #: The measurements. None if nothing was measured.

    @property
    def spent(self) -> Money:
        return total(self.bill.values())

    def of(self, *kinds: CostKind) -> Money:
        return total(self.bill.get(kind, ZERO) for kind in kinds)

    def ns(self, *kinds: CostKind) -> int:
        """Return how many nanoseconds of these cost kinds were billed, computed from their cost and the attempt's price.

        Return 0 if the price is zero.
        """
        price = self.row.price.micro_usd_per_hour
        return self.of(*kinds).micro_usd * HOUR_NS // price if price else 0


@dataclass(frozen=True)
class ScoredStep:
    """A trial's score and cost at a step."""

    step: int
    score: float | None
    cost: Money  #: The cost of training to this step.


@dataclass(frozen=True)
class Curve:
    """The learning curve of one trial."""

    points: tuple[ScoredStep, ...]  #: The trial's reports at the steps that the rules need, ascending.
    last: int  #: The last step that the trial reported.
    cut: bool = True  #: Whether the trial was stopped at `last`, or was still paused there when the job ended or was paused.

    def at(self, step: int) -> ScoredStep | None:
        return next((point for point in self.points if point.step == step), None)


@dataclass(frozen=True)
class JobRegions:
    """The regions of the job's machines, of its checkpoints and of its datasets. A region that is not known is None."""

    compute: str | None = None
    storage: str | None = None
    egress_usd_per_gb: Money | None = None  #: The price of a GB that leaves the region `compute`.
    source: str = ""
    data: str | None = None
    data_usd_per_gb: Money | None = None  #: The price of a GB that leaves the region `data`.


@dataclass(frozen=True)
class JobEvidence:
    """Everything that the rules of advice use."""

    spec: JobSpec
    offer: Offer
    concurrency: int
    attempts: tuple[MeasuredAttempt, ...]
    spent: Money
    catalogue: Catalogue
    #: How likely interruptions are, and how much notice they give, by market.
    risks: Mapping[str, InterruptionRisk] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    #: The on-demand price of a trial's share of its machine. None if it is not known.
    demand: Price | None = None
    spot: Price | None = None  #: The spot price of the same share. None if it is not known.
    spot_source: str = ""
    self_test: SelfTestRow | None = None  #: The trainable's newest self-test. None if it has not been tested.
    places: JobRegions = field(default_factory=JobRegions)
    #: The sizes of trials whose step times were measured by jobs of the trainable, ascending. Empty if fewer than two were measured.
    sizes: tuple[MeasuredSize, ...] = ()

    def measured(self, *names: str) -> tuple[MeasuredAttempt, ...]:
        """Return the attempts for which all the counts in `names` were measured. They are names of fields of `Usage`."""
        return tuple(
            attempt
            for attempt in self.attempts
            if attempt.usage is not None and all(getattr(attempt.usage, name) is not None for name in names)
        )

    @property
    def workers(self) -> int:
        """The most workers that the job used at once."""
        return self.spec.resources.workers(self.concurrency)

    @cached_property
    def market(self) -> Market:
        """The market on which most of the money was spent."""
        spot = total(attempt.spent for attempt in self.attempts if attempt.row.market == "spot")
        return "spot" if spot + spot > total(attempt.spent for attempt in self.attempts) else "on_demand"

    @cached_property
    def size(self) -> MeasuredSize | None:
        """The measured efficiency of trials with as many GPUs or processes as this job's trials have.

        None if it was not measured. None also for the smallest measured number, with which the others are compared.
        """
        size = self.spec.resources
        larger = (each for each in self.sizes[1:] if each.resources.nodes == size.nodes)
        return next((each for each in larger if each.devices == devices(size)), None)

    @cached_property
    def home(self) -> Listing | None:
        """The catalogue's listing of the job's machine type, in the job's region if that is known.

        If several listings match, it is the cheapest of them. None if no listing matches.
        """
        kind, region = self.offer.instance_type, self.offer.region or self.places.compute
        listings = self.catalogue.find(instance_type=kind, region=region, market=self.market)
        return listings[0] if listings else None

    def rate(self, *, cpus: float | None = None, gpus: float | None = None) -> Rate:
        """Return the rate (price and GPUs) of a trial on the job's machine.

        If given, `cpus` and `gpus` replace the numbers that the job requests.
        """
        size = self.spec.resources
        changed = replace(
            size, cpus=size.cpus if cpus is None else cpus, gpus=size.gpus if gpus is None else gpus
        )
        return self.offer.rate(changed)

    def neighbours(self, fits: Callable[[Listing], bool]) -> list[Listing]:
        """Return machines that are cheaper than the job's, in the same cloud and zone, with room for one of its trials. The cheapest comes first.

        Machines for which `fits` returns false are omitted.
        """
        home, size = self.home, self.spec.resources
        here = home.price(self.market) if home is not None else None
        if home is None or here is None:
            return []
        listings = self.catalogue.find(cloud=home.cloud, region=home.region, market=self.market)
        return [
            listing
            for listing in listings
            if listing.zone == home.zone
            and listing.vcpus >= size.cpus
            and listing.accelerators >= size.gpus
            and (price := listing.price(self.market)) is not None
            and price < here
            and fits(listing)
        ]


def total(amounts: Iterable[Money]) -> Money:
    return Money(sum(amount.micro_usd for amount in amounts))


def spent_on(attempts: Iterable[MeasuredAttempt], *kinds: CostKind) -> Money:
    """Return what the attempts cost in total, in the given cost kinds only. If no kind is given, all kinds are included."""
    return total(attempt.of(*kinds) if kinds else attempt.spent for attempt in attempts)


def share(part: int, whole: int) -> Fraction:
    """Return `part` / `whole`, or 0 if `whole` is 0."""
    return Fraction(part, whole) if whole else Fraction(0)


def portion(amount: Money, part: Fraction) -> Money:
    """Return the share `part` of an amount, rounded down so that savings are not overstated. Return zero for a negative share."""
    return Money(int(amount.micro_usd * part)) if part > 0 else ZERO


def sums(attempts: Iterable[MeasuredAttempt]) -> dict[str, int]:
    """Return the sum of each field of `Usage` over the attempts. Fields that were measured in no attempt are omitted."""
    totals: dict[str, int] = {}
    for attempt in attempts:
        for name in COUNTS:
            value = getattr(attempt.usage, name) if attempt.usage is not None else None
            if value is not None:
                totals[name] = totals.get(name, 0) + value
    return totals


def gpu_busy(attempts: Iterable[MeasuredAttempt]) -> Fraction | None:
    """Return the share of the training time in which the GPU was busy, from 0 to 1. Return None if no GPU was measured."""
    counts = sums(attempt for attempt in attempts if attempt.usage is not None and attempt.usage.gpu_samples)
    samples = counts.get("gpu_samples", 0)
    return min(Fraction(1), share(counts.get("gpu_percent", 0), 100 * samples)) if samples else None


def peak(attempts: Iterable[MeasuredAttempt], name: str) -> int | None:
    """Return the largest value of `name`, a field of `Usage`, in any attempt. Return None if it was measured in no attempt."""
    known = [getattr(attempt.usage, name) for attempt in attempts if attempt.usage is not None]
    return max((value for value in known if value is not None), default=None)


def fact(attempts: Iterable[MeasuredAttempt], name: str) -> Fact | None:
    """Return the value of a fact that attempts recorded, such as `precision` or `batch_size`. Return None if no attempt recorded it.

    If attempts recorded different values, return the value whose attempts cost the most in total.
    """
    spent: dict[Fact, int] = {}
    for attempt in attempts:
        if attempt.usage is not None and name in attempt.usage.facts:
            value = attempt.usage.facts[name]
            spent[value] = spent.get(value, 0) + attempt.spent.micro_usd
    return max(spent, key=lambda value: (spent[value], str(value)), default=None)


Confidence = Literal["high", "medium", "low"]
Figure = int | str | Fraction | Money | None


@dataclass(frozen=True, slots=True)
class AdvisedChange:
    """A recommended change of one setting."""

    setting: str  #: A setting of the job, as in its YAML file, or of the trainable.
    now: str | None  #: The present value. None if it is not known.
    then: str  #: The recommended value.
    how: str = ""  #: How to make the change, or what else it causes.


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
