"""Submit a job: refuse a job with any fault that can be found now, otherwise create it in one transaction.

`check` finds the faults of the job itself, and `admit` finds faults that depend on machines, prices and the budget.
`warm_start_faults` finds faults in the earlier jobs that the job wants to learn from.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from tuner.cluster.nodes import Node
from tuner.database.database import Connection
from tuner.domain.errors import Fault, Invalid, NotFound
from tuner.domain.job import FINAL, MAX_CONCURRENT_TRIALS, JobSpec, Resources, Teacher
from tuner.domain.listing import MARKET_WORDS
from tuner.domain.money import dollars
from tuner.domain.offer import Offer, WorkerMachine, trials_that_fit
from tuner.domain.shared_budget import tag_faults
from tuner.domain.time import HOUR_NS, NS
from tuner.service import audit_log, packages
from tuner.service.best import best_trial, without_best
from tuner.service.bootstrap import Service
from tuner.service.checkpoints import choose
from tuner.service.cluster import import_path
from tuner.service.comparable_jobs import JobDifference, differences
from tuner.service.node_prices import priced_kind
from tuner.service.offers import offers_of, priced_nodes, with_those_to_come
from tuner.service.packing import with_pack
from tuner.service.plan_evidence import first_step_of
from tuner.service.shared_budgets import refuse_without_room
from tuner.service.trainables import command_faults, module_faults
from tuner.service.views import JobView, job_view, view_of
from tuner.store import jobs, queue, self_tests, stored_files
from tuner.store.jobs import JobRow
from tuner.store.self_tests import as_submitted, refusal
from tuner.tuning.guard import UNKNOWN_NEED_NS
from tuner.tuning.samplers import prior_faults
from tuner.worker.environment import code_of

# a budget that pays for this much time is accepted without checking measured step times
AMPLE_NS = HOUR_NS
COMMANDS_OFF = "commands are disabled here; to allow them, and packages, the operator sets TUNER_PACKAGES=on and restarts the service"


def submit(
    service: Service,
    spec: JobSpec,
    *,
    body: Mapping[str, Any],
    priority: int = 0,
    idempotency_key: str | None = None,
    existing: Callable[[Connection], str | None] = lambda _: None,
) -> tuple[JobView, bool]:
    """Create a job from a request, and record that a driver is wanted for it. The controller of the leading service launches the driver.

    Args:
        service: The service, in the project of the request.
        spec: The job.
        body: The request without its default values. A repeated request with the same Idempotency-Key must have the same body.
        priority: The job's priority in the queue; higher goes first.
        idempotency_key: The request's key, if it has one.
        existing: Returns an existing job that serves instead of a new one, or None. It is called in the transaction that creates the job.

    Returns:
        The job, and whether it is new.

    Raises:
        Invalid: The request is wrong.
        IdempotencyConflict: The key was used for another request.
        BudgetRefused: A shared budget is used up.
        Unavailable: The cluster does not answer, or has another version of Ray or Python.
    """
    digest = hashlib.sha256(json.dumps(dict(body), sort_keys=True).encode()).hexdigest()
    if idempotency_key is not None:
        with service.database.read() as db:
            known = jobs.made_by(db, service.project, idempotency_key, digest, at=service.now())
        if known is not None:
            return job_view(service, known), False
    service.cluster.check_fit()
    check(service, spec)
    spec = with_pack(service, spec)
    (offer, *others), concurrency = admit(service, spec)
    if any(admitted_offer.market == "spot" for admitted_offer in (offer, *others)):
        _check_restores(service, spec)
    new = jobs.NewJob(
        f"job_{secrets.token_hex(8)}",
        service.project,
        spec,
        offer,
        concurrency,
        service.now(),
        idempotency_key,
        digest,
        tuple(others),
        priority,
        _waits_for(service.cluster.nodes(), (offer, *others)),
    )
    rate = offer.rate(spec.resources)
    with service.database.write("job.submit") as db:
        # Look for an earlier identical request before checking the shared budget. The repeated request is then answered with the
        # job that it created, even if the shared budget is used up by now.
        job = jobs.made_before(db, new) or existing(db)
        if job is None:
            if spec.teacher is not None:
                stored_files.lock_job(db, spec.teacher.job)  # from here on, the checkpoint cannot be removed
                new = replace(new, spec=replace(spec, teacher=chosen_teacher(db, service, spec.teacher)))
            refuse_without_room(db, service, spec.tags, rate)
            job = jobs.create(db, new)
        row = jobs.get(db, job)
        if job == new.id:
            facts = {"name": spec.name, "trainable": spec.trainable, **audit_log.of_job(row)}
            audit_log.note(db, service, "job.submit", job, after=facts)
    # The rest of the view is read after the commit, so that the write transaction stays short.
    with service.database.read() as db:
        return view_of(db, service, row), job == new.id


def check(service: Service, spec: JobSpec) -> None:
    """Raise Invalid with all faults of the job that do not depend on the machines it would run on."""
    faults = [
        *spec.faults(),
        *tag_faults(spec.tags),
        *_constant_faults(spec.constants),
    ]
    if not faults:
        faults = [
            *prior_faults(spec),
            *warm_start_faults(service, spec),
            *_teacher_faults(service, spec),
            *_trainable_faults(service, spec),
        ]
    if faults:
        raise Invalid(*faults)


def admit(service: Service, spec: JobSpec) -> tuple[list[Offer], int]:
    """Return the offers that the job's trials may run on, most expensive first, and how many trials may run at once.

    Raises:
        Invalid: No node has the resources, no price is known, or the budget cannot pay for a first step.
        BadFile: The list of node types or the price catalogue cannot be used.
        Unavailable: The cluster does not answer, or has no node.
    """
    wanted = spec.resources
    nodes = with_those_to_come(service.settings, service.cluster.nodes())
    offers = offers_of(service.settings, nodes, wanted)
    check_affords(service, spec, offers[0])
    # Record the current on-demand price with each spot offer. The bill later compares the cost on spot with this price.
    offers = [
        replace(offer, on_demand_price=priced_kind(service.settings, offer, "on_demand").price)
        if offer.market == "spot"
        else offer
        for offer in offers
    ]
    with service.database.read() as db:
        allowed = queue.get(db, service.project)
    room = _room(service, nodes, offers, wanted, wanted.max_concurrent_trials)
    if not room:
        detail = f"a trial needs {wanted.nodes} machines of one kind at once, and the cluster has fewer of this size; request fewer nodes"
        raise Invalid.at("/resources/nodes", detail)
    return offers, allowed.width(room)


def room_of(service: Service, spec: JobSpec) -> int:
    """Return how many trials of the job the cluster and the project's quota have room for at once. The job's own limit does not count.

    Raise the errors of `admit`.
    """
    return admit(service, replace(spec, resources=replace(spec.resources, max_concurrent_trials=None)))[1]


def concurrency_of(service: Service, spec: JobSpec, limit: int) -> int:
    """Return how many trials of an admitted job may run at once on the machines that the cluster has or may start now.

    The result is at least 1 and at most `limit`.

    Raises:
        Invalid: No node is suitable any more, or no suitable node has a known price.
        BadFile: The list of node types or the price catalogue cannot be used.
        Unavailable: The cluster does not answer, or has no node.
    """
    nodes = with_those_to_come(service.settings, service.cluster.nodes())
    offers = offers_of(service.settings, nodes, spec.resources)
    return max(1, _room(service, nodes, offers, spec.resources, limit))


def _room(
    service: Service, nodes: list[Node], offers: Iterable[Offer], wanted: Resources, limit: int | None
) -> int:
    """Return how many trials can run on the nodes at once, at most `limit`. A trial with several nodes gets all of them from one offer."""
    left = [
        WorkerMachine(node.labels, node.cpus, node.gpus)
        for node, *_ in priced_nodes(service.settings, nodes, wanted)
    ]
    fitting = 0
    for offer in sorted(offers, key=lambda admitted_offer: -len(admitted_offer.labels)):
        fitting += trials_that_fit([machine for machine in left if offer.is_of(machine.labels)], wanted)
        left = [machine for machine in left if not offer.is_of(machine.labels)]
    return min(fitting, limit or MAX_CONCURRENT_TRIALS, MAX_CONCURRENT_TRIALS)


def _waits_for(nodes: Iterable[Node], offers: Iterable[Offer]) -> str:
    """Return a text that says which machines the job waits for, or an empty text if a node of one of its offers is alive."""
    offers = list(offers)
    if any(offer.is_of(node.labels) and node.cpus for node in nodes for offer in offers):
        return ""
    kinds = ", ".join(
        dict.fromkeys(f"{offer.instance_type} ({MARKET_WORDS[offer.market]})" for offer in offers)
    )
    return f"no machine that the job may use is running yet: the autoscaler will be asked to start {kinds}"


def check_affords(service: Service, spec: JobSpec, offer: Offer) -> None:
    """Raise Invalid if the budget cannot pay for the setup and the first step of one trial."""
    rate = offer.rate(spec.resources)
    affords = rate.affords_ns(spec.budget.limit)
    if affords >= AMPLE_NS:
        return
    first = first_step_of(service, spec)
    need = max(UNKNOWN_NEED_NS, first.total_ns)
    if affords >= need:
        return
    by_usd = rate.price.affords_ns(spec.budget.limit.usd) < need
    least = rate.cost(need)
    why = "less than a step can take"
    if need > UNKNOWN_NEED_NS:
        why = f"but a trial takes {first} before its first report ({first.source})"
    detail = (
        f"buys {affords / NS:.3f} s of a trial at {dollars(rate.price.usd_per_hour)} an hour, {why}; give at least "
        f"{least.usd if by_usd else f'{least.gpu_hours:.6f} GPU-hours'}"
    )
    raise Invalid(Fault("/budget/usd" if by_usd else "/budget/gpu_hours", detail))


def _check_restores(service: Service, spec: JobSpec) -> None:
    """Raise Invalid if the restore self-test of an earlier job has shown that the code cannot continue from a checkpoint.

    This is checked only for a job that may use spot machines, because their trials must continue from checkpoints. If the code was not
    tested yet, the job's driver tests it.
    """
    code = code_of(spec, import_path())
    if code is None:
        return
    with service.database.read() as db:
        self_test = self_tests.get(db, service.project, spec.trainable, as_submitted(code))
    if self_test is not None and not self_test.passed:
        raise Invalid.at("/resources/market", refusal(self_test.reason))


def _trainable_faults(service: Service, spec: JobSpec) -> list[Fault]:
    if spec.command is not None and not service.settings.packages:
        return [Fault("/command", COMMANDS_OFF)]
    if spec.package is not None:
        return packages.faults(service, spec)
    if spec.command is not None:
        roots = import_path()
        return command_faults(spec.command, roots, where=" or ".join(dict.fromkeys(roots)))
    if faults := module_faults(spec.trainable, service.settings.allowed_modules):
        return faults
    error = service.prober.describe(spec.trainable).error
    return [Fault("/trainable", f"cannot be trained: {error}")] if error else []


def _constant_faults(constants: Mapping[str, Any]) -> list[Fault]:
    try:
        text = json.dumps(dict(constants), allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return [Fault("/constants", "contain a number that is not finite, or text that is not valid Unicode")]
    return [Fault("/constants", "may have at most 100 kB as JSON")] if len(text) > 100_000 else []


MAX_JOBS = 50


def warm_start_faults(service: Service, spec: JobSpec) -> list[Fault]:
    """Return the faults in the list of earlier jobs that `spec` wants to learn from.

    Each job must exist, have tuned the same trainable for the same metric, and share a parameter with `spec`.
    """
    names = spec.warm_start_jobs
    if len(names) > MAX_JOBS:
        return [Fault("/warm_start/jobs", f"name at most {MAX_JOBS} jobs")]
    if spec.warm_start_checkpoints and not names:
        return [Fault("/warm_start/jobs", "is empty; name the jobs from whose checkpoints trials continue")]
    faults = []
    for i, name in enumerate(names):
        detail = "is named twice; name it once" if name in names[:i] else _why_not(service, spec, name)
        if detail is not None:
            faults.append(Fault(f"/warm_start/jobs/{i}", detail))
    return faults


def chosen_teacher(db: Connection, service: Service, wanted: Teacher) -> Teacher:
    """Return the teacher, the trial that a new job learns from, with the step and the attempt of its checkpoint filled in.

    If the requested trial is `best`, it is replaced by the name of the job's best trial, as `best_trial` chooses it.

    Raises:
        Invalid: The project has no such job, the job has not ended, or the trial has no checkpoint.
    """
    pointer = "/teacher/job"
    try:
        row = jobs.get(db, wanted.job, service.project)
        if row.state not in FINAL:  # its trials may still replace their checkpoints
            raise Invalid.at(pointer, f"{wanted.job} is {row.state}; name a job that has ended, or cancel it")
        trial = best_trial(db, row) if wanted.trial == "best" else wanted.trial
        if trial is None:
            raise NotFound(f"{wanted.job} has no best trial: {without_best(db, row)}")
        pointer = "/teacher/trial" if wanted.step is None else "/teacher/step"
        chosen = choose(db, row, trial, wanted.step)
    except NotFound as error:
        raise Invalid.at(pointer, f"{error.detail}; name a trial that has a checkpoint") from error
    return Teacher(wanted.job, trial, chosen.step, chosen.attempt)


def _teacher_faults(service: Service, spec: JobSpec) -> list[Fault]:
    if spec.teacher is None:
        return []
    try:
        with service.database.read() as db:
            chosen_teacher(db, service, spec.teacher)
    except Invalid as invalid:
        return list(invalid.faults)
    return []


def _why_not(service: Service, spec: JobSpec, name: str) -> str | None:
    try:
        with service.database.read() as db:
            source = jobs.get(db, name, service.project)
            has_run = jobs.has_attempts(db, name)
            versions = packages.versions_of(db, service.project, spec.package)
    except NotFound as error:
        return f"{error.detail}; name one of the project's jobs, or leave out the job"
    different = differences(spec, source.spec, versions)
    if source.spec.trainable == spec.trainable and "package" in different:
        return f"{name} tuned {spec.trainable} of another package; name a job of the same package, or of an earlier upload with the same name"
    return _mismatch(name, source.spec, spec) or (
        _why_no_checkpoints(source, spec, different, has_run=has_run) if spec.warm_start_checkpoints else None
    )


def _mismatch(name: str, source: JobSpec, spec: JobSpec) -> str | None:
    if source.trainable != spec.trainable:
        return f"{name} tuned {source.trainable}, not {spec.trainable}; name a job of the same trainable"
    old, new = (f"{job_spec.objective.mode} {job_spec.objective.metric}" for job_spec in (source, spec))
    if old != new:
        return f"{name} has the objective {old}, but this job has {new}; name a job with the same metric and mode"
    if not set(source.space.parameters) & set(spec.space.parameters):
        theirs, ours = ", ".join(source.space.parameters), ", ".join(spec.space.parameters)
        return f"{name} has no parameter in common with this job: its parameters are {theirs}, those of this job are {ours}; name another job"
    return None


def _why_no_checkpoints(
    row: JobRow, spec: JobSpec, different: Collection[JobDifference], *, has_run: bool
) -> str | None:
    """Return why the new job cannot continue trials of an earlier job from their checkpoints, or None if it can.

    The new job can continue them if both jobs have the same constants, step unit and code. `fidelity.max` may differ. A continued
    trial then keeps the learning-rate schedule in its checkpoint, but many trainables have no such schedule.
    """
    name, rest = row.id, "or leave out checkpoints to learn only from its results"
    if "constants" in different:
        return f"{name} had other constants; give the same ones, {rest}"
    if "unit" in different:
        old, new = row.spec.fidelity.unit, spec.fidelity.unit
        return (
            f"a step of {name} was one {old}, but a step of this job is one {new}; give the same unit, {rest}"
        )
    if has_run and row.code is None:
        return f"it is not known with which code {name} ran, or its code changed while it ran; name another job, {rest}"
    code = code_of(spec, import_path()) if has_run else None
    if code is not None and code != row.code:
        return f"the code of {spec.trainable} has changed since {name} ran; restore the earlier code, {rest}"
    return None
