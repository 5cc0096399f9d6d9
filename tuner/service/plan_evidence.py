"""Collect evidence from earlier jobs on how long a new job takes.

The evidence consists of the step times and learning curves of the earlier trials, and of the time that they spent on setup,
checkpoints and restores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

from tuner.domain.cost import CostKind, total
from tuner.domain.errors import Fault, Invalid, NotFound
from tuner.domain.job import JobSpec, Resources
from tuner.domain.money import Money
from tuner.domain.objective import Objective
from tuner.domain.records import AttemptRow, TimePoint
from tuner.domain.time import NS
from tuner.planning.estimates.described import EFFICIENCY
from tuner.planning.measured_scaling import (
    MeasuredSize,
    SizedTrials,
    devices,
    differ_in_number,
    efficiency_at,
    measured_sizes,
    named,
)
from tuner.planning.pace_evidence import (
    EARLY_STEPS,
    Delays,
    KnownDelays,
    PaceEvidence,
    SeenTrial,
    of_nothing,
    of_trials,
)
from tuner.planning.pilot import TAG
from tuner.service import packages
from tuner.service.bootstrap import Service
from tuner.service.comparable_jobs import LOOKED_AT, USED, comparable_among, comparable_to, differences
from tuner.store import jobs
from tuner.store.earlier_jobs import HISTORIES_KEPT, History, TrialPace
from tuner.store.jobs import JobRow

SETUPS_MIN = 3  # admission relies on measured setups only if at least this many were on new workers
# in micro-dollars; if a trial's first steps cost less than this, rounding makes times that are derived from costs too inexact
COARSE = 10
POINTER = "/planning/steps_from"


def evidence_for(service: Service, spec: JobSpec, named: Sequence[str], known: KnownDelays) -> PaceEvidence:
    """Return the evidence on how long a job takes.

    It is taken from the named jobs if there are any, otherwise from the job's pilot and the newest comparable jobs.
    If no trial of these jobs has a known step time, default assumptions are returned, with the delays `known`.

    Raises:
        Invalid: A named job does not exist or has another trainable, or no trial of the named jobs has reported.
    """
    rows = _named(service, spec, named) if named else comparable_to(service, spec)
    return of_jobs(service, spec, rows) or of_nothing(known)


def of_jobs(service: Service, spec: JobSpec, rows: Sequence[JobRow]) -> PaceEvidence | None:
    """Return the evidence from all of these jobs, or None if no trial has a known step time.

    The machine of the evidence is the instance type of the first job.
    """
    trials: list[SeenTrial] = []
    attempts: list[Sequence[AttemptRow]] = []
    saves_ns: list[int] = []
    used: list[str] = []
    with service.database.read() as db:
        versions = packages.versions_of(db, service.project, spec.package)
    different = {row.id: differences(spec, row.spec, versions) for row in rows}
    factors = _step_factors(service, spec, [row for row in rows if "devices" in different[row.id]])
    for row, (comparable, history) in zip(rows, _trials_of(service, rows, spec), strict=True):
        if comparable:
            factor = factors[row.id].factor if row.id in factors else Fraction(1)
            trials += [_slowed(trial, factor) for trial in comparable]
            attempts, used = [*attempts, history.attempts], [*used, row.id]
            saves_ns += _saves_ns(history)
    if not trials:
        return None
    notes = [
        f"{row.id} trained each trial on {named(row.spec.resources)}, but this job uses {named(spec.resources)}: a step is "
        f"assumed to take {float(factors[row.id].factor):.3g} times as long, {factors[row.id].source}"
        for row in rows
        if row.id in used and row.id in factors
    ]
    notes += [
        f"{row.id} used other constants, so its steps may take a different time"
        for row in rows
        if row.id in used and "constants" in different[row.id]
    ]
    # A pilot has other proxies on purpose: it trains all steps with the most expensive values.
    notes += [
        f"{row.id} used other fidelity.proxies, so its early steps may take a different time"
        for row in rows
        if row.id in used and "proxies" in different[row.id] and TAG not in row.tags
    ]
    is_pilot = all(TAG in row.tags for row in rows if row.id in used)
    return of_trials(
        trials,
        source="pilot" if is_pilot else "history",
        delays=delays_of(attempts, saves_ns),
        jobs=used,
        machine=rows[0].offer.instance_type,
        notes=notes,
        space=spec.space,
    )


def scaling_of(service: Service, spec: JobSpec, machine: str) -> tuple[MeasuredSize, ...]:
    """Return the scaling efficiency that earlier jobs of the trainable measured on this instance type, or an empty tuple.

    The jobs had the same constants as `spec`, and their trials had different numbers of GPUs or processes.
    """
    with service.database.read() as db:
        rows = jobs.started_of_trainable(db, service.project, spec.trainable, LOOKED_AT)
        versions = packages.versions_of(db, service.project, spec.package)
    by_size: dict[tuple[int, int], list[JobRow]] = {}
    for row in rows:
        size = row.spec.resources
        scales = row.offer.instance_type == machine and differ_in_number(size, spec.resources)
        if scales and differences(spec, row.spec, versions) <= {"devices", "size"}:
            by_size.setdefault((devices(size), size.nodes), []).append(row)
    if len(by_size) < 2:
        return ()
    groups = []
    for same in by_size.values():
        trials = [trial for seen_trials, _ in _trials_of(service, same[:USED], spec) for trial in seen_trials]
        names = tuple(row.id for row in same[:USED])
        groups.append(SizedTrials(same[0].spec.resources, tuple(trials), names))
    return measured_sizes(groups, spec.space)


class StepFactor(NamedTuple):
    """The factor by which a step takes longer with another number of GPUs or processes."""

    factor: Fraction
    source: str  # where the factor comes from, as a phrase for users


def _step_factors(service: Service, spec: JobSpec, rows: Sequence[JobRow]) -> dict[str, StepFactor]:
    """Return, by job, the factor by which a step takes longer with the resources of `spec` than with those of the job.

    Jobs whose resources differ in more than the number of GPUs or processes are left out. The efficiency of several GPUs or processes is
    assumed if none was measured.

    Args:
        rows: Jobs whose trials had another number of GPUs or processes.
    """
    factors = dict[str, StepFactor]()
    for row in rows:
        if not differ_in_number(row.spec.resources, spec.resources):
            continue
        sizes = scaling_of(service, row.spec, row.offer.instance_type)
        factors[row.id] = _step_factor(sizes, row.spec.resources, spec.resources)
    return factors


def _step_factor(sizes: Sequence[MeasuredSize], before: Resources, after: Resources) -> StepFactor:
    efficiencies = [
        efficiency_at(sizes, devices(size), size.nodes) or (EFFICIENCY if devices(size) > 1 else Fraction(1))
        for size in (before, after)
    ]
    factor = devices(before) * efficiencies[0] / (devices(after) * efficiencies[1])
    source = (
        "as measured"
        if sizes
        else f"with an assumed efficiency of {float(EFFICIENCY)} of several GPUs or nodes"
    )
    return StepFactor(factor, source)


def _slowed(trial: SeenTrial, factor: Fraction) -> SeenTrial:
    early_ns, later_ns = (ns and max(1, round(ns * factor)) for ns in (trial.early_ns, trial.later_ns))
    step_ns = max(1, round(trial.step_ns * factor))
    return replace(trial, step_ns=step_ns, early_ns=early_ns, later_ns=later_ns)


@dataclass(frozen=True)
class FirstStep:
    """The least time that a trial on a new worker needs for its setup and its first step."""

    setup_ns: int
    step_ns: int
    source: str  #: The source of the times, as a phrase for users.

    @property
    def total_ns(self) -> int:
        return self.setup_ns + self.step_ns

    def __str__(self) -> str:
        step = f" and {self.step_ns / NS:.3f} s for a step" if self.step_ns else ""
        return f"{self.setup_ns / NS:.3f} s for setup{step}"


def first_step_of(
    service: Service, spec: JobSpec, *, setups_min: int = SETUPS_MIN, job: JobRow | None = None
) -> FirstStep:
    """Return the least time that a trial on a new worker needs for its setup and its first step.

    The times come from `job` alone or from the jobs of the trainable. If they had too few setups, the time of importing the trainable is used.
    Setups are measured in wall-clock time, which is longer on a busy machine. Therefore the shortest of several setups is used.

    Args:
        service: The service.
        spec: The job.
        setups_min: How many measured setups are enough.
        job: The job that measured the times. None means all comparable jobs of the trainable.
    """
    setups, steps = list[int](), list[int]()
    rows = [job] if job is not None else _rows_like(service, spec)
    for seen_trials, history in _trials_of(service, rows, spec):
        ran = history.attempts
        fresh = _on_new_workers(ran)
        setups += [
            ns_of(attempt, "setup") or 0
            for attempt in ran
            if (attempt.trial, attempt.attempt) in fresh and not attempt.from_step and ns_of(attempt, "train")
        ]
        steps += [trial.step_ns for trial in seen_trials]
    if len(setups) >= setups_min and steps:
        where = "in jobs of the trainable" if job is None else "in this job"
        source = f"the shortest of {len(setups)} measured {where}"
        return FirstStep(min(setups), min(steps), source)
    return FirstStep(import_ns(service, spec) or 0, 0, "the time of importing the trainable alone")


def _rows_like(service: Service, spec: JobSpec) -> list[JobRow]:
    """Return the latest jobs of the trainable whose times those of the job resemble, on equal devices."""
    with service.database.read() as db:
        started = jobs.started_of_trainable(db, service.project, spec.trainable, LOOKED_AT)
        versions = packages.versions_of(db, service.project, spec.package)
    # A recent pilot is one of these jobs. Finding any other would take as long as the rest of an admission, because the code is read.
    comparable = comparable_among(spec, started, versions)
    return [row for row in comparable if "devices" not in differences(spec, row.spec, versions)]


def import_ns(service: Service, spec: JobSpec) -> int | None:
    """Return the CPU time of importing the trainable in nanoseconds, or None if it is not known.

    It is never known for a command or a trainable in a package.
    """
    if spec.package is not None or spec.command is not None:
        return None
    return service.prober.describe(spec.trainable).import_ns or None


def _trials_of(
    service: Service, rows: Sequence[JobRow], like: JobSpec
) -> list[tuple[Sequence[SeenTrial], History]]:
    """Return, for each job, its trials that have a known step time, and its history.

    The trials have no curves if the job's objective had another metric or mode than that of `like`.
    """
    if not rows:
        return []
    with service.database.read() as db:
        kept = service.histories.kept(db, [row.id for row in rows])
    histories = [kept.get(row.id) or _history(service, row) for row in rows]
    return [
        (_seen(history, row.spec.objective, like.objective), history)
        for row, history in zip(rows, histories, strict=True)
    ]


def _named(service: Service, spec: JobSpec, names: Sequence[str]) -> list[JobRow]:
    rows = []
    for i, name in enumerate(names):
        try:
            with service.database.read() as db:
                row = jobs.get(db, name, service.project)
        except NotFound as error:
            detail = f"{error.detail}; name one of the project's jobs, or leave out the job"
            raise Invalid.at(f"{POINTER}/{i}", detail) from error
        if row.spec.trainable != spec.trainable:
            detail = (
                f"{name} tuned {row.spec.trainable}, not {spec.trainable}; name a job of the same trainable"
            )
            raise Invalid.at(f"{POINTER}/{i}", detail)
        rows.append(row)
    if of_jobs(service, spec, rows) is None:
        raise Invalid(Fault(POINTER, "no trial of these jobs has reported a step yet"))
    return rows


def _history(service: Service, row: JobRow) -> History:
    """Read the history of a job in a transaction of its own, because with SQLite the threads of a process read one at a time."""
    with service.database.read() as db:
        return service.histories.read(db, row.id, row.project)


# Each submission of a trainable requests the same histories again. Without the cache, five earlier jobs of 300 trials add 11 ms to it.
@lru_cache(maxsize=HISTORIES_KEPT)
def _seen(history: History, objective: Objective, like: Objective) -> tuple[SeenTrial, ...]:
    """Return the trials that have a known step time.

    Their curves are empty if the earlier job's objective had another metric or mode than `like`.
    """
    first = {row.trial: row for row in history.attempts if row.attempt == 1}
    same_objective = (objective.metric, objective.mode) == (like.metric, like.mode)
    trials = []
    for trial in history.trials:
        setup_ns = _setup_ns(trial, first.get(trial.trial))
        step_ns = _step_ns(trial, setup_ns)
        if step_ns is None:
            continue
        points = [(point.step, point.value) for point in trial.points if point.value is not None]
        curve = tuple((step, like.score(value)) for step, value in points) if same_objective else ()
        early_ns, later_ns = _parts(trial, setup_ns)
        last, ended = trial.points[-1].step, trial.state == "completed"
        trials.append(SeenTrial(trial.config, step_ns, curve, last, ended, early_ns, later_ns))
    return tuple(trials)


def _step_ns(trial: TrialPace, setup_ns: int | None) -> int | None:
    """Return the mean time of the trial's steps in nanoseconds, without its first setup.

    Return None if the setup time is not known and there is only one report.
    """
    first, last = trial.points[0], trial.points[-1]
    if setup_ns is not None:
        return max(1, (last.trained_ns - setup_ns) // last.step)
    return _between(first, last)


def _parts(trial: TrialPace, setup_ns: int | None) -> tuple[int | None, int | None]:
    """Return the mean time of the first `EARLY_STEPS` steps, and that of the later steps, in nanoseconds per step.

    Each is None if it is not known.
    """
    early = next((point for point in reversed(trial.points) if point.step <= EARLY_STEPS), None)
    if early is None:
        return None, None
    if setup_ns is not None:
        early_ns: int | None = max(1, (early.trained_ns - setup_ns) // early.step)
    else:
        early_ns = _between(trial.points[0], early)
    return early_ns, None if early_ns is None else _between(early, trial.points[-1])


def _between(a: TimePoint, b: TimePoint) -> int | None:
    """Return the mean time of the steps between two reports, or None if both are the same report."""
    return max(1, (b.trained_ns - a.trained_ns) // (b.step - a.step)) if b.step > a.step else None


def _setup_ns(trial: TrialPace, row: AttemptRow | None) -> int | None:
    """Return how long the trial's first setup took, in nanoseconds, or None if that is not known exactly enough.

    The time is derived from its cost, which is kept in whole micro-dollars. Rounding makes it too inexact if the
    first steps cost only a few micro-dollars.
    """
    if row is None or not row.price.micro_usd_per_hour:
        return None
    setup_ns, coarse_ns = ns_of(row, "setup") or 0, row.price.affords_ns(Money(1))
    early = next((point for point in reversed(trial.points) if point.step <= EARLY_STEPS), trial.points[-1])
    return setup_ns if early.trained_ns - setup_ns >= COARSE * coarse_ns else None


def delays_of(attempts_of_jobs: Sequence[Sequence[AttemptRow]], saves_ns: Sequence[int] = ()) -> Delays:
    """Return the mean times that these attempts spent on setup, restores, saves of checkpoints and waiting for the driver.

    `warming_ns` of the result is the additional setup time of an attempt on a new worker.

    Args:
        attempts_of_jobs: The attempts of each job. Each job has workers of its own, also on the machines of an earlier job.
        saves_ns: The time that one save of a checkpoint took, for each attempt that saved. If it is empty, the usual time is assumed.
    """
    usual = Delays()
    attempts = [row for rows in attempts_of_jobs for row in rows if row.price.micro_usd_per_hour]
    firsts, others = list[int](), list[int]()
    for rows in attempts_of_jobs:
        fresh = _on_new_workers(rows)
        for row in rows:
            if row.attempt == 1 and row.price.micro_usd_per_hour:
                setups = firsts if (row.trial, row.attempt) in fresh else others
                setups.append(ns_of(row, "setup") or 0)
    resumed = [ns_of(row, "setup", "restore") or 0 for row in attempts if row.from_step]
    setup_ns = _mean(others or firsts, usual.setup_ns)
    return Delays(
        warming_ns=max(0, _mean(firsts, setup_ns) - setup_ns),
        setup_ns=setup_ns,
        restore_ns=_mean(resumed, setup_ns),
        save_ns=_mean(saves_ns, usual.save_ns),
        idle_ns=_mean([ns_of(row, "idle") or 0 for row in attempts], usual.idle_ns),
    )


def _saves_ns(history: History) -> list[int]:
    """Return the mean time of a save of each attempt that was billed for saves, in nanoseconds.

    If the number of an attempt's saves was not measured, it is taken to be one.
    """
    return [
        (ns_of(row, "checkpoint") or 0) // max(1, saves or 1)
        for row, saves in zip(history.attempts, history.saves, strict=True)
        if "checkpoint" in row.costs
    ]


def _on_new_workers(attempts: Sequence[AttemptRow]) -> set[tuple[str, int]]:
    """Return the attempts, as (trial, attempt), whose worker was certainly new.

    These attempts got their machine before any attempt of the job had ended on it. There was therefore no worker to reuse.
    """
    first_end: dict[str, int] = {}
    for row in attempts:
        if row.ended_at is not None:
            first_end[row.node] = min(row.ended_at, first_end.get(row.node, row.ended_at))
    return {
        (row.trial, row.attempt)
        for row in attempts
        if row.node not in first_end or (row.assigned_at or row.began_at) < first_end[row.node]
    }


def _mean(values: Sequence[int], usual: int) -> int:
    return round(fmean(values)) if values else usual


def ns_of(row: AttemptRow, *kinds: CostKind) -> int | None:
    """Return the time in nanoseconds for which the attempt was billed under these cost kinds.

    The time is derived from the cost. Return None if the machine cost nothing, because the time is then not known.
    """
    if not row.price.micro_usd_per_hour:
        return None
    # The cost of an attempt is rounded up, by half a micro-dollar on average. On a cheap machine, this is as much as a setup costs. A
    # simulation rounds costs up again.
    paid = total(row.costs).usd.micro_usd
    billed_ns = sum(row.price.affords_ns(cost.usd) for kind, cost in row.costs.items() if kind in kinds)
    return billed_ns * (2 * paid - 1) // (2 * paid) if paid else 0
