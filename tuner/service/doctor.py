"""Check everything that must be right before jobs are accepted, and say what to do about each fault."""

import contextlib
import ipaddress
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.checkpoints.storage import Storage
from tuner.cluster.dashboard import Dashboard, cluster_token, dashboard_url
from tuner.cluster.node_types import node_types_of
from tuner.cluster.nodes import nodes
from tuner.cluster.versions import RayUnfit, misfit, ray_of
from tuner.database.database import Database, knows_revision, newest_revision
from tuner.domain.access import DAY_NS
from tuner.domain.errors import BadFile, TunerError, Unavailable
from tuner.domain.time import Instant, rfc3339
from tuner.service import replicas
from tuner.service.bootstrap import system_now
from tuner.service.cluster import Cluster
from tuner.settings import Settings
from tuner.store import access

PROBE = ".probe"
# A shorter key, in characters, can be guessed by somebody who tries a thousand keys per second.
SHORTEST_KEY = 20
SOON_NS, SHOWN = 14 * DAY_NS, 5
# How long a starting service waits for the check of its storage.
STORAGE_S = 10.0

log = logging.getLogger("tuner.storage")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking one part."""

    part: str  #: Name of the part, such as `key` or `database`.
    ok: bool
    seen: str  #: The state that was found.
    fix: str = ""  #: What to do about it; empty if nothing is wrong.


@dataclass(frozen=True, slots=True)
class Findings:
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(one.ok for one in self.findings)


def examine(settings: Settings) -> Findings:
    """Check everything that can be checked without a job.

    The only change it makes is a file in the storage, which it removes again.
    """
    parts = [
        of_key,
        of_home,
        of_database,
        of_replicas,
        of_keys,
        of_storage,
        of_token,
        of_node_types,
        *([of_ray] if settings.ray_address else []),
    ]
    return Findings(tuple(one for part in parts for one in part(settings)))


def refuse_unfit(settings: Settings) -> None:
    """Raise Unavailable, with what to do, if this service must not start.

    Bring the database up to date first.
    """
    _refuse(settings, of_key, of_token, _of_storage_soon, of_node_types)


def refuse_without_key(settings: Settings) -> None:
    """Raise Unavailable if other machines can reach the service and the settings give it no key.

    Services that share a database would each generate a different key.
    """
    _refuse(settings, of_key)


def _refuse(settings: Settings, *parts: Callable[[Settings], Iterable[Finding]]) -> None:
    """Raise Unavailable for the first fault that these checks find, with what to do."""
    for one in (found for part in parts for found in part(settings)):
        if not one.ok:
            raise Unavailable(f"{one.part}: {one.seen}; {one.fix}")


def _of_storage_soon(settings: Settings) -> list[Finding]:
    """Check the storage, or return no finding if it does not answer within `STORAGE_S`.

    The service starts anyway, because it can answer questions about jobs without its storage. `StorageWatch` checks the
    storage again later.
    """
    found: list[Finding] = []
    looking = threading.Thread(target=lambda: found.extend(of_storage(settings)), name="storage", daemon=True)
    looking.start()
    looking.join(STORAGE_S)
    if not found:
        log.warning(
            "%s has not answered for %g s: the service starts without it", settings.storage, STORAGE_S
        )
    return found


def fault_of_cluster(cluster: Cluster) -> str | None:
    """Return why jobs cannot be accepted with the cluster's versions of Ray and Python.

    Return None if the versions fit, or if the cluster does not answer.
    """
    try:
        cluster.check_fit()
    except RayUnfit as error:
        return error.detail
    except Unavailable:
        return None
    return None


def of_key(settings: Settings) -> Iterator[Finding]:
    if settings.given_api_key:
        yield _of_given_key(settings, settings.given_api_key)
        return
    path = settings.api_key_path
    if not path.exists():
        yield _of_key_to_be(settings)
        return
    mode = path.stat().st_mode & 0o777
    seen = f"{path} has mode {mode:04o}"
    yield Finding(
        "key",
        not mode & 0o077,
        seen,
        "" if not mode & 0o077 else f"other users can read it: chmod 600 {path}",
    )


def of_home(settings: Settings) -> Iterator[Finding]:
    """Check that other users of this machine cannot read the home directory, which holds the database and the key.

    Access by a group is allowed, because volumes of Kubernetes grant it.
    """
    if not settings.home.is_dir():
        return
    mode = settings.home.stat().st_mode & 0o777
    fix = "" if not mode & 0o007 else f"other users of this machine can read it: chmod 700 {settings.home}"
    yield Finding("home", not mode & 0o007, f"{settings.home} has mode {mode:04o}", fix)


def warn_of_open_home(settings: Settings) -> None:
    """Log a warning if other users of this machine can read the home directory."""
    for one in of_home(settings):
        if not one.ok:
            log.warning("%s; %s", one.seen, one.fix)


def _of_given_key(settings: Settings, key: str) -> Finding:
    if is_loopback(settings.host) or len(key) >= SHORTEST_KEY:
        return Finding("key", True, "given as TUNER_API_KEY")
    seen = f"TUNER_API_KEY has {len(key)} characters, and other machines can reach TUNER_HOST={settings.host}"
    fix = f"use at least {SHORTEST_KEY} characters, such as the output of `openssl rand -hex 32`, or listen on 127.0.0.1"
    return Finding("key", False, seen, fix)


def _of_key_to_be(settings: Settings) -> Finding:
    """Check a service that has no key yet. Only a service that listens on loopback may generate one.

    If other machines can reach the service, the operator must set the key, because services that share a database would
    each generate a different one.
    """
    if is_loopback(settings.host):
        return Finding("key", True, f"{settings.api_key_path} is created on the first start")
    seen = f"TUNER_API_KEY is empty, and other machines can reach TUNER_HOST={settings.host}"
    fix = (
        "set TUNER_API_KEY, for example to the output of `openssl rand -hex 32`, to the same value for every service of this "
        "database, or leave TUNER_HOST empty to listen on 127.0.0.1"
    )
    return Finding("key", False, seen, fix)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def of_token(settings: Settings, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Check that there is a token for a cluster that is operated by others.

    Without tokens, anybody who reaches Ray can run any code.
    """
    if not settings.ray_address:
        return
    if environ.get("RAY_AUTH_MODE") == "disabled":
        yield Finding(
            "token", True, "RAY_AUTH_MODE=disabled: anyone who can reach the cluster can run any code on it"
        )
        return
    if cluster_token(environ) is not None:
        yield Finding("token", True, "Ray's token was found")
        return
    path = environ.get("RAY_AUTH_TOKEN_PATH")
    seen = (
        f"RAY_AUTH_TOKEN_PATH is {path}, from which no token can be read"
        if path
        else "there is no token for Ray"
    )
    fix = (
        "set RAY_AUTH_TOKEN to the token of the cluster, or RAY_AUTH_TOKEN_PATH to a file that contains it and that this user can "
        "read; if the cluster requires no token, set RAY_AUTH_MODE=disabled"
    )
    yield Finding("token", False, seen, fix)


