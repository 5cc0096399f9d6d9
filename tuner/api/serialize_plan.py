"""Convert plans to the models of `tuner.schemas`. Most fields have the same names and units in both."""

from tuner.api.serialize_jobs import spec_to_wire
from tuner.domain.job import JobSpec
from tuner.domain.time import NS
from tuner.schemas import plan as plan_models
from tuner.service.plans import Inputs, JobPlan


def plan_of(plan: JobPlan, spec: JobSpec) -> plan_models.Plan:
    # The planned job is shown in the form of the request, with defaults filled in.
    job = {"name": spec.name, **spec_to_wire(spec, spec.budget), "tags": dict(spec.tags)}
    fields = {**vars(plan), "name": spec.name, "job": job, "inputs": _inputs(plan.inputs, spec)}
    return plan_models.Plan.model_validate(fields)


def _inputs(inputs: Inputs, spec: JobSpec) -> plan_models.PlanInputs:
    evidence, delays, size = inputs.evidence, inputs.evidence.delays, spec.resources
    prices = [
        plan_models.PlanPrice(
            instance_type=offer.instance_type,
            market=offer.market,
            usd_per_hour=offer.price.usd_per_hour,
            cpus=offer.cpus,
            gpus=offer.gpus,
            trial_usd_per_hour=offer.rate(size).price.usd_per_hour,
            source=offer.source,
        )
        for offer in inputs.offers
    ]
    known = plan_models.PlanEvidence(
        source=evidence.source,
        jobs=list(evidence.jobs),
        trials=len(evidence.trials),
        step_seconds=evidence.step_ns / NS,
        doubt=evidence.doubt,
        step_spread=evidence.spread,
        setup_seconds=delays.setup_ns / NS,
        warming_seconds=delays.warming_ns / NS,
        restore_seconds=delays.restore_ns / NS,
        checkpoint_seconds=delays.save_ns / NS,
        instance_type=evidence.machine or None,
        knows_curves=evidence.knows_curves,
        digest=evidence.digest,
    )
    fields = {**vars(inputs), "evidence": known, "prices": prices}
    del fields["offers"]
    return plan_models.PlanInputs.model_validate(fields)
