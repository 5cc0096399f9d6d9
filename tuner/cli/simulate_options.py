"""The options of `tuner simulate`."""

from pathlib import Path
from typing import Annotated

import typer

FAULTS = "Faults"
SPOT = "Spot machines"
RATE = "a chance per message of a worker, of which there is about one a step"

Table = Annotated[Path, typer.Option(help="Recorded learning curves: an .npz file.", show_default=False)]
BudgetTrainings = Annotated[
    float,
    typer.Option(help="The budget; 1 is the mean cost of training a random row in full.", show_default=False),
]
Workers = Annotated[int, typer.Option(help="How many trials run at once.")]
Seed = Annotated[int, typer.Option(help="Of every draw: the same seed is the same run.")]
Scheduler = Annotated[str, typer.Option(help="auto, asha, asha_stopping or none.")]
Sampler = Annotated[str, typer.Option(help="auto, tpe, random, gp, cmaes, qmc or grid.")]
StartupSteps = Annotated[
    float, typer.Option(help="What starting or resuming a trial on a worker costs, in mean steps.")
]
Trials = Annotated[int | None, typer.Option(help="How many there may be at most.", show_default=False)]
WallClock = Annotated[str | None, typer.Option(help="When the job has to end: 90m, 30h.", show_default=False)]
TrainingTime = Annotated[
    str | None, typer.Option(help="What a mean training takes; as recorded if not given.", show_default=False)
]
Trace = Annotated[Path | None, typer.Option(help="Write every event and ledger entry here, as JSON lines.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

Preemptions = Annotated[
    Path | None,
    typer.Option(
        help="Machines come and go as in this CSV of availability, or in one that is shipped: bamboo.",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
TraceId = Annotated[
    str | None,
    typer.Option(
        help="Which of its traces; drawn by the seed if not given.", rich_help_panel=SPOT, show_default=False
    ),
]
Market = Annotated[
    str | None,
    typer.Option(
        help="spot, on_demand or spot_with_fallback.  [default: spot]",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
Notice = Annotated[
    str | None,
    typer.Option(
        help="How long before a machine goes it is told; what its cloud promises if not given.",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
Noticeless = Annotated[bool, typer.Option("--noticeless", help="It is not told.", rich_help_panel=SPOT)]
SpotSaving = Annotated[
    float | None,
    typer.Option(
        help="The part of the price on demand that spot saves.  [default: 0.66]",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
SpotWait = Annotated[
    str | None,
    typer.Option(
        help="After so long without spot a trial falls back.  [default: 60s]",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
SaveTime = Annotated[
    str | None,
    typer.Option(
        help="What a checkpoint takes until it is durable; training waits for a tenth.  [default: 1s]",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
CheckpointInterval = Annotated[
    str | None,
    typer.Option(
        help="How often one is saved: auto, 15m.  [default: auto]", rich_help_panel=SPOT, show_default=False
    ),
]
Beside = Annotated[
    bool,
    typer.Option(
        "--beside",
        help="Simulate the job without interruptions, on demand, with fixed intervals and from zero, too.",
        rich_help_panel=SPOT,
    ),
]

CrashRate = Annotated[float, typer.Option(help=f"A worker dies: {RATE}.", rich_help_panel=FAULTS)]
LossRate = Annotated[
    float, typer.Option(help="A message is lost, and sent again later.", rich_help_panel=FAULTS)
]
RepeatRate = Annotated[float, typer.Option(help="A message arrives twice.", rich_help_panel=FAULTS)]
RestartRate = Annotated[
    float, typer.Option(help="The driver is killed, with its workers.", rich_help_panel=FAULTS)
]
ClockJumpRate = Annotated[
    float, typer.Option(help="The wall clock jumps by up to a day.", rich_help_panel=FAULTS)
]
