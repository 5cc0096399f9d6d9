"""What is shown of who spent what."""

from tuner.schemas.base import Answer


class SpendFigures(Answer):
    """`trials` had ledger entries in that time; `completed_trials` of them have been trained to their end. `preemptions` counts
    attempts whose machine was taken away, `retries` attempts that followed one that failed or was lost."""

    usd: float
    gpu_hours: float
    jobs: int
    trials: int
    completed_trials: int
    usd_per_completed_trial: float | None
    preemptions: int
    retries: int
    lost_usd: float
    lost_gpu_hours: float


class SpendGroup(SpendFigures):
    """`keys` has a value for each of `group_by`; null where the job has no such tag."""

    keys: dict[str, str | None]


class SpendAnswer(Answer):
    """Ledger entries from `since` until before `until`, null standing for the first and the last. The groups' amounts add up
    to the total's; a job or trial that is in several groups counts in each and once in the total."""

    group_by: list[str]
    since: str | None
    until: str | None
    timezone: str
    items: list[SpendGroup]
    total: SpendFigures
