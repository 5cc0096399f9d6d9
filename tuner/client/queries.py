"""What questions of the best configuration may say."""

from typing import TypedDict


class Elsewhere(TypedDict, total=False):
    """A machine to price for; without it costs are as they were recorded."""

    market: str | None
    instance_type: str | None
    region: str | None


class BestQuery(Elsewhere, total=False):
    """Limits on what training a configuration may take."""

    max_cost_usd: float | None
    max_gpu_hours: float | None
    max_duration: str | float | None
