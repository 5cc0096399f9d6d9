"""Authenticate keys and check what they permit.

Keys are looked up for each request, so that revoking one takes effect at once.
"""

import hmac

from tuner.domain.access import DEFAULT_PROJECT, OPERATOR, Actor, is_like_a_key, read_key
from tuner.domain.errors import Forbidden, NotFound, Unauthorized
from tuner.domain.time import rfc3339
from tuner.service.bootstrap import Service
from tuner.store import access
from tuner.store.access import Bearer
from tuner.store.database import Connection

MISSING = "send the header Authorization: Bearer KEY, with your key, or that of $TUNER_HOME/api_key"
WRONG = "there is no such key: a key begins with tnr_, or is the service's own, from $TUNER_HOME/api_key"
MISTYPED = "this is no whole key, some of it is missing or mistyped: copy it again"
ASK = "ask an admin of the project for another"


def is_operators(given: str, own: str) -> bool:
    """Return whether the given key is the service's own. The comparison takes the same time for every key."""
    return hmac.compare_digest(given.encode(), own.encode())


def operator(service: Service, project: str | None) -> Actor:
    """Return the actor for the service's own key, in the project that the request names.

    Raises:
        NotFound: There is no such project.
    """
    if project is not None and project != DEFAULT_PROJECT:
        with service.database.read() as db:
            access.project(db, project)
    return Actor(OPERATOR, project or DEFAULT_PROJECT, "operator")


def user_of(service: Service, given: str, project: str | None = None) -> Actor:
    """Return the actor for a user's key, in the key's project.

    Raises:
        Unauthorized: The key is not valid.
        NotFound: The request names another project. The answer does not reveal whether that project exists.
    """
    found = read_key(given)
    if found is None:
        raise Unauthorized(MISTYPED if is_like_a_key(given) else WRONG)
    with service.database.read() as db:
        bearer = access.bearer(db, found.id)
    if bearer is None or not hmac.compare_digest(bearer.key.sha256, found.sha256):
        raise Unauthorized(WRONG)
    actor = _actor(service, bearer)
    if project is not None and project != actor.project:
        raise NotFound(f"there is no project {project!r}")
    return actor


def still(service: Service, actor: Actor) -> bool:
    """Return whether the actor's key is still valid in its project. Long requests, such as event streams, check it
    repeatedly."""
    if not actor.key:
        return True
    try:
        return known(service, actor.key).project == actor.project
    except Unauthorized:
        return False


def known(service: Service, key: str) -> Actor:
    """Return the actor for the id of a key that was authenticated before.

    Raises:
        Unauthorized: The key is not valid any more.
    """
    with service.database.read() as db:
        bearer = access.bearer(db, key)
    if bearer is None:
        raise Unauthorized(WRONG)
    return _actor(service, bearer)


def refuse_others_than_operator(service: Service, actor: Actor, what: str) -> None:
    """Raise Forbidden if the actor may not open a page that shows the jobs of all projects.

    The operator always may. Other users may only if there is just one project.

    Args:
        what: The beginning of the error text, which names the page.
    """
    if actor.is_operator:
        return
    with service.database.read() as db:
        if shows_all(db, actor):
            return
    raise Forbidden(
        f"{what} the jobs of every project: with several projects only the service's own key opens it"
    )


def shows_all(db: Connection, actor: Actor) -> bool:
    """Return whether the actor may open pages that show the jobs of all projects."""
    return actor.is_operator or not access.has_several_projects(db)


def has_several_projects(service: Service) -> bool:
    with service.database.read() as db:
        return access.has_several_projects(db)


def _actor(service: Service, bearer: Bearer) -> Actor:
    """Return the actor for a key. Raise Unauthorized, with the reason, if the key is not valid any more."""
    key, now = bearer.key, service.now()
    if key.revoked_at is not None:
        raise Unauthorized(f"{key.id} was revoked at {rfc3339(key.revoked_at)}; {ASK}")
    if key.expires_at <= now:
        why = "expired" if key.replaced_by is None else f"was replaced by {key.replaced_by}, and ended,"
        raise Unauthorized(
            f"{key.id} {why} at {rfc3339(key.expires_at)}; {ASK if key.replaced_by is None else 'use that'}"
        )
    if bearer.disabled:
        raise Unauthorized(f"{key.user} is disabled; ask the operator of the service")
    if bearer.role is None:
        raise Unauthorized(f"{key.user} is no member of {key.project} any more; {ASK}")
    return Actor(key.user, key.project, bearer.role, key.id)
