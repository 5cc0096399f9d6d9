"""The routes for spend by group and for the monthly report."""

import csv
import io
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from tuner.api.deps import Svc
from tuner.api.response_cache import AnswerCache, as_json
from tuner.api.serialize_jobs import usd_of
from tuner.domain.cost import KINDS
from tuner.domain.money import plain
from tuner.domain.time import HOUR_NS, rfc3339
from tuner.schemas import budgets as show
from tuner.schemas import finops as finops_models
from tuner.service.cluster_meter import ClusterCost
from tuner.service.finops import monthly_report
from tuner.service.spend import SpendRow, SpendView, spend_of

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
        is_operator = service.actor.is_operator
        key = (service.project, is_operator, "spend", tuple(groups), since, until, timezone)
        shared: AnswerCache[bytes] = request.app.state.responses
        return as_json(shared.get(key, object(), lambda: _shown(view()).model_dump_json().encode()))
    table = io.StringIO()
    csv.writer(table).writerows(_table(view()))
    return Response(table.getvalue(), media_type="text/csv; charset=utf-8")


@router.get("/report", response_model=finops_models.MonthlyReport)
def get_monthly_report(
    request: Request, service: Svc, month: str | None = None, timezone: str = "UTC"
) -> Response:
    """Return the spend of the project in a calendar month, its efficiency, and possible savings.

    `month` has the form `2026-11`; without it, the current month is reported. The answer may be some seconds old.
    """

    def text() -> bytes:
        report = monthly_report(service, month, timezone)
        kinds = [
            finops_models.KindCost.model_validate({"kind": kind, "usd": cost, "gpu_hours": cost})
            for kind in KINDS
            if (cost := report.by_kind.get(kind)) is not None
        ]
        view = {name: getattr(report, name) for name in _REPORTED} | {"by_kind": kinds}
        return finops_models.MonthlyReport.model_validate(view).model_dump_json().encode()

    key = (service.project, service.actor.is_operator, "report", month, timezone)
    shared: AnswerCache[bytes] = request.app.state.responses
    return as_json(shared.get(key, object(), text))


# The fields of the answer that the view has under the same name.
_REPORTED = (
    "project", "month", "timezone", "since", "until", "is_complete", "total", "goodput", "spot_share", "ended", "cluster_usd",
    "idle_usd", "examined_jobs", "savings", "right_sizing", "maturity",
)  # fmt: skip


def _shown(view: SpendView) -> show.SpendAnswer:
    return show.SpendAnswer(
        group_by=list(view.group_by),
        since=None if view.period.since is None else rfc3339(view.period.since),
        until=None if view.period.until is None else rfc3339(view.period.until),
        timezone=view.period.timezone,
        items=[_group(view, row) for row in view.rows],
        total=show.SpendFigures.model_validate(view.total),
        cluster_idle_usd=None if view.cluster is None else usd_of(view.cluster.idle),
        cluster=None if view.cluster is None else _cluster(view.cluster),
    )


def _group(view: SpendView, row: SpendRow) -> show.SpendGroup:
    figures = show.SpendFigures.model_validate(row)
    return show.SpendGroup(keys=dict(zip(view.group_by, row.keys, strict=True)), **figures.model_dump())


def _cluster(cost: ClusterCost) -> show.ClusterCost:
    return show.ClusterCost(
        known_since=rfc3339(cost.since),
        unseen_hours=_hours(cost.unseen_ns),
        unpriced_node_hours=_hours(cost.unpriced_ns),
        usd=usd_of(cost.cost),
        kinds=[
            show.MachineCost(
                instance_type=machines.kind[0],
                market=machines.kind[1],
                node_hours=_hours(machines.alive_ns),
                idle_hours=_hours(machines.idle_ns),
                usd=machines.cost.usd,
                idle_usd=machines.idle.usd,
            )
            for machines in cost.kinds
        ],
    )


def _hours(ns: int) -> float:
    return round(ns / HOUR_NS, 6)


def _table(view: SpendView) -> list[list[str]]:
    """Return the header and the rows of a CSV file. Tags are escaped, so that a spreadsheet does not run them as formulas."""
    lines = [[*view.group_by, *show.SpendFigures.model_fields]]
    for row in view.rows:
        figures = show.SpendFigures.model_validate(row).model_dump().values()
        # Some programs that read CSV do not understand exponents.
        numbers = ["" if figure is None else plain(figure) for figure in figures]
        lines.append([*(_escaped(key or "") for key in row.keys), *numbers])
    return lines


def _escaped(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
