"""Models of trials, bills, curves, logs, advice, the ledger, reports, packages and trainables."""

from fractions import Fraction
from typing import Annotated, Any

from pydantic import AliasPath, BeforeValidator, Field

from tuner.domain.money import Money
from tuner.schemas.base import Answer, ByKind, GpuHours, Time, Usd
from tuner.schemas.job import Best


def _plain(figure: object) -> object:
    if isinstance(figure, Money):
        return figure.usd
    return round(float(figure), 6) if isinstance(figure, Fraction) else figure


Evidence = Annotated[
    dict[str, Any], BeforeValidator(lambda evidence: {n: _plain(f) for n, f in evidence.items()})
]
"""Figures by name. Accepts amounts of money, which become dollars, and fractions, which are rounded to six decimals."""


class TrialCurve(Answer):
    """The learning curve of one trial, as parallel arrays.

    At `steps[i]` the trial reported `metric[i]`, which is null if that report lacks the metric. `cost_usd[i]` is the cost of training the
    trial from the beginning to that step. `spent_usd[i]` is what the whole job had spent by then; it is null if the step was trained in an
    earlier job. The arrays may be rounded, but `best_metric` (the best value of the objective among the steps that satisfy the job's
    constraints) and `total_usd` (the amount spent on the trial) are exact. `preemptions_at` lists the last step before each preemption of the trial. `promotions_at` lists the rungs from which
    it was promoted.
    """

    id: str
    state: str
    reason: str
    config: dict[str, Any]
    attempts: int
    preemptions: int
    best_metric: float | None
    total_usd: float
    steps: list[int]
    metric: list[float | None]
    cost_usd: list[float]
    spent_usd: list[float | None]
    preemptions_at: list[int]
    promotions_at: list[int]


class Curves(Answer):
    """The learning curves of all trials of a job, with all reports up to event `seq`. The stream of events continues from there.

    `metric` is the metric of the arrays. `metrics` are the names that `?metric=` accepts. `objective` is the metric that the job optimizes,
    and `mode` says whether the job minimizes or maximizes it. `rounded` is true if the job has so many reports that the numbers in the
    arrays are rounded to the precision of a chart. `GET /v1/jobs/{job}/trials/{trial}` returns the exact numbers.
    """

    job: str
    seq: int
    metric: str
    metrics: list[str] = []
    objective: str = ""
    mode: str
    rounded: bool
    trials: list[TrialCurve]


class TrialLog(Answer):
    """The output of an attempt, as text without terminal control sequences.

    `attempts` lists the attempts that have a log of the requested node. `at` is the time up to which this log is current. Of the
    `bytes_total` bytes that were printed, `bytes_left_out` are not in `text`. Pass `bytes_until` as `after` to continue from here. If
    `complete` is true, no more output will follow. If `ended` is true but `complete` is not, the worker was lost, and with it the output of
    its last seconds.
    """

    job: str
    trial: str
    attempt: int
    attempts: list[int]
    at: Time
    complete: bool
    ended: bool
    bytes_total: int = Field(validation_alias="total")
    bytes_left_out: int = Field(validation_alias="left_out")
    bytes_until: int = Field(validation_alias="until")
    text: str


class Package(Answer):
    """An uploaded package with trainables.

    `id` is `pkg_` followed by the SHA-256 of the archive; a job names it as its `package`. `bytes` is the size of the archive.
    """

    id: str
    name: str
    bytes: int = Field(validation_alias="size_bytes")
    files: int
    created_at: Time


class PackagePage(Answer):
    items: list[Package]
    next_cursor: str | None


class Change(Answer):
    """A suggested change. `setting` is a setting of the job, named as in its YAML file, or of the trainable. `now` is its present value, or
    null if that is not known. `then` is the suggested value. `how` says how to make the change, or what other effect the change has.
    """

    setting: str
    now: str | None
    then: str
    how: str


