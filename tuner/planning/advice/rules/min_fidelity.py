"""Rule: the ranking at the fidelity minimum does not predict the final one, so trials are cut by chance and their cost is wasted."""

from fractions import Fraction

from tuner.planning.advice.evidence import Evidence, portion, total
from tuner.planning.advice.finding import Change, Finding
from tuner.planning.advice.rules.ranks import last_step, predicts

# If even the upper end of the rank correlation's interval is below this, the ranking at the first rung is close to chance.
MISLEADS_BELOW = 0.6
PREDICTS_ABOVE = 0.7


def finding(evidence: Evidence) -> Finding | None:
    fidelity, last = evidence.spec.fidelity, last_step(evidence)
    if last is None or fidelity.min >= last or evidence.spec.algorithm.scheduler == "none":
        return None
    found = predicts(evidence.curves, fidelity.min, last)
    cut = [curve for curve in evidence.curves if curve.last <= fidelity.min and curve.cut]
    if found is None or found.high >= MISLEADS_BELOW or not cut:
        return None
    points = [point for curve in cut if (point := curve.at(curve.last)) is not None]
    cost = total(point.cost for point in points)
    later = [step for step in fidelity.rungs() if step > fidelity.min]
    better = {step: rho for step in later if (rho := predicts(evidence.curves, step, last)) is not None}
    then = next((step for step, one in better.items() if one.rho >= PREDICTS_ABOVE), None)
    step = then or fidelity.min * fidelity.reduction_factor
    chance = 1 - Fraction(max(0.0, found.rho)).limit_denominator(10**6)
    return Finding(
        kind="min_fidelity_misleads",
        title=f"The ranking at step {fidelity.min} says little of that at step {last}: rank correlation {found.rho:.2f}",
        evidence={
            "rank_correlation": _figure(found.rho),
            "rank_correlation_low": _figure(found.low),
            "rank_correlation_high": _figure(found.high),
            "trials_at_both": found.trials,
            "trials_cut": len(cut),
            "cut_usd": cost,
            "rank_correlation_of_next": _figure(better[step].rho) if step in better else None,
        },
        change=Change(
            "fidelity.min",
            str(fidelity.min),
            str(min(step, last)),
            "trials are then first compared where it tells",
        ),
        saves=min(evidence.spent, portion(cost, chance)),
        saves_note="what trials cost that were cut at that rung, by the part in which its ranking is chance: as many drawn at random "
        "would have done as well",
        verify="run both with the same budget and three seeds and compare the best metric; the trials at both steps are those that "
        "were promoted, whose ranks correlate less than all trials' would",
        confidence="low",
    )


def _figure(value: float) -> Fraction:
    return Fraction(round(value * 10**6), 10**6)
