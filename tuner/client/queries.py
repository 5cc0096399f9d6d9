"""Keyword arguments of calls, and the check that refuses unknown arguments."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import TypedDict


class Elsewhere(TypedDict, total=False):
    """The machine to compute costs for. If none is given, the recorded costs are returned."""

    market: str | None
    instance_type: str | None
    region: str | None


class BestQuery(Elsewhere, total=False):
    """Limits on training a configuration."""

    max_cost_usd: float | None
    max_gpu_hours: float | None
    max_duration: str | float | None


BEST = frozenset(BestQuery.__annotations__)
ELSEWHERE = frozenset(Elsewhere.__annotations__)
PRICES = frozenset({"cloud", "region", "zone", "instance_type", "accelerator", "market"})
SPEND = frozenset({"since", "until", "timezone"})
ESTIMATE = frozenset({"run", "choices", "scaling", "compute_optimal", "recurring", "ownership"})
CHANGE = frozenset({"budget", "tags", "priority"})
BUDGET = frozenset({"usd", "gpu_hours", "match", "period", "timezone", "parent", "alerts", "new_secret"})
QUOTA = frozenset({"usd", "gpu_hours", "period", "timezone", "concurrent_jobs", "concurrent_trials"})


def refuse_unknown(given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise TypeError, which suggests the nearest known name, if a keyword argument is not known.

    Without this check, a misspelled filter would be ignored, and the answer would not be limited as the caller intended.
    """
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            fix = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"
            raise TypeError(f"unexpected keyword argument {name!r}{fix}")
