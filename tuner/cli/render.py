"""Texts and tables that show jobs, trials, bills, best configurations and reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import tables
from tuner.cli.escape import amount, config, number, plural, usd
from tuner.domain.cost import KINDS
from tuner.domain.job import FINAL
from tuner.domain.objective import Constraint, gain_of_next

if TYPE_CHECKING:
    from tuner.client import Job
    from tuner.schemas import answers as show
    from tuner.schemas import best as choices
    from tuner.schemas.job import Best, JobFacts

# The size of a report's chart in characters. LABEL fits the longest number, -1.2345e-123.
WIDTH, HEIGHT, LABEL = 60, 8, 12
METHODS = {"random_search": "random search, every trial in full", "stopping_asha": "ASHA that only stops"}


def jobs(items: Sequence[Job]) -> RenderableType:
    table = tables.rows(
        items,
        {
            "job": lambda job: job.id,
            "name": lambda job: job.name,
            "state": lambda job: job.state,
            "why": lambda job: job.stop_reason or waits(job),
            "spent": lambda job: usd(job.spend.usd),
            "budget": lambda job: usd(job.budget["usd"]),
            "trials": lambda job: sum(job.progress.trials.values()),
            "best": lambda job: number(job.best_so_far.metric) if job.best_so_far else "-",
        },
    )
    return table if items else Text("no jobs")


def waits(job: Job) -> str:
    """Return what a job waits for: the opening of its time window or its place in the queue. Return "" if it does not wait.

    A resumed job is `running` even before it has a driver again. The result is then "" too, and the job's detail says why it waits.
    """
    if job.state == "running":
        return ""
    if job.next_opening is not None:
        return f"until {job.next_opening[:16]}Z"
    return "" if job.queue_position is None else f"place {job.queue_position}"


def job(answer: Job) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    why = f" ({answer.stop_reason})" if answer.stop_reason else ""
    table.add_row("job", f"{answer.id}  {answer.name}")
    table.add_row("state", f"{answer.state}{why}")
    if answer.detail:
        table.add_row("", Text(answer.detail))
    if waits(answer):
        table.add_row("waits", waits(answer))
    held = f", {usd(answer.spend.held_usd)} held" if answer.spend.held_usd else ""
    table.add_row("spent", f"{usd(answer.spend.usd)}{_of(answer.budget['usd'], usd)}{held}")
    if answer.budget["gpu_hours"] is not None or answer.spend.gpu_hours:
        table.add_row(
            "GPU-hours", f"{amount(answer.spend.gpu_hours)}{_of(answer.budget['gpu_hours'], amount)}"
        )
    states = ", ".join(f"{count} {state}" for state, count in answer.progress.trials.items() if count)
    table.add_row("trials", states or "none yet")
    pack = answer.resources.get("pack", 1)  # an older service does not return it
    if pack > 1:
        table.add_row("at once", f"{answer.concurrency} trials, up to {pack} on each worker")
    driver = answer.driver
    if driver is not None and driver.version is not None:
        versions = f"tuner {driver.version}, Ray {driver.ray}, Python {driver.python}"
        table.add_row("driver", f"launch {driver.launch}, {versions}")
    if answer.objectives:
        table.add_row(
            "objectives", ", ".join(f"{each['metric']} ({each['mode']})" for each in answer.objectives)
        )
    if answer.constraints:
        table.add_row("constraints", ", ".join(str(Constraint(**limit)) for limit in answer.constraints))
    if answer.best_so_far:
        _add_best(table, answer, answer.best_so_far)
    return Group(table, *(Text(f"! {warning}", style="yellow") for warning in answer.warnings))


def enqueued(answer: Job, values: Mapping[str, Any]) -> RenderableType:
    when = "once the job is resumed" if answer.state == "paused" else "as soon as a worker is free"
    return Text(f"{answer.id} tries this configuration {when}: {config(values)}")


def promoted(answer: show.TrialDetail) -> RenderableType:
    if answer.state == "running":
        return Text(f"{answer.id} continues past its next rung without a pause.")
    return Text(f"{answer.id} continues to its next rung once the job runs and a worker is free.")


def cancelled(answer: Job) -> RenderableType:
    if answer.state == "cancelled":
        return job(answer)
    return Group(job(answer), Text("The job was asked to stop; it is cancelled within seconds."))


def _add_best(table: Table, answer: Job, best: Best) -> None:
    table.add_row("best", best_line(best, answer.objective["metric"]))
    table.add_row("", config(best.config))
    if other := _other_confirmed(best.trial, answer.confirmed_trial, answer.id):
        table.add_row("confirmed", other)


def _other_confirmed(best: str, confirmed: str | None, job: str) -> str:
    """Return what to say if the trial confirmed with several seeds is not the one with the best single result. Return "" otherwise."""
    return (
        "" if confirmed in (None, best) else f"{confirmed} is the best with several seeds: tuner best {job}"
    )


def _of(limit: float | None, shown: Callable[[float], str]) -> str:
    """Return " of" and a limit of the budget, or "" if the budget has no such limit."""
    return "" if limit is None else f" of {shown(limit)}"


def best_line(answer: Best, metric: str = "metric") -> str:
    return f"{metric} {number(answer.metric)} by {answer.trial} at step {answer.step}, which costs {usd(answer.cost_to_train_usd)} to train"


def trials(items: Sequence[show.Trial], *, job: JobFacts | None = None) -> RenderableType:
    """Return a table of trials. If `job` is given and has ended, a line below the table says why some trials are still pending or paused."""
    table = tables.plain("trial", "state", "steps", "best", "latest", "paid", "attempts", "configuration")
    for listed_trial in items:
        limits = f"violates the constraints by {listed_trial.violation:.0%}" if listed_trial.violation else ""
        text = "\n".join(filter(None, (config(listed_trial.config), listed_trial.reason, limits)))
        metrics = (number(listed_trial.metric), number(listed_trial.latest_metric))
        cells = (str(listed_trial.steps), *metrics, usd(listed_trial.paid_usd), str(listed_trial.attempts))
        table.add_row(listed_trial.id, listed_trial.state, *cells, Text(text))
    if not items:
        return Text("no trials")
    if job is None or job.state not in FINAL:
        return table
    cause = f" ({job.stop_reason})" if job.stop_reason else ""
    again = "; a larger budget continues them" if job.state == "succeeded" else ""
    return Group(
        table, Text(f"pending and paused trials did not continue because the job ended{cause}{again}")
    )


def trial(answer: show.TrialDetail) -> RenderableType:
    metrics = f"best {number(answer.metric)}, latest {number(answer.latest_metric)}"
    lines: list[RenderableType] = [
        Text(f"{answer.id}: {answer.state} {answer.reason}"),
        Text(f"{metrics}, {usd(answer.paid_usd)} paid"),
        Text(config(answer.config)),
    ]
    if answer.environment is not None:
        lines.append(Text(f"ran with {_environment(answer.environment)}"))
    curve = tables.rows(
        answer.curve,
        {
            "step": lambda point: point.step,
            "metric": lambda point: number(point.metric),
            "cost to train": lambda point: usd(point.cost_to_train_usd),
            "seconds to train": lambda point: f"{point.duration_seconds:.2f}",
        },
    )
    attempts = tables.rows(
        answer.attempt_list,
        {
            "attempt": lambda attempt: attempt.attempt,
            "steps": lambda attempt: f"{attempt.from_step} to {attempt.to_step}",
            "machine": _machine,
            "end": lambda attempt: attempt.end or "running",
            "why": lambda attempt: Text(attempt.reason),
            "paid": lambda attempt: usd(round(sum(attempt.bill.values()), 6)),
        },
    )
    details = [Text(attempt.detail) for attempt in answer.attempt_list if attempt.detail]
    return Group(*lines, curve, attempts, *details)


def _machine(attempt: show.Attempt) -> str:
    machine = attempt.machine
    place = f"{machine.instance_type} {machine.region or ''}".strip() + " " if machine else ""
    return f"{place}{attempt.market} {usd(attempt.usd_per_hour)}/h"


def _environment(environment: show.Environment) -> str:
    parts = [
        plural(environment.threads, "thread") if environment.threads is not None else "",
        f"seed {environment.seed}" if environment.seed is not None else "",
        *(f"{name} {version}" for name, version in environment.versions.items()),
        *(f"{name}={value}" for name, value in environment.variables.items()),
        f"code {environment.code[:12]}" if environment.code is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def bill(answer: show.Bill, *, most_expensive: int | None = None) -> RenderableType:
    """Return a bill by kind and by trial. Only the `most_expensive` most expensive trials are listed, or all trials if it is None."""
    total = tables.plain("kind", "paid", "share")
    for kind in KINDS:
        share = answer.by_kind[kind] / answer.total_usd if answer.total_usd else 0
        total.add_row(kind, usd(answer.by_kind[kind]), f"{share:.1%}")
    total.add_row("total", usd(answer.total_usd), "")
    lines: list[RenderableType] = [total, Text(), *_bill_by_trial(answer, most_expensive), Text()]
    savings, count = answer.savings, len(answer.trials)
    if (saved := savings.against_full_fidelity_usd) is not None:
        every = (
            "Training the trial to its last step"
            if count == 1
            else f"Training all {plural(count, 'trial')} to the last step"
        )
        difference = f"{usd(saved)} saved" if saved >= 0 else f"{usd(-saved)} less than was spent"
        lines.append(Text(f"{every} would have cost {usd(savings.full_fidelity_usd)}: {difference}."))
    if answer.cost_per_completed_trial_usd is not None:
        per = usd(answer.cost_per_completed_trial_usd)
        lines.append(Text(f"{plural(answer.completed_trials, 'trial')} completed, at {per} each."))
    if savings.against_on_demand_usd:
        lines.append(Text(_spot_savings(answer, savings.against_on_demand_usd)))
    if answer.preemptions:
        lines.append(Text(f"{plural(answer.preemptions, 'preemption')}."))
    return Group(*lines)


def _bill_by_trial(answer: show.Bill, most_expensive: int | None) -> list[RenderableType]:
    """Return a table with one row per trial, and lines below for the trials that are not listed and for spend that belongs to no trial.

    All amounts add up to the total. Kinds of spend that are zero for all trials have no column.
    """
    by_cost = sorted(answer.trials, key=lambda trial: -trial.total_usd)
    listed = answer.trials if most_expensive is None else by_cost[:most_expensive]
    kinds = [kind for kind in KINDS if any(trial.by_kind[kind] for trial in answer.trials)]
    table = tables.plain("trial", "state", "steps", *kinds, "total")
    for row in listed:
        costs = [usd(row.by_kind[kind]) for kind in kinds]
        table.add_row(row.trial, row.state, str(row.steps), *costs, usd(row.total_usd))
    lines: list[RenderableType] = [table]
    if rest := by_cost[len(listed) :]:
        sum_usd = usd(sum(trial.total_usd for trial in rest))
        lines.append(Text(f"and {plural(len(rest), 'cheaper trial')}, {sum_usd} together"))
    others = {
        "restore self-test": answer.self_test_usd,
        "exports": answer.exports_usd,
        "spent after the backup that was restored": answer.restored_usd,
    }
    return [*lines, *(Text(f"{name}: {usd(amount)}") for name, amount in others.items() if amount)]


def _spot_savings(answer: show.Bill, saved: float) -> str:
    on_demand = usd(answer.savings.on_demand_usd)
    if saved > 0:
        return f"{usd(saved)} saved by spot machines: on demand the same time costs {on_demand}."
    test = f", {usd(answer.self_test_usd)} of it for the restore self-test" if answer.self_test_usd else ""
    return f"Spot machines cost {usd(-saved)} more than the same time on demand ({on_demand}){test}."


def ledger(page: show.LedgerPage) -> RenderableType:
    return tables.rows(
        page.items,
        {
            "at": lambda entry: entry.at,
            "entry": lambda entry: entry.entry,
            "kind": lambda entry: entry.kind or "",
            "trial": lambda entry: entry.trial,
            "attempt": lambda entry: entry.attempt,
            "slice": lambda entry: entry.slice,
            "amount": lambda entry: usd(entry.usd),
        },
    )


def trainables(answer: show.Trainables) -> RenderableType:
    if not answer.items:
        return Text(
            "No module defines a trainable. Start the service in the folder of your modules, and set TUNER_ALLOWED_MODULES."
        )
    table = _trainables(answer.items)
    lines = [Text(f"Cannot be tuned: {item.error}") for item in answer.items if item.error]
    if answer.truncated:
        lines.append(Text("Not all files were read, so some trainables may be missing from this list."))
    return Group(table, *lines)


def trainable(answer: show.Trainable) -> RenderableType:
    verdict = f"It cannot be tuned: {answer.error}" if answer.error else "It can be tuned."
    return Group(_trainables([answer]), Text(verdict))


def _trainables(items: Sequence[show.Trainable]) -> Table:
    table = tables.plain("trainable", "parameters", "description")
    for item in items:
        table.add_row(item.trainable, ", ".join(item.search_space or {}), Text(item.doc))
    return table


def best(answer: choices.BestAnswer, metric: str = "metric") -> RenderableType:
    lines = _choice(answer, metric)
    sure = answer.confirmation
    if sure is not None:
        against = (
            ""
            if sure.runner_up is None
            else f"; confidence that it is better than {sure.runner_up}: {100 * (sure.confidence or 0):.0f} %"
        )
        lines.append(
            Text(
                f"confirmed with {sure.seeds} seeds: {metric} {number(sure.mean_metric)} on average{against}"
            )
        )
    if answer.next_better:
        point = answer.next_dollar.next_point
        gain = "" if point is None else f", {usd(point.extra_usd)} more for {number(point.gain)}"
        lines.append(Text(f"next better: {best_line(answer.next_better, metric)}{gain}"))
    forecast = answer.next_dollar.forecast
    if forecast is not None and forecast.points_per_usd is not None:
        lines.append(Text(f"{gain_of_next(forecast.points_per_usd)} (each 0.01 of {metric})"))
    if forecast is not None and not forecast.items:
        lines.append(Text(f"training longer: {forecast.reason}"))
    elif forecast is not None:
        lines.append(Text("training longer, estimated from trials that did (80 % interval):"))
        for trial_forecast in forecast.items:
            gain = f"gains {number(trial_forecast.expected_gain)} ({number(trial_forecast.low_gain)} to {number(trial_forecast.high_gain)})"
            way = f"{trial_forecast.trial} from step {trial_forecast.from_step} to {trial_forecast.to_step}"
            lines.append(Text(f"  {way} for {usd(trial_forecast.extra_usd)} {gain}"))
    return Group(*lines)


def best_of_all(answer: choices.BestOfAll, metric: str = "metric") -> RenderableType:
    return Group(Text(f"of {answer.job}:"), *_choice(answer, metric))


def _choice(answer: choices.BestAnswer | choices.BestOfAll, metric: str) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(best_line(answer, metric), style="bold")]
    grid = Table.grid(padding=(0, 2))
    for name, value in answer.config.items():
        grid.add_row(f"  {name}", number(value) if isinstance(value, float) else str(value))
    lines.append(grid)
    if answer.checkpoint:
        lines.append(Text(f"checkpoint: {answer.checkpoint}", no_wrap=True))
    if answer.pricing is not None and answer.cost_low_usd != answer.cost_high_usd:
        lines.append(
            Text(
                f"cost to train at this price: between {usd(answer.cost_low_usd)} and {usd(answer.cost_high_usd)}"
            )
        )
    return [*lines, *_pricing(answer.pricing)]


def pareto(answer: choices.Pareto) -> RenderableType:
    second = answer.second_metric
    names = ("metric",) if second is None else ("metric", second)
    # Recorded costs are exact. Those for another machine have bounds.
    bounds = ("from", "to") if answer.pricing is not None else ()
    table = tables.plain("cost to train", *bounds, *names, "trial", "step", "configuration")
    for point in answer.items:
        costs = [point.cost_to_train_usd, *((point.cost_low_usd, point.cost_high_usd) if bounds else ())]
        metrics = [point.metric] if second is None else [point.metric, point.metrics[second]]
        cells = (*map(number, metrics), point.trial, str(point.step), config(point.config))
        table.add_row(*map(usd, costs), *cells)
    return Group(table, *_pricing(answer.pricing))


def _pricing(answer: choices.Pricing | None) -> list[RenderableType]:
    if answer is None:
        return []
    place = f" in {answer.region}" if answer.region else ""
    price = f"{answer.instance_type}{place}, {answer.market}: {usd(answer.usd_per_hour)}/h ({answer.price_source})"
    speed = f"{number(answer.relative_time)} times as long as on the machine where the trial ran ({answer.speed_source})"
    return [Text(f"priced on {price}, {speed}"), *(Text(f"  {note}") for note in answer.notes)]


def report(answer: show.JobReport) -> RenderableType:
    if answer.best is None or answer.best_spent_usd is None:
        return Text(f"{usd(answer.spent_usd)} spent; no trial has reported {answer.metric} yet")
    best, spent = answer.best, usd(answer.spent_usd)
    estimates = tables.plain("search method", "estimated spend for the same result", "5 to 95 %", "saved")
    other = _other_confirmed(best.trial, answer.confirmed_trial, answer.job)
    notes = []
    for estimate in answer.estimates:
        name = METHODS.get(estimate.method, estimate.method)
        estimates.add_row(name, *_estimate(estimate))
        notes.append(Text(f"{name}: {estimate.note}", style="dim"))
    return Group(
        Text(f"{_source(answer)} {answer.metric} {number(best.metric)}", style="bold"),
        Text(f"{best.trial} at step {best.step}: {config(best.config)}"),
        *([Text(other)] if other else []),
        *_inherited(answer),
        Text(f"{spent} was spent in total, on {plural(answer.trials, 'trial')} that reported"),
        *(Text(line, no_wrap=True) for line in curve(answer.best_curve, answer.spent_usd)),
        estimates,
        *notes,
    )


def _source(answer: show.JobReport) -> str:
    """Return what gave the best result: this job's spend, or an earlier job."""
    inherited = answer.inherited
    if inherited is not None and answer.best is not None and answer.best.step <= inherited.step:
        return f"{inherited.job} had already reached"
    return f"{usd(answer.best_spent_usd)} bought"


