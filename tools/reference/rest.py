"""Describe every REST call with its parameters, body and answers, from the service's OpenAPI description."""

import re
import tempfile
from pathlib import Path
from typing import Any

from tools.reference.words import MADE, one_line, table
from tuner.api.app import create_app
from tuner.service.bootstrap import build
from tuner.settings import Settings

HEAD = f"""# REST
{MADE}

Every call under `/v1` needs the header `Authorization: Bearer KEY`. Errors have the form `application/problem+json`. Any call may be answered with
400, 401, 404, 408, 409, 413, 414, 422, 429, 431 or 503 ([what they mean](../api.md#errors)). The service has the same description at `/docs`, where
you can try each call, and at `/openapi.json`, for programs.
"""
USUAL = {"400", "401", "404", "408", "409", "413", "414", "422", "429", "431", "503"}  # described once, above
VERBS = ("get", "post", "put", "patch", "delete")


def page() -> str:
    openapi = description()
    calls = [
        (verb, path, openapi["paths"][path][verb])
        for path in sorted(openapi["paths"])
        for verb in VERBS
        if verb in openapi["paths"][path]
    ]
    shapes = openapi["components"]["schemas"]
    contents = [[_link(verb, path), _first(call)] for verb, path, call in calls]
    parts = [HEAD, table(["call", ""], contents), "", *(_call(*call) for call in calls), "## Shapes\n"]
    parts += [_shape(name, shapes[name]) for name in sorted(shapes) if shapes[name].get("properties")]
    return "\n".join(parts)


def description() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        service = build(Settings.from_env({"TUNER_HOME": home, "TUNER_API_KEY": "none"}))
        try:
            openapi: dict[str, Any] = create_app(service, page_files=Path(home)).openapi()
        finally:
            service.database.dispose()
    return openapi


def _first(call: dict[str, Any]) -> str:
    """Return the first sentence of the call's description, or of its summary."""
    text = one_line(call.get("description") or call.get("summary", ""))
    return re.split(r"(?<=[.;:]) ", text)[0].rstrip(".;:") + "."


def _link(verb: str, path: str) -> str:
    anchor = "".join(c for c in f"{verb} {path}".lower() if c.isalnum() or c in " -_").replace(" ", "-")
    return f"[`{verb.upper()} {path}`](#{anchor})"


def _call(verb: str, path: str, call: dict[str, Any]) -> str:
    parts = [f"## {verb.upper()} {path}\n"]
    if call.get("description"):
        parts.append(one_line(call["description"]) + "\n")
    rows = [
        [
            f"`{parameter['name']}`",
            parameter["in"],
            _type(parameter["schema"]).removesuffix(" or null"),
            _default(parameter),
        ]
        for parameter in call.get("parameters", [])
        if parameter["name"].lower() != "authorization"
    ]
    if rows:
        parts.append(table(["parameter", "in", "type", "default"], rows) + "\n")
    if "requestBody" in call:
        parts.append(f"Body: {_content(call['requestBody'])}.\n")
    answers = [
        f"{status} {_content(answer)}".rstrip()
        for status, answer in call["responses"].items()
        if status not in USUAL
    ]
    parts.append(f"Answers: {'; '.join(answers)}.\n")
    return "\n".join(parts)


def _default(parameter: dict[str, Any]) -> str:
    if parameter.get("required"):
        return "required"
    value = parameter["schema"].get("default")
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value not in (None, "") else ""


def _content(body: dict[str, Any]) -> str:
    kinds = [
        _type(media.get("schema", {})) if kind == "application/json" else f"`{kind}`"
        for kind, media in body.get("content", {}).items()
    ]
    return ", ".join(kind for kind in kinds if kind)


def _type(schema: dict[str, Any]) -> str:
    """Return a short form of the type. A shape becomes a link."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    for of in ("anyOf", "oneOf", "allOf"):
        if of in schema:
            return " or ".join(dict.fromkeys(_type(alternative) for alternative in schema[of]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"name → {_type(schema['additionalProperties'])}"
    kind: str = schema.get("type", "any")
    return {"object": "mapping", "string": "text"}.get(kind, kind)


def _shape(name: str, shape: dict[str, Any]) -> str:
    needed = set(shape.get("required", []))
    rows = [
        [f"`{key}`{'' if key in needed else ' (optional)'}", _type(field_schema)]
        for key, field_schema in shape["properties"].items()
    ]
    parts = [f"### {name}\n"]
    if shape.get("description"):
        parts.append(one_line(shape["description"]) + "\n")
    return "\n".join([*parts, table(["field", "type"], rows) + "\n"])
