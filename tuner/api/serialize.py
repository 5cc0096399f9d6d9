"""Convert the service's views to the models of `tuner.schemas`: access, advice, budgets, curves, logs, prices and spend.

Learning curves are an exception: their JSON text is written directly and not by pydantic models, so that 100,000 points
take a tenth of a second.
"""

import json
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from math import floor, log10
from typing import Any

from tuner.api.translate import Reader, gpu_ms_of
from tuner.domain.access import Actor
from tuner.domain.listing import Listing
from tuner.domain.money import MS_PER_HOUR, NS_PER_HOUR, Money, Price
from tuner.domain.objective import Mode
from tuner.domain.quota import BUDGET, Quota
from tuner.domain.shared_budget import PPM, Alert, SharedBudget
from tuner.domain.time import NS, Instant, rfc3339
from tuner.domain.usage import Usage
from tuner.schemas import access as access_models
from tuner.schemas import answers as answers_models
from tuner.schemas import budgets as budgets_models
from tuner.schemas import prices as prices_models
from tuner.schemas.answers import TrialLog
from tuner.schemas.job import Driver
from tuner.service.access import KeyRow, KeyView, MemberRow, ProjectRow, UserRow
from tuner.service.advice import AdviceView, Change, Figure, Finding, Missing
from tuner.service.answers import EMPTY, CurvesView, TrialRow
from tuner.service.catalogue import Catalogue, DataRates, PricesView
from tuner.service.cluster_meter import ClusterCost
from tuner.service.logs import LogView
from tuner.service.queue import QuotaView
from tuner.service.shared_budgets import BudgetView, Delivery, Forecast
from tuner.service.spend import SpendRow, SpendView
from tuner.service.views import Launch


def whoami_of(actor: Actor, row: KeyRow | None) -> access_models.WhoAmI:
    return access_models.WhoAmI(
        user=actor.user,
        project=actor.project,
        role=actor.role,
        key=actor.key or None,
        key_expires_at=None if row is None else rfc3339(row.expires_at),
    )


def project_of(row: ProjectRow) -> access_models.Project:
    return access_models.Project(name=row.name, created_at=rfc3339(row.created_at))


def user_of(row: UserRow) -> access_models.User:
    return access_models.User(
        name=row.name,
        created_at=rfc3339(row.created_at),
        disabled=row.disabled_at is not None,
        disabled_at=_time(row.disabled_at),
    )


def member_of(row: MemberRow, actor: Actor) -> access_models.Member:
    """Return the member. `disabled` is None unless the caller is the operator, because only the operator manages users."""
    disabled = row.disabled if actor.is_operator else None
    return access_models.Member(user=row.user, role=row.role, since=rfc3339(row.since), disabled=disabled)


def key_of(view: KeyView) -> access_models.Key:
    row = view.row
    return access_models.Key(
        id=row.id,
        user=row.user,
        name=row.name,
        state=view.state,
        created_at=rfc3339(row.created_at),
        expires_at=rfc3339(row.expires_at),
        revoked_at=_time(row.revoked_at),
        replaced_by=row.replaced_by,
        secret=view.secret,
    )


def _time(at: Instant | None) -> str | None:
    return None if at is None else rfc3339(at)


def advice_of(view: AdviceView) -> answers_models.Advice:
    return answers_models.Advice(
        job=view.job.id,
        state=view.job.state,
        spent_usd=view.spent.usd,
        measured_usd=view.measured.usd,
        findings=[_finding(one) for one in view.findings],
        not_measured=[_missing(one) for one in view.missing],
        prices=view.catalogue,
        prices_age=view.catalogue_age,
    )


def usage_of(used: Usage) -> answers_models.AttemptUsage:
    return answers_models.AttemptUsage(
        wall_seconds=_seconds(used.wall_ns),
        cpu_seconds=_seconds(used.cpu_ns),
        memory_peak_bytes=used.memory_peak_bytes,
        gpu_samples=used.gpu_samples,
        gpu_percent_sum=used.gpu_percent,
        gpu_memory_peak_bytes=used.gpu_memory_peak_bytes,
        data_wait_seconds=_seconds(used.data_wait_ns),
        compute_seconds=_seconds(used.compute_ns),
        saves=used.saves,
        saved_bytes=used.saved_bytes,
        facts=dict(used.facts),
    )


