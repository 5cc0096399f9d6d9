"""Check that the settings, database, storage and cluster allow the service to accept jobs, and say how to fix each fault."""

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tuner.checkpoints.storage import Storage
from tuner.cluster.dashboard import Dashboard, cluster_token, dashboard_url
from tuner.cluster.head import LocalHead
from tuner.cluster.node_types import node_types_of
from tuner.cluster.nodes import nodes
from tuner.cluster.versions import IN_BOTH, RayUnfit, fix_of_local, ray_of, version_mismatch
from tuner.database.database import Connection, Database, knows_revision, newest_revision
from tuner.domain.errors import BadFile, TunerError, Unavailable
from tuner.domain.time import DAY_NS, Instant, rfc3339, system_now
from tuner.service.cluster import Cluster
from tuner.service.leading import ROLE
from tuner.settings import Settings, is_loopback, release
from tuner.store import access, launches, leadership
from tuner.store.copies import HALF_RESTORED, RESTORE_AGAIN, is_half_restored

PROBE = ".probe"
# Somebody who tries a thousand keys per second could guess a key with fewer characters than this.
SHORTEST_KEY = 20
SOON_NS, SHOWN = 14 * DAY_NS, 5
# How many seconds a starting service waits for the check of its storage.
STORAGE_S = 10.0

log = logging.getLogger("tuner.storage")


@dataclass(frozen=True, slots=True)
class PartCheck:
    """The result of checking one part of the service, such as its key or its storage."""

    part: str  #: Name of the part, such as `key`.
    ok: bool
    seen: str  #: The state that the check found, for users.
    fix: str = ""  #: How to fix the fault; empty if nothing is wrong.


def _check(part: str, seen: str, fix: str = "") -> PartCheck:
    return PartCheck(part, not fix, seen, fix)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    findings: tuple[PartCheck, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.findings)


def examine(settings: Settings) -> Diagnosis:
    """Check the key, home directory, database, storage, Ray token, node types and cluster.

    A cluster that the service starts itself is checked only while it runs.

    The checks write a file to the storage and remove it again. They create the folder of a local storage if it is missing.
    """
    parts = [of_key, of_home, of_database, of_storage, of_token, of_node_types]
    parts.append(of_ray if settings.ray_address else of_local_ray)
    return Diagnosis(tuple(check for part in parts for check in part(settings)))


def refuse_unfit(settings: Settings) -> None:
    """Raise Unavailable, with the fix, if the key, Ray's token, the storage or the list of node types has a fault.

    The service must not start with such a fault. The database is not checked, because `build` has already migrated it.
    """
    _refuse(settings, of_key, of_token, _of_storage_in_time, of_node_types)


def refuse_without_key(settings: Settings) -> None:
    """Raise Unavailable if the service's own key is too short, is readable by other users, or is missing and may not be generated.

    Call this before `build`, which generates a missing key. After `build`, a missing key would not be noticed.
    """
    _refuse(settings, of_key)


def _refuse(settings: Settings, *parts: Callable[[Settings], Iterable[PartCheck]]) -> None:
    for part in parts:
        for check in part(settings):
            if not check.ok:
                raise Unavailable(f"{check.part}: {check.seen}; {check.fix}")


def _of_storage_in_time(settings: Settings) -> list[PartCheck]:
    """Check the storage. Return an empty list if the storage does not answer within `STORAGE_S` seconds.

    In that case the service starts anyway, because it can answer questions about jobs without the storage.
    `StorageWatch` checks the storage again later.
    """
    checks: list[PartCheck] = []
    looking = threading.Thread(
        target=lambda: checks.extend(of_storage(settings)), name="storage", daemon=True
    )
    looking.start()
    looking.join(STORAGE_S)
    if not checks:
        log.warning(
            "%s has not answered for %g s: the service starts without it", settings.storage, STORAGE_S
        )
    return checks


def fault_of_cluster(cluster: Cluster) -> str | None:
    """Return why the cluster's versions of Ray and Python do not allow jobs to be accepted.

    Return None if the versions match the service's, or if the cluster does not answer.
    """
    try:
        cluster.check_fit()
    except RayUnfit as error:
        return error.detail
    except Unavailable:
        return None
    return None


