"""Price a job's points on another machine or market: its relative speed, its price, and how certain both are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tuner.database.database import Connection
from tuner.domain.job import JobSpec
from tuner.planning.repricing import SAME, RelativeTime, Repricing, assumed_same, catalogued, measured
from tuner.service.bootstrap import Service
from tuner.service.catalogue import catalogue
from tuner.service.machines import MachineQuery, PricedMachine, accelerator_of, machine
from tuner.store import evidence, jobs
from tuner.store.jobs import JobRow

JOBS = 3  # number of newest jobs per instance type from which speeds are measured
SPOT_JOBS = 20  # number of newest jobs from which the cost of interruptions is measured
PARTS = 1_000_000


@dataclass(frozen=True, slots=True)
class MachinePricing:
    """How to price points on another machine."""

    machine: PricedMachine
    repricing: Repricing
    notes: tuple[str, ...]  #: The assumptions that were made, as texts for users.


def pricing(db: Connection, service: Service, row: JobRow, query: MachineQuery) -> MachinePricing | None:
    """Return how to price the job's points on the requested machine.

    Return None if costs stay as they were recorded: no other machine was requested, or the job ran on exactly this
    one.

    Raises:
        Invalid: The requested machine is not known, or a trial does not fit on it.
    """
    if query.nothing:
        return None
    there = machine(service.settings, row, query)
    rate = there.rate(row.spec.resources)
    if len(row.offers) == 1 and there.is_as_offered(row.offer):
        return None
    time = _relative_time(db, service, row, there)
    overhead, notes = _interruptions(db, service, row, there)
    kinds = sorted({offer.instance_type for offer in row.offers})
    if len(kinds) > 1:
        notes = (
            *notes,
            f"trials of this job ran on {', '.join(kinds)}: their time is taken as it was on either",
        )
    return MachinePricing(there, Repricing(rate, time, overhead), (time.note, *notes))


def _relative_time(db: Connection, service: Service, row: JobRow, there: PricedMachine) -> RelativeTime:
    """Return the time of a step on the requested machine relative to the job's machine.

    If the job had several kinds of machines, the bounds cover all of them.
    """
    kinds = list(dict.fromkeys(offer.instance_type for offer in row.offers))
    first, *others = [_from(db, service, row, kind, there) for kind in kinds]
    for other in others:
        first = first.widened(other)
    return first


def _from(db: Connection, service: Service, row: JobRow, kind: str, there: PricedMachine) -> RelativeTime:
    """Return the time of a step on the new machine relative to this instance type.

    It is measured if comparable jobs ran on both. Otherwise it is taken from the data sheets of the accelerators. If
    those are not known, the time is assumed to be the same.
    """
    if kind.casefold() == there.instance_type.casefold():
        return SAME
    alike = _alike(db, service, row)
    here_s, there_s = (_seconds(db, alike, instance_type) for instance_type in (kind, there.instance_type))
    time = measured(here_s, there_s, names=(kind, there.instance_type))
    if time is not None:
        return time
    on_gpus = row.spec.resources.gpus > 0
    if on_gpus:
        here = accelerator_of(catalogue(service.settings), kind)
        time = catalogued(here, there.accelerator)
    return time or assumed_same(on_gpus=on_gpus)


def _alike(db: Connection, service: Service, row: JobRow) -> list[JobRow]:
    """Return the jobs whose step times can be compared: same trainable, package, constants, step unit and size."""
    wanted = _alike_in(row.spec)
    others = jobs.of_trainable(db, service.project, row.spec.trainable)
    return [other for other in others if _alike_in(other.spec) == wanted]


def _alike_in(spec: JobSpec) -> tuple[object, ...]:
    size = spec.resources
    return (
        spec.package,
        spec.constants,
        spec.fidelity.unit,
        size.cpus,
        size.gpus,
        size.nodes,
        size.processes,
    )


def _seconds(db: Connection, alike: Iterable[JobRow], kind: str) -> list[float]:
    """Return the step times, in seconds, of the newest jobs that were offered only this instance type."""
    on_it = [row.id for row in alike if {o.instance_type.casefold() for o in row.offers} == {kind.casefold()}]
    return [seconds for job in on_it[:JOBS] for seconds in evidence.step_seconds(db, job)]


def _interruptions(
    db: Connection, service: Service, row: JobRow, there: PricedMachine
) -> tuple[Fraction | None, tuple[str, ...]]:
    """Return the cost of interruptions on spot as a fraction of setup and training, with a note on its source.

    It is measured in this job, otherwise in other jobs with the same trainable and package. It is None if the requested
    machine is not on spot, or if no trial of these jobs ran on spot.
    """
    if there.market != "spot":
        return None, ()
    tuned = jobs.of_trainable(db, service.project, row.spec.trainable)
    others = [other.id for other in tuned if other.spec.package == row.spec.package]
    sources: Sequence[tuple[str, list[str]]] = (
        ("this job", [row.id]),
        ("jobs of this trainable", others[:SPOT_JOBS]),
    )
    for words, among in sources:
        lost, trained = evidence.on_spot(db, among)
        if trained.micro_usd > 0:
            share = Fraction(round(Fraction(lost.micro_usd, trained.micro_usd) * PARTS), PARTS)
            return share, (
                f"interruptions cost {float(share):.2%} of setup and training on spot machines in {words}",
            )
    return None, (
        "what interruptions cost on spot is not known, and not counted: no trial of this trainable ran there",
    )
