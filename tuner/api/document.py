"""The OpenAPI document.

FastAPI generates the document. This module adds the schema of error answers, the key and the lowest role that each operation requires, and links
from answers to the requests that can follow them.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from tuner.api.access import RULES, SCHEME
from tuner.domain.access import Role
from tuner.schemas.base import Problem

PROBLEM = "application/problem+json"
DETAIL = {"$ref": "#/components/schemas/Problem"}
SAYS = {
    400: "The body cannot be decoded",
    401: "The key is missing or wrong",
    403: "The role of the key does not allow this request",
    404: "The object does not exist",
    408: "The body arrives too slowly",
    409: "The request conflicts with the present state",
    412: "The object has changed since the revision in `If-Match`",
    413: "The body is too large",
    414: "The path and query are too long",
    422: "The request is not valid",
    429: "Too many requests; `Retry-After` has the seconds to wait",
    431: "The headers are too large",
    503: "The service is too busy, or something that it needs does not answer; try again",
}
CALLERS: Mapping[Role, str] = {
    "viewer": "viewers, submitters and admins of the project, and the operator",
    "submitter": "submitters and admins of the project, and the operator",
    "admin": "admins of the project, and the operator",
    "operator": "the operator, who has the service's own key",
}
JOB = {"job": "$response.body#/id"}
BUDGET = {"name": "$response.body#/name"}
KEY, USER = {"key": "$response.body#/id"}, {"user": "$response.body#/user"}
# OpenAPI links, by the method, path and status of the answer that has them. Each value maps a path parameter of later operations to the
# expression that finds the parameter's value in the request or the answer.
LEADS: Mapping[tuple[str, str, str], Mapping[str, str]] = {
    ("post", "/v1/jobs", "201"): JOB,
    ("post", "/v1/pilots", "201"): JOB,
    ("put", "/v1/budgets/{name}", "201"): BUDGET,
    ("put", "/v1/members/{user}", "201"): USER,
    ("post", "/v1/keys", "201"): KEY,
    ("post", "/v1/keys/{key}/rotate", "201"): KEY,
    ("post", "/v1/projects", "201"): {"project": "$response.body#/name"},
    ("get", "/v1/jobs", "200"): {"job": "$response.body#/items/0/id"},
    ("get", "/v1/jobs/{job}/trials", "200"): {
        "job": "$request.path.job",
        "trial": "$response.body#/items/0/id",
    },
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the error answers with these statuses, for the argument `responses` of a FastAPI route.

    `install` later adds the schema of the error documents.
    """
    return {status: {"description": SAYS[status], "content": {PROBLEM: {}}} for status in statuses}


def install(app: FastAPI) -> None:
    build = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(build())
        return build()

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any]) -> None:
    components = document["components"]
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    field_problem = problem.pop("$defs")
    components["schemas"].update({"Problem": problem, **field_problem})
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    scheme = SCHEME.model.model_dump(mode="json", by_alias=True, exclude_none=True)
    components["securitySchemes"] = {SCHEME.scheme_name: scheme}
    calls = [(verb, path, call) for path, verbs in document["paths"].items() for verb, call in verbs.items()]
    for verb, path, call in calls:
        for status, answer in call["responses"].items():
            if PROBLEM in answer.get("content", {}):
                answer["content"] = {PROBLEM: {"schema": DETAIL}}
            given = LEADS.get((verb, path, status))
            if given is not None:
                answer["links"] = _links(given, calls)
        role = RULES.get((verb.upper(), path))
        if role is not None:
            description = call.get("description") or f"{call['summary']}."
            call["x-tuner-role"] = role
            call["security"] = [{SCHEME.scheme_name: []}]
            call["description"] = f"{description.rstrip()}\n\nFor: {CALLERS[role]}."


def _links(given: Mapping[str, str], calls: list[tuple[str, str, dict[str, Any]]]) -> dict[str, Any]:
    """Return OpenAPI links to all operations in `calls` whose path parameters are exactly the keys of `given`.

    The values of `given` say where an answer contains these parameters. `calls` has the method, path and description of each operation.
    """
    links = {}
    for _verb, _path, call in calls:
        names = {parameter["name"] for parameter in call.get("parameters", ()) if parameter["in"] == "path"}
        if names == set(given):
            links[call["operationId"]] = {"operationId": call["operationId"], "parameters": dict(given)}
    return links