def of_key(settings: Settings) -> Iterator[PartCheck]:
    """Check that the service's own key is given or may be generated, is long enough, and is not readable by other users.

    Only a service that listens on loopback may generate its key. Any other service may share its database with further
    services, and each of them would generate a different key.
    """
    key, path, local = settings.given_api_key, settings.api_key_path, is_loopback(settings.host)
    if key and (local or len(key) >= SHORTEST_KEY):
        yield _check("key", "given as TUNER_API_KEY")
    elif key:
        yield _check(
            "key",
            f"TUNER_API_KEY has {len(key)} characters, and other machines can reach TUNER_HOST={settings.host}",
            f"use at least {SHORTEST_KEY} characters, such as the output of `openssl rand -hex 32`, or listen on 127.0.0.1",
        )
    elif path.exists():
        mode = path.stat().st_mode & 0o777
        fix = f"other users can read this file: run chmod 600 {path}" if mode & 0o077 else ""
        yield _check("key", f"{path} has mode {mode:04o}", fix)
    elif local:
        yield _check("key", f"{path} will be created on the first start")
    else:
        yield _check(
            "key",
            f"TUNER_API_KEY is empty, and other machines can reach TUNER_HOST={settings.host}",
            "set TUNER_API_KEY, for example to the output of `openssl rand -hex 32`, to the same value for every service of "
            "this database, or leave TUNER_HOST empty to listen on 127.0.0.1",
        )


def of_home(settings: Settings) -> Iterator[PartCheck]:
    """Check that other users of this machine cannot read the home directory, which holds the database and the key.

    Access by the group is allowed, because Kubernetes volumes grant it.
    """
    if settings.home.is_dir():
        mode = settings.home.stat().st_mode & 0o777
        fix = (
            f"other users of this machine can read this directory: run chmod 700 {settings.home}"
            if mode & 0o007
            else ""
        )
        yield _check("home", f"{settings.home} has mode {mode:04o}", fix)


def warn_of_open_home(settings: Settings) -> None:
    """Log a warning if other users of this machine can read the home directory."""
    for check in of_home(settings):
        if not check.ok:
            log.warning("%s; %s", check.seen, check.fix)


def of_token(settings: Settings, environ: Mapping[str, str] = os.environ) -> Iterator[PartCheck]:
    """Check that the service has a token for the cluster that TUNER_RAY_ADDRESS names.

    RAY_AUTH_MODE=disabled is reported but is not a fault. On a cluster that requires no token, anyone who can reach Ray can
    run any code.
    """
    if not settings.ray_address:
        return
    path = environ.get("RAY_AUTH_TOKEN_PATH")
    if environ.get("RAY_AUTH_MODE") == "disabled":
        yield _check(
            "token", "RAY_AUTH_MODE=disabled: anyone who can reach the cluster can run any code on it"
        )
    elif cluster_token(environ) is not None:
        yield _check("token", "Ray's token was found")
    else:
        yield _check(
            "token",
            f"RAY_AUTH_TOKEN_PATH is {path}, but no token can be read from this file"
            if path
            else "the token for Ray is not set",
            "set RAY_AUTH_TOKEN to the token of the cluster, or RAY_AUTH_TOKEN_PATH to a file that contains it and that this "
            "user can read; if the cluster requires no token, set RAY_AUTH_MODE=disabled",
        )


def of_database(settings: Settings) -> Iterator[PartCheck]:
    """Check the revision of the database. If it is the newest one, also report the leader, drivers and keys that expire soon."""
    database, newest = Database(settings.database_url), newest_revision()
    where = database.address
    try:
        revision = database.revision()
        fix = ""
        if not knows_revision(revision):
            fix = f"a newer version of tuner has upgraded the database, and this version only knows revisions up to {newest}: run the newer version"
        elif revision is not None and revision != newest:
            fix = f"the database is older than this version of tuner, which needs {newest}: run `tuner migrate`, or start the service"
        with database.read() as db:
            if is_half_restored(db):
                yield _check("database", f"{where}: {HALF_RESTORED}", RESTORE_AGAIN)
                return
        yield _check("database", f"{where} is {f'at revision {revision}' if revision else 'empty'}", fix)
        if revision == newest:
            with database.read() as db:
                checks = _leader(db), _drivers(db), _keys(db)
            yield from checks
    except Unavailable as error:
        yield _check(
            "database", error.detail.splitlines()[0], f"start the database, or correct its URL: {where}"
        )
    finally:
        database.dispose()


def _leader(db: Connection) -> PartCheck:
    term, now = leadership.get(db, ROLE), system_now()
    if term is None:
        return _check("leader", "no service has led yet")
    who, since = f"{term.holder}, tuner {term.version}", rfc3339(term.since)
    if term.lasts(leadership.clock(db, now)):
        return _check("leader", f"{who}, has been the leader since {since}, in term {term.token}")
    return _check(
        "leader", f"no service leads; the last leader was {who}, in term {term.token}, which began at {since}"
    )