def _finding(one: Finding) -> answers_models.Finding:
    return answers_models.Finding(
        kind=one.kind,
        title=one.title,
        confidence=one.confidence,
        evidence={name: _figure(value) for name, value in one.evidence.items()},
        change=_change(one.change),
        alternatives=[_change(other) for other in one.alternatives],
        saves_usd=None if one.saves is None else one.saves.usd,
        saves_note=one.saves_note,
        verify=one.verify,
    )


def _change(one: Change) -> answers_models.Change:
    return answers_models.Change(setting=one.setting, now=one.now, then=one.then, how=one.how)


def _missing(one: Missing) -> answers_models.NotMeasured:
    return answers_models.NotMeasured(what=one.what, why=one.why, how=one.how)


def _figure(value: Figure) -> Any:
    """Return a value of a finding's evidence for JSON: money as dollars, and a fraction rounded to six decimals."""
    if isinstance(value, Money):
        return value.usd
    return round(float(value), 6) if isinstance(value, Fraction) else value


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else round(ns / NS, 6)


def budget_from(name: str, request: budgets_models.BudgetAboveRequest) -> SharedBudget:
    """Convert a request to the shared budget `name`. Raise Invalid if an amount cannot be read."""
    read = Reader()
    shares = [read.take(f"/alerts/{n}/at", _ppm, alert.at) for n, alert in enumerate(request.alerts)]
    budget = SharedBudget(
        name,
        usd=read.take("/usd", Money.from_usd, request.usd),
        gpu_ms=read.take("/gpu_hours", gpu_ms_of, request.gpu_hours),
        match=request.match,
        period=request.period,
        timezone=request.timezone,
        parent=request.parent,
        alerts=tuple(Alert(ppm or 0, a.url) for ppm, a in zip(shares, request.alerts, strict=True)),
    )
    read.check()
    return budget


def budget_of(view: BudgetView) -> budgets_models.BudgetAbove:
    budget, now = view.kept.budget, view.standing
    account = now.account
    left = account.left
    return budgets_models.BudgetAbove(
        name=budget.name,
        usd=None if budget.usd is None else budget.usd.usd,
        gpu_hours=None if budget.gpu_ms is None else _hours(budget.gpu_ms),
        match=dict(budget.match),
        period=budget.period,
        timezone=budget.timezone,
        parent=budget.parent,
        alerts=[budgets_models.AlertShown(at=alert.at_ppm / PPM, url=alert.url) for alert in budget.alerts],
        period_start=None if budget.period is None else rfc3339(now.began_at),
        period_end=_time(now.ends_at),
        spend=budgets_models.BudgetSpend(
            usd=account.posted.usd.usd,
            gpu_hours=_hours(account.posted.gpu_ms),
            held_usd=account.held.usd.usd,
            held_gpu_hours=_hours(account.held.gpu_ms),
            left_usd=None if budget.usd is None else left.usd.usd,
            left_gpu_hours=None if budget.gpu_ms is None else _hours(left.gpu_ms),
        ),
        forecast=_forecast(view.forecast),
        waiting_jobs=view.waiting,
        deliveries=[_delivery(one) for one in view.deliveries],
        webhook_secret=view.secret,
        created_at=rfc3339(view.kept.created_at),
        updated_at=rfc3339(view.kept.updated_at),
    )


def _forecast(found: Forecast) -> budgets_models.BudgetForecast:
    return budgets_models.BudgetForecast(
        usd_per_hour=found.usd_per_hour.usd,
        gpu_hours_per_hour=_hours(found.gpu_ms_per_hour),
        runs_out_at=_time(found.runs_out_at),
        earliest_at=_time(found.earliest_at),
        latest_at=_time(found.latest_at),
    )


def _delivery(one: Delivery) -> budgets_models.DeliveryShown:
    return budgets_models.DeliveryShown(
        id=one.id,
        url=one.url,
        state=one.state,
        created_at=rfc3339(one.created_at),
        tries=one.tries,
        next_try_at=rfc3339(one.next_at) if one.state == "pending" else None,
        answer=one.answer,
    )


