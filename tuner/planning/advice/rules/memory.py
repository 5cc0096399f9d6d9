"""Rule: the machine has much more memory than its trials use."""

from fractions import Fraction

from tuner.domain.listing import Listing
from tuner.planning.advice.evidence import Evidence, peak, portion, share, total
from tuner.planning.advice.finding import Change, Finding

UNUSED_BELOW = Fraction(1, 2)
SPARE = Fraction(5, 4)
LEAST_CHEAPER = Fraction(1, 20)
GIB = 1 << 30


def finding(evidence: Evidence) -> Finding | None:
    pieces, home = evidence.measured("memory_peak_bytes"), evidence.home
    used = peak(pieces, "memory_peak_bytes")
    if used is None or home is None or home.memory_gib is None:
        return None
    has, needs = int(home.memory_gib * GIB), int(used * SPARE) * _trials(evidence, home)
    if needs >= has * UNUSED_BELOW:
        return None

    def fits(one: Listing) -> bool:
        as_fast = (
            one.accelerator == home.accelerator
            and one.accelerators == home.accelerators
            and one.vcpus == home.vcpus
        )
        return as_fast and one.memory_gib is not None and one.memory_gib * GIB >= needs

    found = evidence.neighbours(fits)
    if not found:
        return None
    old, new = home.price(evidence.market), found[0].price(evidence.market)
    assert old is not None
    assert new is not None
    cheaper = 1 - share(new.micro_usd_per_hour, old.micro_usd_per_hour)
    if cheaper < LEAST_CHEAPER:
        return None
    return Finding(
        kind="memory_unused",
        title=f"A trial used {used / GIB:.1f} GiB of memory, on a machine that has {home.memory_gib:g} GiB",
        evidence={
            "memory_peak_bytes": used,
            "machine_bytes": has,
            "needed_bytes": needs,
            "spent_usd": total(p.spent for p in pieces),
        },
        change=Change(
            "resources.instance_type",
            home.instance_type,
            found[0].instance_type,
            f"{found[0].memory_gib:g} GiB and as many processors at {new.usd_per_hour:g} dollars an hour, in {home.region}; look "
            "whether its processors are of the same kind",
        ),
        saves=portion(total(piece.spent for piece in pieces), cheaper),
        saves_note=f"the same time at {new.usd_per_hour:g} instead of {old.usd_per_hour:g} dollars an hour, by {evidence.catalogue.name}",
        verify="run one configuration with the same seed there: the peak of memory must stay below a trial's share, and seconds a "
        "step and the metric be as before",
        confidence="low",
    )


def _trials(evidence: Evidence, home: Listing) -> int:
    """Return how many of the job's trials fit on the machine `home`, by processors and GPUs."""
    size = evidence.spec.resources
    counts = [int(home.vcpus / size.cpus)] if size.cpus else []
    counts += [int(home.accelerators / size.gpus)] if size.gpus else []
    return max(1, min(counts, default=1))
