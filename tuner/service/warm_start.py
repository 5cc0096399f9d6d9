"""Which jobs a new job may learn from."""

from tuner.domain.errors import Fault, NotFound
from tuner.domain.job import JobSpec
from tuner.domain.objective import Objective
from tuner.service.wiring import Service
from tuner.store import jobs

MAX_JOBS = 50


def warm_start_faults(service: Service, spec: JobSpec) -> list[Fault]:
    """Each named job must be there, have tuned the same trainable for the same metric, and share a parameter."""
    names = spec.warm_start_jobs
    if len(names) > MAX_JOBS:
        return [Fault("/warm_start/jobs", f"name at most {MAX_JOBS} jobs")]
    found = []
    for i, name in enumerate(names):
        detail = "is named twice; name it once" if name in names[:i] else _why_not(service, spec, name)
        if detail is not None:
            found.append(Fault(f"/warm_start/jobs/{i}", detail))
    return found


def _why_not(service: Service, spec: JobSpec, name: str) -> str | None:
    try:
        with service.database.read() as db:
            source = jobs.get(db, name, service.project).spec
    except NotFound as error:
        return f"{error.detail}; name one of your jobs, or leave it out"
    if source.trainable != spec.trainable:
        return f"{name} tuned {source.trainable}, not {spec.trainable}; name a job of the same trainable"
    old, new = _told(source.objective), _told(spec.objective)
    if old != new:
        return f"{name} was for {old}, this one is for {new}; name a job with the same metric and mode"
    if not set(source.space.parameters) & set(spec.space.parameters):
        theirs, ours = ", ".join(source.space.parameters), ", ".join(spec.space.parameters)
        return f"{name} has no parameter in common with this one: it has {theirs}; this one has {ours}"
    return None


def _told(objective: Objective) -> str:
    return f"{objective.mode} {objective.metric}"
