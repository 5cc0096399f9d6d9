"""Tables that show the answers of the service on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import tables
from tuner.cli.escape import config, number, plural, usd

if TYPE_CHECKING:
    from tuner.client import Job
    from tuner.schemas import answers as show
    from tuner.schemas.job import Best, Driver, JobFacts

ENDED = ("succeeded", "cancelled", "failed")
KINDS = ("setup", "restore", "train", "checkpoint", "lost", "idle")


def jobs(found: Sequence[Job]) -> RenderableType:
    table = tables.plain("job", "name", "state", "why", "spent", "budget", "trials", "best")
    for one in found:
        table.add_row(
            one.id,
            one.name,
            one.state,
            one.stop_reason or waits(one),
            usd(one.spend.usd),
            usd(one.budget["usd"]),
            str(sum(one.progress.trials.values())),
            number(one.best_so_far.metric) if one.best_so_far else "-",
        )
    return table if found else Text("no jobs")


def waits(one: Job) -> str:
    """Return the opening of its time window or the place in the queue that a job waits for, or "" if it does not wait.

    A resumed job is `running` even before it has a driver again, so the result is "" for it too. The job's detail says why it waits.
    """
    if one.state == "running":
        return ""
    if one.next_opening is not None:
        return f"until {one.next_opening[:16]}Z"
    return "" if one.queue_position is None else f"place {one.queue_position}"


def job(one: Job) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    why = f" ({one.stop_reason})" if one.stop_reason else ""
    table.add_row("job", f"{one.id}  {one.name}")
    table.add_row("state", f"{one.state}{why}")
    if one.detail:
        table.add_row("", Text(one.detail))
    if waits(one):
        table.add_row("waits", waits(one))
    held = f", {usd(one.spend.held_usd)} held" if one.spend.held_usd else ""
    table.add_row("spent", f"{usd(one.spend.usd)} of {usd(one.budget['usd'])}{held}")
    if one.budget["gpu_hours"] is not None or one.spend.gpu_hours:
        table.add_row("GPU-hours", f"{one.spend.gpu_hours:g} of {number(one.budget['gpu_hours'])}")
    states = ", ".join(f"{count} {state}" for state, count in one.progress.trials.items() if count)
    table.add_row("trials", states or "none yet")
    if one.driver is not None and one.driver.version is not None:
        table.add_row("driver", f"launch {one.driver.launch}, {versions(one.driver)}")
    if one.best_so_far:
        table.add_row("best", best_line(one.best_so_far, one.objective["metric"]))
        table.add_row("", config(one.best_so_far.config))
    return table


def versions(driver: Driver) -> str:
    return f"tuner {driver.version}, Ray {driver.ray}, Python {driver.python}"


def best_line(found: Best, metric: str = "metric") -> str:
    return f"{metric} {number(found.metric)} by {found.trial} at step {found.step}, which costs {usd(found.cost_to_train_usd)} to train"


def trials(found: Sequence[show.Trial], *, job: JobFacts | None = None) -> RenderableType:
    """Return a table of trials. If their job has ended, a line below the table says why some trials are still pending or paused."""
    table = tables.plain("trial", "state", "steps", "best", "latest", "paid", "attempts", "configuration")
    for one in found:
        shown = config(one.config) if not one.reason else f"{config(one.config)}\n{one.reason}"
        metrics = (number(one.metric), number(one.latest_metric))
        cells = (str(one.steps), *metrics, usd(one.paid_usd), str(one.attempts))
        table.add_row(one.id, one.state, *cells, Text(shown))
    if not found:
        return Text("no trials")
    if job is None or job.state not in ENDED:
        return table
    cause = f" ({job.stop_reason})" if job.stop_reason else ""
    again = "; a larger budget continues them" if job.state == "succeeded" else ""
    return Group(
        table, Text(f"pending and paused trials did not continue because the job ended{cause}{again}")
    )


def trial(one: show.TrialDetail) -> RenderableType:
    curve = tables.plain("step", "metric", "cost to train", "seconds to train")
    for point in one.curve:
        cells = (number(point.metric), usd(point.cost_to_train_usd), f"{point.duration_seconds:.2f}")
        curve.add_row(str(point.step), *cells)
    attempts = tables.plain("attempt", "steps", "machine", "end", "why", "paid")
    for attempt in one.attempt_list:
        steps = f"{attempt.from_step} to {attempt.to_step}"
        paid = usd(round(sum(attempt.bill.values()), 6))
        end = attempt.end or "running"
        attempts.add_row(str(attempt.attempt), steps, _machine(attempt), end, Text(attempt.reason), paid)
    details = [Text(attempt.detail) for attempt in one.attempt_list if attempt.detail]
    metrics = f"best {number(one.metric)}, latest {number(one.latest_metric)}, {usd(one.paid_usd)} paid"
    head = [Text(f"{one.id}: {one.state} {one.reason}"), Text(metrics), Text(config(one.config))]
    if one.environment is not None:
        head.append(Text(f"ran with {_environment(one.environment)}"))
    return Group(*head, curve, attempts, *details)


def _environment(found: show.Environment) -> str:
    parts = [
        plural(found.threads, "thread") if found.threads is not None else "",
        f"seed {found.seed}" if found.seed is not None else "",
        *(f"{name} {version}" for name, version in found.versions.items()),
        *(f"{name}={value}" for name, value in found.variables.items()),
        f"code {found.code[:12]}" if found.code is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _machine(attempt: show.Attempt) -> str:
    where = (
        "" if attempt.machine is None else f"{attempt.machine.instance_type} {attempt.machine.region or ''}"
    )
    return " ".join([*where.split(), attempt.market, f"{usd(attempt.usd_per_hour)}/h"])


def bill(found: show.Bill, *, dearest: int | None = None) -> RenderableType:
    """Return a bill by kind and by trial. List only the `dearest` most expensive trials, or all if it is None."""
    total = tables.plain("kind", "paid", "share")
    for kind in KINDS:
        share = found.by_kind[kind] / found.total_usd if found.total_usd else 0
        total.add_row(kind, usd(found.by_kind[kind]), f"{share:.1%}")
    total.add_row("total", usd(found.total_usd), "")
    lines: list[RenderableType] = [total, Text(), _bill_by_trial(found, dearest), Text()]
    saved = found.savings.against_full_fidelity_usd
    if saved is not None:
        full = usd(found.savings.full_fidelity_usd)
        lines.append(Text(f"{_all_trials(len(found.trials))} would have cost {full}: {_saved(saved)}."))
    if found.cost_per_completed_trial_usd is not None:
        per = usd(found.cost_per_completed_trial_usd)
        lines.append(Text(f"{plural(found.completed_trials, 'trial')} completed, at {per} each."))
    if found.savings.against_on_demand_usd:
        lines.append(Text(_spot_savings(found)))
    if found.preemptions:
        lines.append(Text(f"{plural(found.preemptions, 'preemption')}."))
    return Group(*lines)


def _bill_by_trial(found: show.Bill, dearest: int | None) -> RenderableType:
    """Return a table with one row per trial, and a line below that sums up the trials that are not listed.

    Kinds of spend that are zero for all trials have no column.
    """
    by_cost = sorted(found.trials, key=lambda one: -one.total_usd)
    listed = found.trials if dearest is None else by_cost[:dearest]
    kinds = [kind for kind in KINDS if any(one.by_kind[kind] for one in found.trials)]
    table = tables.plain("trial", "state", "steps", *kinds, "total")
    for one in listed:
        costs = [usd(one.by_kind[kind]) for kind in kinds]
        table.add_row(one.trial, one.state, str(one.steps), *costs, usd(one.total_usd))
    rest = by_cost[len(listed) :]
    return table if not rest else Group(table, Text(_others(rest)))


def _others(rest: Sequence[show.TrialBill]) -> str:
    return f"and {plural(len(rest), 'cheaper trial')}, {usd(sum(one.total_usd for one in rest))} together"


def _all_trials(count: int) -> str:
    return "The trial to its last step" if count == 1 else f"All {plural(count, 'trial')} to the last step"


def _saved(usd_saved: float) -> str:
    return f"{usd(usd_saved)} saved" if usd_saved >= 0 else f"{usd(-usd_saved)} less than was spent"


def _spot_savings(found: show.Bill) -> str:
    demand, less = usd(found.savings.on_demand_usd), found.savings.against_on_demand_usd or 0
    if less > 0:
        return f"{usd(less)} saved by spot machines: on demand the same time costs {demand}."
    test = f", {usd(found.self_test_usd)} of it for the restore self-test" if found.self_test_usd else ""
    return f"Spot machines cost {usd(-less)} more than the same time on demand ({demand}){test}."


def ledger(found: show.LedgerPage) -> RenderableType:
    table = tables.plain("at", "entry", "kind", "trial", "attempt", "slice", "amount")
    for one in found.items:
        where = (one.trial, str(one.attempt), str(one.slice))
        table.add_row(one.at, one.entry, one.kind or "", *where, usd(one.usd))
    return table


def trainables(found: show.Trainables) -> RenderableType:
    table = tables.plain("trainable", "parameters", "what it is")
    for one in found.items:
        table.add_row(one.trainable, ", ".join(one.search_space or {}), Text(one.doc))
    if not found.items:
        return Text(
            "No module defines a trainable. Start the service in their folder, and set TUNER_ALLOWED_MODULES."
        )
    return (
        Group(table, Text("There are more files than were read; some are missing."))
        if found.truncated
        else table
    )


def trainable(found: show.Trainable) -> RenderableType:
    table = tables.plain("trainable", "parameters", "what it is")
    table.add_row(found.trainable, ", ".join(found.search_space or {}), Text(found.doc))
    return Group(table, Text(f"It cannot be tuned: {found.error}" if found.error else "It can be tuned."))
