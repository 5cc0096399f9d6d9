"""Rule: the job pays for idle machines for too much of the time."""

from fractions import Fraction

from tuner.planning.advice.evidence import Evidence, share
from tuner.planning.advice.finding import Change, Finding

DEAR_ABOVE = Fraction(1, 10)


def finding(evidence: Evidence) -> Finding | None:
    idle, fidelity = evidence.of("idle"), evidence.spec.fidelity
    part = share(idle.micro_usd, evidence.spent.micro_usd)
    if part <= DEAR_ABOVE:
        return None
    rarer = Change(
        "fidelity.min",
        str(fidelity.min),
        str(fidelity.min * fidelity.reduction_factor),
        "a worker waits between attempts and for decisions at rungs; longer stretches of training make both rarer",
    )
    return Finding(
        kind="idle_dear",
        title=f"{float(part):.0%} of the money was spent on machines that waited",
        evidence={"idle_usd": idle, "idle_share": part, "attempts": len(evidence.pieces)},
        change=rarer,
        alternatives=(
            Change(
                "algorithm.sampler", evidence.spec.algorithm.sampler, "random", "its proposals cost no time"
            ),
        ),
        saves=idle,
        saves_note="all that was paid for waiting; at most this",
        verify="compare `idle` in the bills, and the best metric for the same budget",
        confidence="low",
    )