class Finding(Answer):
    """A way in which the job could have been cheaper.

    `saves_usd` is the amount of this job's spend so far that the change would have avoided. It is null if it cannot be calculated;
    `saves_note` then gives the reason, and otherwise explains the calculation. `evidence` contains every figure that the calculation
    uses. The savings of several findings must not be added up. `confidence` is `high`, `medium` or `low`.
    """

    kind: str
    title: str
    confidence: str
    evidence: Evidence
    change: Change
    alternatives: list[Change]
    saves_usd: Usd | None = Field(validation_alias="saves")
    saves_note: str
    verify: str


class NotMeasured(Answer):
    """A question about the job that the advice could not answer (`what`), the reason (`why`), and how to measure what is missing (`how`)."""

    what: str
    why: str
    how: str


class Advice(Answer):
    """All advice for a job.

    `findings` are sorted by savings, largest first. `measured_usd` is the part of `spent_usd` that went into attempts whose resource usage
    was measured. `prices` names the price catalogue that was used to compare machines, and `prices_age` says how old it is.
    """

    job: str = Field(validation_alias=AliasPath("job", "id"))
    state: str = Field(validation_alias=AliasPath("job", "state"))
    spent_usd: Usd = Field(validation_alias="spent")
    measured_usd: Usd = Field(validation_alias="measured")
    findings: list[Finding]
    not_measured: list[NotMeasured] = Field(validation_alias="missing")
    prices: str = Field(validation_alias="catalogue")
    prices_age: str = Field(validation_alias="catalogue_age")


class ReplayDecision(Answer):
    """A decision that a replay made, or the part of the record that this decision was compared with.

    `summary` describes the decision or that part of the record in plain words. `fields` contains the `type` and the values of the command,
    event, trial or job that `summary` describes, or is empty.
    """

    summary: str
    fields: dict[str, Any]


class ReplayDifference(Answer):
    """The first event at which a replay differs from the record, or at which two policies decide differently.

    A policy is a scheduler with a sampler.

    `decided` is the decision of the job's own policy. `recorded` is what the record contains at this event; it is null if two policies were
    compared. `instead` is the decision of the other policy; it is null if the replay was compared with the record.

    `code` is the kind of the difference. `answer`: the sampler's answers differ. `commands`: two policies return different commands.
    `not_permitted`: no earlier decision permits the event. `not_possible`: the event does not fit the job's state. `answer_missing`: a
    command has no recorded answer. `event_missing`: the numbers of the events have a gap. `warm_start`: the record of the earlier job
    differs from the trial that was continued. `trial_state`, `trial_config`, `trial_missing` and `job_end`: the recorded state or
    configuration of a trial, the existence of a trial, or the end of the job differs from the replayed one.
    """

    code: str
    event: int
    at: str
    trial: str | None
    decided: ReplayDecision
    recorded: ReplayDecision | None
    instead: ReplayDecision | None


class ReplayPolicy(Answer):
    """The scheduler and the sampler of a job."""

    scheduler: str
    sampler: str


class NotChecked(Answer):
    """Something that a replay could not check, and why not."""

    what: str
    why: str


class Replay(Answer):
    """The replay of a job's recorded events.

    `difference` is the first difference that was found, or null if nothing differs. `events` is the number of replayed events, `decisions`
    the number of commands that the job's policy decided after these events, and `answers` the number of the sampler's answers that were
    computed again and compared. `policy` is the job's own scheduler and sampler. `instead` is the other scheduler and sampler with which
    they were compared, or null if the replay was compared with the record. `concurrent_trials` is how many trials could run at once.
    """

    job: str
    state: str
    events: int
    decisions: int
    answers: int
    concurrent_trials: int
    policy: ReplayPolicy
    instead: ReplayPolicy | None
    difference: ReplayDifference | None
    not_checked: list[NotChecked]


class Trial(Answer):
    """A trial and its totals.

    `metric` is the best value of the objective over all steps that satisfy the job's constraints. `latest_metric` is the value at the
    newest step. `violation` is the amount by which the newest step violates the constraints: 0 if it satisfies all of them, and null before
    the first report.

    `paid_usd`, also available as `cost_usd`, is the amount paid for the trial. `preemptions` counts the attempts that ended because the
    cloud took their machine away.
    """

    id: str = Field(validation_alias="trial")
    config: dict[str, Any]
    state: str
    reason: str
    steps: int
    metric: float | None = Field(validation_alias="best")
    latest_metric: float | None = Field(validation_alias="value")
    violation: float | None
    cost_usd: Usd = Field(validation_alias="cost")
    paid_usd: Usd = Field(validation_alias="cost")
    gpu_hours: GpuHours = Field(validation_alias="cost")
    attempts: int
    preemptions: int
    created_at: Time
    updated_at: Time


