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


class MachineCost(Answer):
    """Of all machines of a kind, whoever used them. `idle_hours` and `idle_usd` are of those on which no trial ran."""

    instance_type: str
    market: str
    node_hours: float
    idle_hours: float
    usd: float
    idle_usd: float


class ClusterCost(Answer):
    """Of worker nodes, in the whole hours that begin in that time, looked at every few seconds since `known_since`. In
    `unseen_hours` nobody looked, and `unpriced_node_hours` are of nodes whose price is not known: neither is in the dollars, which are
    null where nothing else is known."""

    known_since: str
    unseen_hours: float
    unpriced_node_hours: float
    usd: float | None
    kinds: list[MachineCost]


class SpendAnswer(Answer):
    """Ledger entries from `since` until before `until`, null standing for the first and the last. The groups' amounts add up
    to the total's; a job or trial that is in several groups counts in each and once in the total. `cluster_idle_usd` is what
    machines cost while no trial ran on them, which is in nobody's bill; null where nothing is known of it. `cluster` is null where
    no worker node was ever seen."""

    group_by: list[str]
    since: str | None
    until: str | None
    timezone: str
    items: list[SpendGroup]
    total: SpendFigures
    cluster_idle_usd: float | None = None
    cluster: ClusterCost | None = None
