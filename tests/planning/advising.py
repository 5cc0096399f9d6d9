"""Build the evidence of jobs for the rules of advice."""

from typing import Any

from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind
from tuner.domain.job import Algorithm, CheckpointPolicy, JobSpec, Resources
from tuner.domain.listing import Listing
from tuner.domain.money import Money, Price
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.offer import Offer
from tuner.domain.records import AttemptRow
from tuner.domain.space import Float, Space
from tuner.domain.time import HOUR_NS, Instant
from tuner.domain.usage import Usage
from tuner.planning.advice.evidence import Curve, JobEvidence, MeasuredAttempt, ScoredStep, spent_on
from tuner.planning.catalogue import Catalogue

GIB = 1 << 30
HOUR = HOUR_NS


def usd(text: str) -> Money:
    return Money.from_usd(text)


def price(text: str) -> Price:
    return Price.from_usd_per_hour(text)


def listing(
    kind: str,
    on_demand: str,
    *,
    gpu: str = "",
    gpus: int = 0,
    vram: float | None = None,
    vcpus: float = 8,
    memory: float = 64,
    spot: str | None = None,
) -> Listing:
    prices = (price(on_demand), None if spot is None else price(spot))
    provenance = ("2026-07", "2026-07", "made up", "made up")
    return Listing("aws", "us-east-1", "", kind, vcpus, memory, gpu, gpus, vram, *prices, *provenance)


BIG = listing("p.big", "4.00", gpu="A100", gpus=1, vram=40, spot="1.40")
SMALL = listing("g.small", "1.00", gpu="L4", gpus=1, vram=24)
TINY = listing("g.tiny", "0.50", gpu="T4", gpus=1, vram=16)
LEAN = listing("p.lean", "3.00", gpu="A100", gpus=1, vram=40, memory=16)
CATALOGUE = Catalogue((BIG, SMALL, TINY, LEAN), "made up")
OFFER = Offer("p.big", price("4.00"), 8, 1, region="us-east-1")


def measured_attempt(
    number: int = 0,
    attempt: int = 1,
    *,
    hourly: str = "4.00",
    market: str = "on_demand",
    end: Any = "completed",
    usage: Usage | None = None,
    **bill: str,
) -> MeasuredAttempt:
    """Build one attempt's evidence. `bill` gives dollars by kind."""
    row = AttemptRow(
        f"trial_{number:05}", attempt, Instant(0), Instant(1), end, market=market, price=price(hourly)
    )
    kinds: dict[CostKind, Money] = {kind: usd(amount) for kind, amount in bill.items()}  # type: ignore[misc]
    return MeasuredAttempt(row, kinds, usage)


def spec(
    *,
    cpus: float = 8,
    gpus: float = 1,
    market: Any = "on_demand",
    interval_ns: int | None = None,
    scheduler: Any = "asha",
    sampler: Any = "auto",
    fidelity: Fidelity = Fidelity(min=1, max=9),
) -> JobSpec:
    return JobSpec(
        "job",
        "trainables.x:train",
        Objective("acc", "max"),
        Space({"lr": Float(0.1, 1)}),
        Budget(usd=usd("100")),
        fidelity=fidelity,
        resources=Resources(cpus=cpus, gpus=gpus, market=market),
        algorithm=Algorithm(scheduler, sampler),
        checkpoint=CheckpointPolicy(interval_ns=interval_ns),
    )


def evidence(*attempts: MeasuredAttempt, job: JobSpec | None = None, **more: Any) -> JobEvidence:
    spent = spent_on(attempts)
    defaults: dict[str, Any] = {
        "offer": OFFER,
        "concurrency": 1,
        "spent": spent,
        "catalogue": CATALOGUE,
        "demand": price("4.00"),
    }
    return JobEvidence(spec=job or spec(), attempts=attempts, **{**defaults, **more})


def gpu_usage(percent: int, *, used: int = 10 * GIB, samples: int = 100, **facts: Any) -> Usage:
    known = {"gpu": "NVIDIA A100", "gpu_memory_bytes": 40 * GIB, "gpu_capability": "8.0", **facts}
    return Usage(gpu_samples=samples, gpu_percent=percent * samples, gpu_memory_peak_bytes=used, facts=known)


def curve(scores: dict[int, float], *, cut: bool = True) -> Curve:
    """Build a learning curve that costs one dollar per step."""
    return Curve(
        tuple(ScoredStep(step, score, usd(str(step))) for step, score in scores.items()), max(scores), cut
    )