class TrialPage(Answer):
    items: list[Trial]
    next_cursor: str | None


class CurvePoint(Answer):
    """One step of a learning curve.

    `violation` is the amount by which the step violates the job's constraints, or 0 if it satisfies all of them. `cost_to_train_usd`, also
    available as `cost_usd`, is the cost of training the configuration from step 0 to this step. `duration_seconds` is likewise counted from
    step 0.
    """

    step: int
    metric: float | None = Field(validation_alias="value")
    metrics: dict[str, Any]
    violation: float | None
    cost_usd: Usd = Field(validation_alias="cost")
    cost_to_train_usd: Usd = Field(validation_alias="cost")
    gpu_hours: GpuHours = Field(validation_alias="cost")
    duration_seconds: float
    at: Time


class Machine(Answer):
    """A machine. `usd_per_hour` is the price of the whole machine, and `price_source` names the source of the price."""

    instance_type: str
    region: str | None
    usd_per_hour: Usd = Field(validation_alias="price")
    price_source: str = Field(validation_alias="source")


class Artifact(Answer):
    """A file that a trial reported with its metrics at `step`. `content_type` is the media type with which the service sends the file."""

    name: str
    step: int
    bytes: int = Field(validation_alias="size_bytes")
    sha256: str
    content_type: str
    at: Time


class ArtifactList(Answer):
    items: list[Artifact]


class DeletedArtifacts(Answer):
    """A deletion of a job's files. `trials` is the number of trials whose files are deleted."""

    job: str
    retain: str
    trials: int
    checkpoint_bytes: int


class StoredJob(Answer):
    """The files of a job in the storage.

    `retain` and `keep_for_seconds` are the job's retention policy. `keeps` names the trials whose files the policy keeps now; it is null if
    the job has not ended. `due_trials` is the number of trials whose files are stored although the policy does not keep them. `needed_by`
    says why no file may be deleted; it is null if nothing needs the files. `next_deletion` is when the policy next allows the deletion of
    more files, or null if that never happens. `storage_gb_months` is the size of the files multiplied by the time for which they have been
    stored so far, in months of 730 hours. `storage_usd` is the cost of this storage.
    """

    job: str
    name: str
    state: str
    bytes: int = Field(validation_alias="size_bytes")
    measured_at: Time
    usd_per_month: Usd | None
    retain: str = Field(validation_alias=AliasPath("policy", "retain"))
    keep_for_seconds: float | None
    needed_by: str | None
    keeps: str | None
    due_trials: int = 0  # an older service does not return it
    next_deletion: Time | None = Field(validation_alias="next_change")
    storage_gb_months: float
    storage_usd: Usd | None


class StoredFiles(Answer):
    """What a project has in the storage, largest job first. Prices are null if they are not known. A GB is 10^9 bytes."""

    items: list[StoredJob]
    bytes: int = Field(validation_alias="size_bytes")
    usd_per_gb_month: Usd | None
    usd_per_month: Usd | None


class AttemptUsage(Answer):
    """Resources that an attempt used while it trained. A figure that was not measured is null.

    `cpu_seconds` is the processor time used within `wall_seconds`. `gpu_percent_sum` is the sum of `gpu_samples` samples of GPU
    utilisation, each in percent. `facts` describes how the attempt trains, as recorded by tuner's training helpers. `data_read_bytes` is
    the size of the data that `tuner.training.dataset` downloaded: 0 if all of it was in the cache. `data_bucket_bytes` is the part of it
    that came from a bucket of a cloud.
    """

    wall_seconds: float | None
    cpu_seconds: float | None
    memory_peak_bytes: int | None
    gpu_samples: int | None
    gpu_percent_sum: int | None = Field(validation_alias="gpu_percent")
    gpu_memory_peak_bytes: int | None
    data_wait_seconds: float | None
    compute_seconds: float | None
    saves: int | None
    saved_bytes: int | None
    restored_bytes: int | None = None
    artifact_bytes: int | None = None
    data_read_bytes: int | None = None
    data_bucket_bytes: int | None = None
    facts: dict[str, Any]


