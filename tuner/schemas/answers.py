"""What is shown of trials, money and choices."""

from typing import Any

from tuner.schemas.base import Answer
from tuner.schemas.job import Best


class Trial(Answer):
    """`metric` is the best that the trial reported at any step, by the job's objective, and `latest_metric` that of its newest step.
    `paid_usd`, also named `cost_usd`, is what was paid for the trial. `preemptions` counts attempts whose machine was taken away."""

    id: str
    config: dict[str, Any]
    state: str
    reason: str
    steps: int
    metric: float | None
    latest_metric: float | None
    cost_usd: float
    paid_usd: float
    gpu_hours: float
    attempts: int
    preemptions: int
    created_at: str
    updated_at: str


class TrialPage(Answer):
    items: list[Trial]
    next_cursor: str | None


class CurvePoint(Answer):
    """`cost_to_train_usd`, also named `cost_usd`, is what it costs to train the configuration to this step. It and
    `duration_seconds` add up from step 0."""

    step: int
    metric: float | None
    metrics: dict[str, Any]
    cost_usd: float
    cost_to_train_usd: float
    gpu_hours: float
    duration_seconds: float
    at: str


class Machine(Answer):
    """`usd_per_hour` is the price of the whole machine, and `price_source` says where it comes from."""

    instance_type: str
    region: str | None
    usd_per_hour: float
    price_source: str


class AttemptUsage(Answer):
    """What an attempt used of its machine while it trained, as far as it was measured: null is unknown. `cpu_seconds` of processors
    went into `wall_seconds`; `gpu_percent_sum` adds up `gpu_samples` samples of utilisation in percent. `facts` is what our helpers
    saw of how it trains."""

    wall_seconds: float | None
    cpu_seconds: float | None
    memory_peak_bytes: int | None
    gpu_samples: int | None
    gpu_percent_sum: int | None
    gpu_memory_peak_bytes: int | None
    data_wait_seconds: float | None
    compute_seconds: float | None
    saves: int | None
    saved_bytes: int | None
    facts: dict[str, Any]


class Environment(Answer):
    """What an attempt trained with, all that has to be equal for its training to repeat. `threads` is the number of threads of
    OpenMP, which PyTorch and NumPy use; `seed` that of the random generators of Python, NumPy and PyTorch. `versions` has those of
    Python and of distributions by name, `variables` the environment variables that change results, and `code` the digest of the
    trainable's code: null where its module is not a file."""

    threads: int | None
    seed: int | None
    versions: dict[str, str]
    variables: dict[str, str]
    code: str | None


class Attempt(Answer):
    """`end` is null while it runs; `node` the machine's id in the cluster, once that is known. `usd_per_hour` is the price of the
    trial's share of a machine of `market`. `machine` is what it was found on, and billed for: null where that was not looked at.
    `environment` is null for attempts that did not come to train, and those of earlier releases."""

    attempt: int
    began_at: str
    ended_at: str | None
    end: str | None
    reason: str
    detail: str
    node: str | None
    market: str
    usd_per_hour: float
    machine: Machine | None
    from_step: int
    to_step: int
    bill: dict[str, float]
    usage: AttemptUsage | None = None
    environment: Environment | None = None


class Inherited(Answer):
    """The trial of an earlier job that this one went on with: up to which step, and what that had cost to train."""

    job: str
    trial: str
    step: int
    cost_usd: float
    gpu_hours: float


class StoredCheckpoint(Answer):
    """A checkpoint that `GET /v1/jobs/{id}/trials/{trial}/checkpoint?step=` downloads. `metric` is the objective's at its step."""

    step: int
    metric: float | None
    size_bytes: int
    uri: str
    at: str


class TrialDetail(Trial):
    """`environment` is that of the newest attempt which has one."""

    inherited: Inherited | None
    curve: list[CurvePoint]
    bill: dict[str, float]
    attempt_list: list[Attempt]
    checkpoints: list[StoredCheckpoint]
    environment: Environment | None = None


class TrialBill(Answer):
    trial: str
    state: str
    steps: int
    total_usd: float
    gpu_hours: float
    by_kind: dict[str, float]


class Savings(Answer):
    """What the same trials would have cost, each trained to the last step, and what was saved against that; and what all that was
    paid for would have cost on demand, what interruptions cost included. The market's share is 0 where nothing was bought on a
    spot market."""

    full_fidelity_usd: float | None
    against_full_fidelity_usd: float | None
    on_demand_usd: float | None
    against_on_demand_usd: float | None


class Bill(Answer):
    """`self_test_usd` is what the restore self-test cost, where this job was the one to pay for it; `restored_usd` what was spent after
    the backup from which the database was restored, if it was; all else is some trial's."""

    job: str
    total_usd: float
    gpu_hours: float
    held_usd: float
    by_kind: dict[str, float]
    self_test_usd: float
    restored_usd: float = 0
    trials: list[TrialBill]
    savings: Savings
    completed_trials: int
    cost_per_completed_trial_usd: float | None
    preemptions: int


class LedgerEntry(Answer):
    """`hold` sets money aside, `post` spends a part of a hold on one kind, `release` gives the rest back, `correct` moves
    what was posted from one kind to another."""

    seq: int
    id: str
    entry: str
    kind: str | None
    trial: str
    attempt: int
    slice: int
    usd: float
    gpu_hours: float
    at: str


class LedgerPage(Answer):
    items: list[LedgerEntry]
    next_cursor: str | None


class SpentPoint(Answer):
    """A report that was better than all before it, and what the job had spent by then."""

    spent_usd: float
    value: float
    trial: str
    step: int


class PeerEstimate(Answer):
    """What another way to search would have spent until this job's best: an estimate, replayed on the job's own learning curves
    in random orders. `method` is `random_search` (every trial trained to the last step) or `stopping_asha` (as Ray Tune's
    AsyncHyperBandScheduler decides, reduction factor 3). `status` is `estimated`, `unreached` (it would have missed that best in
    at least half of the orders) or `not_enough_data`.

    `usd` is the median over the orders, `low_usd` and `high_usd` their 5th and 95th percentile, null where so many did not reach it;
    `saved_usd` is `usd` less `best_spent_usd` of the report, negative where the other way would have been cheaper.
    `is_biased_low`: what is assumed favours the other way, so that it should need more; the figure may still be too high by
    chance. `note` says how it was made, what was assumed, what is missing."""

    method: str
    status: str
    usd: float | None
    low_usd: float | None
    high_usd: float | None
    saved_usd: float | None
    estimate: bool
    is_biased_low: bool
    note: str


class JobReport(Answer):
    """What the money bought. `best_curve` has each report that was better than all before it, in order; `best_spent_usd` is what had
    been spent when a metric as good as the best was first reported; `trials` counts those that reported the metric."""

    job: str
    metric: str
    mode: str
    spent_usd: float
    best_spent_usd: float | None
    best: Best | None
    best_curve: list[SpentPoint]
    trials: int
    estimates: list[PeerEstimate]


class Trainable(Answer):
    """`search_space` and `objective` are suggestions of its author. `error` says why it cannot be tuned, and is null as long as it has not
    been imported."""

    trainable: str
    doc: str
    search_space: dict[str, Any] | None
    objective: dict[str, Any] | None
    error: str | None


class Trainables(Answer):
    """`truncated`: there are more source files than were read, so some trainables may be missing. Their names can be used all the same."""

    items: list[Trainable]
    truncated: bool = False
