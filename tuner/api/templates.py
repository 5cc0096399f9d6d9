"""Templates of routes, such as `/v1/jobs/{job}`."""

from starlette.types import Scope


def template_of(scope: Scope) -> str:
    """Return the full template of the matched route, or "none" if no route matched.

    The requested path itself is never returned, so clients cannot create new metric labels by requesting arbitrary paths.
    """
    path: str = getattr(scope.get("route"), "path", "none")
    return (
        f"/v1{path}"
        if scope["path"].startswith("/v1/") and path.startswith("/") and not path.startswith("/v1")
        else path
    )
