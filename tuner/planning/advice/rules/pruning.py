"""Rule: trials are cut later than necessary, because an earlier step ranks them as well."""

from fractions import Fraction

from tuner.domain.money import Money
from tuner.planning.advice.evidence import Curve, Evidence, total
from tuner.planning.advice.finding import Change, Finding
from tuner.planning.advice.rules.ranks import Correlation, last_step, predicts

SURE_ABOVE = 0.7


def finding(evidence: Evidence) -> Finding | None:
    spec, last = evidence.spec, last_step(evidence)
    if last is None:
        return None
    whole = spec.algorithm.scheduler == "none"
    cut_at = last if whole else spec.fidelity.min
    found = _earliest(evidence, cut_at, last)
    if found is None:
        return None
    step, correlation = found
    cut = _worst(evidence, step, last) if whole else _cut(evidence, cut_at)
    saves = total(_between(curve, step) for curve in cut)
    if saves.micro_usd <= 0:
        return None
    setting = ("algorithm.scheduler", "none", "asha") if whole else ("fidelity.min", str(cut_at), str(step))
    return Finding(
        kind="pruned_too_late",
        title=f"Step {step} ranks trials as step {last} does: rank correlation {correlation.rho:.2f}",
        evidence={
            "rank_correlation": _figure(correlation.rho),
            "rank_correlation_low": _figure(correlation.low),
            "trials_at_both": correlation.trials,
            "first_comparison_step": cut_at,
            "earlier_step": step,
            "trials_cut": len(cut),
        },
        change=Change(
            *setting,
            f"with fidelity.min: {step}" if whole else "trials that will not be promoted then end earlier",
        ),
        saves=min(evidence.spent, saves),
        saves_note="what the trials that were cut, or would have been, cost beyond that step",
        verify="run both with the same budget and three seeds and compare the best metric, or replay the curves by `tuner simulate`",
        confidence="medium",
    )


def earlier_steps(evidence_min: int, last: int, factor: int, *, whole: bool) -> list[int]:
    """Return the steps before the first rung at which trials might be compared instead, ascending.

    If `whole`, the job has no rungs, and the steps before `last` are returned. Neighbouring steps differ by `factor`.
    """
    found, step = [], last if whole else evidence_min
    while step // factor >= 1:
        step //= factor
        found.append(step)
    return found[::-1]


def _earliest(evidence: Evidence, cut_at: int, last: int) -> tuple[int, Correlation] | None:
    fidelity = evidence.spec.fidelity
    whole = evidence.spec.algorithm.scheduler == "none"
    for step in earlier_steps(fidelity.min, last, fidelity.reduction_factor, whole=whole):
        found = predicts(evidence.curves, step, last)
        if step < cut_at and found is not None and found.low >= SURE_ABOVE:
            return step, found
    return None


def _cut(evidence: Evidence, step: int) -> list[Curve]:
    return [curve for curve in evidence.curves if curve.last == step and curve.cut]


def _worst(evidence: Evidence, step: int, last: int) -> list[Curve]:
    """Return the trials that were trained to `last` although a comparison at `step` would have stopped them.

    That comparison continues the best 1/η of the trials.
    """
    scored = [
        (point.score, n, curve)
        for n, curve in enumerate(evidence.curves)
        if curve.last >= last and (point := curve.at(step)) is not None and point.score is not None
    ]
    keep = -(-len(scored) // evidence.spec.fidelity.reduction_factor)
    return [curve for *_, curve in sorted(scored, key=lambda one: (-one[0], one[1]))[keep:]]


def _between(curve: Curve, step: int) -> Money:
    """Return what a trial's training after `step` cost."""
    here, end = curve.at(step), curve.points[-1]
    return Money(max(0, end.cost.micro_usd - here.cost.micro_usd)) if here is not None else Money(0)


def _figure(value: float) -> Fraction:
    return Fraction(round(value * 10**6), 10**6)
