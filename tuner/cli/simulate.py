"""`tuner simulate`: simulate a job on recorded learning curves, on this machine and without a service."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import escape, tables
from tuner.cli import simulate_options as option
from tuner.cli.output import Frame, duration_ns, with_problems
from tuner.domain.errors import Fault, Invalid

if TYPE_CHECKING:
    from tuner.service.simulation import Beside, Request, Result, SpotFigures

BESIDE = {
    "this_job": "this job",
    "uninterrupted": "on spot, never interrupted",
    "on_demand": "on demand alone",
    "every_15m": "saved every 15 min, ignoring notices",
    "every_30m": "saved every 30 min, ignoring notices",
    "from_zero": "nothing saved, ignoring notices",
}


@with_problems
def simulate(
    table: option.Table,
    budget_trainings: option.BudgetTrainings,
    workers: option.Workers = 4,
    seed: option.Seed = 0,
    scheduler: option.Scheduler = "auto",
    sampler: option.Sampler = "auto",
    startup_steps: option.StartupSteps = 1,
    trials: option.Trials = None,
    wall_clock: option.WallClock = None,
    training_time: option.TrainingTime = None,
    preemptions: option.Preemptions = None,
    trace_id: option.TraceId = None,
    market: option.Market = None,
    notice: option.Notice = None,
    noticeless: option.Noticeless = False,
    spot_saving: option.SpotSaving = None,
    spot_wait: option.SpotWait = None,
    save_time: option.SaveTime = None,
    checkpoint_interval: option.CheckpointInterval = None,
    beside: option.Beside = False,
    crash_rate: option.CrashRate = 0,
    loss_rate: option.LossRate = 0,
    repeat_rate: option.RepeatRate = 0,
    restart_rate: option.RestartRate = 0,
    clock_jump_rate: option.ClockJumpRate = 0,
    trace: option.Trace = None,
    as_json: option.AsJson = False,
) -> None:
    """Simulate a job on recorded learning curves. Scheduler, sampler, budget and placement run the same code as in a real job."""
    from tuner.service.simulation import Request

    request = Request(
        table=table,
        budget_trainings=budget_trainings,
        workers=workers,
        seed=seed,
        scheduler=scheduler,
        sampler=sampler,
        startup_steps=startup_steps,
        preemptions=preemptions,
        trace_id=trace_id,
        noticeless=noticeless,
        crash_rate=crash_rate,
        loss_rate=loss_rate,
        repeat_rate=repeat_rate,
        restart_rate=restart_rate,
        clock_jump_rate=clock_jump_rate,
        trace=trace,
        trials=trials,
        wall_clock_ns=_given_ns(wall_clock, "--wall-clock"),
        training_ns=_given_ns(training_time, "--training-time"),
        market=market,
        notice_ns=_given_ns(notice, "--notice"),
        spot_saving=spot_saving,
        spot_wait_ns=_given_ns(spot_wait, "--spot-wait"),
        save_ns=_given_ns(save_time, "--save-time"),
        every_ns=_interval(checkpoint_interval),
        beside=beside,
    )
    Frame(as_json).show(_simulated(request), shown)


def _given_ns(text: str | None, option: str) -> int | None:
    return None if text is None else duration_ns(text, option)


def _interval(text: str | None) -> int | Literal["auto"] | None:
    return "auto" if text == "auto" else _given_ns(text, "--checkpoint-interval")


def _simulated(request: "Request") -> "Result":
    """Run the simulation. Its errors name the options of the command line, not the fields of the request."""
    from tuner.service import simulation

    try:
        return simulation.simulate(request)
    except Invalid as error:
        raise Invalid(*(Fault(_option(fault.pointer), fault.detail) for fault in error.faults)) from error


def _option(pointer: str) -> str:
    return "--" + pointer.removeprefix("/").replace("_", "-")


def shown(found: "Result") -> RenderableType:
    lines = Table.grid(padding=(0, 2))
    lines.add_row("table", found.table)
    if found.best is not None and found.best_config is not None:
        whole = "its last" if found.finished else "not its last"
        regret = escape.number(found.normalised_regret)
        lines.add_row(
            "best", f"{escape.number(found.best)} at step {found.best_step}, trained to {whole} step"
        )
        lines.add_row("", escape.config(found.best_config))
        lines.add_row("regret", f"{regret} (0: the best of the table, 1: a random configuration in full)")
    lines.add_row(
        "spent", f"{found.spent:.2f} of {found.budget:.2f} trainings ({escape.usd(found.spent_usd)})"
    )
    lines.add_row("ended", f"{found.stop_reason} after {found.simulated_seconds:.0f} simulated seconds")
    if found.deadline_met is not None:
        lines.add_row("deadline", "met" if found.deadline_met else "missed")
    lines.add_row("trials", f"{found.trials}, {found.steps} steps, {found.resumes} resumed attempts")
    faults = (
        f"{found.preemptions} preemptions, {found.crashes} crashes, {found.restarts} restarts of the driver"
    )
    lines.add_row("faults", faults)
    if found.spot is not None:
        _add_spot(lines, found.spot)
    bill = tables.plain("kind", "paid", "share")
    for kind, cost in found.bill_usd.items():
        share = cost / found.spent_usd if found.spent_usd else 0
        bill.add_row(kind, escape.usd(cost), f"{share:.1%}")
    checked = Text(f"{found.transactions_checked} transactions checked; nothing was spent beyond the budget.")
    return Group(lines, bill, *([_others(found.beside)] if found.beside else []), checked)


def _add_spot(lines: Table, spot: "SpotFigures") -> None:
    notice = f"{spot.notice_s:.0f} s of notice" if spot.notice_s else "no notice"
    lines.add_row("spot", f"{spot.trace} from second {spot.start_s:.0f} on, {notice}")
    used = (
        f"{name.replace('_', ' ')} {use.hours:.2f} h for {escape.usd(use.usd)}"
        for name, use in spot.markets.items()
    )
    lines.add_row("market", f"{spot.market}: {', '.join(used)}")
    times = "" if spot.times_uninterrupted is None else f" ({spot.times_uninterrupted:.3f} × that was spent)"
    lines.add_row(
        "against",
        f"{escape.usd(spot.uninterrupted_usd)} on spot without an interruption{times}, "
        f"{escape.usd(spot.on_demand_usd)} on demand, for the training that was kept",
    )


def _others(rows: "Sequence[Beside]") -> Table:
    """Return a table that compares this job with the same job under other conditions."""
    table = tables.plain(
        "", "spent", "trainings kept", "a training", "times", "lost", "preemptions", "hours", "ended"
    )
    for one in rows:
        times = "-" if one.times_uninterrupted is None else f"{one.times_uninterrupted:.3f}"
        table.add_row(
            BESIDE[one.name],
            escape.usd(one.spent_usd),
            f"{one.kept_trainings:.2f}",
            "-" if one.usd_per_training is None else f"${one.usd_per_training:.3f}",
            times,
            escape.usd(one.lost_usd),
            str(one.preemptions),
            f"{one.simulated_seconds / 3600:.1f}",
            one.stop_reason or "",
        )
    return table
