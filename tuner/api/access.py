"""Access rules: the least role for each route. Requests to a route without a rule are refused."""

from collections.abc import Mapping
from dataclasses import replace

from fastapi import Request
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
    ("POST", "/v1/jobs/{job}/trials"): "submitter",
    ("GET", "/v1/jobs/{job}/trials/{trial}"): "viewer",
    ("POST", "/v1/jobs/{job}/trials/{trial}/stop"): "submitter",
    ("POST", "/v1/jobs/{job}/trials/{trial}/promote"): "submitter",
    ("GET", "/v1/jobs/{job}/trials/{trial}/logs"): "viewer",
    ("GET", "/v1/jobs/{job}/trials/{trial}/checkpoint"): "viewer",
    ("GET", "/v1/jobs/{job}/trials/{trial}/artifacts"): "viewer",
    ("GET", "/v1/jobs/{job}/trials/{trial}/artifacts/{artifact}"): "viewer",
    ("DELETE", "/v1/jobs/{job}/artifacts"): "submitter",
    ("GET", "/v1/storage"): "viewer",
    ("GET", "/v1/jobs/{job}/exports"): "viewer",
    ("POST", "/v1/jobs/{job}/exports"): "submitter",
    ("GET", "/v1/jobs/{job}/exports/{export}"): "viewer",
    ("GET", "/v1/jobs/{job}/exports/{export}/variants/{variant}"): "viewer",
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
    ("GET", "/v1/report"): "viewer",
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

SCHEME = HTTPBearer(
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
    given = await SCHEME(request)
    actor = await actor_of(request, None if given is None else given.credentials)
    role = RULES.get((request.method, template_of(request.scope)))
    if role is None:
        raise Forbidden("no access rule is defined for this route")
    actor.need(role)
    request.state.actor = replace(actor, request=request.state.request_id)
