"""Choose how many trials share a worker, for jobs with `resources: {pack: auto}`.

The number is chosen once, before the job is recorded, so that the job's decisions can be repeated from its record.
"""

from dataclasses import replace
from fractions import Fraction

from tuner.domain.errors import Invalid, Unavailable
from tuner.domain.job import AUTO_PACK, JobSpec
from tuner.planning.advice.resources import SHARED_WITHIN
from tuner.service import packages
from tuner.service.bootstrap import Service
from tuner.service.comparable_jobs import LOOKED_AT, differences
from tuner.service.offers import offers_of, with_those_to_come
from tuner.store import evidence, jobs
from tuner.store.evidence import MeasuredGpuMemory
from tuner.store.jobs import JobRow

MOST = 16  # the most trials that the service packs on a worker unless the job names a number


def with_pack(service: Service, spec: JobSpec) -> JobSpec:
    """Return the job with the number of trials that share a worker filled in, if the job leaves the choice to the service.

    The rules, of which the first that applies is used:

    1. If a trial runs on several nodes or as several processes: 1.
    2. If earlier jobs measured how much GPU memory a trial needs: as many trials as fit into 90 % of the memory, at most MOST.
    3. If the trainable is an instance of `tuner.training.Packed`: MOST, because one batch costs little more than one trial.
    4. Otherwise 1. Processes that share CPUs gain nothing, and on a GPU they could need more memory than it has.

    Args:
        service: The service, in the project of the job.
        spec: The job, which must have passed `tuner.service.submit.check`.
    """
    if spec.resources.pack != AUTO_PACK:
        return spec
    return replace(spec, resources=replace(spec.resources, pack=_chosen(service, spec)))


def _chosen(service: Service, spec: JobSpec) -> int:
    if not spec.resources.can_be_packed:
        return 1
    fitting = _fitting_memory(service, spec) if spec.resources.gpus else None
    if fitting is not None:
        return max(1, min(MOST, fitting))
    return MOST if _trains_in_batches(service, spec) else 1


def _trains_in_batches(service: Service, spec: JobSpec) -> bool:
    if spec.command is not None or spec.kind is not None:
        return False
    return packages.described(service, spec.trainable, spec.package, "").trains_in_batches


def _fitting_memory(service: Service, spec: JobSpec) -> int | None:
    """Return how many trials fit into the memory of the worker's GPU, or None if that was not measured.

    The largest use of memory in any comparable job counts for all machines. The memory of the GPU must be known for each machine type
    that the job may use, and the smallest one counts.
    """
    with service.database.read() as db:
        rows = jobs.started_of_trainable(db, service.project, spec.trainable, LOOKED_AT)
        versions = packages.versions_of(db, service.project, spec.package)
    measured = list[tuple[str, MeasuredGpuMemory]]()
    for row in rows:
        # A trial needs the same memory in each unit of steps, and on each number of whole GPUs.
        if not _ran_alone(row) or not differences(spec, row.spec, versions) <= {"unit", "devices", "size"}:
            continue
        with service.database.read() as db:
            memory = evidence.gpu_memory(db, row.id)
        if memory is not None:
            measured.append((memory.instance_type or row.offer.instance_type, memory))
    if not measured:
        return None
    kinds, known = _machine_types(service, spec), {kind for kind, _ in measured}
    if not kinds or not kinds <= known:
        return None
    peak = max(memory.peak_bytes for _, memory in measured)
    least = min(memory.gpu_bytes for kind, memory in measured if kind in kinds)
    part = min(Fraction(1), Fraction(str(spec.resources.gpus)))  # the part of a GPU that the worker holds
    return int(SHARED_WITHIN * part * least / peak)


def _ran_alone(row: JobRow) -> bool:
    """Return whether each trial of a job had a GPU for itself, so that the GPU memory that the job measured is what one trial needs.

    NVML measures the memory of the whole GPU. The job's trials must therefore not have shared a GPU, neither with trials on the same worker
    nor with other workers.
    """
    size = row.spec.resources
    return size.pack == 1 and size.gpus >= 1 and size.can_be_packed


def _machine_types(service: Service, spec: JobSpec) -> set[str]:
    """Return the machine types that the job may use in the cluster. Return an empty set if there are none."""
    try:
        nodes = with_those_to_come(service.settings, service.cluster.nodes())
        return {offer.instance_type for offer in offers_of(service.settings, nodes, spec.resources)}
    except (Invalid, Unavailable):
        # A job that is submitted is refused for this reason a moment later. A plan may be for machines that the cluster does not have.
        return set()
