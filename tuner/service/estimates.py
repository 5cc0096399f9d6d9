"""Estimate the cost of a training run that the user describes, with the price catalogue in effect."""

from dataclasses import dataclass
from datetime import UTC, datetime

from tuner.domain.errors import Invalid, NotFound
from tuner.domain.time import NS, Instant
from tuner.planning.accelerators import accelerator
from tuner.planning.estimates import described as described
from tuner.planning.estimates import sections
from tuner.planning.estimates.candidates import MachineEstimate as MachineEstimate
from tuner.planning.estimates.checks import timed_run as timed_run
from tuner.planning.estimates.checks import work_of as work_of
from tuner.planning.estimates.memory import GpuMemory as GpuMemory
from tuner.planning.estimates.memory import memory_of as memory_of
from tuner.planning.estimates.scaling import link_within
from tuner.planning.estimates.sections import (
    ChoicesView,
    ComputeView,
    OwnershipComparison,
    ScalingView,
    YearlyCost,
)
from tuner.planning.estimates.sections import RunView as RunView
from tuner.planning.estimates.serving import ServingView as ServingView
from tuner.planning.estimates.serving import serving_view
from tuner.planning.serving import ReplicaSpeed as ReplicaSpeed
from tuner.planning.serving import ServedModel as ServedModel
from tuner.service.bootstrap import Service
from tuner.service.catalogue import catalogue
from tuner.service.plan_evidence import scaling_of
from tuner.settings import Settings
from tuner.store import jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateQuestions:
    """The question for each section of an estimate. A section whose question is None is not requested."""

    run: described.TrainingRun | None = None
    choices: described.PricedOptions | None = None
    scaling: described.ScalingQuestion | None = None
    compute: described.ComputeQuestion | None = None
    recurring: described.RecurringQuestion | None = None
    ownership: described.OwnershipQuestion | None = None
    serving: described.ServingQuestion | None = None


@dataclass(frozen=True, kw_only=True)
class EstimateView:
    """The sections of an estimate, named as in the answer of `POST /v1/estimates`. A section that was not requested is None."""

    catalogue: str  #: Name of the price catalogue.
    prices: str  #: Age of the catalogue's prices, in words.
    run: RunView | None
    choices: ChoicesView | None
    scaling: ScalingView | None
    compute_optimal: ComputeView | None
    recurring: tuple[YearlyCost, ...] | None
    ownership: OwnershipComparison | None
    serving: ServingView | None


def estimate(settings: Settings, questions: EstimateQuestions, now: Instant) -> EstimateView:
    """Estimate the requested sections.

    Raises:
        Invalid: No section is requested, or a value is not known or contradicts another value.
        BadFile: The catalogue cannot be read.
    """
    if questions == EstimateQuestions():
        parts = "run, choices, scaling, compute_optimal, recurring, ownership, serving"
        raise Invalid.at("", f"is empty; give at least one of {parts}")
    known, today = catalogue(settings), datetime.fromtimestamp(now // NS, UTC).date()
    run = None if questions.run is None else sections.run_view(questions.run, known, today)
    return EstimateView(
        catalogue=known.name,
        prices=known.age(today),
        run=run,
        choices=None if questions.choices is None else sections.choices_view(questions.choices),
        scaling=None if questions.scaling is None else sections.scaling_view(questions.scaling, known),
        compute_optimal=None
        if questions.compute is None
        else sections.compute_view(questions.compute, known),
        recurring=None if questions.recurring is None else sections.recurring_view(questions.recurring, run),
        ownership=None
        if questions.ownership is None
        else sections.ownership_view(questions.ownership, known),
        serving=None if questions.serving is None else serving_view(questions.serving, known, today),
    )


def measured_scaling(service: Service, job: str) -> described.MeasuredScaling:
    """Return the scaling efficiency over GPUs, as measured by jobs like `job` with different numbers of GPUs.

    Jobs like `job` have its trainable and constants, and ran on its instance type.

    Raises:
        ValueError: The project has no such job, or its scaling efficiency is not known.
    """
    try:
        with service.database.read() as db:
            row = jobs.get(db, job, service.project)
    except NotFound as error:
        raise ValueError(f"{error.detail}; name one of the project's jobs, or leave out the job") from error
    machine = row.offer.instance_type
    listings = catalogue(service.settings).find(instance_type=machine)
    kind = accelerator(listings[0].accelerator, listings[0].gpu_memory_gib) if listings else None
    if kind is None:
        raise ValueError(
            f"{job} ran on {machine}, which is not in the catalogue or is listed without a known GPU; name another job"
        )
    if row.spec.resources.gpus < 1:
        raise ValueError(f"the trials of {job} used no whole GPU; name a job whose trials used at least one")
    sizes = scaling_of(service, row.spec, machine)
    if sizes and sizes[0].resources.nodes > 1:
        raise ValueError(
            f"the smallest trials of jobs like {job} used several nodes, but scaling is measured against trials on one node; "
            "run a pilot of the job on one node"
        )
    if not sizes:
        detail = f"no jobs of {row.spec.trainable} on {machine} have step times for different numbers of GPUs"
        raise ValueError(f"{detail}; run a pilot of the job with fewer or more GPUs")
    return described.MeasuredScaling(sizes=sizes, accelerator=kind.name, link=str(link_within(listings[0])))
