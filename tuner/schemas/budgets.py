"""Budgets above jobs: what all jobs with certain tags may spend together."""

from typing import Literal

from pydantic import Field

from tuner.schemas.base import Answer, Body, Request


class AlertRequest(Request):
    """A webhook once the share `at` of the budget is spent, such as 0.8."""

    at: float
    url: str


class BudgetAboveRequest(Body):
    """Hard, as jobs' own: at least one of `usd` and `gpu_hours`. All jobs count that have every tag of `match`, and those that
    count in a budget whose `parent` this is. With `period` it begins anew by the calendar of `timezone`. `new_secret` makes
    another secret for its webhooks."""

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
    """Of the present period. `left` is null where there is no limit."""

    usd: float
    gpu_hours: float
    held_usd: float
    held_gpu_hours: float
    left_usd: float | None
    left_gpu_hours: float | None


class BudgetForecast(Answer):
    """At the pace of the last day: when the budget runs out, with an 80 % interval. Null: not at this pace, or not before the
    period ends."""

    usd_per_hour: float
    gpu_hours_per_hour: float
    runs_out_at: str | None
    earliest_at: str | None
    latest_at: str | None


class DeliveryShown(Answer):
    """`state`: `pending`, `delivered`, or `given_up` after a day; `answer` is what came of the last of the `tries`."""

    id: str
    url: str
    state: str
    created_at: str
    tries: int
    next_try_at: str | None
    answer: str


class BudgetAbove(Answer):
    """`waiting_jobs` are paused until this budget allows more. `webhook_secret` is shown when it is new, and null after that."""

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
