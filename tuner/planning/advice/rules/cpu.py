"""Rule: a trial reserves more processors than it uses."""

import math
from fractions import Fraction

from tuner.planning.advice.evidence import Evidence, portion, share, sums, total
from tuner.planning.advice.finding import Change, Finding

LEAST_WALL_NS = 10 * 10**9
IDLE_BELOW = Fraction(1, 2)
SPARE = Fraction(5, 4)
LEAST_CPUS = Fraction(1, 2)


def finding(evidence: Evidence) -> Finding | None:
    pieces, cpus = evidence.measured("wall_ns", "cpu_ns"), Fraction(str(evidence.spec.resources.cpus))
    counts = sums(pieces)
    wall = counts.get("wall_ns", 0)
    cores = share(counts.get("cpu_ns", 0), wall)
    if wall < LEAST_WALL_NS or cores >= IDLE_BELOW * cpus:
        return None
    then = max(LEAST_CPUS, Fraction(math.ceil(cores * SPARE * 2), 2))
    new, old = evidence.rate(cpus=float(then)).price, evidence.rate().price
    saves = portion(
        total(piece.spent for piece in pieces), 1 - share(new.micro_usd_per_hour, old.micro_usd_per_hour)
    )
    if then >= cpus or saves.micro_usd <= 0:
        return None  # fewer processors save nothing, for example because the GPU determines the price
    return Finding(
        kind="cpu_underused",
        title=f"A trial used {float(cores):.1f} of its {float(cpus):g} processors",
        evidence={
            "cores_used": cores,
            "cpus": cpus,
            "wall_seconds": Fraction(wall, 10**9),
            "spent_usd": total(p.spent for p in pieces),
        },
        change=Change(
            "resources.cpus",
            f"{float(cpus):g}",
            f"{float(then):g}",
            "more trials then fit on a machine; a trial's share of its memory falls as well",
        ),
        saves=saves,
        saves_note=f"the same time at {new.usd_per_hour:g} instead of {old.usd_per_hour:g} dollars an hour for a trial",
        verify="compare seconds a step, and the peak of memory, of one configuration with the same seed at both sizes; the metric "
        "at the same step must be the same",
        confidence="medium",
    )