def _inherited(answer: show.JobReport) -> list[RenderableType]:
    if answer.inherited is None:
        return []
    job, trial, step, cost = (
        getattr(answer.inherited, name) for name in ("job", "trial", "step", "cost_usd")
    )
    return [
        Text(
            f"it continued {trial} of {job}: training up to step {step} costs {usd(cost)}, which the earlier job paid; savings are therefore not known"
        )
    ]


def _estimate(estimate: show.PeerEstimate) -> tuple[str, str, str]:
    if estimate.status == "not_enough_data":
        return "not enough data", "", ""
    low = "never" if estimate.low_usd is None else usd(estimate.low_usd)
    high = "never" if estimate.high_usd is None else usd(estimate.high_usd)
    if estimate.usd is None:
        return "would have missed it", f"{low} to {high}", ""
    bias = ", likely more" if estimate.is_biased_low else ""
    saved = "" if estimate.saved_usd is None else usd(estimate.saved_usd)
    return f"{usd(estimate.usd)}{bias}", f"{low} to {high}", saved


def curve(points: Sequence[show.SpentPoint], spent_usd: float) -> list[str]:
    """Return a text chart of the best metric so far over dollars spent. Better values are at the top, also when minimizing."""
    whole_usd = max(spent_usd, points[-1].spent_usd)
    first, last = points[0].value, points[-1].value
    span = last - first
    levels: list[int | None] = []
    for value in columns(points, whole_usd):
        flat = span == 0 or not math.isfinite(span)
        top = HEIGHT - 1
        levels.append(None if value is None else top if flat else round((value - first) / span * top))
    names = {HEIGHT - 1: number(last), **({0: number(first)} if first != last else {})}
    lines = []
    for row in reversed(range(HEIGHT)):
        drawn = "".join("•" if level == row else " " for level in levels)
        lines.append(f"{names.get(row, ''):>{LABEL}} │{drawn}".rstrip())
    lines.append(f"{'':>{LABEL}} └{'─' * WIDTH}")
    return [*lines, f"{'':>{LABEL + 2}}$0{usd(whole_usd):>{WIDTH - 2}}"]


def columns(points: Sequence[show.SpentPoint], whole_usd: float) -> list[float | None]:
    """Split `whole_usd` into WIDTH equal parts, and return the best metric so far at the end of each part. An entry is None if nothing was
    reported by then.
    """
    limits = [whole_usd * column / WIDTH for column in range(1, WIDTH)] + [whole_usd]
    return [
        next((point.value for point in reversed(points) if point.spent_usd <= limit), None)
        for limit in limits
    ]
