"""Templates of routes, such as `/v1/jobs/{job}`."""

from starlette.types import Scope


def template_of(scope: Scope) -> str:
    """Of the route that was found, from the root; "none" where there is no such path, so that nobody can make templates at will."""
    path: str = getattr(scope.get("route"), "path", "none")
    return (
        f"/v1{path}"
        if scope["path"].startswith("/v1/") and path.startswith("/") and not path.startswith("/v1")
        else path
    )
