"""Authentication by the bearer key that all routes under `/v1` need. The rules for roles are in `tuner.api.access`."""

from collections import OrderedDict
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from tuner.domain.access import Actor
from tuner.domain.errors import Unauthorized
from tuner.service import access
from tuner.service.bootstrap import Service

PROJECT = "Tuner-Project"
REMEMBERED = 10_000


class Callers:
    """The most recent user keys that were valid when they were last checked.

    `RateLimit` counts the requests of such a key by the key, and those of unknown keys by address. It grants no access: each request's
    key is checked again. Use it from one event loop only.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()

    def note(self, given: str, *, counts: bool) -> None:
        self._seen.pop(given, None)
        if counts:
            self._seen[given] = None
            while len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)

    def __contains__(self, given: str) -> bool:
        return given in self._seen


async def actor_of(request: Request, given: str | None) -> Actor:
    """Return the actor that a key belongs to.

    Raises:
        Unauthorized: The key is missing or wrong.
        NotFound: The request names a project in which the user is not a member.
    """
    if given is None:
        raise Unauthorized(access.MISSING)
    service: Service = request.app.state.service
    project = request.headers.get(PROJECT)
    if access.is_operators(given, request.app.state.api_key):
        if project is None:  # does not read the database, so it may run on the event loop
            return access.operator(service, None)
        return await run_in_threadpool(access.operator, service, project)
    callers: Callers = request.app.state.callers
    try:
        found = await run_in_threadpool(partial(access.user_of, service, given, project))
    except Unauthorized:
        callers.note(given, counts=False)
        raise
    callers.note(given, counts=True)
    return found
