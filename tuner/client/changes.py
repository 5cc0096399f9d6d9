"""Change a job so that the change takes effect exactly once, even if responses are lost."""

from collections.abc import Callable, Mapping
from typing import Any

from tuner.client.http import ApiError
from tuner.client.steps import Steps
from tuner.schemas.job import JobFacts

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SMALLEST = 5e-7  # amounts that differ by less than this are equal, because JSON has six decimals


def once(
    sent: Steps[JobFacts], look: Callable[[], Steps[JobFacts]], change: Mapping[str, Any]
) -> Steps[JobFacts]:
    """Send a change that is bound to a revision, and return the changed job.

    If the response is lost, this call fails although the service may have made the change. Therefore, after a failure, fetch the job
    with `look` and return it if it has the requested values.

    Raises:
        ApiError: The change failed, and the job does not have the requested values.
    """
    try:
        return (yield from sent)
    except ApiError as error:
        if not error.in_doubt or error.status not in (0, 412, 503):
            raise
        try:
            found = yield from look()
        except ApiError:
            raise error from None
        if not is_as_asked(found, change):
            raise
        return found


def is_as_asked(job: JobFacts, change: Mapping[str, Any]) -> bool:
    """Return whether the job has the values of `change`, the body of a `PATCH /v1/jobs/{id}`."""
    budget = change.get("budget") or {}
    limits = all(_same(name, asked, job.budget[name]) for name, asked in budget.items())
    plain = all(change.get(name) in (None, getattr(job, name)) for name in ("tags", "priority"))
    return limits and plain


def raised(budget: Mapping[str, Any], **more: float | None) -> dict[str, float]:
    """Return the new limits of a budget after adding the amounts `more`.

    Raises:
        ValueError: No amount is given, or the budget has no limit of that kind.
    """
    added = {name: value for name, value in more.items() if value is not None}
    if not added:
        raise ValueError(f"say how much to add: {' or '.join(more)}")
    for name in added:
        if budget[name] is None:
            raise ValueError(f"the job has no limit on {name}")
    return {name: round(budget[name] + value, 6) for name, value in added.items()}


def wants_more(job: JobFacts) -> bool:
    """Return whether the job stopped because its budget was spent."""
    return job.state in ("paused", "succeeded") and str(job.stop_reason).startswith("budget")


def _same(name: str, asked: Any, found: Any) -> bool:
    if asked is None or found is None or name == "on_exhausted":
        return bool(asked == found)
    return abs(_amount(asked) - float(found)) < SMALLEST


def _amount(asked: float | str) -> float:
    """Return a requested limit as a number. Durations such as 90s or 6h are converted to seconds."""
    if isinstance(asked, str):
        return float(asked[:-1]) * SECONDS[asked[-1]] if asked[-1:] in SECONDS else float(asked)
    return asked
