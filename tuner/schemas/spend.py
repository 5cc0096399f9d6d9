"""Models of spend by group, and of the cost of the cluster."""

from tuner.schemas.base import Answer


class SpendFigures(Answer):
    """Spend and counts for a span of time.

    `trials` counts the trials with ledger entries in that time, and `completed_trials` those of them that have been trained to the end.
    `preemptions` counts attempts whose machine was taken away. `retries` counts attempts that followed a failed or lost one.
    """

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
    """The spend of one group. `keys` has a value for each entry of `group_by`, or null if the job has no such tag."""

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
    """The cost of worker nodes, in the whole hours that begin in the span of time.

    Nodes have been observed every few seconds since `known_since`. In `unseen_hours` nothing was observed. `unpriced_node_hours` belong
    to nodes without a known price. Neither is included in the dollars, which are null if nothing else is known.
    """

    known_since: str
    unseen_hours: float
    unpriced_node_hours: float
    usd: float | None
    kinds: list[MachineCost]


class SpendAnswer(Answer):
    """Spend by group, for ledger entries at or after `since` and before `until`. If null, they mean the first and the last entry.

    The amounts of the groups add up to the total. A job or trial that belongs to several groups is counted in each of them, but once in
    the total. `cluster_idle_usd` is the cost of machines while no trial ran on them. It is part of no bill, and null if it is not
    known. `cluster` is null if no worker node has been observed, or if the caller may not see it.
    """

    group_by: list[str]
    since: str | None
    until: str | None
    timezone: str
    items: list[SpendGroup]
    total: SpendFigures
    cluster_idle_usd: float | None = None
    cluster: ClusterCost | None = None
