"""Sessions that let a browser open the dashboards.

A browser that follows a link cannot send the key as a header. The page therefore exchanges the key for a cookie, which is valid no longer
than the key.
"""

import hashlib
import hmac

from fastapi import APIRouter, Request, Response

from tuner.api.deps import Svc
from tuner.domain.time import NS, Instant, rfc3339
from tuner.schemas.session import Session
from tuner.service.dashboards import OPTUNA, RAY

router = APIRouter(tags=["dashboards"])

COOKIE = "tuner_session"
PATHS = (OPTUNA, RAY)
LASTS_S = 8 * 3600


@router.post("/session", summary="Let this browser open the dashboards")
def begin(request: Request, response: Response, service: Svc) -> Session:
    """Set a cookie that opens the dashboards under `/optuna` and `/ray` for eight hours.

    The cookie is valid for nothing else, and ends when the key that requested it ends. Scripts send the key itself instead.
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

    Return None if the cookie has expired or was not signed with `secret`. A new secret therefore invalidates all cookies.
    """
    ends_s, _, rest = cookie.partition(".")
    if not (ends_s.isascii() and ends_s.isdecimal() and len(ends_s) < 15):
        return None
    key, _, _ = rest.rpartition(".")
    good = hmac.compare_digest(cookie.encode(), _signed(secret, int(ends_s), key).encode())
    return key if good and now < int(ends_s) * NS else None


def _signed(secret: str, ends_s: int, key: str) -> str:
    """Return the cookie's value: the time at which the session ends, the key's id, and an HMAC of both with the service's own key."""
    words = f"session of dashboards until {ends_s} for {key or 'the operator'}"
    mark = hmac.new(secret.encode(), words.encode(), hashlib.sha256)
    return f"{ends_s}.{key}.{mark.hexdigest()}"
