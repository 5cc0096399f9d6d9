"""Rule: the job runs on demand although spot machines would be cheaper."""

from fractions import Fraction

from tuner.domain.money import Money
from tuner.domain.time import NS
from tuner.planning.advice.evidence import Evidence, Piece, share, sums, total
from tuner.planning.advice.finding import Change, Finding
from tuner.tuning.checkpointing import Exposure, Hazard, daly_ns

LEAST_STALL_NS = NS // 10


def finding(evidence: Evidence) -> Finding | None:
    """Compare the job's cost with its cost on spot machines, including their interruptions.

    Interruptions cost saves and lost steps, computed for the best checkpoint interval, and a new setup after each lost attempt.
    """
    pieces = tuple(piece for piece in evidence.pieces if piece.row.market == "on_demand")
    paid, spot, demand = total(piece.spent for piece in pieces), evidence.spot, evidence.demand
    if evidence.spec.resources.market != "on_demand" or spot is None or demand is None or not paid.micro_usd:
        return None
    exposure = evidence.exposures.get("spot") or Exposure(preemption=Hazard.of_spot())
    mean, stall, again = exposure.mean_ns, _stall_ns(pieces), _again_ns(pieces)
    best = max(1, daly_ns(stall, mean))
    overhead = Fraction(stall, best) + Fraction(best, 2 * mean) + Fraction(again, mean)
    then = -int(
        -paid.micro_usd * share(spot.micro_usd_per_hour, demand.micro_usd_per_hour) * (1 + overhead) // 1
    )
    saves = Money(paid.micro_usd - then)
    if saves.micro_usd <= 0:
        return None
    passed = evidence.self_test
    return Finding(
        kind="spot_unused",
        title="Spot machines would have been cheaper",
        evidence={
            "on_demand_usd": paid,
            "on_demand_usd_per_hour": Money(demand.micro_usd_per_hour),
            "spot_usd_per_hour": Money(spot.micro_usd_per_hour),
            "spot_source": evidence.spot_source,
            "interruption_overhead": overhead,
            "mean_seconds_between_losses": Fraction(mean, NS),
            "self_test": "unknown" if passed is None else "passed" if passed[0] else "failed",
        },
        change=_change(passed),
        saves=saves,
        saves_note="the same time at the spot price, longer by what interruptions take: saves, lost training, setting up again",
        verify="the restore self-test compares a restored trial with one that was never stopped; then compare the best metric and "
        "the bill of a small job on both markets",
        confidence="medium" if passed is not None and passed[0] else "low",
    )


def _change(passed: tuple[bool, str] | None) -> Change:
    how = "trials wait for spot a while and fall back to machines on demand"
    if passed is None:
        how += "; the first such job tests that the trainable restores, which costs a few steps"
    elif not passed[0]:
        how = f"first fix the trainable, which does not restore what it saved: {passed[1]}"
    return Change("resources.market", "on_demand", "spot_with_fallback", how)


def _stall_ns(pieces: tuple[Piece, ...]) -> int:
    counted = [piece for piece in pieces if piece.usage is not None and piece.usage.saves]
    saves = sums(counted).get("saves", 0)
    return max(LEAST_STALL_NS, sum(piece.ns("checkpoint") for piece in counted) // saves if saves else 0)


def _again_ns(pieces: tuple[Piece, ...]) -> int:
    """Return the mean time of setup and restore per attempt."""
    return sum(piece.ns("setup", "restore") for piece in pieces) // max(1, len(pieces))
