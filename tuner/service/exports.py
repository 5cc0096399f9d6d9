"""Export a trial's checkpoint, supervise the process of the export, and price serving the exported variants.

An export is paid from the job's budget.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tuner.checkpoints.checkpoints import CheckpointStore, StoredFile
from tuner.checkpoints.storage import explained
from tuner.domain.cost import CostKind
from tuner.domain.errors import BudgetRefused, Conflict, Fenced, Invalid, NotFound, TunerError, Unavailable
from tuner.domain.job import Resources
from tuner.domain.ledger import lost_of, workers_ended_by
from tuner.domain.listing import MARKETS
from tuner.domain.money import Cost, Price
from tuner.domain.time import NS
from tuner.ledger import ledger, shared_budgets
from tuner.planning.serving import PricedServing, ReplicaSpeed, ServedModel, pareto_front, serving_cost
from tuner.service import audit_log
from tuner.service.best import best_trial, without_best
from tuner.service.bootstrap import Service
from tuner.service.checkpoints import choose
from tuner.service.cluster import HUNG_NS, SILENT_NS, SilenceWatch
from tuner.service.leading import Term
from tuner.service.machines import MachineQuery, PricedMachine, machine
from tuner.store import exports, jobs, launches, queue, stored_files
from tuner.store.exports import ExportRow
from tuner.store.exports import ExportSpec as ExportSpec
from tuner.store.jobs import JobRow
from tuner.store.launches import Launch
from tuner.training.variants import Variant

# How long the actor of an export can outlive the last heartbeat of the export's process, if the process dies before its next heartbeat.
OUTLIVES_NS = 2 * NS
LOST = "the process of the export died, or its cluster was restarted; export again"
log = logging.getLogger("tuner.controller")


@dataclass(frozen=True, slots=True)
class ServingQuery:
    """The load and the machine for which the cost of serving predictions is computed."""

    per_second: float = 10.0  #: Requests per second.
    #: Seconds to start a machine and a process. The measured time to load the file is added.
    start_s: float = 10.0
    #: Type of the serving machine. None means the instance type that the export ran on.
    instance_type: str | None = None


@dataclass(frozen=True)
class VariantView:
    """A variant of an export, with the cost of serving it."""

    variant: Variant
    #: One item per market, the lowest price first. Empty without a file or a price.
    serving: Sequence[PricedServing]


@dataclass(frozen=True)
class ExportView:
    """An export with its costs and variants."""

    row: ExportRow
    mode: str  #: `min` or `max`: whether smaller or larger values of the metric are better.
    metric_name: str
    cost: Cost  #: The cost posted so far.
    held: Cost  #: The cost held now.
    variants: Sequence[VariantView]
    #: The formats on the Pareto front of the metric and the dollars per million predictions in batches.
    pareto_front: Sequence[str]


def create(service: Service, job: str, trial: str | None, spec: ExportSpec) -> ExportView:
    """Queue an export of a trial's best checkpoint. The leader submits its process if the cluster and the project's quota have room.

    Args:
        trial: The trial to export. None means the job's best trial, as `best_trial` chooses it.

    Raises:
        NotFound: The job or the trial does not exist, or the trial has no checkpoint.
        Conflict: The job is queued or running, or its driver is starting or ending; another export of the job has not ended; or the
            job's trainable is a command, which cannot declare an export.
        BudgetRefused: The budget or the export's own limit pays for less than `exports.LEAST_NS` of a machine.
    """
    with service.database.write("job.export") as db:
        jobs.change_alone(db, job)
        row = jobs.get(db, job, service.project)
        _refuse_unfit(row, launches.get(db, job))
        if (other := exports.live_of(db, job)) is not None:
            raise Conflict(
                f"the export {other.id} of this job is {other.state}; wait until the export has ended"
            )
        if trial is None:
            trial = best_trial(db, row)
            if trial is None:
                raise NotFound(f"{job} has no best trial: {without_best(db, row)}")
        # Without the lock, the checkpoint could be removed between the choice and the commit.
        stored_files.lock_job(db, job)
        chosen = choose(db, row, trial, None)
        own = ledger.lock_account(db, row.project, job).left
        left = shared_budgets.allowance(db, row.project, job, service.now(), own).left
        size = row.spec.resources.on_one_node
        rates = [offer.rate(size) for offer in row.offers]
        longest_ns = min(spec.lease_ns(rate, left) for rate in rates)
        if longest_ns < exports.LEAST_NS:
            raise BudgetRefused(
                f"an export needs at least {exports.LEAST_NS / NS:.0f} s of a machine, but the money pays for {longest_ns / NS:.1f} s: "
                f"{left.usd} is left of the job's budget, and the export's max_cost_usd is {spec.max_cost}; raise the limit "
                "that is too low"
            )
        new = exports.add(
            db,
            row.project,
            job,
            trial=trial,
            step=chosen.step,
            attempt=chosen.attempt,
            spec=spec,
            at=service.now(),
        )
        after = {"export": new.id, "trial": trial, "max_cost_usd": spec.max_cost.usd}
        audit_log.note(db, service, "job.export", job, after=after)
    return get(service, job, new.id, ServingQuery())


def _refuse_unfit(row: JobRow, launch: Launch | None) -> None:
    if row.state in ("queued", "running"):
        raise Conflict(f"the job is {row.state}; pause the job first, or export it when it has ended")
    # A job whose window has opened stays paused until its driver begins.
    if launch is not None and launch.has_driver:
        raise Conflict(
            f"the job is {row.state}, but its driver is starting or has not ended yet; pause the job and try again in a few seconds"
        )
    if row.spec.command is not None:
        raise Conflict(
            "the job runs a command, which cannot declare export(config, state); download its checkpoint instead"
        )


def get(service: Service, job: str, export: str, query: ServingQuery) -> ExportView:
    """Return an export with its costs, and with the cost of serving its variants as `query` describes.

    Raises:
        NotFound: The job or the export does not exist.
        Invalid: The requested machine is not known or has no price.
    """
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        export_row = exports.get(db, job, export)
        if export_row.state == "queued" and export_row.submitted_at is None:
            quota = queue.get(db, row.project).reached(queue.at_work(db, row.project), 1)
            room = "waits until the cluster has room for one trial of the job"
            reason = f"waits because the quota of the project allows {quota}" if quota else room
            export_row = replace(export_row, detail=reason)
        posted = ledger.posted_by_kind(db, job, export)
        hold = ledger.open_hold(db, export_row.hold)
    return _view(
        service, row, export_row, query, sum(posted.values(), start=Cost()), hold.cost if hold else Cost()
    )


def of_job(service: Service, job: str) -> list[ExportView]:
    """Return the exports of a job, newest first. Raise NotFound if the job does not exist."""
    with service.database.read() as db:
        jobs.get(db, job, service.project)
        names = [export_row.id for export_row in exports.of_job(db, job)]
    return [get(service, job, name, ServingQuery()) for name in names]


def open_variant(service: Service, job: str, export: str, format: str) -> tuple[Variant, StoredFile]:
    """Return the variant of an export with this format, and its file.

    Raises:
        NotFound: The job, the export, the variant or its file does not exist.
        Unavailable: The storage does not answer.
    """
    variant, path = _delivered(service, job, export, format)
    try:
        file = CheckpointStore(service.settings.storage, service.project, job).files(export).get(path)
    except Exception as error:  # every storage backend raises its own error types
        raise Unavailable(f"the file of the variant {format} cannot be read: {explained(error)}") from error
    if file is None:
        raise NotFound(f"the file of the variant {format} is missing from the storage; export again")
    return variant, file


def served_model(service: Service, job: str, export: str, format: str) -> tuple[ServedModel, Resources]:
    """Return the measured speed and size of a variant, and the resources of the job's trials.

    Raises:
        NotFound: The job or the export does not exist, or the export has no file for the variant.
    """
    model = _served(_delivered(service, job, export, format)[0])
    with service.database.read() as db:
        return model, jobs.get(db, job, service.project).spec.resources


def _served(variant: Variant) -> ServedModel:
    alone = next(each for each in variant.latency if each.batch == 1)
    speed = ReplicaSpeed(
        alone.p50_ms / 1000, alone.per_second, max(each.per_second for each in variant.latency)
    )
    return ServedModel(speed=speed, size_bytes=variant.bytes or 0, load_s=(variant.load_ms or 0) / 1000)


def _delivered(service: Service, job: str, export: str, format: str) -> tuple[Variant, str]:
    """Return the variant with this format and the path of its file. Raise NotFound if the variant or its file does not exist."""
    with service.database.read() as db:
        jobs.get(db, job, service.project)
        row = exports.get(db, job, export)
    variants = {str(variant.format): variant for variant in _variants(row)}
    variant = variants.get(format)
    if variant is None:
        made = ", ".join(variants) or "none yet"
        raise NotFound(f"{export} has no variant {format!r}; it has {made}")
    if variant.file is None:
        raise NotFound(f"the export made no file of the format {format}: {variant.detail}")
    return variant, variant.file


def _variants(row: ExportRow) -> list[Variant]:
    return [Variant.of(plain_variant) for plain_variant in row.result.get("variants", ())]


def delivered(row: ExportRow) -> list[Variant]:
    """Return the variants of an export that have a file."""
    return [variant for variant in _variants(row) if variant.file is not None]


def _view(
    service: Service, row: JobRow, export: ExportRow, query: ServingQuery, cost: Cost, held: Cost
) -> ExportView:
    variants = _variants(export)
    machines = _machines(service, row, export, query) if delivered(export) else []
    views = [
        VariantView(variant, _serving(variant, machines, query) if variant.file else ())
        for variant in variants
    ]
    priced = {
        str(view.variant.format): (view.variant.metric, view.serving[0].cost.batch)
        for view in views
        if view.serving and view.variant.metric is not None
    }
    mode = row.spec.objective.mode
    front = pareto_front(priced, larger_is_better=mode == "max")
    return ExportView(export, mode, row.spec.objective.metric, cost, held, views, front)


def _machines(
    service: Service, row: JobRow, export: ExportRow, query: ServingQuery
) -> list[tuple[PricedMachine, Price]]:
    """Return the requested machine on each market on which it has a price, with the price of the share that one trial uses.

    Without a requested machine, use the instance type that the export ran on. If this type has no price, return an empty list.

    Raises:
        Invalid: The requested machine has no price on any market.
    """
    kind = query.instance_type or (export.offer.instance_type if export.offer else None)
    machines, refusal = [], Invalid.at("instance_type", "has no known price; choose one from `tuner prices`")
    for market in MARKETS:
        try:
            priced = machine(service.settings, row, MachineQuery(market, kind))
        except Invalid as error:
            refusal = error
            continue
        machines.append((priced, priced.rate(row.spec.resources.on_one_node).price))
    if not machines and query.instance_type is not None:
        raise refusal
    return machines


def _serving(
    variant: Variant, machines: Sequence[tuple[PricedMachine, Price]], query: ServingQuery
) -> list[PricedServing]:
    model = _served(variant)
    cold_s = query.start_s + model.load_s
    servings = [
        PricedServing(
            instance_type=machine.instance_type,
            market=machine.market,
            region=machine.region,
            price=share,
            source=machine.source,
            cost=serving_cost(model.speed, share, per_second=query.per_second, cold_start_s=cold_s),
        )
        for machine, share in machines
    ]
    return sorted(servings, key=lambda serving: serving.price.micro_usd_per_hour)


class ExportSupervisor:
    """Submit and supervise the processes of exports, as a part of the controller."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._watch = SilenceWatch()

    def one_pass(self, term: Term, fitting: Callable[[Sequence[ExportRow]], Sequence[ExportRow]]) -> None:
        """Check the processes that have sent no heartbeat for `SILENT_NS`, then submit the exports for which there is room.

        Args:
            fitting: Returns the exports to submit, in their order, among all unfinished exports.

        Raises:
            Unavailable: The cluster or the database does not answer.
            Fenced: Another service became the leader during the pass.
        """
        with self._service.database.read() as db:
            rows = exports.live(db)
        self._watch.keep({row.submission_id for row in rows})
        silent = [row for row in rows if row.submitted_at and self._silent_ns(row) >= SILENT_NS]
        failures = self._each(self._supervise, term, silent)
        # This order notices dead processes even if `fitting` raises an error.
        failures += self._each(self._submit, term, fitting(rows))
        if failures:
            raise failures[0]

    def _each(
        self, act: Callable[[Term, ExportRow], None], term: Term, rows: Sequence[ExportRow]
    ) -> list[TunerError]:
        """Call `act` for each export, and return the errors. An error does not keep the other exports waiting."""
        failures = list[TunerError]()
        for row in rows:
            try:
                act(term, row)
            except Fenced:
                raise
            except TunerError as error:
                failures.append(error)
        return failures

    def _silent_ns(self, row: ExportRow) -> int:
        """Return the nanoseconds since the process's last heartbeat, or since its submission if it has sent none."""
        return self._service.now() - max(row.submitted_at or 0, row.heartbeat_at or 0)

    def _submit(self, term: Term, row: ExportRow) -> None:
        """Submit the process of an export, then record that it was submitted. Do nothing if the export was cancelled meanwhile.

        If the export is cancelled during the submission, its process notices this and ends without a hold. If this service dies in
        between, the next leader submits the same id again, which changes nothing.
        """
        with self._service.database.read() as db:
            if exports.get(db, row.job, row.id).state not in exports.LIVE:
                return
        self._service.cluster.submit_export(row.submission_id, job=row.job, export=row.id)
        with self._service.leading.write(term, "controller.export_submitted") as db:
            exports.submitted(db, row, self._service.now())
        log.info("launched %s", row.submission_id)

    def _supervise(self, term: Term, row: ExportRow) -> None:
        status = self._service.cluster.status(row.submission_id)
        # The row is read again, because it may have changed while the exports before it were checked.
        with self._service.database.read() as db:
            row = exports.get(db, row.job, row.id)
        if row.state not in exports.LIVE:
            return
        if status not in ("pending", "running"):
            self._settle_dead(term, row)
        elif self._silent_ns(row) > HUNG_NS and self._watch.stays_silent(
            row.submission_id, row.heartbeat_at, self._service.now()
        ):
            log.warning("the export %s has sent no heartbeat and is being stopped", row.submission_id)
            self._service.cluster.stop(row.submission_id)

    def _settle_dead(self, term: Term, row: ExportRow) -> None:
        """Settle the hold of an export whose process died, and fail the export.

        The machine time that the process used is posted under the cost kind `lost`.
        """
        now = self._service.now()
        died_at = workers_ended_by(row.heartbeat_at or now, now, outlive_ns=OUTLIVES_NS)
        with self._service.leading.write(term, "controller.export_lost") as db:
            hold = ledger.open_hold(db, row.hold)
            if hold is not None:
                lost: dict[CostKind, Cost] = lost_of(hold, {}, died_at, now)
                ledger.settle(db, row.project, row.job, hold.id, lost, now)
            ended = exports.end(db, row, "failed", now, code="export_lost", detail=LOST)
        if ended:
            log.warning("the process of %s died", row.submission_id)