class Environment(Answer):
    """The environment that an attempt trained in. Training is repeatable only if all of this is the same.

    `threads` is the number of OpenMP threads, which PyTorch and NumPy use. `seed` is the seed of the random generators of Python, NumPy
    and PyTorch. `versions` maps Python and each distribution to its version. `variables` are the environment variables that change
    results. `code` is the digest of the trainable's code, or null if its module is not a file.
    """

    threads: int | None
    seed: int | None
    versions: dict[str, str]
    variables: dict[str, str]
    code: str | None


class Attempt(Answer):
    """One continuous execution of a trial on one worker.

    `end` is null while the attempt runs. `node` is the id of its node in the cluster, or null until it is known. `usd_per_hour` is the
    price of the share of the machine that the trial uses, on the market `market`. `machine` is the machine that the attempt ran on and is
    billed for, or null if the machine was not checked. `environment` is null for attempts that never began to train and for attempts of
    earlier releases.
    """

    attempt: int
    began_at: Time
    ended_at: Time | None
    end: str | None
    reason: str
    detail: str
    node: Annotated[str | None, BeforeValidator(lambda node: node or None)]
    market: str
    usd_per_hour: Usd = Field(validation_alias="price")
    machine: Machine | None
    from_step: int
    to_step: int
    bill: ByKind = Field(validation_alias="costs")
    usage: AttemptUsage | None = None
    environment: Environment | None = None


class Inherited(Answer):
    """The trial of an earlier job that this trial continued.

    `step` is the last step that was taken over from the earlier trial. `cost_usd` and `gpu_hours` are the cost of training the
    configuration to that step.
    """

    job: str
    trial: str
    step: int
    cost_usd: Usd = Field(validation_alias="cost")
    gpu_hours: GpuHours = Field(validation_alias="cost")


class StoredCheckpoint(Answer):
    """A checkpoint that `GET /v1/jobs/{id}/trials/{trial}/checkpoint?step=` downloads. `metric` is the objective's value at its step."""

    step: int
    metric: float | None = Field(validation_alias="value")
    size_bytes: int
    uri: str
    at: Time


class TrialDetail(Trial):
    """A trial with its learning curve, bill, attempts and checkpoints. `environment` is that of the newest attempt that has one."""

    inherited: Inherited | None
    curve: list[CurvePoint]
    bill: ByKind
    attempt_list: list[Attempt]
    checkpoints: list[StoredCheckpoint]
    environment: Environment | None = None


class TrialBill(Answer):
    trial: str
    state: str
    steps: int
    total_usd: Usd
    gpu_hours: GpuHours
    by_kind: ByKind


class Savings(Answer):
    """What the job saved compared with two alternatives. No amount contains the cost of exports. An amount that is not known is null.

    `full_fidelity_usd` is the cost of training the same trials to the last step, and `against_full_fidelity_usd` the amount saved against
    it. `on_demand_usd` is the on-demand price of everything that was paid for, including the work that interruptions caused, and
    `against_on_demand_usd` the amount saved against it. `against_on_demand_usd` is 0 if nothing was bought on a spot market.
    """

    full_fidelity_usd: Usd | None
    against_full_fidelity_usd: Usd | None
    on_demand_usd: Usd | None
    against_on_demand_usd: Usd | None


class Bill(Answer):
    """The spend of a job by kind, per trial and in total.

    `self_test_usd` is the cost of testing that the trainable can continue from a checkpoint, as it must before it may use spot machines. It is
    0 if this job did not pay for a test. `exports_usd` is the cost of exports, which
    `cost_per_completed_trial_usd` does not contain. If the database was restored from a backup, `restored_usd` is the amount that the job
    spent after that backup was made. All other spend belongs to a trial.
    """

    job: str
    total_usd: Usd
    gpu_hours: GpuHours
    held_usd: Usd
    by_kind: ByKind
    self_test_usd: Usd
    exports_usd: Usd = 0
    restored_usd: Usd = 0
    trials: list[TrialBill]
    savings: Savings
    completed_trials: int
    cost_per_completed_trial_usd: float | None
    preemptions: int


