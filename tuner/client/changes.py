"""Change a job's budget exactly once, even if responses are lost."""

from collections.abc import Mapping
from typing import Any

from tuner.schemas.job import JobFacts

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
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
        ValueError: No amount is given, or an amount is given for a limit that the budget does not have.
    """
    added = {name: value for name, value in more.items() if value is not None}
    if not added:
        raise ValueError(f"give the amount to add: {' or '.join(more)}")
    for name in added:
        if budget[name] is None:
            raise ValueError(f"the job's budget does not limit {name}, so nothing can be added to this limit")
    return {name: round(budget[name] + value, 6) for name, value in added.items()}


def wants_more(job: JobFacts) -> bool:
    """Return whether the job was paused or ended because its budget was spent."""
    return job.state in ("paused", "succeeded") and str(job.stop_reason).startswith("budget")


def _same(name: str, wanted: Any, current: Any) -> bool:
    if wanted is None or current is None or name == "on_exhausted":
        return bool(wanted == current)
    if isinstance(wanted, str):  # a number, or a duration such as 90s or 6h
        unit = SECONDS.get(wanted[-1:])
        wanted = float(wanted) if unit is None else float(wanted[:-1]) * unit
    return bool(abs(wanted - float(current)) < SMALLEST)
