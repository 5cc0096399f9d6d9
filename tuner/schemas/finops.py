"""The monthly report of a project."""

from pydantic import Field

from tuner.schemas.base import Answer, GpuHours, Time, Usd
from tuner.schemas.budgets import SpendFigures


class KindCost(Answer):
    """The spend of one kind, such as `train` or `lost`."""

    kind: str
    usd: Usd
    gpu_hours: GpuHours


class Saving(Answer):
    """What jobs of the month cost (`usd`), compared with what they would have cost in the case that `counterfactual` describes.

    `jobs` is the number of compared jobs. Those of the report's `examined_jobs` whose cost in that case is not known are left out.
    """

    name: str
    counterfactual: str
    jobs: int
    usd: Usd
    counterfactual_usd: Usd
    saved_usd: Usd


class RightSizing(Answer):
    """Advice of one kind on how jobs of the month could have been cheaper. It applied to `jobs` of the report's `examined_jobs`. `saves_usd`
    is the sum of the savings that are known, or null if none is known.

    Do not add the savings of different kinds: they overlap.
    """

    kind: str
    title: str
    jobs: int
    saves_usd: Usd | None


class Maturity(Answer):
    """A capability in managing costs, measured against the FinOps Foundation's maturity levels `crawl`, `walk` and `run`.

    `value` and `level` are null if the capability cannot be measured. `walk` and `run` are the values at which these levels begin, and
    `thresholds` is the source of these two values.
    """

    capability: str
    measure: str
    value: float | None
    level: str | None
    walk: float
    run: float
    thresholds: str


class MonthlyReport(Answer):
    """The spend of a project in a calendar month, its efficiency, and possible savings.

    `total` and `by_kind` are sums over the ledger entries of the month. `goodput` is the share of the spend that paid for training whose
    work was not lost. `spot_share` is the share of the spend that was for spot machines. `cluster_usd` and `cluster_idle_usd` are null if
    the caller may not see them or if they are not known. `savings` and `right_sizing` are about the most expensive jobs that ended in
    the month, and cover the whole life of these jobs. `examined_jobs` is the number of these jobs.
    """

    project: str
    month: str
    timezone: str
    since: Time
    until: Time
    is_complete: bool
    total: SpendFigures
    by_kind: list[KindCost]
    goodput: float | None
    spot_share: float | None
    ended_jobs: dict[str, int] = Field(validation_alias="ended")
    cluster_usd: Usd | None
    cluster_idle_usd: Usd | None = Field(validation_alias="idle_usd")
    examined_jobs: int
    savings: list[Saving]
    right_sizing: list[RightSizing]
    maturity: list[Maturity]