class LedgerEntry(Answer):
    """One entry of the ledger.

    `entry` is one of: `hold` reserves money, `post` turns a part of a hold into spend of one kind, `release` gives the rest of a hold
    back, `correct` moves posted spend from one kind to another. `slice` is the number of the attempt's lease.
    """

    seq: int
    id: str
    entry: str
    kind: str | None
    trial: str
    attempt: int
    slice: int
    usd: Usd = Field(validation_alias="cost")
    gpu_hours: GpuHours = Field(validation_alias="cost")
    at: Time


class LedgerPage(Answer):
    items: list[LedgerEntry]
    next_cursor: str | None


class SpentPoint(Answer):
    """A report that was better than all earlier ones, and the amount that the job had spent by then."""

    spent_usd: Usd = Field(validation_alias="spent")
    value: float
    trial: str
    step: int


class PeerEstimate(Answer):
    """Estimate of the amount that another search method would have spent to reach the best metric of this job. The method is replayed many
    times on the job's own learning curves, each time with the trials in another random order.

    `method` is `random_search` (every trial is trained to the last step) or `stopping_asha` (the decisions of Ray Tune's
    AsyncHyperBandScheduler with reduction factor 3). `status` is `estimated`, `unreached` (in at least half of the orders, the method would
    not have reached that metric) or `not_enough_data`.

    `usd` is the median over the orders; `low_usd` and `high_usd` are the 5th and 95th percentile. An amount is null if too many orders did
    not reach the metric. `saved_usd` is `usd` minus the report's `best_spent_usd`; it is negative if the other method would have been
    cheaper, and null if the best trial continued a trial of an earlier job.

    If `is_biased_low` is true, the assumptions favour the other method, so its real cost is probably higher than `usd`. `usd` may still be
    too high by chance. `note` says how the estimate was made, which assumptions it uses and what is missing.
    """

    method: str
    status: str
    usd: Usd | None
    low_usd: Usd | None = Field(validation_alias="low")
    high_usd: Usd | None = Field(validation_alias="high")
    saved_usd: Usd | None
    estimate: bool
    is_biased_low: bool
    note: str


class JobReport(Answer):
    """The results that the job's spend bought.

    `best_curve` lists, in order, each report that was better than all earlier ones. If the job has proxies, only reports of the highest
    rung that was reached are compared, as for `best`. `best_spent_usd` is what the job had spent when its best metric was first reported.
    `trials` counts the trials that reported the metric. `confirmed_trial` is the trial that `best` without limits returns, if the job trained
    its best configurations with several seeds.

    `inherited` names the trial of an earlier job that the best trial continued, and the last step that the earlier job paid for. It is null
    if the best trial continued none. Otherwise no estimate has a `saved_usd`, because `best_spent_usd` leaves out what the earlier job paid.
    """

    job: str
    metric: str
    mode: str
    spent_usd: Usd
    best_spent_usd: Usd | None
    best: Best | None
    confirmed_trial: str | None = None
    best_curve: list[SpentPoint]
    trials: int
    inherited: Inherited | None = None
    estimates: list[PeerEstimate]


class Trainable(Answer):
    """A function or class that can be tuned.

    `search_space` and `objective` are suggestions of the trainable's author. For an Optuna objective, `search_space` is the recorded space
    instead. `error` says why the trainable cannot be tuned. It is null if no reason is known, for example because the trainable has not
    been imported. `code` says why a search space cannot be recorded.
    """

    trainable: str
    doc: str
    search_space: dict[str, Any] | None
    objective: dict[str, Any] | None
    error: str | None
    code: str | None = None


class Trainables(Answer):
    """The trainables that were found. If `truncated` is true, the limit on source files was reached before all of them were read, so the
    list may be incomplete. A trainable that is missing from the list can still be used by name.
    """

    items: list[Trainable]
    truncated: bool = False
