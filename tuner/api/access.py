"""Access rules: the least role for each route. Requests to a route without a rule are refused."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.security import HTTPBearer

from tuner.api.auth import actor_of
from tuner.api.strict_json import template_of
from tuner.domain.access import Role
from tuner.domain.errors import Forbidden

RULES: Mapping[tuple[str, str], Role] = {
    ("GET", "/v1/whoami"): "viewer",
    ("POST", "/v1/session"): "viewer",
    ("GET", "/v1/jobs"): "viewer",
    ("POST", "/v1/jobs"): "submitter",
    ("GET", "/v1/jobs/{job}"): "viewer",
    ("PATCH", "/v1/jobs/{job}"): "submitter",
    ("POST", "/v1/jobs/{job}/pause"): "submitter",
    ("POST", "/v1/jobs/{job}/resume"): "submitter",
    ("POST", "/v1/jobs/{job}/cancel"): "submitter",
    ("GET", "/v1/jobs/{job}/trials"): "viewer",
    ("GET", "/v1/jobs/{job}/trials/{trial}"): "viewer",
    ("GET", "/v1/jobs/{job}/trials/{trial}/logs"): "viewer",
    ("GET", "/v1/jobs/{job}/trials/{trial}/checkpoint"): "viewer",
    ("GET", "/v1/jobs/{job}/curves"): "viewer",
    ("GET", "/v1/jobs/{job}/events"): "viewer",
    ("GET", "/v1/jobs/{job}/bill"): "viewer",
    ("GET", "/v1/jobs/{job}/ledger"): "viewer",
    ("GET", "/v1/jobs/{job}/report"): "viewer",
    ("GET", "/v1/jobs/{job}/advice"): "viewer",
    ("GET", "/v1/jobs/{job}/replay"): "viewer",
    ("GET", "/v1/jobs/{job}/best"): "viewer",
    ("GET", "/v1/jobs/{job}/pareto"): "viewer",
    ("GET", "/v1/best"): "viewer",
    ("GET", "/v1/trainables"): "viewer",
    ("GET", "/v1/trainables/{trainable}"): "submitter",
    ("GET", "/v1/prices"): "viewer",
    ("POST", "/v1/estimates"): "submitter",
    ("POST", "/v1/plans"): "submitter",
    ("POST", "/v1/pilots"): "submitter",
    ("GET", "/v1/spend"): "viewer",
    ("GET", "/v1/budgets"): "viewer",
    ("GET", "/v1/budgets/{name}"): "viewer",
    ("PUT", "/v1/budgets/{name}"): "admin",
    ("DELETE", "/v1/budgets/{name}"): "admin",
    ("GET", "/v1/packages"): "viewer",
    ("POST", "/v1/packages"): "submitter",
    ("GET", "/v1/packages/{package}"): "viewer",
    ("GET", "/v1/quota"): "viewer",
    ("PUT", "/v1/quota"): "operator",
    ("GET", "/v1/members"): "admin",
    ("PUT", "/v1/members/{user}"): "admin",
    ("DELETE", "/v1/members/{user}"): "admin",
    ("GET", "/v1/keys"): "viewer",
    ("POST", "/v1/keys"): "admin",
    ("POST", "/v1/keys/{key}/rotate"): "viewer",
    ("DELETE", "/v1/keys/{key}"): "viewer",
    ("GET", "/v1/projects"): "viewer",
    ("POST", "/v1/projects"): "operator",
    ("GET", "/v1/projects/{project}"): "viewer",
    ("GET", "/v1/audit"): "admin",
    ("GET", "/v1/users"): "operator",
    ("PATCH", "/v1/users/{user}"): "operator",
}
"""The lowest role that may call each route, by method and route template.

With any role, a caller has access only to the jobs, budgets, members and keys of one project."""
OPEN = ("/healthz", "/readyz", "/metrics")
"""Paths of the OpenAPI document that need no role. See `tuner.api.routers.health`."""

_scheme = HTTPBearer(
    auto_error=False,
    description="a user's key, which begins with tnr_, or the service's own, in $TUNER_HOME/api_key",
)


async def allow(request: Request) -> None:
    """Authenticate the caller, check the role that the route needs, and store the actor in `request.state`.

    One dependency does all of this, because FastAPI needs more time to resolve a nested dependency than each of these steps takes.

    Raises:
        Unauthorized: The key is missing or wrong.
        Forbidden: The actor's role is too low, or the route has no rule.
        NotFound: The request names a project in which the user is not a member.
    """
    given = await _scheme(request)
    actor = await actor_of(request, None if given is None else given.credentials)
    role = RULES.get((request.method, template_of(request.scope)))
    if role is None:
        raise Forbidden("no access rule is defined for this route")
    actor.need(role)
    request.state.actor = replace(actor, request=request.state.request_id)


def describe(app: FastAPI) -> None:
    """State in each operation of the OpenAPI document that it needs a key, and the lowest role that may call it."""
    plain = app.openapi

    def build_document() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            scheme = _scheme.model.model_dump(mode="json", by_alias=True, exclude_none=True)
            document["components"]["securitySchemes"] = {_scheme.scheme_name: scheme}
            for (method, path), operation in _operations(document):
                role = RULES.get((method, path))
                if role is not None:
                    said = operation.get("description") or f"{operation['summary']}."
                    operation["x-tuner-role"] = role
                    operation["security"] = [{_scheme.scheme_name: []}]
                    operation["description"] = f"{said.rstrip()}\n\nFor: {_WHO[role]}."
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = build_document  # type: ignore[method-assign]


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield (method.upper(), path), operation


_WHO: Mapping[Role, str] = {
    "viewer": "viewers, submitters and admins of the project, and the operator",
    "submitter": "submitters and admins of the project, and the operator",
    "admin": "admins of the project, and the operator",
    "operator": "the operator, who has the service's own key",
}
