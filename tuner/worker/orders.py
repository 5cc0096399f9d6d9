"""The messages between a worker and the driver, export or self-test whose attempts it runs: their orders, and the worker's answers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from tuner.domain.checkpointing import InterruptionRisk

EndState = Literal["paused", "finished", "stopped", "ended", "failed", "preempted"]
WorkerState = Literal["running", "waiting"] | EndState


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
    # None keeps the states that the import of the module has left, which begins with seed 0.
    seed: NotRequired[int | None]
    lease_ns: int
    # The part of the lease that another node has used already. Default: the time since the last attempt.
    used_ns: NotRequired[int]
    target_step: int | None  # None if the attempt runs until it ends
    max_step: int | None  # None if the job has no last step
    restore_step: int | None  # the step of the checkpoint to continue from; None or 0 to start from scratch
    # The attempt that saved this checkpoint, or None if it is not known.
    restore_attempt: NotRequired[int | None]
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
    # The bytes of metrics, as JSON, that the job may still report. Default: not limited.
    metrics_room: NotRequired[int]
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


class ContinueOrder(TypedDict):
    """The order to let a running attempt pass the rung at which it waits, or to extend its lease."""

    order: Literal["continue"]
    trial: str
    target_step: int | None  # None if the attempt runs until it ends
    lease_ns: int  # since the attempt began
    job_best: float | None  # the best score of the job


class EndOrder(TypedDict):
    """The order to end an attempt: paused or finished with a checkpoint, or stopped without one."""

    order: Literal["pause", "finish", "stop"]
    trial: str
    # Whether a stopped attempt first saves its best step, if it is not saved yet. Default: False.
    keep_best: NotRequired[bool]


Order = BeginOrder | ContinueOrder | EndOrder


class RenewOrder(TypedDict):
    """The order of node 0 to another node of its attempt: extend the attempt's lease."""

    order: Literal["renew"]
    lease_ns: int  # since the attempt began


class EndOnNodeOrder(TypedDict):
    """The order of node 0 to another node of its attempt: end the attempt as it ended on node 0."""

    order: Literal["end"]
    state: EndState
    error: "FailureFields | None"


NodeOrder = RenewOrder | EndOnNodeOrder


class ReportFields(TypedDict):
    """One report of an attempt."""

    step: int
    metrics: Mapping[str, Any]
    resumable: bool  # whether the child could save a checkpoint of this step
    meter: dict[str, int]  # nanoseconds by cost kind at this report
    at_ns: int  # wall-clock time
    last: bool  # whether user code has returned, so that the trial is complete with this report


class SavedFields(TypedDict):
    """A checkpoint that became durable."""

    step: int
    uri: str
    bytes: int
    seconds: float


class PartFields(TypedDict):
    """A checkpoint that was saved in the middle of a step and has become durable."""

    step: int  # the last finished step
    train_ns: int  # the attempt's training time up to the checkpoint


class FailureFields(TypedDict):
    """Why an attempt ended without an order of the driver."""

    kind: str
    type: str  # the name of the exception's class, or empty
    message: str
    traceback: str  # empty if there was no exception


class AttemptMessage(TypedDict):
    """What a supervisor reports about its attempt. Each report and checkpoint is sent once."""

    trial: str
    attempt: int
    state: WorkerState
    reports: list[ReportFields]
    checkpoints: list[SavedFields]
    meter: dict[str, int]  # nanoseconds by cost kind
    need_ns: int  # by how many nanoseconds the worker requests to extend its lease
    saved_step: int | None  # the step of the newest durable checkpoint
    # The newest checkpoint from the middle of a step, if it became durable since the last message.
    part: PartFields | None
    # If the attempt began in the middle of a step: how long earlier attempts had trained that step.
    carried_ns: int
    warming_ns: int  # the part of the setup time that prepared the worker itself
    leaving: bool  # whether the worker's machine is about to be taken away
    from_step: int | None  # the step of the checkpoint that it continued from; None if that is not known yet
    # Time that is not overhead of the trial, because the storage failed or a dataset was downloaded.
    outage_ns: int
    rank_ends: list[dict[str, Any]]  # ends of ranks on a node other than node 0, which reads them
    usage: dict[str, Any] | None
    environment: dict[str, Any] | None  # sent in one of the attempt's messages
    error: FailureFields | None


class MachineFields(TypedDict):
    """What the actor of a worker adds to the messages of its supervisors."""

    node: str  # Ray's id of the worker's node
    machine: Mapping[str, str]  # facts about the machine from its cloud; empty if they are not known yet
    others: list[tuple[str, Mapping[str, str]]]  # the other nodes of the worker's attempts, with such facts
    retires: bool  # whether the worker can run no more attempts


class ActorMessage(AttemptMessage, MachineFields):
    """The message that a worker's actor sends to the driver."""