def _drivers(db: Connection) -> PartCheck:
    """Report the number of running drivers, and name those of another version of tuner or Ray.

    Another version is not a fault: these drivers keep running.
    """
    drivers = [launch for launch in launches.live(db) if launch.state == "running"]
    ours = release(), version("ray")
    others = [
        f"{launch.job} (tuner {launch.tuner_version or '?'}, Ray {launch.ray_version or '?'})"
        for launch in drivers
        if (launch.tuner_version, launch.ray_version) != ours
    ]
    seen = f"{len(drivers)} running"
    if others:
        seen += f", some of another version, which can keep running: {_first(others)}"
    elif drivers:
        seen += f", all of tuner {release()}"
    return _check("drivers", seen)


def _keys(db: Connection) -> PartCheck:
    """Report users' keys that expire within 14 days. This is a reminder and never a fault of the service."""
    now = system_now()
    ends = [
        f"{key.id} of {key.user} in {key.project} at {rfc3339(key.expires_at)[:16]}Z"
        for key in access.expiring_keys(db, now, Instant(now + SOON_NS))
    ]
    if not ends:
        return _check("keys", "none expires within 14 days")
    return _check(
        "keys", f"keys that expire within 14 days: {_first(ends)}; replace them with `tuner keys rotate`"
    )


def _first(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def of_storage(settings: Settings) -> Iterator[PartCheck]:
    """Check the storage by writing a file, reading it back and removing it."""
    name, data = f"{PROBE}-{secrets.token_hex(4)}", os.urandom(16)
    try:
        storage = Storage(settings.storage)
        if storage.is_local:
            Path(settings.storage.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
        storage.put_files({name: data})
        same = storage.read(name) == data
        storage.remove(name)
    except Exception as error:
        fix = "create the folder or bucket of TUNER_STORAGE, and let this user list, read, write and delete there"
        yield _check("storage", f"{settings.storage}: {error or type(error).__name__}", fix)
        return
    fix = (
        "" if same else "the storage does not return the data that was written to it: use a different storage"
    )
    yield _check("storage", settings.storage, fix)


def of_node_types(settings: Settings) -> Iterator[PartCheck]:
    """Check the autoscaler's list of node types, if `TUNER_NODE_TYPES` names one."""
    if not settings.node_types:
        return
    try:
        node_types = node_types_of(settings.node_types)
    except BadFile as error:
        fix = "correct this file, or leave TUNER_NODE_TYPES empty for a cluster of fixed size"
        yield _check("node types", error.detail, fix)
        return
    summary = ", ".join(f"{node_type.at_most} {node_type.name}" for node_type in node_types.types)
    yield _check(
        "node types",
        f"the autoscaler may start up to {summary or 'none: is enableInTreeAutoscaling set?'}",
    )


def of_local_ray(settings: Settings) -> Iterator[PartCheck]:
    """Check the version of the local Ray of this home, if it runs."""
    local = LocalHead(settings.home)
    if (head := local.running()) is None:
        return
    with contextlib.closing(local.dashboard(head)) as dashboard:
        try:
            theirs, wrong = ray_of(dashboard), version_mismatch(dashboard, fix_of_local(local))
        except TunerError as error:
            fix = "start the service, or restart it if it runs: at its start it replaces a local Ray that does not answer"
            yield _check("ray", error.detail.splitlines()[0], fix)
            return
    yield _check(
        "ray",
        wrong or f"{head.dashboard_url} has Ray {theirs}",
        "jobs wait until this is fixed" if wrong else "",
    )


def of_ray(settings: Settings) -> Iterator[PartCheck]:
    url = dashboard_url(settings.ray_address)
    with contextlib.closing(Dashboard(url, cluster_token())) as dashboard:
        try:
            theirs, wrong = ray_of(dashboard), version_mismatch(dashboard, IN_BOTH)
            workers = [node for node in nodes(dashboard) if node.alive and node.cpus]
        except TunerError as error:
            fix = "start Ray, or correct TUNER_RAY_ADDRESS, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            yield _check("ray", error.detail.splitlines()[0], fix)
            return
    yield _check(
        "ray", wrong or f"{url} has Ray {theirs}", "jobs are refused until this is fixed" if wrong else ""
    )
    markets = ", ".join(sorted({node.market for node in workers})) or "none"
    may_come = any(check.ok for check in of_node_types(settings))
    fix = (
        "" if workers or may_come else "add nodes to the cluster: jobs are refused while no node can run them"
    )
    yield _check("nodes", f"{len(workers)} nodes with CPUs, markets: {markets}", fix)
    nameless = [node.name or node.id[:12] for node in workers if node.instance_type == "local"]
    if nameless:
        fix = "start these nodes with --labels instance-type=…,ray.io/market-type=…; without labels they are priced by their CPUs"
        yield _check("labels", f"{', '.join(nameless[:5])} have no label instance-type", fix)
    else:
        yield _check("labels", "all nodes have an instance type")
