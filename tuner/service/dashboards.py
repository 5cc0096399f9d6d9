"""Dashboards of other tools that the service shows."""

from functools import cache
from importlib.util import find_spec

from tuner.mirrors.optuna_dashboard import OptunaDashboard as OptunaDashboard
from tuner.service.bootstrap import Service
from tuner.settings import Settings
from tuner.store import jobs
from tuner.store.launches import Launch

OPTUNA = "/optuna"
RAY = "/ray"


def optuna_dashboard(settings: Settings) -> OptunaDashboard | None:
    """Return Optuna's dashboard, or None if trials are not mirrored to Optuna or the dashboard is not installed."""
    return OptunaDashboard(settings.optuna_storage, OPTUNA) if has_optuna_dashboard(settings) else None


def has_optuna_dashboard(settings: Settings) -> bool:
    return bool(settings.optuna_storage) and _installed()


@cache
def _installed() -> bool:
    return all(find_spec(name) is not None for name in ("optuna_dashboard", "a2wsgi"))


def optuna_link(settings: Settings, job: str) -> str | None:
    """Return the link to the job's Optuna study, or None if there is no dashboard.

    The link contains the job's id, not the study's number.
    """
    return f"{OPTUNA}/jobs/{job}" if has_optuna_dashboard(settings) else None


def ray_link(service: Service, launch: Launch | None) -> str | None:
    """Return the link to the newest Ray Job of a job, or to Ray's list of jobs if none was submitted yet.

    Return None while there is no cluster.
    """
    if service.cluster.dashboard_door() is None:
        return None
    submission = None if launch is None else launch.newest_submission
    return f"{RAY}/#/jobs" if submission is None else f"{RAY}/#/jobs/{submission}"


def optuna_study(service: Service, dashboard: OptunaDashboard, job: str) -> int | None:
    """Return the number of the job's Optuna study, or None if nothing of the job is mirrored yet.

    Errors of Optuna's storage are passed through.

    Raises:
        NotFound: There is no such job in any project.
    """
    with service.database.read() as db:
        # the job may be of any project, because the dashboard shows the studies of all projects
        row = jobs.get(db, job)
    return dashboard.study(row.spec.name, row.id)
