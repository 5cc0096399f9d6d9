"""Errors as `application/problem+json` (RFC 9457). One table maps error classes to statuses."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from tuner.domain import errors
from tuner.domain.errors import MAX_FAULTS
from tuner.domain.text import nearest
from tuner.schemas.base import FieldProblem, Problem

STATUS: dict[type[errors.TunerError], int] = {
    errors.Invalid: 422,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.NothingAffordable: 404,
    errors.Conflict: 409,
    errors.IdempotencyConflict: 409,
    errors.TooManyWaiting: 409,
    errors.AddressNotFree: 409,
    errors.HomeInUse: 409,
    errors.Stale: 412,
    errors.BudgetRefused: 409,
    errors.BadFile: 422,
    errors.Fenced: 409,
    errors.Unavailable: 503,
    errors.TunerError: 500,
}

# The end of a problem's `type`, by status, for errors that the framework reports.
KINDS = {
    400: "bad-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    408: "body-too-slow",
    413: "body-too-large",
    414: "path-too-long",
    416: "range-not-satisfiable",
    422: "invalid",
    429: "too-many-requests",
    431: "headers-too-large",
    503: "unavailable",
}

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def status_of(kind: type[errors.TunerError]) -> int:
    return next(STATUS[base] for base in kind.__mro__ if base in STATUS)


def code_of(kind: type[errors.TunerError]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def install(app: FastAPI) -> None:
    app.add_exception_handler(errors.TunerError, _on_ours)
    app.add_exception_handler(RequestValidationError, _on_shape)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_unexpected_error)


def _on_ours(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, errors.TunerError)
    faults = error.faults if isinstance(error, errors.Invalid) else ()
    detail = error.detail
    fields = [FieldProblem(pointer=fault.pointer, detail=fault.detail) for fault in faults[:MAX_FAULTS]]
    if len(faults) > MAX_FAULTS:
        fields.append(_unlisted(len(faults) - MAX_FAULTS))
        detail = joined(fields)
    kind = type(error)
    return answer(status_of(kind), error.title(), detail, kind=code_of(kind), fields=fields)


def _on_shape(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    body_field = getattr(request.scope.get("route"), "body_field", None)
    known = _pointers(body_field.field_info.annotation) if body_field is not None else ()
    fields = [_field(fault, error.body, known) for fault in faults[:MAX_FAULTS]]
    if len(faults) > MAX_FAULTS:
        fields.append(_unlisted(len(faults) - MAX_FAULTS))
    return answer(422, errors.Invalid.title(), joined(fields), kind="invalid", fields=fields)


def _unlisted(count: int) -> FieldProblem:
    return FieldProblem(pointer="", detail=f"has {count} more faults, which are not listed")


def joined(fields: Iterable[FieldProblem]) -> str:
    """Return the faults as one text, for the `detail` of a problem document."""
    return "; ".join(f"{field.pointer or 'body'}: {field.detail}" for field in fields)


def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    title = {
        404: "This path does not exist",
        405: "This method is not allowed here",
        408: "The body arrived too slowly",
        413: "The body is too large",
        416: "The range of bytes does not exist",
        422: "The request is not valid",
        429: "Too many requests",
        503: "Too busy",
    }
    detail, fields, headers = str(error.detail), list[FieldProblem](), dict(error.headers or {})
    if error.status_code == 422:
        fields = [FieldProblem(pointer="", detail=detail)]
    elif error.status_code == 404:
        detail = "no route has this path; /docs lists all paths"
    elif error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
        detail = f"{request.method} is not allowed for this path; the allowed methods are: {headers['Allow']}"
    response = answer(
        error.status_code,
        title.get(error.status_code, "The request was refused"),
        detail,
        kind="no-such-path" if error.status_code == 404 else None,
        fields=fields,
    )
    response.headers.update(headers)
    return response


def _allowed(request: Request) -> list[str]:
    """Return the methods that routes accept for the path of the request. Starlette itself names only those of the first such route.

    HEAD is accepted if GET is, because `tuner.api.app.HeadLikeGet` answers it.
    """
    return [
        method
        for method in METHODS
        if any(
            route.matches({**request.scope, "method": "GET" if method == "HEAD" else method})[0] is Match.FULL
            for route in request.app.routes
        )
    ]


def _on_unexpected_error(_request: Request, _error: Exception) -> JSONResponse:
    """Return a 500 without details. The traceback is in the server's log."""
    return answer(
        500,
        "Something went wrong",
        "an internal error of the service; see the service's log",
        kind="internal",
    )


