"""Routes for the keys of users in the project."""

from fastapi import APIRouter, Response

from tuner.api import serialize
from tuner.api.deps import Limit, Svc, cursor_of, read_cursor
from tuner.domain.errors import Invalid
from tuner.domain.time import parse_duration_ns
from tuner.schemas import access as wire
from tuner.service import access

router = APIRouter(prefix="/keys", tags=["access"])


@router.get("")
def list_keys(service: Svc, limit: Limit = 50, cursor: str | None = None) -> wire.KeyPage:
    """List keys, newest first. Admins see all keys of the project, other users their own. No answer contains a whole key."""
    place = read_cursor(cursor, int, str)
    found = access.keys(service, before=None if place is None else (place[0], place[1]), limit=limit + 1)
    last = found[limit - 1].row if len(found) > limit else None
    return wire.KeyPage(
        items=[serialize.key_of(view) for view in found[:limit]],
        next_cursor=None if last is None else cursor_of(last.created_at, last.id),
    )


@router.post("", status_code=201)
def create_key(body: wire.KeyRequest, response: Response, service: Svc) -> wire.Key:
    """Create a key for a member of the project. It gives the member's role. Only this answer contains the whole key; it cannot be shown
    again.
    """
    view = access.make(service, body.user, body.name, _duration_ns("/expires_in", body.expires_in))
    return _once(view, response)


@router.post("/{key}/rotate", status_code=201)
def rotate_key(
    key: str, response: Response, service: Svc, body: wire.RotateRequest | None = None
) -> wire.Key:
    """Replace a key with a new one. Only this answer contains the whole new key. The old key stays valid for `overlap`. All users may
    rotate their own keys.
    """
    asked = body or wire.RotateRequest()
    return _once(access.rotate(service, key, _duration_ns("/overlap", asked.overlap)), response)


@router.delete("/{key}", status_code=204)
def delete_key(key: str, service: Svc) -> None:
    """Revoke a key. The next request with it is refused. All users may revoke their own keys."""
    access.revoke(service, key)


def _once(view: access.KeyView, response: Response) -> wire.Key:
    response.headers["Cache-Control"] = "no-store"
    return serialize.key_of(view)


def _duration_ns(pointer: str, text: str) -> int:
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise Invalid.at(pointer, str(error)) from error
