"""Rule: too much of the money is spent on setting up trials."""

from collections.abc import Sequence
from fractions import Fraction

from tuner.domain.money import ZERO, Money
from tuner.planning.advice.evidence import Evidence, share, total
from tuner.planning.advice.finding import Change, Finding

DEAR_ABOVE = Fraction(3, 20)
LEAST_ATTEMPTS = 5
MOSTLY = Fraction(1, 2)
ENOUGH = 10  # a budget should be this many times the cost of one setup of each worker, so that most of it can buy training


def finding(evidence: Evidence) -> Finding | None:
    """Return a finding if setup took too much of the money, either in many setups or in a few that used up most of the budget."""
    setups = [piece.of("setup") for piece in evidence.pieces]
    spent = total(setups)
    part = share(spent.micro_usd, evidence.spent.micro_usd)
    if part > MOSTLY and len(setups) < LEAST_ATTEMPTS and _is_mostly_spent(evidence):
        return _too_small(evidence, setups, part)
    if len(setups) < LEAST_ATTEMPTS or part <= DEAR_ABOVE:
        return None
    dearest, fidelity = max(setups), evidence.spec.fidelity
    # Each worker must set up once in any case, so these setups are not savings.
    saves = max(ZERO, Money(spent.micro_usd - evidence.concurrency * dearest.micro_usd))
    return Finding(
        kind="setup_dear",
        title=f"{float(part):.0%} of the money went into setting trials up",
        evidence={
            "setup_usd": spent,
            "setup_share": part,
            "attempts": len(setups),
            "dearest_setup_usd": dearest,
            "workers": evidence.concurrency,
        },
        change=Change(
            "the trainable's module",
            None,
            "loads data and libraries when it is imported",
            "a worker imports it once, and each attempt begins as a copy of that process; no CUDA before the function is called",
        ),
        alternatives=(
            Change(
                "fidelity.min",
                str(fidelity.min),
                str(fidelity.min * fidelity.reduction_factor),
                "each setup then pays for more steps, and fewer pauses make fewer setups",
            ),
        ),
        saves=saves,
        saves_note=f"all setups but the dearest one for each of {evidence.concurrency} workers; at most this",
        verify="the metric at each step of one configuration with the same seed must be as before; compare `setup` in the bills",
        confidence="medium",
    )


def _is_mostly_spent(evidence: Evidence) -> bool:
    """Return whether the budget is mostly spent or has no limit in dollars.

    Otherwise the job ended early for another reason, and a larger budget would not help.
    """
    limit = evidence.spec.budget.usd
    return limit is None or evidence.spent.micro_usd > MOSTLY * limit.micro_usd


def _too_small(evidence: Evidence, setups: Sequence[Money], part: Fraction) -> Finding:
    """Return the finding that the budget is too small.

    A few necessary setups cost most of it, so only a larger budget or fewer workers would help.
    """
    dearest = max(setups)
    enough = Money(ENOUGH * max(1, evidence.concurrency) * max(1, dearest.micro_usd))
    limit = evidence.spec.budget.usd
    return Finding(
        kind="setup_dear",
        title=f"{float(part):.0%} of the money went into setting trials up, which left little to train with",
        evidence={
            "setup_usd": total(setups),
            "setup_share": part,
            "attempts": len(setups),
            "dearest_setup_usd": dearest,
            "workers": evidence.concurrency,
        },
        change=Change(
            "budget.usd",
            None if limit is None else str(limit).removeprefix("$"),
            str(enough).removeprefix("$"),
            f"pays for {ENOUGH} setups on each of {evidence.concurrency} workers",
        ),
        alternatives=(
            Change(
                "resources.max_concurrent_trials",
                str(evidence.concurrency),
                "1",
                "each worker imports the trainable's module once",
            ),
        ),
        saves=None,
        saves_note="the setup has to be paid for in any case; a larger budget spends a smaller share on it",
        verify="compare `setup` and `train` in the bills",
        confidence="high",
    )