def answer(
    status: int, title: str, detail: str, *, kind: str | None = None, fields: Sequence[FieldProblem] = ()
) -> JSONResponse:
    """Return a problem document.

    Programs identify the error by the document's `code`, which is `kind`. If `kind` is None, the kind of the status in `KINDS` is used.
    """
    code = kind or KINDS.get(status, f"http-{status}")
    problem = Problem(
        type=f"urn:tuner:problem:{code}",
        code=code,
        title=title,
        status=status,
        detail=detail,
        errors=list(fields),
    )
    headers = {503: {"Retry-After": "2"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status)
    return JSONResponse(
        problem.model_dump(), status_code=status, media_type="application/problem+json", headers=headers
    )


@cache
def _pointers(annotation: Any) -> tuple[str, ...]:
    """Return JSON pointers to all fields of a request model and of the models in its fields."""
    return tuple(_walk(annotation, ""))


def _walk(annotation: Any, parent: str) -> Iterator[str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            pointer = f"{parent}/{field.alias or name}"
            yield pointer
            yield from _walk(field.annotation, pointer)
    elif type(None) in get_args(annotation):  # an optional model
        for inner in get_args(annotation):
            yield from _walk(inner, parent)


def _unknown(pointer: str, known: Iterable[str]) -> str:
    """Return the detail of an error about an unknown field. It suggests a similar name in the same object, or a place where this name is known."""
    parent, _, name = pointer[:200].rpartition("/")
    siblings = [other.rpartition("/")[2] for other in known if other.rpartition("/")[0] == parent]
    places = [other for other in known if other.rpartition("/")[2] == name]
    if near := nearest(name, siblings, 1):
        return f"is unknown; did you mean {near[0]}?"
    if places:
        return f"is unknown here; did you mean {places[0]}?"
    return "is unknown; remove it"


def _field(fault: dict[str, Any], body: Any, known: Iterable[str]) -> FieldProblem:
    where, *rest = fault["loc"]
    if fault["type"] == "json_invalid":
        return FieldProblem(pointer="", detail=f"is not valid JSON: {fault['ctx']['error']}")
    detail = _fix(fault)
    if where != "body":
        return FieldProblem(pointer=str(rest[-1]) if rest else str(where), detail=detail)
    if isinstance(body, bytes):  # the framework decodes a body only if the header says that it is JSON
        detail = "is not read as JSON: send the header Content-Type: application/json"
        return FieldProblem(pointer="", detail=detail)
    pointer = pointer_to(rest, body, missing=fault["type"] == "missing")
    if fault["type"] == "extra_forbidden":
        detail = _unknown(pointer, known)
    return FieldProblem(pointer=pointer, detail=detail)


def pointer_to(path: Iterable[Any], body: Any, *, missing: bool) -> str:
    """Return a JSON pointer to the part of the request `body` that pydantic reports as `path`.

    Pydantic's names of union alternatives are left out, because the body does not contain them. If `missing` is true, the last part of `path` is
    kept although the body does not contain it.
    """
    tokens, parts = [], list(path)
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if (isinstance(body, dict) and part in body) or (
            isinstance(body, list) and isinstance(part, int) and part < len(body)
        ):
            body = body[part]
        elif not (last and missing):
            continue
        tokens.append(str(part).replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{token}" for token in tokens)


NUMBER = re.compile(r"\s*[-+]?\d*\.?\d+(e[-+]?\d+)?\s*", re.IGNORECASE)
# What to send instead, by pydantic's type of the error.
FIXES = {
    "missing": "is required",
    "union_tag_not_found": "the type is missing or unknown: give float, int or categorical",
    "union_tag_invalid": "the type is missing or unknown: give float, int or categorical",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": 'must be an object, such as {"name": "value"}',
    "model_type": 'must be an object, such as {"name": "value"}',
    "model_attributes_type": 'must be an object, such as {"name": "value"}',
}


def _fix(fault: dict[str, Any]) -> str:
    kind, given = fault["type"], fault.get("input")
    if kind in ("int_type", "float_type") and isinstance(given, str) and NUMBER.fullmatch(given):
        return f"{FIXES[kind]} without quotes"
    if kind == "string_type" and isinstance(given, int | float):
        return f"{FIXES[kind]} in quotes"
    if kind in FIXES:
        return FIXES[kind]
    match kind:
        case "too_long":
            return f"has too many entries; give at most {fault['ctx']['max_length']}"
        case "too_short":
            count = fault["ctx"]["min_length"]
            return f"must have at least {count} item{'' if count == 1 else 's'}"
        case "value_error":
            return str(fault["ctx"]["error"])
        case _:
            message = str(fault["msg"]).replace("Input should be", "must be", 1)
            return message[0].lower() + message[1:]
