"""Links from a job to its pages in Optuna's and Ray's dashboards, and a proxy that shows Ray's dashboard to callers with a key of this service."""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from urllib.parse import quote

import httpx2

from tuner.domain.errors import NotFound, Unavailable
from tuner.mirrors.optuna_dashboard import OptunaDashboard as OptunaDashboard
from tuner.service.bootstrap import Service
from tuner.service.cluster import Cluster
from tuner.settings import Settings
from tuner.store import jobs
from tuner.store.launches import Launch

OPTUNA = "/optuna"
RAY = "/ray"


def optuna_dashboard(settings: Settings) -> OptunaDashboard | None:
    """Return Optuna's dashboard, or None if jobs are not mirrored to Optuna or the dashboard is not installed."""
    return OptunaDashboard(settings.optuna_storage, OPTUNA) if has_optuna_dashboard(settings) else None


def has_optuna_dashboard(settings: Settings) -> bool:
    return bool(settings.optuna_storage) and _installed()


@cache
def _installed() -> bool:
    return all(find_spec(name) is not None for name in ("optuna_dashboard", "a2wsgi"))


def optuna_link(settings: Settings, job: str) -> str | None:
    """Return the link to the job's Optuna study, or None if this service has no Optuna dashboard.

    The link contains the job's id. The study's number is looked up when the link is opened (`optuna_study`).
    """
    return f"{OPTUNA}/jobs/{job}" if has_optuna_dashboard(settings) else None


def ray_link(service: Service, launch: Launch | None) -> str | None:
    """Return the link to the newest Ray Job that ran a job's driver, or to Ray's list of jobs if no driver was submitted yet.

    Return None until the cluster has been started.
    """
    if service.cluster.dashboard_access() is None:
        return None
    submission = None if launch is None else launch.newest_submission
    return f"{RAY}/#/jobs" if submission is None else f"{RAY}/#/jobs/{submission}"


def optuna_study(service: Service, dashboard: OptunaDashboard, job: str) -> int | None:
    """Return the number of the job's Optuna study, or None if nothing of the job is mirrored yet.

    Errors of Optuna's storage are passed through.

    Raises:
        NotFound: No project has such a job.
    """
    with service.database.read() as db:
        # the job may be of any project, because the dashboard shows the studies of all projects
        row = jobs.get(db, job)
    return dashboard.study(row.spec.name, row.id)


TIMEOUT = httpx2.Timeout(60.0, connect=5.0)
# The paths that the pages of Ray 2.60's dashboard read, with three exceptions: profilers, which stop a worker; packages; and the WebSocket
# that follows logs.
FILES = ("favicon.ico",)
FOLDERS = ("static/", "speedscope-1.5.3/")
READS = (
    "api/authentication_mode",
    "api/cluster_status",
    "api/component_activities",
    "api/gcs_healthz",
    "api/grafana_health",
    "api/profiling_enabled",
    "api/prometheus_health",
    "api/ray/version",
    "api/serve/applications",
    "api/version",
    "events",
    "logical/actors",
    "nodes",
    "timezone",
    "usage_stats_enabled",
)
BELOW = ("api/data/datasets/", "api/jobs/", "api/train/v2/", "api/v0/", "logical/actors/", "nodes/")
NEVER = ("api/v0/delay",)
# Headers that are passed on: only end-to-end headers (RFC 9110, 7.6.1), and none with cookies, credentials or addresses.
ASKED_WITH = ("accept", "accept-encoding", "if-modified-since", "if-none-match")
ANSWERED_WITH = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-length",
    "content-type",
    "etag",
    "last-modified",
)


@dataclass(frozen=True, slots=True)
class DashboardAnswer:
    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]


def is_page(path: str) -> bool:
    """Return whether a path is a file of the dashboard itself, as opposed to data of jobs and nodes."""
    rest = path.removeprefix("/")
    return not rest or rest in FILES or rest.startswith(FOLDERS)


@asynccontextmanager
async def open_page(
    cluster: Cluster, method: str, path: str, query: str, headers: Mapping[str, str]
) -> AsyncIterator[DashboardAnswer]:
    """Request a path of Ray's dashboard, and yield the answer, whose body is streamed.

    Raises:
        NotFound: The service does not give access to this path.
        Unavailable: The cluster is starting, does not answer, redirects, or refuses the service's token.
    """
    rest = path.removeprefix("/")
    if not _is_shown(rest) or not query.isascii():
        raise NotFound(f"/{rest[:200]} of Ray's dashboard is not available here")
    access = cluster.dashboard_access()
    if access is None:
        raise Unavailable("the local Ray cluster is starting")
    sent = {name: headers[name] for name in ASKED_WITH if headers.get(name, "").isascii() and name in headers}
    sent |= {"Accept-Encoding": sent.pop("accept-encoding", "identity")}
    sent |= {"Authorization": f"Bearer {access.token}"} if access.token else {}
    target = f"{access.url}/{quote(rest)}{'?' if query else ''}{query}"
    try:
        async with (
            httpx2.AsyncClient(verify=_tls(), timeout=TIMEOUT, trust_env=False) as client,
            client.stream(method, target, headers=sent) as answer,
        ):
            # Ray refused the service's own token. If the 401 were passed on, the user's browser would ask for a password.
            if answer.status_code in (401, 403):
                raise Unavailable(
                    "the Ray cluster refuses the service's token; the operator can find the cause with `tuner doctor`"
                )
            if answer.is_redirect:
                raise Unavailable(
                    "Ray's dashboard redirects to another address, and this service follows no redirects"
                )
            kept = {name: answer.headers[name] for name in ANSWERED_WITH if name in answer.headers}
            yield DashboardAnswer(answer.status_code, kept, answer.aiter_raw())
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unavailable(f"Ray's dashboard does not answer: {type(error).__name__}") from error


def _is_shown(rest: str) -> bool:
    # Characters that a second decoding or another parser could read as a different path are refused, too.
    is_plain = rest.isascii() and rest.isprintable() and not any(mark in rest for mark in "%\\?#;")
    if not is_plain or "//" in rest or any(part in ("..", ".") for part in rest.split("/")):
        return False
    if rest.startswith(NEVER):
        return False
    return is_page(rest) or rest.rstrip("/") in READS or rest.startswith(BELOW)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