def of_database(settings: Settings) -> Iterator[Finding]:
    database, fix = Database(settings.database_url), ""
    where = database.url.render_as_string(hide_password=True)
    try:
        found = database.revision()
    except Unavailable as error:
        yield Finding(
            "database", False, error.detail.splitlines()[0], f"start it, or correct its URL: {where}"
        )
        return
    finally:
        database.dispose()
    newest = newest_revision()
    if not knows_revision(found):
        fix = f"a newer version of tuner has upgraded it, and this version only knows revisions up to {newest}: run that version"
    elif found != newest and found is not None:
        fix = f"older than this version of tuner, which needs {newest}: run `tuner migrate`, or start the service"
    yield Finding("database", not fix, f"{where} is {f'at revision {found}' if found else 'empty'}", fix)


def of_replicas(settings: Settings) -> Iterator[Finding]:
    """Report which service leads and which versions the drivers run.

    Yield nothing if the database is not up to date or not reachable.
    """
    database = Database(settings.database_url)
    try:
        if database.revision() != newest_revision():
            return
        with database.read() as db:
            found = replicas.standing(db, system_now())
    except Unavailable:
        return
    finally:
        database.dispose()
    yield Finding("leader", True, replicas.said_of_leader(found))
    yield Finding("drivers", True, replicas.said_of_drivers(found))


