"""Find the earlier jobs of a trainable whose measurements hold for another job."""

from collections.abc import Collection, Sequence
from typing import Literal

from tuner.database.database import Connection
from tuner.domain.job import PERMANENT, JobSpec
from tuner.planning.measured_scaling import devices, differ_in_number
from tuner.planning.pilot import TAG, pilot_key
from tuner.service import packages
from tuner.service.bootstrap import Service
from tuner.service.cluster import import_path
from tuner.service.views import JobView, view_of
from tuner.store import jobs
from tuner.store.jobs import JobRow
from tuner.worker.environment import code_of

LOOKED_AT = 20  # number of jobs of the trainable that are considered: those that started last
PILOTS_LOOKED_AT = 20  # number of newest pilots among which a matching one is searched
USED = 5  # maximum number of jobs that evidence is taken from


# How two jobs of one trainable differ. Versions of one package are the same `package`. `proxies` make early steps cheaper. Trials differ in
# `devices` if they have different numbers of GPUs, or of processes if they have no whole GPU. They differ in `size` if the number of
# their CPUs, GPUs, nodes or processes differs.
JobDifference = Literal["package", "constants", "unit", "proxies", "devices", "size"]


def differences(spec: JobSpec, other: JobSpec, versions: Collection[str | None]) -> frozenset[JobDifference]:
    """Return how two jobs of the same trainable differ.

    The caller decides which differences do not matter for the measurement that it takes from the other job.

    Args:
        versions: The ids of the packages with the code of `spec` (`tuner.service.packages.versions_of`).
    """
    a, b, different = spec.resources, other.resources, set[JobDifference]()
    if other.package not in versions:
        different.add("package")
    if spec.constants != other.constants:
        different.add("constants")
    if spec.fidelity.unit != other.fidelity.unit:
        different.add("unit")
    if spec.fidelity.proxies != other.fidelity.proxies:
        different.add("proxies")
    if (a.cpus, a.gpus, a.nodes, a.processes) != (b.cpus, b.gpus, b.nodes, b.processes):
        different.add("size")
        if (a.gpus >= 1, devices(a)) != (b.gpus >= 1, devices(b)):
            different.add("devices")
    return frozenset(different)


def comparable_to(service: Service, spec: JobSpec) -> list[JobRow]:
    """Return earlier jobs of the trainable that can be compared with this one, at most `USED`, all on one instance type.

    The pilot of exactly this code and search space comes first. The other jobs follow, and of these the one that started last comes first.
    """
    code = code_of(spec, import_path())
    with service.database.read() as db:
        rows = jobs.started_of_trainable(db, service.project, spec.trainable, LOOKED_AT)
        versions = packages.versions_of(db, service.project, spec.package)
        piloted = None if code is None else pilot_of_code(db, service, spec, code)
    return comparable_among(spec, rows, versions, piloted)


def comparable_among(
    spec: JobSpec, rows: Sequence[JobRow], versions: Collection[str | None], piloted: JobView | None = None
) -> list[JobRow]:
    """Return at most `USED` jobs for evidence, all on one instance type: the pilot, if it is given, and then the comparable ones of `rows`.

    The rows are restricted in this order. A restriction that no job meets is skipped:

    - Jobs with the same constants.
    - Jobs with the same proxies, so that their early steps do the same work.
    - Jobs with the same number of GPUs or processes per trial. If no job has the same number, jobs whose resources differ only in this
      number.
    """
    different = {row.id: differences(spec, row.spec, versions) for row in rows}
    rows = [row for row in rows if not different[row.id] & {"package", "unit"}]
    rows = [row for row in rows if "constants" not in different[row.id]] or rows
    rows = [row for row in rows if "proxies" not in different[row.id]] or rows
    rows = (
        [row for row in rows if "devices" not in different[row.id]]
        or [row for row in rows if differ_in_number(row.spec.resources, spec.resources)]
        or rows
    )
    first = [] if piloted is None else [piloted.row]
    chosen = [*first, *(row for row in rows if row.id not in [row.id for row in first])]
    return [row for row in chosen if row.offer.instance_type == chosen[0].offer.instance_type][:USED]


def pilot_of_job(service: Service, spec: JobSpec) -> JobView | None:
    """Return the newest pilot of this job that is under way or has succeeded with reports, or None if there is none."""
    code = code_of(spec, import_path())
    if code is None:
        return None
    with service.database.read() as db:
        return pilot_of_code(db, service, spec, code)


def pilot_of_code(db: Connection, service: Service, spec: JobSpec, code: str) -> JobView | None:
    """Return the newest pilot of this job and this code that is under way or has succeeded with reports, or None if there is none."""
    rows = jobs.with_tag(db, service.project, TAG, pilot_key(spec, code), PILOTS_LOOKED_AT)
    views = (view_of(db, service, row) for row in rows if row.state not in PERMANENT)
    return next((view for view in views if view.row.state != "succeeded" or view.steps), None)
