"""Models of quotas: limits on what a project may spend and run at once."""

from typing import Annotated, Literal

from pydantic import Field

from tuner.schemas.base import Answer, Body

AtOnce = Annotated[int, Field(ge=1, le=1_000_000)]


class QuotaRequest(Body):
    """The limits of a project. Null means no limit.

    `usd` and `gpu_hours` limit all jobs of the project together, for each `period` of the calendar in `timezone`, or for all time if
    `period` is null. For `concurrent_trials`, an active job counts as many trials as it may run at once.
    """

    usd: float | None = None
    gpu_hours: float | None = None
    period: Literal["day", "week", "month"] | None = None
    timezone: str = "UTC"
    concurrent_jobs: AtOnce | None = None
    concurrent_trials: AtOnce | None = None


class QuotaUse(Answer):
    """Current use. Dollars and GPU-hours are those of the present period, and null if they are not limited."""

    usd: float | None
    held_usd: float | None
    gpu_hours: float | None
    held_gpu_hours: float | None
    concurrent_jobs: int
    concurrent_trials: int


class Quota(Answer):
    usd: float | None
    gpu_hours: float | None
    period: str | None
    timezone: str
    period_end: str | None
    concurrent_jobs: int | None
    concurrent_trials: int | None
    used: QuotaUse
