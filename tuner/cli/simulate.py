"""`tuner simulate`: simulate a job on recorded learning curves, on this machine and without a service."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import escape, tables
from tuner.cli.output import Output, duration_ns, with_problems
from tuner.domain.job import MarketPolicy, SamplerName, SchedulerName
from tuner.domain.time import HOUR_NS, NS

if TYPE_CHECKING:
    from tuner.service.simulation import SimulationResult, SpotResult

SPOT = "Spot machines"


@with_problems
def simulate(
    table: Annotated[Path, typer.Option(help="Recorded learning curves: an .npz file.", show_default=False)],
    budget_trainings: Annotated[
        float,
        typer.Option(
            min=0,
            max=1_000_000,
            help="Budget in whole trainings: 20 is the cost of training 20 average configurations of the table to their last step.",
            show_default=False,
        ),
    ],
    workers: Annotated[int, typer.Option(min=1, max=10_000, help="Number of trials that run at once.")] = 4,
    seed: Annotated[
        int,
        typer.Option(
            min=-(2**63), max=2**63 - 1, help="Random seed. The same seed gives the same simulation."
        ),
    ] = 0,
    scheduler: Annotated[SchedulerName, typer.Option(help="Scheduler.")] = "auto",
    sampler: Annotated[SamplerName, typer.Option(help="Sampler.")] = "auto",
    startup_steps: Annotated[
        float,
        typer.Option(
            min=0,
            max=1000,
            help="Time to start or resume a trial on a worker, as a multiple of the mean step time.",
        ),
    ] = 1,
    wall_clock: Annotated[
        str | None, typer.Option(help="Wall-clock limit of the job: 90m, 30h.", show_default=False)
    ] = None,
    training_time: Annotated[
        str | None,
        typer.Option(
            help="Mean time to train one configuration of the table to its last step, such as 2h. Default: as recorded.",
            show_default=False,
        ),
    ] = None,
    preemptions: Annotated[
        Path | None,
        typer.Option(
            help="CSV file of recorded spot availability to replay, or `bamboo` for the one that tuner includes.",
            rich_help_panel=SPOT,
            show_default=False,
        ),
    ] = None,
    market: Annotated[
        MarketPolicy | None,
        typer.Option(help="Market. Default: spot.", rich_help_panel=SPOT, show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Simulate a job on recorded learning curves. Scheduler, sampler, budget and placement run the same code as in a real job."""
    from tuner.service import simulation

    if preemptions is None and market is not None:
        raise typer.BadParameter("needs the option --preemptions", param_hint="--market")
    spot = None
    if preemptions is not None:
        spot = simulation.recorded_spot(preemptions, seed=seed, market=market or "spot")
    result = simulation.simulate(
        table,
        budget_trainings,
        workers=workers,
        seed=seed,
        scheduler=scheduler,
        sampler=sampler,
        startup_steps=startup_steps,
        wall_clock_ns=_duration_ns(wall_clock, "--wall-clock", least_ns=1),
        training_ns=_duration_ns(training_time, "--training-time", least_ns=NS, most_ns=10_000 * HOUR_NS),
        spot=spot,
    )
    Output(as_json).show(result, shown)


def _duration_ns(text: str | None, option: str, *, least_ns: int, most_ns: int = 2**62) -> int | None:
    if text is None:
        return None
    parsed_ns = duration_ns(text, option)
    if not least_ns <= parsed_ns <= most_ns:
        raise typer.BadParameter(
            f"{text!r} is {'less' if parsed_ns < least_ns else 'more'} than this option accepts",
            param_hint=option,
        )
    return parsed_ns


def shown(result: "SimulationResult") -> RenderableType:
    lines = Table.grid(padding=(0, 2))
    lines.add_row("table", result.table)
    if result.best is not None and result.best_config is not None:
        whole = "trained to its last step" if result.finished else "not trained to its last step"
        regret = escape.number(result.normalised_regret)
        lines.add_row("best", f"{escape.number(result.best)} at step {result.best_step}, {whole}")
        lines.add_row("", escape.config(result.best_config))
        lines.add_row("regret", f"{regret} (0: the best of the table, 1: a random configuration in full)")
    lines.add_row(
        "spent", f"{result.spent:.2f} of {result.budget:.2f} trainings ({escape.usd(result.spent_usd)})"
    )
    lines.add_row("ended", f"{result.stop_reason} after {result.simulated_seconds:.0f} simulated seconds")
    if result.deadline_met is not None:
        lines.add_row("deadline", "met" if result.deadline_met else "missed")
    lines.add_row("trials", f"{result.trials}, {result.steps} steps, {result.resumes} resumed attempts")
    if result.spot is not None:
        _add_spot(lines, result.spot, result.preemptions)
    bill = tables.plain("kind", "paid", "share")
    for kind, cost in result.bill_usd.items():
        share = cost / result.spent_usd if result.spent_usd else 0
        bill.add_row(kind, escape.usd(cost), f"{share:.1%}")
    checked = f"{result.transactions_checked} transactions checked; nothing was spent beyond the budget."
    return Group(lines, bill, Text(checked))


def _add_spot(lines: Table, spot: "SpotResult", preemptions: int) -> None:
    notice = f"{spot.notice_s:.0f} s of notice"
    lines.add_row(
        "spot", f"{spot.trace} from second {spot.start_s:.0f} on, {notice}, {preemptions} preemptions"
    )
    used = (
        f"{name.replace('_', ' ')} {use.hours:.2f} h for {escape.usd(use.usd)}"
        for name, use in spot.markets.items()
    )
    lines.add_row("market", f"{spot.market}: {', '.join(used)}")
    times = (
        ""
        if spot.times_uninterrupted is None
        else f" ({spot.times_uninterrupted:.3f} × this amount was spent)"
    )
    lines.add_row(
        "against",
        f"{escape.usd(spot.uninterrupted_usd)} on spot without an interruption{times}, "
        f"{escape.usd(spot.on_demand_usd)} on demand, for the training that was kept",
    )
