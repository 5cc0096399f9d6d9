"""Whose key it is, and what may be done with it: looked up for each request, so that what is taken away is gone at once."""

import hmac

from tuner.domain.access import DEFAULT_PROJECT, OPERATOR, Actor, is_like_a_key, read_key
from tuner.domain.errors import Forbidden, NotFound, Unauthorized
from tuner.domain.time import rfc3339
from tuner.service.wiring import Service
from tuner.store import access
from tuner.store.access import Bearer
from tuner.store.database import Connection

MISSING = "send the header Authorization: Bearer KEY, with your key, or that of $TUNER_HOME/api_key"
WRONG = "there is no such key: a key begins with tnr_, or is the service's own, from $TUNER_HOME/api_key"
MISTYPED = "this is no whole key, some of it is missing or mistyped: copy it again"
ASK = "ask an admin of the project for another"


def is_operators(given: str, own: str) -> bool:
    """Whether it is the service's own key. The comparison takes the same time whatever was given."""
    return hmac.compare_digest(given.encode(), own.encode())


def operator(service: Service, project: str | None) -> Actor:
    """Who has the service's own key, in the project that they name. Raises NotFound."""
    if project is not None and project != DEFAULT_PROJECT:
        with service.database.read() as db:
            access.project(db, project)
    return Actor(OPERATOR, project or DEFAULT_PROJECT, "operator")


def user_of(service: Service, given: str, project: str | None = None) -> Actor:
    """Whoever has this key, in its project. Raises Unauthorized where it does not count, NotFound for another project, whether there
    is one or not."""
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
    """Whether who has asked with a key may go on."""
    if not actor.key:
        return True
    try:
        return known(service, actor.key).project == actor.project
    except Unauthorized:
        return False


def known(service: Service, key: str) -> Actor:
    """Whoever has the key of this id, which was shown before. Raises Unauthorized where it does not count any more."""
    with service.database.read() as db:
        bearer = access.bearer(db, key)
    if bearer is None:
        raise Unauthorized(WRONG)
    return _actor(service, bearer)


def refuse_others_than_operator(service: Service, actor: Actor, what: str) -> None:
    """Of what shows the jobs of all projects: open to all while there is one. Raises Forbidden."""
    if actor.is_operator:
        return
    with service.database.read() as db:
        if shows_all(db, actor):
            return
    raise Forbidden(
        f"{what} the jobs of every project: with several projects only the service's own key opens it"
    )


def shows_all(db: Connection, actor: Actor) -> bool:
    """Whether what shows the jobs of all projects is open to them."""
    return actor.is_operator or not access.has_several_projects(db)


def has_several_projects(service: Service) -> bool:
    with service.database.read() as db:
        return access.has_several_projects(db)


def _actor(service: Service, bearer: Bearer) -> Actor:
    """Raises Unauthorized, saying what became of the key."""
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
