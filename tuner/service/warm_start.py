"""Check the jobs that a new job may learn from."""

from tuner.domain.errors import Fault, NotFound
from tuner.domain.job import JobSpec
from tuner.domain.objective import Objective
from tuner.service import packages
from tuner.service.bootstrap import Service
from tuner.service.cluster import import_path
from tuner.store import jobs
from tuner.worker.environment import code_of

MAX_JOBS = 50


def warm_start_faults(service: Service, spec: JobSpec) -> list[Fault]:
    """Return the faults of the jobs that `spec` names to learn from.

    Each job must exist, have tuned the same trainable for the same metric, and share a parameter with `spec`.
    """
    names = spec.warm_start_jobs
    if len(names) > MAX_JOBS:
        return [Fault("/warm_start/jobs", f"name at most {MAX_JOBS} jobs")]
    if spec.warm_start_checkpoints and not names:
        return [Fault("/warm_start/jobs", "name the jobs whose checkpoints are to be gone on from")]
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
    if source.trainable == spec.trainable and not packages.same(service, source, spec):
        return f"{name} tuned {source.trainable} of another package; name a job of the same one, or of an earlier upload of that name"
    return _mismatch(name, source, spec) or (
        _why_no_checkpoints(service, name, spec) if spec.warm_start_checkpoints else None
    )


def _mismatch(name: str, source: JobSpec, spec: JobSpec) -> str | None:
    if source.trainable != spec.trainable:
        return f"{name} tuned {source.trainable}, not {spec.trainable}; name a job of the same trainable"
    old, new = _told(source.objective), _told(spec.objective)
    if old != new:
        return f"{name} was for {old}, this one is for {new}; name a job with the same metric and mode"
    if not set(source.space.parameters) & set(spec.space.parameters):
        theirs, ours = ", ".join(source.space.parameters), ", ".join(spec.space.parameters)
        return f"{name} has no parameter in common with this one: it has {theirs}; this one has {ours}"
    return None


def _why_no_checkpoints(service: Service, name: str, spec: JobSpec) -> str | None:
    """Return why the new job cannot continue trials of an earlier job from their checkpoints, or None if it can.

    It can if a trial would train in the same way in both jobs: same constants, step unit and code.
    """
    with service.database.read() as db:
        row, has_run = jobs.get(db, name, service.project), jobs.has_attempts(db, name)
    rest = "or leave out checkpoints, and only learn from its results"
    if dict(row.spec.constants) != dict(spec.constants):
        return f"{name} had other constants; give the same ones, {rest}"
    if row.spec.fidelity.unit != spec.fidelity.unit:
        old, new = row.spec.fidelity.unit, spec.fidelity.unit
        return f"a step of {name} was one {old}, here it is one {new}; give the same unit, {rest}"
    if has_run and row.code is None:
        return (
            f"it is not known with which code {name} ran, or that changed meanwhile; name another job, {rest}"
        )
    code = code_of(spec, import_path()) if has_run else None
    if code is not None and code != row.code:
        return f"the code of {spec.trainable} has changed since {name} ran; bring it back, {rest}"
    return None


def _told(objective: Objective) -> str:
    return f"{objective.mode} {objective.metric}"
