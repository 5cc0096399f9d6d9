"""Who asks: by the bearer key that everything under `/v1` takes. What they may do is in `tuner.api.access`."""

from collections import OrderedDict
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from tuner.domain.access import Actor
from tuner.domain.errors import Unauthorized
from tuner.service import access
from tuner.service.wiring import Service

PROJECT = "Tuner-Project"
REMEMBERED = 10_000


class Callers:
    """Credentials that counted when they were last looked at: each of them has its share of requests (`RateLimit`) apart from the
    address that it comes from. Nobody is let in for being here. In one event loop."""

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
    """Raises Unauthorized, or NotFound for a project that they have no part in."""
    if given is None:
        raise Unauthorized(access.MISSING)
    service: Service = request.app.state.service
    project = request.headers.get(PROJECT)
    if access.is_operators(given, request.app.state.api_key):
        if project is None:  # waits for nothing
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
