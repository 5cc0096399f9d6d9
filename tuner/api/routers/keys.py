"""Routes for the keys of users in the project."""

from fastapi import APIRouter, Response

from tuner.api.deps import Limit, Svc, page_of, read_cursor
from tuner.domain.errors import Invalid
from tuner.domain.time import parse_duration_ns, rfc3339
from tuner.schemas import access as wire
from tuner.service import access

router = APIRouter(prefix="/keys", tags=["access"])


@router.get("")
def list_keys(service: Svc, limit: Limit = 50, cursor: str | None = None) -> wire.KeyPage:
    """List keys, newest first. Admins see all keys of the project, other users their own. No answer contains a whole key."""
    place = read_cursor(cursor, int, str)
    views = access.keys(service, before=None if place is None else (place[0], place[1]), limit=limit + 1)
    page = page_of(views, limit, lambda view: (view.row.created_at, view.row.id))
    return wire.KeyPage(items=[_key(view) for view in page["items"]], next_cursor=page["next_cursor"])


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
    overlap_ns = _duration_ns("/overlap", (body or wire.RotateRequest()).overlap)
    return _once(access.rotate(service, key, overlap_ns), response)


@router.delete("/{key}", status_code=204)
def delete_key(key: str, service: Svc) -> None:
    """Revoke a key. The next request with it is refused. All users may revoke their own keys."""
    access.revoke(service, key)


def _once(view: access.KeyView, response: Response) -> wire.Key:
    response.headers["Cache-Control"] = "no-store"
    return _key(view)


def _key(view: access.KeyView) -> wire.Key:
    row = view.row
    return wire.Key(
        id=row.id,
        user=row.user,
        name=row.name,
        state=view.state,
        created_at=rfc3339(row.created_at),
        expires_at=rfc3339(row.expires_at),
        revoked_at=None if row.revoked_at is None else rfc3339(row.revoked_at),
        replaced_by=row.replaced_by,
        secret=view.secret,
    )


def _duration_ns(pointer: str, text: str) -> int:
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise Invalid.at(pointer, str(error)) from error
