"""The order with which a driver, an export or a self-test begins an attempt on a worker."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from tuner.domain.checkpointing import InterruptionRisk


class BeginOrder(TypedDict):
    """The order to begin an attempt. A key that is not required may be missing. Its comment states a default if there is one."""

    order: Literal["begin"]
    project: str
    job: str
    trial: str
    attempt: int  # numbered from 1
    storage: str  # the path or URL of the storage for checkpoints, artifacts and logs
    entry: str  # the trainable as `module:function`
    kind: NotRequired[str | None]  # the kind of the trainable
    config: dict[str, Any]
    seed: NotRequired[int | None]  # the worker sets no seeds if it is None
    lease_ns: int
    # The part of the lease that another node has used already. Default: the time since the last attempt.
    used_ns: NotRequired[int]
    target_step: int | None  # None if the attempt runs until it ends
    max_step: int | None  # None if the job has no last step
    restore_step: int | None  # the step of the checkpoint to continue from; None or 0 to start from scratch
    restore_attempt: NotRequired[
        int | None
    ]  # the attempt that saved this checkpoint, or None if it is not known
    reported_step: NotRequired[int]  # the newest step that an earlier attempt reported
    keep: int  # the number of checkpoints that are kept, in addition to the best one
    checkpoint_interval_ns: NotRequired[int | None]  # None if the worker chooses it
    exposure: NotRequired[InterruptionRisk]  # how often such attempts are interrupted. Default: the prior
    metric: NotRequired[str]
    mode: NotRequired[str]
    constraints: NotRequired[Sequence[Any]]
    best: NotRequired[tuple[float, int] | None]  # score and step of the trial's best checkpoint
    job_best: NotRequired[float | None]  # the best score of the job
    rungs: NotRequired[Sequence[int]]
    proxies: NotRequired[Mapping[str, Any] | None]
    serving_metrics: NotRequired[Sequence[str]]
    usd_per_hour: NotRequired[float]  # the price of the trial's share of its machine
    resources: dict[str, float]  # by the names of Ray, for each node
    memory_limit_bytes: NotRequired[int | None]  # None if it is not limited
    # The bytes of artifacts that the job may still store. Default: not limited.
    artifact_room: NotRequired[int]
    processes: NotRequired[int]  # on each node. Default: 1
    nodes: NotRequired[int]  # Default: 1
    # What is needed to fetch the checkpoint of the job's teacher.
    teacher: NotRequired[Mapping[str, Any] | None]
    # Whether to save the restored state again at once, for the self-test. Default: False.
    echo: NotRequired[bool]

    # These keys are added by node 0, for the other nodes of an attempt.
    node: NotRequired[int]  # Default: 0
    address: NotRequired[str]  # where rank 0 can be reached. Default: the loopback address
    port: NotRequired[int]  # on which rank 0 listens. Default: a free port
    checkpoint: NotRequired[str | None]  # the name of the checkpoint that node 0 has restored
    sent_at_ns: NotRequired[int]  # wall-clock time at which node 0 sent the order