def of_keys(settings: Settings) -> Iterator[Finding]:
    """Report users' keys that expire within 14 days. This is a reminder and never a fault of the service."""
    database = Database(settings.database_url)
    try:
        if database.revision() != newest_revision():
            return
        now = system_now()
        with database.read() as db:
            found = access.keys_that_end(db, now, Instant(now + SOON_NS))
    except Unavailable:
        return
    finally:
        database.dispose()
    ends = [f"{one.id} of {one.user} in {one.project} at {rfc3339(one.expires_at)[:16]}Z" for one in found]
    shown = ", ".join(ends[:SHOWN]) + (f" and {len(ends) - SHOWN} more" if len(ends) > SHOWN else "")
    seen = (
        f"keys that expire within 14 days: {shown}; replace them with `tuner keys rotate`"
        if ends
        else "none expires within 14 days"
    )
    yield Finding("keys", True, seen)


def of_storage(settings: Settings) -> Iterator[Finding]:
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
        yield Finding("storage", False, f"{settings.storage}: {error or type(error).__name__}", fix)
        return
    yield Finding(
        "storage",
        same,
        settings.storage,
        "" if same else "it returns other data than was written: use another storage",
    )


def of_node_types(settings: Settings) -> Iterator[Finding]:
    """Check the autoscaler's list of node types, if `TUNER_NODE_TYPES` names one."""
    if not settings.node_types:
        return
    try:
        found = node_types_of(settings.node_types)
    except BadFile as error:
        fix = "correct it, or leave TUNER_NODE_TYPES empty for a cluster of fixed size"
        yield Finding("node types", False, error.detail, fix)
        return
    summary = (
        ", ".join(f"{one.at_most} {one.name}" for one in found.types)
        or "none: is enableInTreeAutoscaling set?"
    )
    yield Finding("node types", True, f"the autoscaler may start up to {summary}")


def of_ray(settings: Settings) -> Iterator[Finding]:
    url = dashboard_url(settings.ray_address)
    with contextlib.closing(Dashboard(url, cluster_token())) as dashboard:
        try:
            theirs, wrong = ray_of(dashboard), misfit(dashboard)
            alive = [node for node in nodes(dashboard) if node.alive]
        except TunerError as error:
            fix = "start it, or correct TUNER_RAY_ADDRESS, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            yield Finding("ray", False, error.detail.splitlines()[0], fix)
            return
    yield Finding(
        "ray",
        wrong is None,
        wrong or f"{url} has Ray {theirs}",
        "jobs are refused until this is fixed" if wrong else "",
    )
    workers = [node for node in alive if node.cpus]
    markets = sorted({node.market for node in workers})
    seen = f"{len(workers)} nodes with CPUs, markets: {', '.join(markets) or 'none'}"
    may_come = any(one.ok and settings.node_types for one in of_node_types(settings))
    fix = (
        "" if workers or may_come else "add nodes to the cluster: jobs are refused while no node can run them"
    )
    yield Finding("nodes", not fix, seen, fix)
    nameless = [node.name or node.id[:12] for node in workers if node.instance_type == "local"]
    fix = "start them with --labels instance-type=…,ray.io/market-type=…; without labels they are priced by their CPUs"
    summary = (
        "all nodes have an instance type"
        if not nameless
        else f"{', '.join(nameless[:5])} have no label instance-type"
    )
    yield Finding("labels", not nameless, summary, fix if nameless else "")
