"""Rules about the steps at which trials are compared.

A step is judged by how well the ranks of trials at that step predict their ranks at the last step. Jobs with proxies get no such advice:
their metrics at different steps are not comparable, and another `fidelity.min` would need other values of the proxies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tuner.domain.job import JobSpec
from tuner.domain.money import Money
from tuner.planning.advice.evidence import AdviceFinding, AdvisedChange, Curve, JobEvidence, portion, total
from tuner.planning.ranks import Z80, spearman
from tuner.tuning.rungs import ladder, rungs_of

LEAST_TRIALS = 10
# The variance of Fisher's transform of Spearman's coefficient, times n − 3 (Fieller, Hartley & Pearson 1957).
VARIANCE = 1.06


@dataclass(frozen=True, slots=True)
class Correlation:
    """A rank correlation. `low` and `high` bound an 80 % interval."""

    rho: float
    low: float
    high: float
    trials: int


def last_step(evidence: JobEvidence) -> int | None:
    """Return the job's maximum step, `fidelity.max`.

    If the job has no maximum, return the highest step that at least LEAST_TRIALS trials reached, or None if there are fewer trials.
    """
    if evidence.spec.fidelity.max is not None:
        return evidence.spec.fidelity.max
    reached = sorted((curve.last for curve in evidence.curves), reverse=True)
    return reached[LEAST_TRIALS - 1] if len(reached) >= LEAST_TRIALS else None


def predicts(curves: Sequence[Curve], step: int, last: int) -> Correlation | None:
    """Return the rank correlation of the metric at `step` with the metric at `last`, over the trials that reported at both steps.

    Return None if fewer than LEAST_TRIALS trials did, or if all their metrics at one of the steps are equal.
    """
    points = [(curve.at(step), curve.at(last)) for curve in curves]
    pairs = [
        (a.score, b.score)
        for a, b in points
        if a is not None and b is not None and a.score is not None and b.score is not None
    ]
    if len(pairs) < LEAST_TRIALS:
        return None
    rho = spearman([a for a, _ in pairs], [b for _, b in pairs])
    if rho is None:
        return None
    z = math.atanh(max(-0.999999, min(0.999999, rho)))
    off = Z80 * math.sqrt(VARIANCE / (len(pairs) - 3))
    return Correlation(rho, math.tanh(z - off), math.tanh(z + off), len(pairs))


# If even the upper end of the rank correlation's interval is below this, the ranking at the first rung is close to chance.
MISLEADS_BELOW = 0.6
PREDICTS_ABOVE = 0.7


def min_fidelity_misleads(evidence: JobEvidence) -> AdviceFinding | None:
    """Find jobs that compare trials too early: the ranking at the first rung hardly predicts the final ranking.

    Trials are then stopped almost by chance, and their cost is wasted.
    """
    spec, rungs, last = evidence.spec, rungs_of(evidence.spec), last_step(evidence)
    if last is None or not rungs or spec.fidelity.proxies:
        return None
    rung, *later = rungs
    first = predicts(evidence.curves, rung, last)
    cut = [curve for curve in evidence.curves if curve.last <= rung and curve.cut]
    if first is None or first.high >= MISLEADS_BELOW or not cut:
        return None
    points = [point for curve in cut if (point := curve.at(curve.last)) is not None]
    cost = total(point.cost for point in points)
    better = {step: rho for step in later if (rho := predicts(evidence.curves, step, last)) is not None}
    then = next((step for step, rank in better.items() if rank.rho >= PREDICTS_ABOVE), None)
    step = then or rung * ladder(spec).reduction_factor
    chance = 1 - Fraction(max(0.0, first.rho)).limit_denominator(10**6)
    return AdviceFinding(
        kind="min_fidelity_misleads",
        title=f"The ranking at step {rung} hardly predicts the ranking at step {last}: rank correlation {first.rho:.2f}",
        evidence={
            "rank_correlation": _figure(first.rho),
            "rank_correlation_low": _figure(first.low),
            "rank_correlation_high": _figure(first.high),
            "trials_at_both": first.trials,
            "trials_cut": len(cut),
            "cut_usd": cost,
            "rank_correlation_of_next": _figure(better[step].rho) if step in better else None,
        },
        change=AdvisedChange(
            "fidelity.min",
            str(spec.fidelity.min),
            str(min(step, last)),
            "trials are then first compared at a later step, which predicts the final ranking better",
        ),
        saves=min(evidence.spent, portion(cost, chance)),
        saves_note="the cost of the trials that were stopped at this rung, times the share of the ranking that is due to chance",
        verify="run both settings with the same budget and three seeds, and compare the best metric; only promoted trials have metrics at "
        "both steps, so the measured rank correlation is lower than that of all trials would be",
        confidence="low",
    )


SURE_ABOVE = 0.7


def pruned_too_late(evidence: JobEvidence) -> AdviceFinding | None:
    """Find trials that were stopped later than necessary, because an earlier step already predicts their final ranking."""
    spec, last = evidence.spec, last_step(evidence)
    whole, rungs = spec.algorithm.scheduler == "none", rungs_of(spec)
    if last is None or not (whole or rungs) or spec.fidelity.proxies:
        return None
    cut_at = last if whole else rungs[0]
    ranked = ((step, predicts(evidence.curves, step, last)) for step in earlier_steps(spec, last))
    step, rank = next(((step, rho) for step, rho in ranked if rho and rho.low >= SURE_ABOVE), (0, None))
    if rank is None:
        return None
    if whole:
        cut = _worst(evidence, step, last)
    else:
        cut = [curve for curve in evidence.curves if curve.last == cut_at and curve.cut]
    # Stopping these trials at `step` would have saved the cost of all their later steps.
    costs = [(curve.at(step), curve.points[-1]) for curve in cut]
    saves = sum(max(0, end.cost.micro_usd - here.cost.micro_usd) for here, end in costs if here is not None)
    if saves <= 0:
        return None
    setting = (
        ("algorithm.scheduler", "none", "asha")
        if whole
        else ("fidelity.min", str(spec.fidelity.min), str(step))
    )
    how = "trials that will not be promoted then end earlier"
    if whole:
        # Without a last step, trials would have no rungs.
        how = f"with fidelity.min: {step}" + (
            f" and fidelity.max: {last}" if spec.fidelity.max is None else ""
        )
    return AdviceFinding(
        kind="pruned_too_late",
        title=f"Step {step} already ranks trials like step {last}: rank correlation {rank.rho:.2f}",
        evidence={
            "rank_correlation": _figure(rank.rho),
            "rank_correlation_low": _figure(rank.low),
            "trials_at_both": rank.trials,
            "first_comparison_step": cut_at,
            "earlier_step": step,
            "trials_cut": len(cut),
        },
        change=AdvisedChange(*setting, how),
        saves=min(evidence.spent, Money(saves)),
        saves_note="the cost, after that step, of the trials that were stopped or would have been stopped",
        verify="run both settings with the same budget and three seeds and compare the best metric, or replay the curves with `tuner simulate`",
        confidence="medium",
    )


def earlier_steps(spec: JobSpec, last: int) -> list[int]:
    """Return the steps at which trials could be compared earlier than now, ascending.

    They are the step of the first comparison divided by η once, twice and so on, rounded down, as long as the result is at least 1. The
    first comparison is at the first rung, or at the last step `last` if the job has no rungs. A step is left out if the first
    rung would not be there with this `fidelity.min`, because the scheduler `auto` has no rung below a twelfth of all steps.
    """
    rungs, factor, steps = rungs_of(spec), ladder(spec).reduction_factor, list[int]()
    step = rungs[0] if rungs else last
    while (step := step // factor) >= 1:
        lower = replace(spec, fidelity=replace(spec.fidelity, min=step))
        if not rungs or rungs_of(lower)[0] == step:
            steps.append(step)
    return steps[::-1]


def _worst(evidence: JobEvidence, step: int, last: int) -> list[Curve]:
    """Return the trials that were trained to `last` although a comparison at `step` would have stopped them.

    The comparison would have continued only the best 1/η of the trials, where η is the reduction factor of the job.
    """
    scored = [
        (point.score, n, curve)
        for n, curve in enumerate(evidence.curves)
        if curve.last >= last and (point := curve.at(step)) is not None and point.score is not None
    ]
    keep = -(-len(scored) // evidence.spec.fidelity.reduction_factor)
    return [
        curve
        for *_, curve in sorted(scored, key=lambda scored_curve: (-scored_curve[0], scored_curve[1]))[keep:]
    ]


def _figure(value: float) -> Fraction:
    return Fraction(round(value * 10**6), 10**6)
