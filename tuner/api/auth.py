"""Authentication: bearer keys, browser sessions, and streams that end when the caller loses access.

A browser that follows a link cannot send the key as a header. The page therefore exchanges the key for a session cookie
(`begin`), which is valid no longer than the key. `Callers` remembers the keys that were valid recently, so that the rate
limit counts the requests of each key separately. `while_allowed` ends a stream once its caller loses access. `AccessChecks`
checks that once a second for all streams of a key.
"""

import asyncio
import hashlib
import hmac
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from functools import partial

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from tuner.api.deps import Svc
from tuner.domain.access import Actor
from tuner.domain.errors import Unauthorized
from tuner.domain.time import NS, Instant, rfc3339
from tuner.schemas.access import Session
from tuner.service import access
from tuner.service.bootstrap import Service
from tuner.service.ray_dashboard import OPTUNA, RAY

router = APIRouter(tags=["dashboards"])

COOKIE = "tuner_session"
PATHS = (OPTUNA, RAY)  # the cookie is sent only to these paths
LASTS_S = 8 * 3600


@router.post("/session", summary="Let this browser open the dashboards")
def begin(request: Request, response: Response, service: Svc) -> Session:
    """Set a cookie that opens the dashboards under `/optuna` and `/ray` for eight hours.

    The cookie is valid for nothing else. It becomes invalid earlier if the key that requested it expires or is revoked. Scripts send the
    key itself instead.
    """
    ends_s = service.now() // NS + LASTS_S
    for path in PATHS:
        response.set_cookie(
            COOKIE,
            _signed(request.app.state.api_key, ends_s, service.actor.key),
            max_age=LASTS_S,
            path=path,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
    response.headers["Cache-Control"] = "no-store"
    return Session(expires_at=rfc3339(ends_s * NS))


def key_of(cookie: str, secret: str, now: Instant) -> str | None:
    """Return the id of the key that a cookie was made for, or "" for the service's own key.

    Return None if the cookie has expired, or was not signed with the service's present key, `secret`. A change of that key therefore
    invalidates all cookies.
    """
    ends_s, _, rest = cookie.partition(".")
    if not (ends_s.isascii() and ends_s.isdecimal() and len(ends_s) < 15):
        return None
    key, _, _ = rest.rpartition(".")
    good = hmac.compare_digest(cookie.encode(), _signed(secret, int(ends_s), key).encode())
    return key if good and now < int(ends_s) * NS else None


def _signed(secret: str, ends_s: int, key: str) -> str:
    """Return the cookie's value: the time at which the session ends, the key's id, and an HMAC of both. `secret` is the service's own key."""
    words = f"session of dashboards until {ends_s} for {key or 'the operator'}"
    mark = hmac.new(secret.encode(), words.encode(), hashlib.sha256)
    return f"{ends_s}.{key}.{mark.hexdigest()}"


PROJECT = "Tuner-Project"  # the header that names the project of a request
REMEMBERED = 10_000  # maximum number of keys that `Callers` remembers


class Callers:
    """The most recent user keys that were valid when they were last checked.

    The limits of `tuner.api.limits` apply to each key in this set separately, and to all other requests by address. Being in the set grants
    no access, because the key of each request is checked again. Use the set from one event loop only.
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
    """Return the actor that the key `given` belongs to. None means that the request has no key.

    Raises:
        Unauthorized: The key is missing or wrong.
        NotFound: The request names a project in which the user is not a member.
    """
    if given is None:
        raise Unauthorized(access.MISSING)
    service: Service = request.app.state.service
    project = request.headers.get(PROJECT)
    if access.is_operators(given, request.app.state.api_key):
        if project is None:  # `operator` then does not read the database, so it may run on the event loop
            return access.operator(service, None)
        return await run_in_threadpool(access.operator, service, project)
    callers: Callers = request.app.state.callers
    try:
        actor = await run_in_threadpool(partial(access.user_of, service, given, project))
    except Unauthorized:
        callers.note(given, counts=False)
        raise
    callers.note(given, counts=True)
    return actor


LOOK_S = 1.0  # how often a stream checks that its caller may still read it


class AccessChecks:
    """Checks whether keys are still valid. Streams of one key share a check a second, because each check reads the database.

    Streams in different event loops share no checks.
    """

    def __init__(self, every_s: float = LOOK_S) -> None:
        self._every_s = every_s
        # By event loop and `of`: when the newest check began, and its result.
        self._checks: OrderedDict[Hashable, tuple[float, asyncio.Future[bool]]] = OrderedDict()

    async def may(self, of: Hashable, check: Callable[[], bool]) -> bool:
        """Return the result of the newest check of a key and project, `of`.

        If that check began `every_s` seconds ago or earlier, make another one: call `check` in a thread.
        """
        loop = asyncio.get_running_loop()
        began, result = self._checks.get((loop, of), (-math.inf, None))
        if result is None or loop.time() - began >= self._every_s:
            result = asyncio.ensure_future(asyncio.to_thread(check))
            self._checks[loop, of] = loop.time(), result
            self._checks.move_to_end((loop, of))
            if len(self._checks) > REMEMBERED:
                self._checks.popitem(last=False)
        # A stream that is closed meanwhile must not cancel the check of the others.
        return await asyncio.shield(result)


async def while_allowed(
    stream: AsyncIterator[bytes], may: Callable[[], Awaitable[bool]], every_s: float = LOOK_S
) -> AsyncIterator[bytes]:
    """Yield the chunks of the stream until the stream ends or `may` returns False.

    `may` returns True while the caller has access. It is called every `every_s` seconds.
    """
    clock = asyncio.get_running_loop().time
    ahead: asyncio.Task[bytes] | None = None
    look_at = clock() + every_s
    try:
        while True:
            ahead = ahead or asyncio.create_task(_next(stream))
            done, _ = await asyncio.wait({ahead}, timeout=max(0.0, look_at - clock()))
            if clock() >= look_at:
                if not await may():
                    return
                look_at = clock() + every_s
            if done:
                data, ahead = ahead.result(), None
                if not data:
                    return
                yield data
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait({ahead})
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


async def _next(stream: AsyncIterator[bytes]) -> bytes:
    """Return the next chunk of the stream, or b"" at its end. The stream itself must not yield empty chunks."""
    return await anext(stream, b"")
