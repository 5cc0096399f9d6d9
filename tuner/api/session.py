"""A browser's way to the dashboards: a link carries no header, so the page buys a cookie with the key."""

import hashlib
import hmac

from fastapi import APIRouter, Request, Response

from tuner.api.deps import Svc
from tuner.domain.time import NS, Instant, rfc3339
from tuner.schemas.session import Session

router = APIRouter(tags=["dashboards"])

COOKIE = "tuner_session"
PATH = "/optuna"
LASTS_S = 8 * 3600


@router.post("/session", summary="Let this browser open the dashboards")
def begin(request: Request, response: Response, service: Svc) -> Session:
    """Sets a cookie that is good for the dashboards under `/optuna`, and for nothing else, for eight hours. Scripts send the key
    instead."""
    ends_s = service.now() // NS + LASTS_S
    response.set_cookie(
        COOKIE,
        _signed(request.app.state.api_key, ends_s),
        max_age=LASTS_S,
        path=PATH,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    response.headers["Cache-Control"] = "no-store"
    return Session(expires_at=rfc3339(ends_s * NS))


def is_good(cookie: str, key: str, now: Instant) -> bool:
    """Whether it was made with this key, and has not ended. A new key ends all of them."""
    ends_s, _, _ = cookie.partition(".")
    if not (ends_s.isascii() and ends_s.isdecimal() and len(ends_s) < 15):
        return False
    return hmac.compare_digest(cookie.encode(), _signed(key, int(ends_s)).encode()) and now < int(ends_s) * NS


def _signed(key: str, ends_s: int) -> str:
    mark = hmac.new(key.encode(), f"session of dashboards until {ends_s}".encode(), hashlib.sha256)
    return f"{ends_s}.{mark.hexdigest()}"
