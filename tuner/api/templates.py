"""Templates of routes, such as `/v1/jobs/{job}`."""

from starlette.types import Scope


def template_of(scope: Scope) -> str:
    """Return the full template of the matched route, or "none" if no route matched, so that clients cannot create templates at will."""
    path: str = getattr(scope.get("route"), "path", "none")
    return (
        f"/v1{path}"
        if scope["path"].startswith("/v1/") and path.startswith("/") and not path.startswith("/v1")
        else path
    )
