"""The planning section of a plan request, converted to domain values."""

from typing import Any

from tuner.api.translate import RequestReader
from tuner.domain.money import Price
from tuner.domain.time import Instant, parse_duration_ns, parse_rfc3339, seconds_ns
from tuner.schemas import plan as plan_models
from tuner.service.plans import (
    MAX_NS,
    DescribedMachine,
    MachineFilter,
    MachineRequirements,
    PlanningFacts,
    RequestedMachines,
)


def facts_of(planning: plan_models.Planning) -> PlanningFacts:
    """Convert the section. Raise Invalid if amounts or times cannot be read."""
    read = RequestReader()
    at = "/planning"

    def ns(name: str) -> int | None:
        return read.convert(f"{at}/{name}", _seconds_ns, getattr(planning, name))

    deadline = read.convert(f"{at}/deadline", _deadline, planning.deadline)
    needs = planning.needs
    facts = PlanningFacts(
        step_ns=ns("step_seconds"),
        spread=planning.step_spread,
        setup_ns=ns("setup_seconds"),
        restore_ns=ns("restore_seconds"),
        save_ns=ns("checkpoint_seconds"),
        steps=planning.steps,
        steps_from=tuple(planning.steps_from),
        deadline_ns=deadline[0] if deadline else None,
        deadline_at=deadline[1] if deadline else None,
        pilot=planning.pilot is not None,
        machines=RequestedMachines(
            tuple(
                _described(read, candidate, f"{at}/candidates/{i}")
                for i, candidate in enumerate(planning.candidates)
            ),
            None if planning.catalogue is None else MachineFilter(**planning.catalogue.model_dump()),
            MachineRequirements(
                needs.memory_gib,
                needs.gpu_memory_gib,
                read.convert(f"{at}/needs/step_seconds", _seconds_ns, needs.step_seconds),
            ),
            planning.speeds,
            tuple(planning.markets),
        ),
        seed=planning.seed,
    )
    read.check()
    return facts


def _described(read: RequestReader, machine: plan_models.CandidateMachine, at: str) -> DescribedMachine:
    fields: dict[str, Any] = machine.model_dump()
    step_s, usd, spot = (fields.pop(name) for name in ("step_seconds", "usd_per_hour", "spot_usd_per_hour"))
    return DescribedMachine(
        **fields,
        price=read.convert(f"{at}/usd_per_hour", Price.from_usd_per_hour, usd),
        spot_price=read.convert(f"{at}/spot_usd_per_hour", Price.from_usd_per_hour, spot),
        step_ns=read.convert(f"{at}/step_seconds", _seconds_ns, step_s),
    )


def _seconds_ns(seconds: float) -> int:
    """Return the nanoseconds of a duration in seconds. Raise ValueError if it is far out of bounds.

    A value slightly out of bounds is converted, so that the domain reports it together with other faults.
    """
    if not -MAX_NS <= seconds * 1e9 <= 2 * MAX_NS:
        raise ValueError("must be more than 0 and at most a year")
    return seconds_ns(seconds)


def _deadline(given: float | str) -> tuple[int | None, Instant | None]:
    """Return a deadline as a pair: nanoseconds from now, and a time. One of the two is None."""
    if isinstance(given, str) and given[4:5] == "-":
        return None, parse_rfc3339(given)
    return parse_duration_ns(given), None
