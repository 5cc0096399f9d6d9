"""Change a job's budget exactly once, even if responses are lost."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from tuner.client.http import PROBLEM, ApiError
from tuner.domain.money import amounts
from tuner.domain.time import NS, parse_duration_ns
from tuner.schemas.base import Problem
from tuner.schemas.job import JobFacts

LEAST = 1e-6  # the least amount that a budget can be raised by; sums are rounded to it
SMALLEST = 5e-7  # amounts that differ by less than this are equal, because JSON has six decimals


def is_made(change: Mapping[str, Any], job: JobFacts) -> bool:
    """Return whether the job has the values of `change`, the body of a `PATCH /v1/jobs/{id}`."""
    budget = change.get("budget") or {}
    limits = all(_same(name, wanted, job.budget[name]) for name, wanted in budget.items())
    width = change.get("max_concurrent_trials") in (None, job.resources["max_concurrent_trials"])
    rest = all(change.get(name) in (None, getattr(job, name)) for name in ("tags", "priority"))
    return limits and width and rest


def raised(budget: Mapping[str, Any], **more: float | None) -> dict[str, float]:
    """Add the amounts `more`, such as usd=0.5, to the limits of a budget, and return the new values of these limits.

    Raises:
        TypeError: An amount is not a number.
        ValueError: No amount is given, an amount is below 0.000001, or the budget does not have the limit.
    """
    added = {name: value for name, value in more.items() if value is not None}
    if not added:
        raise ValueError(f"give the amount to add: {' or '.join(more)}")
    for name, value in added.items():
        if not isinstance(value, Real):
            raise TypeError(f"the amount of {name} to add must be a number, not {value!r}")
        if not LEAST <= value < math.inf:
            raise ValueError(f"the amount of {name} to add must be at least {LEAST:f}")
        if budget[name] is None:
            raise ValueError(f"the job's budget does not limit {name}, so nothing can be added to this limit")
    return {name: round(budget[name] + value, 6) for name, value in added.items()}


def wants_more(job: JobFacts) -> bool:
    """Return whether the job was paused or ended because its budget was spent."""
    return job.state in ("paused", "succeeded") and str(job.stop_reason).startswith("budget")


def not_resumed(before: JobFacts, after: JobFacts, error: ApiError) -> ApiError:
    """Return the error of a top-up that raised the budget and then failed to resume the job.

    It has the code of `error`. It says that the budget was raised, because a second top-up would add the amount again.
    """
    had, has = limits_text(before.budget), limits_text(after.budget)
    detail = f"The budget was raised from {had} to {has}, but the job was not resumed: {error.detail}; run `tuner resume {after.id}`"
    problem = Problem(type=PROBLEM + error.code, title=error.title, status=error.status, detail=detail)
    return ApiError(problem, path=error.path, in_doubt=error.in_doubt)


def limits_text(budget: Mapping[str, Any]) -> str:
    """Return the limits of a budget in dollars and GPU-hours as text. A limit that is None is left out."""
    return amounts(budget.get("usd"), budget.get("gpu_hours"))


def _same(name: str, wanted: Any, current: Any) -> bool:
    if wanted is None or current is None or name == "on_exhausted":
        return bool(wanted == current)
    if isinstance(wanted, str):
        try:
            wanted = parse_duration_ns(wanted) / NS
        except ValueError:
            return False  # the service refuses such text
    return bool(abs(wanted - float(current)) < SMALLEST)