def _ppm(share: float) -> int:
    """Return a share of a budget in parts per million. Raise ValueError if it has more than six decimals."""
    exact = Decimal(str(share)) * PPM
    if not exact.is_finite() or exact != exact.to_integral_value():
        raise ValueError("is the share of the budget, such as 0.8, with at most six decimals")
    return int(exact)


def _hours(gpu_ms: int) -> float:
    return round(gpu_ms / MS_PER_HOUR, 9)


MICRO = 1_000_000
EXACT_POINTS = 20_000  # curves with more points than this are rounded
SAMPLE = 2_000  # values from which the range of a metric is estimated
METRIC_PARTS = 1_000  # the range of most values has this many steps of rounding; a step is smaller than a pixel of a chart
USD_PARTS = 500  # the same for dollars


class Writer(dict[int, str]):
    """Rounds numbers to multiples of a step and returns them as text. The text of each multiple is cached, by the multiple."""

    def __init__(self, spread: float, parts: int) -> None:
        """Choose the largest step that is at most `spread / parts` and is 1, 2 or 5 times a power of ten."""
        super().__init__()
        power = floor(log10(spread / parts))
        digit = next(one for one in (5, 2, 1) if one == 1 or one * 10.0**power <= spread / parts)
        self._step, self._template = digit * 10.0**power, f"%.{max(0, -power)}f"

    def __missing__(self, count: int) -> str:
        text = self[count] = self._template % (count * self._step)
        return text

    def all(self, values: Sequence[float | None]) -> list[str]:
        times = 1 / self._step
        return ["null" if value is None else self[round(value * times)] for value in values]


class Exact:
    def all(self, values: Sequence[float | None]) -> list[str]:
        return ["null" if value is None else repr(value) for value in values]


def curves_json(view: CurvesView) -> bytes:
    """Return the JSON text of a `tuner.schemas.answers.Curves`."""
    rounded = view.points > EXACT_POINTS
    courses = view.courses.values()
    value = _writer(_range(list(chain.from_iterable(view.values.values()))), METRIC_PARTS, rounded)
    usd = _writer(max((one.usd[-1] for one in courses), default=0) / MICRO, USD_PARTS, rounded)
    spent = _writer(max((one.spent[-1] or 0 for one in courses), default=0) / MICRO, USD_PARTS, rounded)
    objective = view.job.spec.objective
    top = {
        "job": view.job.id,
        "seq": view.seq,
        "metric": view.metric,
        "metrics": list(view.metrics),
        "objective": objective.metric,
        "mode": objective.mode,
        "rounded": rounded,
    }
    trials = (_trial(view, row, objective.mode, value, usd, spent) for row in view.trials)
    return f'{json.dumps(top)[:-1]}, "trials": [{",".join(trials)}]}}'.encode()


def _trial(
    view: CurvesView,
    row: TrialRow,
    mode: Mode,
    value: Writer | Exact,
    usd: Writer | Exact,
    spent: Writer | Exact,
) -> str:
    course = view.courses.get(row.trial, EMPTY)
    values = [one for one in course.values if one is not None]
    answer = {
        "id": row.trial,
        "state": row.state,
        "reason": row.reason,
        "config": row.config,
        "attempts": row.attempts,
        "preemptions": row.preemptions,
        "best_metric": (max if mode == "max" else min)(values, default=None),
        "total_usd": row.cost.usd.usd,
        "preemptions_at": view.losses.get(row.trial, []),
        "promotions_at": view.promotions(row.trial),
    }
    arrays = {
        "steps": map(str, course.steps),
        "metric": value.all(view.values.get(row.trial, [])),
        "cost_usd": usd.all([one / MICRO for one in course.usd]),
        "spent_usd": spent.all([None if one is None else one / MICRO for one in course.spent]),
    }
    listed = ",".join(f'"{name}":[{",".join(texts)}]' for name, texts in arrays.items())
    return f"{json.dumps(answer, separators=(',', ':'))[:-1]},{listed}}}"


