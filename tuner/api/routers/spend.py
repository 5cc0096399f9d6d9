"""Who spent what."""

import csv
import io
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from tuner.api import present_spend
from tuner.api.deps import Svc
from tuner.schemas import spend as show
from tuner.service.spend import spend_of

router = APIRouter(tags=["spend"])
BY_DEFAULT = ["tag:project"]


@router.get("/spend", response_model=show.SpendAnswer)
def get_spend(
    service: Svc,
    group_by: Annotated[list[str] | None, Query()] = None,
    since: str | None = None,
    until: str | None = None,
    timezone: str = "UTC",
    accept: Annotated[str, Header()] = "",
) -> Response | show.SpendAnswer:
    """Spend by `tag:KEY`, `owner`, `trainable`, `market`, `day`, `job`, or several of them. `since` and `until` are dates of
    `timezone` or times. `Accept: text/csv` gives a table."""
    groups = BY_DEFAULT if group_by is None else group_by
    view = spend_of(service, groups, since=since, until=until, timezone=timezone)
    if "text/csv" not in accept:
        return present_spend.spend_of(view)
    table = io.StringIO()
    csv.writer(table).writerows(present_spend.spend_table(view))
    return Response(table.getvalue(), media_type="text/csv; charset=utf-8")
