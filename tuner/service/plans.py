"""Plan a job: what it will cost, and what it will find.

`plan` gives the planner (`tuner.planning.planner`) the evidence on the job's trainable, the machines that it could run
on, and `simulate`, which runs the code of a real job with simulated workers.
"""

from dataclasses import dataclass, field, replace

from tuner.domain.checkpointing import Hazard
from tuner.domain.errors import Fault, Invalid
from tuner.domain.job import JobSpec
from tuner.domain.time import DAY_NS, NS, Instant, rfc3339
from tuner.planning import planner
from tuner.planning.pace_evidence import KnownDelays, PaceEvidence, of_given
from tuner.planning.plan import Inputs as Inputs
from tuner.planning.plan import JobPlan as JobPlan
from tuner.planning.simulations import SpotLife, coarsened
from tuner.service.bootstrap import Service
from tuner.service.packing import with_pack
from tuner.service.plan_candidates import DescribedMachine as DescribedMachine
from tuner.service.plan_candidates import MachineFilter as MachineFilter
from tuner.service.plan_candidates import MachineRequirements as MachineRequirements
from tuner.service.plan_candidates import RequestedMachines as RequestedMachines
from tuner.service.plan_candidates import as_fast_by_assumption, candidates_of, check_speeds, suitable_types
from tuner.service.plan_evidence import evidence_for, import_ns
from tuner.service.submit import check, check_affords, room_of

# The least and the largest size of a machine that a request describes.
CANDIDATE_SIZES = (
    ("cpus", 0.001, 10_000),
    ("gpus", 0, 1000),
    ("memory_gib", 0.001, 1_000_000),
    ("gpu_memory_gib", 0.001, 1_000_000),
)
MAX_CANDIDATES = 50
MAX_STEPS_FROM = 20
# maximum number of parts of one training in a simulation; ten simulations with this many parts take a few seconds
MAX_PARTS = 2000
# The longest time in a request. A later deadline of a job with a window counts as this one.
MAX_NS = 366 * DAY_NS
NO_PILOT = (
    "no pilot of this job has results yet: run a pilot with POST /v1/pilots or `tuner pilot`, and plan again"
)
# assumed time from a preemption until another spot machine is available; not measured
SPOT_WAIT_NS = 120 * NS


@dataclass(frozen=True)
class PlanningFacts:
    """The `planning` section of a request."""

    step_ns: int | None = None  #: Time of one step of the mean configuration.
    spread: float | None = None  #: Standard deviation of the logarithm of the step time over configurations.
    setup_ns: int | None = None
    restore_ns: int | None = None
    save_ns: int | None = None
    steps: int | None = None
    #: Ids of jobs to take the step times from. Empty means the pilot and the newest comparable jobs.
    steps_from: tuple[str, ...] = ()
    deadline_ns: int | None = None  #: Time from now until the deadline. `deadline_at` has precedence.
    deadline_at: Instant | None = None
    #: Whether the plan should be based on a pilot. If the job has no pilot with results, the plan says so in a note.
    pilot: bool = False
    machines: RequestedMachines = field(default_factory=RequestedMachines)
    seed: int = 0

    def faults(self) -> list[Fault]:
        """Return the faults of these values that can be found without knowing the machines."""
        times = {
            "step_seconds": self.step_ns,
            "setup_seconds": self.setup_ns,
            "restore_seconds": self.restore_ns,
            "checkpoint_seconds": self.save_ns,
        }
        faults = [
            Fault(
                f"/planning/{name}",
                f"must be {'more than' if name == 'step_seconds' else 'at least'} 0 and at most a year",
            )
            for name, ns in times.items()
            if ns is not None and not (0 if name != "step_seconds" else 1) <= ns <= MAX_NS
        ]
        if self.spread is not None and not 0 <= self.spread <= 3:
            faults.append(Fault("/planning/step_spread", "must be between 0 and 3"))
        if self.steps is not None and not 1 <= self.steps <= 10_000_000:
            faults.append(Fault("/planning/steps", "must be between 1 and 10000000"))
        if self.step_ns is not None and self.steps_from:
            faults.append(Fault("/planning/steps_from", "give steps_from or step_seconds, not both"))
        if len(self.steps_from) > MAX_STEPS_FROM:
            faults.append(Fault("/planning/steps_from", f"name at most {MAX_STEPS_FROM} jobs"))
        if len(self.machines.described) > MAX_CANDIDATES:
            faults.append(Fault("/planning/candidates", f"name at most {MAX_CANDIDATES} candidates"))
        return faults + self._machine_faults()

    def _machine_faults(self) -> list[Fault]:
        faults = []
        for i, machine in enumerate(self.machines.described):
            at = f"/planning/candidates/{i}"
            if machine.speed is not None and not 0.001 <= machine.speed <= 1000:
                faults.append(Fault(f"{at}/speed", "must be between 0.001 and 1000"))
            if machine.step_ns is not None and not 1 <= machine.step_ns <= MAX_NS:
                faults.append(Fault(f"{at}/step_seconds", "must be more than 0 and at most a year"))
            for name, least, most in CANDIDATE_SIZES:
                size = getattr(machine, name)
                if size is not None and not least <= size <= most:
                    faults.append(Fault(f"{at}/{name}", f"must be between {least:g} and {most:.0f}"))
            for name, price in (("usd_per_hour", machine.price), ("spot_usd_per_hour", machine.spot_price)):
                if price is not None and price.micro_usd_per_hour <= 0:
                    faults.append(
                        Fault(f"{at}/{name}", "must be more than 0; leave it out if it is not known")
                    )
        faults += [
            Fault(f"/planning/speeds/{name}", "must be between 0.001 and 1000")
            for name, speed in self.machines.speeds.items()
            if not 0.001 <= speed <= 1000
        ]
        return faults


