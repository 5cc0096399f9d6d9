"""A browser's way to the dashboards: a link carries no header, so the page buys a cookie with a key, that ends with it."""

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
    """Sets a cookie that is good for the dashboards under `/optuna` and `/ray`, and for nothing else, for eight hours. Scripts send
    the key instead. It ends with the key that asked for it."""
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
    """The id of the key that it was made for, empty for the service's own; None where it was not made with this secret, or has
    ended. A new secret ends all of them."""
    ends_s, _, rest = cookie.partition(".")
    if not (ends_s.isascii() and ends_s.isdecimal() and len(ends_s) < 15):
        return None
    key, _, _ = rest.rpartition(".")
    good = hmac.compare_digest(cookie.encode(), _signed(secret, int(ends_s), key).encode())
    return key if good and now < int(ends_s) * NS else None


def _signed(secret: str, ends_s: int, key: str) -> str:
    """The service's own key is the secret by which it knows what it gave away."""
    words = f"session of dashboards until {ends_s} for {key or 'the operator'}"
    mark = hmac.new(secret.encode(), words.encode(), hashlib.sha256)
    return f"{ends_s}.{key}.{mark.hexdigest()}"
