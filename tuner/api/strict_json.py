"""Refuse a query with unknown or repeated parameters, and a JSON body in which a name occurs twice."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.types import Scope

from tuner.domain.errors import Fault, Invalid
from tuner.domain.space import pointer_token
from tuner.domain.text import nearest


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


TWICE = "occurs twice: two parsers could read two different values; send it once"
# The largest accepted job has a few hundred names. The service makes a fault for each unknown name on
# the event loop, so a body with very many names would block other requests.
MAX_NAMES = 10_000
# The entries of all lists of a body. A list of empty lists has a fault for each entry, too. Fifty parameters with the most choices and
# conditions fit.
MAX_ENTRIES = 100_000
# By route id, the query parameters and whether each of them is a list, which may be given several times.
_known: dict[str, dict[str, bool]] = {}


class _Object(dict[str, Any]):
    """A JSON object. `twice` contains the names that it has more than once."""

    twice: frozenset[str] = frozenset()


async def unambiguous(request: Request) -> None:
    """Refuse a query with an unknown or repeated parameter, and a body that is too complex or has a name twice in one object.

    A body is too complex if it has too many names or list entries.

    A proxy or an audit log may read the first value of a repeated name and the service the last one. Text that is not JSON passes this
    check; the routes refuse it. If the route reads no JSON, as for an uploaded package, the body is not read.

    Raises:
        Invalid: The request is refused. Faults name the parameters, or the repeated names.
    """
    check_query(request)
    if request.scope["route"].body_field is None:
        return
    faults = [Fault(pointer, TWICE) for pointer in repeated(await request.body())]
    if faults:
        raise Invalid(*faults)


def check_query(request: Request) -> None:
    """Raise Invalid if the query has parameters that the route does not declare, or the same parameter twice.

    A fault about an unknown parameter suggests a similar name or lists the known ones. Without this check, `best?max_cost=5` would return
    the best configuration at any cost, and of `jobs?tag=a:1&tag=b:2` only the last filter would count.
    """
    if not request.scope["query_string"]:
        return
    route: APIRoute = request.scope["route"]
    known = _known.get(route.unique_id)
    if known is None:
        known = _known[route.unique_id] = dict(_parameters(route.dependant))
    counts = Counter(name for name, _ in request.query_params.multi_items())
    unknown = [name for name in counts if name not in known]
    if unknown:
        raise Invalid(*(Fault(name[:100], _unknown(name, known)) for name in unknown[:10]))
    twice = [name for name, times in counts.items() if times > 1 and not known[name]]
    if twice:
        raise Invalid(*(Fault(name, TWICE) for name in twice))


def _parameters(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Yield the name of each query parameter, and whether it is a list."""
    for field in dependant.query_params:
        annotation = field.field_info.annotation
        options = (annotation, *get_args(annotation))  # the annotation may be `list[str] | None`
        yield field.alias, any(get_origin(option) is list for option in options)
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _unknown(name: str, known: Collection[str]) -> str:
    near = nearest(name, known, 1, cutoff=0.7)  # the default finds `state` for `after`
    if near:
        return f"is not a parameter of this path; did you mean {near[0]}?"
    return f"is not a parameter of this path; the parameters are {', '.join(sorted(known)) or 'none'}"


def repeated(text: bytes) -> list[str]:
    """Return JSON pointers to the names that occur more than once in an object, or [] if the text is not JSON.

    Raise Invalid if the text has more than MAX_NAMES names or MAX_ENTRIES list entries in total.
    """
    count, is_repeated = 0, False

    def read(pairs: list[tuple[str, Any]]) -> _Object:
        nonlocal count, is_repeated
        count += len(pairs)
        if count > MAX_NAMES:
            raise Invalid(Fault("", f"has more than {MAX_NAMES} fields in total; send fewer"))
        made = _Object(pairs)
        if len(made) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            made.twice = frozenset(name for name, times in counts.items() if times > 1)
            is_repeated = True
        return made

    try:
        whole = json.loads(text, object_pairs_hook=read)
    except (ValueError, RecursionError):
        return []
    _check_entries(whole)
    return sorted(_pointers(whole)) if is_repeated else []


def _check_entries(whole: Any) -> None:
    count, left = 0, [whole] if isinstance(whole, list | dict) else []
    while left:
        value = left.pop()
        if isinstance(value, list):
            count += len(value)
            if count > MAX_ENTRIES:
                raise Invalid(Fault("", f"has more than {MAX_ENTRIES} list entries in total; send fewer"))
        inner = value.values() if isinstance(value, dict) else value
        left += [child for child in inner if isinstance(child, list | dict)]


def _pointers(whole: Any) -> Iterator[str]:
    left = [("", whole)]
    while left:
        at, value = left.pop()
        inner: Any = ()
        if isinstance(value, _Object):
            yield from (f"{at}/{pointer_token(name)}" for name in value.twice)
            inner = value.items()
        elif isinstance(value, list):
            inner = enumerate(value)
        left += [(f"{at}/{pointer_token(str(name))}", child) for name, child in inner]
