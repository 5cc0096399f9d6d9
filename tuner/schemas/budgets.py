"""Models of shared budgets, which limit the spend of all jobs with certain tags."""

from typing import Literal

from pydantic import Field

from tuner.schemas.base import Answer, Body, Request


class AlertRequest(Request):
    """A webhook that is sent when the share `at` of the budget is spent, such as 0.8."""

    at: float
    url: str


class BudgetAboveRequest(Body):
    """A shared budget. It is a hard limit, like a job's own budget; at least one of `usd` and `gpu_hours` is required.

    The budget counts every job that has all tags of `match`, and every job of a budget whose `parent` it is. If `period` is given,
    spend starts again from zero at each period of the calendar in `timezone`. `new_secret` creates a new secret for the budget's
    webhooks.
    """

    usd: float | None = None
    gpu_hours: float | None = None
    match: dict[str, str] = Field(default_factory=dict)
    period: Literal["day", "week", "month"] | None = None
    timezone: str = "UTC"
    parent: str | None = None
    alerts: list[AlertRequest] = Field(default_factory=list)
    new_secret: bool = False


class AlertShown(Answer):
    at: float
    url: str


class BudgetSpend(Answer):
    """Spend and holds in the present period. `left_usd` and `left_gpu_hours` are null if there is no limit."""

    usd: float
    gpu_hours: float
    held_usd: float
    held_gpu_hours: float
    left_usd: float | None
    left_gpu_hours: float | None


class BudgetForecast(Answer):
    """When the budget runs out at the pace of the last day, with an 80 % interval.

    A time is null if the budget does not run out at this pace, or not before the period ends.
    """

    usd_per_hour: float
    gpu_hours_per_hour: float
    runs_out_at: str | None
    earliest_at: str | None
    latest_at: str | None


class DeliveryShown(Answer):
    """A webhook delivery.

    `state` is `pending`, `delivered`, or `given_up` after a day. `answer` is the result of the last of the `tries`.
    """

    id: str
    url: str
    state: str
    created_at: str
    tries: int
    next_try_at: str | None
    answer: str


class BudgetAbove(Answer):
    """A shared budget with its spend and forecast.

    `waiting_jobs` are paused until this budget has room for them. `webhook_secret` is shown only by the request that creates it, and is
    null otherwise.
    """

    name: str
    usd: float | None
    gpu_hours: float | None
    match: dict[str, str]
    period: str | None
    timezone: str
    parent: str | None
    alerts: list[AlertShown]
    period_start: str | None
    period_end: str | None
    spend: BudgetSpend
    forecast: BudgetForecast
    waiting_jobs: list[str]
    deliveries: list[DeliveryShown]
    webhook_secret: str | None
    created_at: str
    updated_at: str


class BudgetList(Answer):
    items: list[BudgetAbove]
