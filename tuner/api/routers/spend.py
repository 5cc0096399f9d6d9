"""The route for spend by group."""

import csv
import io
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from tuner.api import serialize
from tuner.api.deps import Svc
from tuner.api.response_cache import Shared, as_json
from tuner.schemas import budgets as show
from tuner.service.spend import SpendView, spend_of

router = APIRouter(tags=["spend"])
BY_DEFAULT = ["tag:project"]


@router.get("/spend", response_model=show.SpendAnswer, responses={200: {"content": {"text/csv": {}}}})
def get_spend(
    request: Request,
    service: Svc,
    group_by: Annotated[list[str] | None, Query()] = None,
    since: str | None = None,
    until: str | None = None,
    timezone: str = "UTC",
    accept: Annotated[str, Header()] = "",
) -> Response:
    """Return spend grouped by `tag:KEY`, `owner`, `trainable`, `market`, `day` or `job`, or by several of them.

    `since` and `until` are dates in `timezone`, or times. The answer may be up to two seconds old. `Accept: text/csv` returns a table.
    """
    groups = BY_DEFAULT if group_by is None else group_by

    def view() -> SpendView:
        return spend_of(service, groups, since=since, until=until, timezone=timezone)

    if "text/csv" not in accept:
        key = (
            service.database,
            service.project,
            service.actor.is_operator,
            "spend",
            tuple(groups),
            since,
            until,
            timezone,
        )
        shared: Shared[bytes] = request.app.state.responses
        return as_json(
            shared.get(key, object(), lambda: serialize.spend_of(view()).model_dump_json().encode())
        )
    table = io.StringIO()
    csv.writer(table).writerows(serialize.spend_table(view()))
    return Response(table.getvalue(), media_type="text/csv; charset=utf-8")
