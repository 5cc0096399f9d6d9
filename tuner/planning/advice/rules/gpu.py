"""Rule: the GPU is idle for most of the training, so share it, use a smaller one, or give it larger batches."""

import math
from dataclasses import dataclass
from fractions import Fraction

from tuner.domain.listing import Listing
from tuner.domain.money import NS_PER_HOUR, Money
from tuner.planning.accelerators import relative_speed
from tuner.planning.advice.evidence import Evidence, Piece, fact, peak, portion, share, sums, total
from tuner.planning.advice.finding import Change, Finding

LEAST_SAMPLES = 30  # one sample per second of training; fewer could miss a load that comes in bursts
IDLE_BELOW = Fraction(1, 2)
# Two trials fit on one GPU if the busy shares and the memory of both stay within nine tenths of it.
SHARED_WITHIN = Fraction(9, 10)
MEMORY_SPARE = Fraction(11, 10)
GIB = 1 << 30
VERIFY = (
    "run two or three of the same configurations with the same seeds both ways and compare the metric at the same step, seconds "
    "a step and the bill; keep the change where the metric is within its spread between seeds and the dollars to the same step fall"
)


@dataclass(frozen=True)
class _Option:
    change: Change
    saves: Money
    note: str


def finding(evidence: Evidence) -> Finding | None:
    pieces, gpus = evidence.measured("gpu_samples", "gpu_percent"), evidence.spec.resources.gpus
    counts = sums(pieces)
    samples = counts.get("gpu_samples", 0)
    busy = share(counts.get("gpu_percent", 0), 100 * samples)
    if not gpus or samples < LEAST_SAMPLES or busy >= IDLE_BELOW:
        return None
    used, has = peak(pieces, "gpu_memory_peak_bytes"), fact(pieces, "gpu_memory_bytes")
    memory = share(used, has) if used is not None and isinstance(has, int) else None
    options = [
        one
        for one in (_shared(evidence, pieces, busy, memory), _smaller(evidence, pieces, busy, used))
        if one is not None and one.saves.micro_usd > 0
    ]
    options.sort(key=lambda one: -one.saves.micro_usd)
    batch = _larger_batch(pieces, memory)
    changes = [*(one.change for one in options), *([batch] if batch else [])]
    if not changes:
        return None
    return Finding(
        kind="gpu_underused",
        title=f"The GPU was busy for {float(busy):.0%} of the training",
        evidence={
            "gpu_utilisation": busy,
            "gpu_samples": samples,
            "gpu": str(fact(pieces, "gpu") or evidence.offer.instance_type),
            "gpu_memory_peak_bytes": used,
            "gpu_memory_bytes": has if isinstance(has, int) else None,
            "train_usd": total(piece.of("train") for piece in pieces),
        },
        change=changes[0],
        alternatives=tuple(changes[1:]),
        saves=options[0].saves if options else None,
        saves_note=options[0].note
        if options
        else "how much faster larger batches are is known once they are tried",
        verify=VERIFY,
        confidence="medium" if options else "low",
    )


def _shared(
    evidence: Evidence, pieces: tuple[Piece, ...], busy: Fraction, memory: Fraction | None
) -> _Option | None:
    """Return the option to halve the GPUs of a trial, so that two trials share what one had alone. Return None if two would not fit."""
    if 2 * busy > SHARED_WITHIN or memory is None or 2 * memory > SHARED_WITHIN:
        return None
    gpus = evidence.spec.resources.gpus
    then = math.ceil(gpus / 2) if gpus > 1 else gpus / 2
    new, old = evidence.rate(gpus=then).price, evidence.rate().price
    cheaper = 1 - share(new.micro_usd_per_hour, old.micro_usd_per_hour)
    change = Change(
        "resources.gpus",
        f"{gpus:g}",
        f"{then:g}",
        "two trials then share what one has for itself; both fit into its memory",
    )
    note = f"training at {new.usd_per_hour:g} instead of {old.usd_per_hour:g} dollars an hour for a trial, taking as long"
    return _Option(change, portion(total(piece.of("train") for piece in pieces), cheaper), note)


def _smaller(
    evidence: Evidence, pieces: tuple[Piece, ...], busy: Fraction, used: int | None
) -> _Option | None:
    """Return the option to use the machine on which the same training is cheapest. Return None if there is none.

    The estimate assumes that a slower GPU lengthens only the time in which the GPU is busy. The factor comes from the lowest speed that
    the data sheets make likely.
    """
    home = evidence.home
    if home is None or used is None or not home.accelerator:
        return None

    def fits(one: Listing) -> bool:
        memory = one.gpu_memory_gib
        return bool(one.accelerator) and memory is not None and int(memory * GIB) >= used * MEMORY_SPARE

    best: _Option | None = None
    for one in evidence.neighbours(fits):
        rate, speed = evidence.rate_on(one), relative_speed(home.accelerator, one.accelerator)
        if rate is None or speed is None or speed[0] <= 0:
            continue
        slower = 1 - busy + busy / min(speed[0], Fraction(1))
        new = sum(
            -(-int(piece.ns("train") * slower) * rate.price.micro_usd_per_hour // NS_PER_HOUR)
            for piece in pieces
        )
        saves = Money(total(piece.of("train") for piece in pieces).micro_usd - new)
        if best is None or saves > best.saves:
            change = Change(
                "resources.instance_type",
                evidence.offer.instance_type,
                one.instance_type,
                f"{one.accelerator} at {rate.price.usd_per_hour:g} dollars an hour for a trial, in {one.region}; the memory that "
                "was used fits, with a tenth to spare",
            )
            note = f"training takes {float(slower):.2f} times as long by data sheets, priced by {evidence.catalogue.name}"
            best = _Option(change, saves, note)
    return best


def _larger_batch(pieces: tuple[Piece, ...], memory: Fraction | None) -> Change | None:
    batch = fact(pieces, "batch_size")
    if memory is None or 2 * memory > SHARED_WITHIN:
        return None
    now = str(batch) if isinstance(batch, int) and not isinstance(batch, bool) else None
    then = str(int(now) * 2) if now is not None else "twice as much"
    how = "tune the learning rate anew, which a larger batch moves; its memory is at most twice what was used"
    return Change("batch_size of the trainable", now, then, how)