def plan(service: Service, spec: JobSpec, facts: PlanningFacts) -> JobPlan:
    """Plan a job from simulations. No trial is run.

    Raises:
        Invalid: The job could not be submitted, a value about planning is wrong, or no machine is suitable.
    """
    check(service, spec)
    if faults := facts.faults():
        raise Invalid(*faults)
    spec = with_pack(service, spec)
    deadline_ns = _deadline_ns(facts, spec, service.now())
    evidence = _evidence(service, spec, facts)
    _refuse_too_large(spec, evidence)
    if facts.pilot and evidence.source != "pilot":
        evidence = replace(evidence, notes=(*evidence.notes, NO_PILOT))
    candidates = candidates_of(service, spec, evidence, facts.machines)
    names = [*{candidate.instance_type for candidate in candidates}, evidence.machine]
    if faults := check_speeds(facts.machines.speeds, sorted(filter(None, names))):
        raise Invalid(*faults)
    able = [candidate for candidate in candidates if candidate.why_not is None and candidate.offers]
    if not able:
        reasons = "; ".join(
            f"{candidate.instance_type} on {candidate.market}: {candidate.why_not}"
            for candidate in candidates[:5]
        )
        suitable = suitable_types(service, spec, facts.machines)
        fix = f"; such a trial fits on {', '.join(suitable)}" if suitable else ""
        raise Invalid.at("/planning/candidates", f"no candidate is suitable: {reasons}{fix}")
    alike = as_fast_by_assumption(candidates, evidence, facts.machines)
    if alike:
        note = (
            f"{', '.join(alike)} are assumed to be equally fast, because the machine on which a step takes "
            f"{evidence.step_ns / NS:g} s is not known: give the speed of one of them in planning.speeds, or step_seconds of each candidate"
        )
        evidence = replace(evidence, notes=(*evidence.notes, note))
    check_affords(service, spec, min(able, key=lambda candidate: candidate.price(spec.resources)).offers[0])
    question = planner.PlanQuestion(
        spec,
        evidence,
        tuple(sorted(candidates, key=lambda candidate: candidate not in able)),
        round(service.settings.slice_s * NS),
        SpotLife(
            Hazard.of_spot(spec.resources.nodes).mean_ns,
            SPOT_WAIT_NS,
            spot_wait_ns=round(service.settings.spot_wait_s * NS),
            nodes=spec.resources.nodes,
        ),
        choose=facts.machines.any,
        deadline_ns=deadline_ns,
        room=None if facts.machines.any else room_of(service, spec),
        seed=facts.seed,
    )
    # Imported late, because it loads the whole simulator, which a starting service does not need.
    from tuner.service.plan_runs import simulate

    return planner.plan(question, simulate)


def _refuse_too_large(spec: JobSpec, evidence: PaceEvidence) -> None:
    """Raise Invalid if one training has too many parts to simulate.

    The simulator divides a training into equally long parts. With the scheduler `asha`, the first rung is at step `fidelity.min`, so a
    part has at most that many steps. A training of a million times `fidelity.min` steps would therefore have a million parts.
    """
    last = spec.fidelity.max or evidence.steps or 1
    planned = replace(spec, fidelity=replace(spec.fidelity, max=last))
    parts = coarsened(planned)[1].max or 1
    if parts > MAX_PARTS:
        detail = (
            f"a training of {last} steps whose first rung is at step {spec.fidelity.min} is too large to plan; set fidelity.min to "
            f"{-(-last // MAX_PARTS)} or more, or algorithm.scheduler to auto"
        )
        raise Invalid(Fault("/fidelity/max", detail))


def _deadline_ns(facts: PlanningFacts, spec: JobSpec, now: Instant) -> int | None:
    """Return for how long the job can run until the deadline, in nanoseconds, or None without a deadline. Only time in its window counts.

    Raise Invalid if the deadline has passed, or if the window does not open before it.
    """
    left_ns = facts.deadline_ns if facts.deadline_at is None else facts.deadline_at - now
    if left_ns is not None and left_ns <= 0:
        now_is = rfc3339(now)[:19] + "Z"
        detail = f"has passed, the time is now {now_is}: give a later time, or a duration from now such as 6h"
        raise Invalid.at("/planning/deadline", detail)
    if left_ns is None or spec.window is None:
        return left_ns
    open_ns = spec.window.open_ns(now, Instant(now + min(left_ns, MAX_NS)))
    if not open_ns:
        opens = rfc3339(spec.window.opening(now))[:19] + "Z"
        detail = f"is before the job's window opens at {opens}: give a later time"
        raise Invalid.at("/planning/deadline", detail)
    return open_ns


def _evidence(service: Service, spec: JobSpec, facts: PlanningFacts) -> PaceEvidence:
    """Return the evidence on how long the job takes: from the request if it gives a step time, otherwise from earlier jobs."""
    step_ns, machine = facts.step_ns, ""
    measured = [machine for machine in facts.machines.described if machine.step_ns is not None]
    if step_ns is None and measured and not facts.steps_from:
        step_ns, machine = measured[0].step_ns, measured[0].instance_type
    known = KnownDelays(import_ns(service, spec), facts.setup_ns, facts.restore_ns, facts.save_ns)
    if step_ns is None:
        return evidence_for(service, spec, facts.steps_from, known)
    return of_given(step_ns, known=known, spread=facts.spread, machine=machine, steps=facts.steps)
