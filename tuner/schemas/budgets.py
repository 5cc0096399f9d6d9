"""Models of shared budgets, quotas and spend by group."""

from typing import Annotated, Literal

from pydantic import Field

from tuner.domain.shared_budget import MAX_ALERTS
from tuner.schemas.base import Answer, Body, GpuHours, Request, Usd

AtOnce = Annotated[int, Field(ge=1, le=1_000_000)]


class QuotaRequest(Body):
    """The limits of a project. Null means no limit.

    `usd` and `gpu_hours` limit the spend of all jobs of the project together. They apply to each `period` of the calendar in the time zone
    `timezone`, or to all time if `period` is null. `concurrent_trials` limits how many trials all active
    jobs together may run at once.
    """

    usd: float | None = None
    gpu_hours: float | None = None
    period: Literal["day", "week", "month"] | None = None
    timezone: str = "UTC"
    concurrent_jobs: AtOnce | None = None
    concurrent_trials: AtOnce | None = None


class QuotaUse(Answer):
    """How much of a project's quota is in use. Dollars and GPU-hours are those of the present period, and null if they are not limited."""

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


class SpendFigures(Answer):
    """Spend and counts for a span of time.

    `trials` counts the trials with ledger entries in that time. `completed_trials` counts those of them that have been trained to the end.
    `preemptions` counts attempts whose machine was taken away. `retries` counts attempts that followed a failed or lost attempt.

    `storage_gb_months` is the size of stored files times the time for which they were stored, in 10^9 bytes and months of 730 hours. It is
    null in groups by `market`, because files belong to a job. `storage_usd` is the cost of this storage, or null if its price is not known.
    It is not part of `usd`, of any bill or of any budget.

    `read_bytes` and `written_bytes` are the sizes of the checkpoints that attempts restored and saved, counted when the attempt ended.
    `transfer_usd` is the cost of those bytes that were moved between regions, or null if a region or the price is not known. Like
    `storage_usd`, it is not part of any bill or budget. `data_read_bytes` is the size of the datasets that the same attempts downloaded
    with `tuner.training.dataset`. `data_transfer_usd` is the cost of those bytes that came from a bucket in another region, or null if a
    region or the price is not known.
    """

    usd: Usd = Field(validation_alias="cost")
    gpu_hours: GpuHours = Field(validation_alias="cost")
    jobs: int
    trials: int
    completed_trials: int = Field(validation_alias="completed")
    usd_per_completed_trial: Usd | None = Field(validation_alias="usd_per_completed")
    preemptions: int
    retries: int
    lost_usd: Usd = Field(validation_alias="lost")
    lost_gpu_hours: GpuHours = Field(validation_alias="lost")
    read_bytes: int = 0
    written_bytes: int = 0
    transfer_usd: Usd | None = None
    data_read_bytes: int = 0
    data_transfer_usd: Usd | None = None
    storage_gb_months: float | None = None
    storage_usd: Usd | None = None


class SpendGroup(SpendFigures):
    """The spend of one group. `keys` has one value for each entry of `group_by`. A value is null if the jobs of the group do not have that tag."""

    keys: dict[str, str | None]


class MachineCost(Answer):
    """The cost of all machines of one type and market, for all users. `idle_hours` and `idle_usd` count machines on which no trial ran."""

    instance_type: str
    market: str
    node_hours: float
    idle_hours: float
    usd: float
    idle_usd: float


class ClusterCost(Answer):
    """The cost of the cluster's worker nodes. Each whole hour that begins in the requested span of time is included.

    The service has observed nodes every few seconds since `known_since`. `unseen_hours` is the time after that in which it observed
    nothing. `unpriced_node_hours` is the running time of nodes whose price is not known. The costs include neither of these times.
    `usd` is null if nothing was observed, or if only nodes without a known price were running.
    """

    known_since: str
    unseen_hours: float
    unpriced_node_hours: float
    usd: float | None
    kinds: list[MachineCost]


class SpendAnswer(Answer):
    """Spend by group, for ledger entries at or after `since` and before `until`. A null `since` means from the first entry, and a null
    `until` means up to the last one.

    The amounts of the groups add up to the total. The numbers of jobs and trials may not: a job or trial that belongs to several groups is
    counted in each of them, but only once in the total. `cluster_idle_usd` is the cost of machines while no trial ran on them. It is not part
    of any bill, and null if it is not known. `cluster` is null if no worker node has been observed, or if the caller may not see it.
    """

    group_by: list[str]
    since: str | None
    until: str | None
    timezone: str
    items: list[SpendGroup]
    total: SpendFigures
    cluster_idle_usd: float | None = None
    cluster: ClusterCost | None = None


class AlertRequest(Request):
    """A webhook that is sent when the share `at` of the budget is spent, such as 0.8."""

    at: float
    url: str


class SharedBudgetRequest(Body):
    """A shared budget. It is a hard limit, like a job's own budget; at least one of `usd` and `gpu_hours` is required.

    The budget counts every job that has all tags of `match`. It also counts the jobs of its child budgets, which are the budgets that name it
    as their `parent`.

    If `period` is given, spend is reset to zero at the beginning of each period of the calendar in `timezone`. `new_secret` creates a new secret for
    signing the budget's webhooks.
    """

    usd: float | None = None
    gpu_hours: float | None = None
    match: dict[str, str] = Field(default_factory=dict)
    period: Literal["day", "week", "month"] | None = None
    timezone: str = "UTC"
    parent: str | None = None
    alerts: list[AlertRequest] = Field(default_factory=list, max_length=MAX_ALERTS)
    new_secret: bool = False


class AlertShown(Answer):
    """An alert of a budget. `url` is only the host of the webhook if the caller is not an admin, because the rest may be secret."""

    at: float
    url: str


class BudgetSpend(Answer):
    """Spend and holds in the present period. `left_usd` and `left_gpu_hours` are null if the budget does not limit them."""

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

    `state` is `pending`, `delivered`, or `given_up` if it failed for a day. `tries` counts the attempts to deliver it, and `answer` is the
    result of the last one. `url` is only the host if the caller is not an admin.
    """

    id: str
    url: str
    state: str
    created_at: str
    tries: int
    next_try_at: str | None
    answer: str


class SharedBudgetAnswer(Answer):
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
    items: list[SharedBudgetAnswer]