def _writer(spread: float, parts: int, rounded: bool) -> Writer | Exact:
    return Writer(spread, parts) if rounded and spread > parts * 1e-300 else Exact()


def _range(values: Sequence[float | None]) -> float:
    """Return the width of the range that contains the middle nine tenths of the values.

    Extreme values are ignored, so that one diverging training does not make the rounding too coarse for all other curves.
    """
    some = sorted(one for one in values[:: max(1, len(values) // SAMPLE)] if one is not None)
    return some[len(some) * 19 // 20] - some[len(some) // 20] if some else 0.0


def driver_of(launch: Launch | None) -> Driver | None:
    """Return the driver, or None if no driver runs the job."""
    if launch is None or launch.state not in ("submitted", "running"):
        return None
    return Driver(
        launch=launch.epoch,
        version=launch.tuner_version,
        ray=launch.ray_version,
        python=launch.python_version,
    )


def log_of(view: LogView) -> TrialLog:
    return TrialLog(
        job=view.job,
        trial=view.trial,
        attempt=view.attempt,
        attempts=view.attempts,
        at=rfc3339(view.at),
        complete=view.complete,
        ended=view.ended,
        bytes_total=view.total,
        bytes_left_out=view.left_out,
        bytes_until=view.until,
        text=view.text,
    )


def prices_of(view: PricesView, limit: int) -> prices_models.Prices:
    return prices_models.Prices(
        items=[listing_of(one) for one in view.found[:limit]],
        total=len(view.found),
        catalogue=age_of(view.catalogue, view.today),
        warning=view.warning,
        data_rates=[_rates_of(one) for one in view.rates],
    )


def age_of(catalogue: Catalogue, today: date) -> prices_models.CatalogueAge:
    return prices_models.CatalogueAge(
        name=catalogue.name,
        listings=len(catalogue.listings),
        newest=catalogue.newest,
        oldest=catalogue.oldest,
        undated=catalogue.undated,
        age_days=catalogue.age_days(today),
        age=catalogue.age(today),
    )


def listing_of(one: Listing) -> prices_models.PriceListing:
    return prices_models.PriceListing(
        cloud=one.cloud,
        region=one.region,
        zone=one.zone,
        instance_type=one.instance_type,
        vcpus=one.vcpus,
        memory_gib=one.memory_gib,
        accelerator=one.accelerator,
        accelerators=one.accelerators,
        gpu_memory_gib=one.gpu_memory_gib,
        on_demand_usd_per_hour=_hourly(one.on_demand),
        spot_usd_per_hour=_hourly(one.spot),
        on_demand_date=one.on_demand_date,
        spot_date=one.spot_date,
        on_demand_source=one.on_demand_source,
        spot_source=one.spot_source,
        flags=list(one.flags),
    )


def _rates_of(one: DataRates) -> prices_models.DataRate:
    return prices_models.DataRate(
        cloud=one.cloud,
        internet_usd_per_gb=_usd_or_none(one.internet),
        between_regions_usd_per_gb=_usd_or_none(one.between_regions),
        storage_usd_per_gb_month=_usd_or_none(one.storage),
        date=one.date,
        source=one.source,
    )


def _hourly(price: Price | None) -> float | None:
    return None if price is None else price.usd_per_hour


def _usd_or_none(money: Money | None) -> float | None:
    return None if money is None else money.usd


def quota_from(request: budgets_models.QuotaRequest) -> tuple[Quota, SharedBudget | None]:
    """Convert the request. Return the limits on concurrency, and the budget, or None if money is not limited. Raise Invalid if an
    amount cannot be read.
    """
    read = Reader()
    usd = read.take("/usd", Money.from_usd, request.usd)
    gpu_ms = read.take("/gpu_hours", gpu_ms_of, request.gpu_hours)
    read.check()
    money = SharedBudget(BUDGET, usd=usd, gpu_ms=gpu_ms, period=request.period, timezone=request.timezone)
    return Quota(request.concurrent_jobs, request.concurrent_trials), (
        None if usd is None and gpu_ms is None else money
    )


def quota_of(view: QuotaView) -> budgets_models.Quota:
    money, now = view.budget, view.standing
    usd = None if money is None else money.usd
    gpu_ms = None if money is None else money.gpu_ms
    used = budgets_models.QuotaUse(
        usd=None if now is None or usd is None else now.account.posted.usd.usd,
        held_usd=None if now is None or usd is None else now.account.held.usd.usd,
        gpu_hours=None if now is None or gpu_ms is None else _hours(now.account.posted.gpu_ms),
        held_gpu_hours=None if now is None or gpu_ms is None else _hours(now.account.held.gpu_ms),
        concurrent_jobs=len(view.at_work),
        concurrent_trials=sum(map(view.quota.width, view.at_work)),
    )
    return budgets_models.Quota(
        usd=None if usd is None else usd.usd,
        gpu_hours=None if gpu_ms is None else _hours(gpu_ms),
        period=None if money is None else money.period,
        timezone="UTC" if money is None else money.timezone,
        period_end=None if now is None or now.ends_at is None else rfc3339(now.ends_at),
        concurrent_jobs=view.quota.concurrent_jobs,
        concurrent_trials=view.quota.concurrent_trials,
        used=used,
    )


FIGURES = tuple(budgets_models.SpendFigures.model_fields)


def spend_of(view: SpendView) -> budgets_models.SpendAnswer:
    return budgets_models.SpendAnswer(
        group_by=list(view.group_by),
        since=_time(view.since),
        until=_time(view.until),
        timezone=view.timezone,
        items=[budgets_models.SpendGroup(keys=_keys(view, row), **_figures(row)) for row in view.rows],
        total=budgets_models.SpendFigures(**_figures(view.total)),
        cluster_idle_usd=None if view.cluster is None else _usd(view.cluster.idle),
        cluster=None if view.cluster is None else cluster_of(view.cluster),
    )


def cluster_of(cost: ClusterCost) -> budgets_models.ClusterCost:
    kinds = [
        budgets_models.MachineCost(
            instance_type=one.kind[0],
            market=one.kind[1],
            node_hours=_machine_hours(one.alive_ns),
            idle_hours=_machine_hours(one.idle_ns),
            usd=one.cost.usd,
            idle_usd=one.idle.usd,
        )
        for one in cost.kinds
    ]
    return budgets_models.ClusterCost(
        known_since=rfc3339(cost.since),
        unseen_hours=_machine_hours(cost.unseen_ns),
        unpriced_node_hours=_machine_hours(cost.unpriced_ns),
        usd=_usd(cost.cost),
        kinds=kinds,
    )


def spend_table(view: SpendView) -> list[list[str]]:
    """Return the header and the rows of a CSV file. Tags are escaped, so that a spreadsheet does not run them as formulas."""
    lines = [[*view.group_by, *FIGURES]]
    for row in view.rows:
        figures = _figures(row)
        shown = ["" if figures[name] is None else _plain(figures[name]) for name in FIGURES]
        lines.append([*(_inert(key or "") for key in row.keys), *shown])
    return lines


def _keys(view: SpendView, row: SpendRow) -> dict[str, str | None]:
    return dict(zip(view.group_by, row.keys, strict=True))


def _figures(row: SpendRow) -> dict[str, Any]:
    per_trial = row.usd_per_completed
    return {
        "usd": row.cost.usd.usd,
        "gpu_hours": round(row.cost.gpu_hours, 9),
        "jobs": row.jobs,
        "trials": row.trials,
        "completed_trials": row.completed,
        "usd_per_completed_trial": None if per_trial is None else per_trial.usd,
        "preemptions": row.preemptions,
        "retries": row.retries,
        "lost_usd": row.lost.usd.usd,
        "lost_gpu_hours": round(row.lost.gpu_hours, 9),
    }


def _usd(amount: Money | None) -> float | None:
    return None if amount is None else amount.usd


def _machine_hours(ns: int) -> float:
    return round(ns / NS_PER_HOUR, 6)


def _plain(value: float) -> str:
    """Format a number without an exponent, because some programs that read CSV do not understand exponents."""
    return str(value) if isinstance(value, int) else f"{value:.9f}".rstrip("0").rstrip(".")


def _inert(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
