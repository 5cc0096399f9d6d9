"""`tuner simulate`: a job over recorded learning curves, on this machine, without a service."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import render
from tuner.cli.frame import Frame, with_problems
from tuner.domain.errors import Fault, Invalid

if TYPE_CHECKING:
    from tuner.service.simulation import Result

FAULTS = "Faults"
Rate = "a chance per message of a worker, of which there is about one a step"


@with_problems
def simulate(
    table: Annotated[Path, typer.Option(help="Recorded learning curves: an .npz file.", show_default=False)],
    budget_trainings: Annotated[
        float,
        typer.Option(
            help="The budget; 1 is the mean cost of training a random row in full.", show_default=False
        ),
    ],
    workers: Annotated[int, typer.Option(help="How many trials run at once.")] = 4,
    seed: Annotated[int, typer.Option(help="Of every draw: the same seed is the same run.")] = 0,
    scheduler: Annotated[str, typer.Option(help="auto, asha, asha_stopping or none.")] = "auto",
    sampler: Annotated[str, typer.Option(help="auto, tpe, random, gp, cmaes, qmc or grid.")] = "auto",
    startup_steps: Annotated[
        float, typer.Option(help="What starting or resuming a trial on a worker costs, in mean steps.")
    ] = 1,
    preemptions: Annotated[
        Path | None,
        typer.Option(help="Workers come and go as in this CSV of availability.", rich_help_panel=FAULTS),
    ] = None,
    trace_id: Annotated[
        str | None,
        typer.Option(help="Which of its traces; drawn by the seed if not given.", rich_help_panel=FAULTS),
    ] = None,
    noticeless: Annotated[
        bool, typer.Option("--noticeless", help="Without two minutes' notice.", rich_help_panel=FAULTS)
    ] = False,
    crash_rate: Annotated[float, typer.Option(help=f"A worker dies: {Rate}.", rich_help_panel=FAULTS)] = 0,
    loss_rate: Annotated[
        float, typer.Option(help="A message is lost, and sent again later.", rich_help_panel=FAULTS)
    ] = 0,
    repeat_rate: Annotated[float, typer.Option(help="A message arrives twice.", rich_help_panel=FAULTS)] = 0,
    restart_rate: Annotated[
        float, typer.Option(help="The driver is killed, with its workers.", rich_help_panel=FAULTS)
    ] = 0,
    clock_jump_rate: Annotated[
        float, typer.Option(help="The wall clock jumps by up to a day.", rich_help_panel=FAULTS)
    ] = 0,
    trace: Annotated[
        Path | None, typer.Option(help="Write every event and ledger entry here, as JSON lines.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Try scheduler, sampler and budget on recorded learning curves, by the very code of a real job."""
    from tuner.service import (
        simulation,  # numpy takes a moment to import, which other commands need not wait for
    )

    request = simulation.Request(
        table,
        budget_trainings,
        workers,
        seed,
        scheduler,
        sampler,
        startup_steps,
        preemptions,
        trace_id,
        noticeless,
        crash_rate,
        loss_rate,
        repeat_rate,
        restart_rate,
        clock_jump_rate,
        trace,
    )
    try:
        found = simulation.simulate(request)
    except Invalid as error:
        raise Invalid(*(Fault(_option(fault.pointer), fault.detail) for fault in error.faults)) from error
    Frame(as_json).show(found, shown)


def _option(pointer: str) -> str:
    return "--" + pointer.removeprefix("/").replace("_", "-")


def shown(found: "Result") -> RenderableType:
    lines = Table.grid(padding=(0, 2))
    lines.add_row("table", found.table)
    if found.best is not None and found.best_config is not None:
        whole = "its last" if found.finished else "not its last"
        regret = render.number(found.normalised_regret)
        lines.add_row(
            "best", f"{render.number(found.best)} at step {found.best_step}, trained to {whole} step"
        )
        lines.add_row("", render.config(found.best_config))
        lines.add_row("regret", f"{regret} (0: the best of the table, 1: a random configuration in full)")
    lines.add_row(
        "spent", f"{found.spent:.2f} of {found.budget:.2f} trainings ({render.usd(found.spent_usd)})"
    )
    lines.add_row("ended", f"{found.stop_reason} after {found.simulated_seconds:.0f} simulated seconds")
    lines.add_row("trials", f"{found.trials}, {found.steps} steps, {found.resumes} resumed attempts")
    faults = (
        f"{found.preemptions} preemptions, {found.crashes} crashes, {found.restarts} restarts of the driver"
    )
    lines.add_row("faults", faults)
    bill = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("kind", "cost", "share"):
        bill.add_column(column)
    for kind, cost in found.bill_usd.items():
        share = cost / found.spent_usd if found.spent_usd else 0
        bill.add_row(kind, render.usd(cost), f"{share:.1%}")
    checked = Text(f"{found.transactions_checked} transactions checked; nothing was spent beyond the budget.")
    return Group(lines, bill, checked)
