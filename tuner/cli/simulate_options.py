"""The options of `tuner simulate`."""

from pathlib import Path
from typing import Annotated

import typer

FAULTS = "Faults"
SPOT = "Spot machines"
RATE = "a probability per worker message, of which there is about one per step"

Table = Annotated[Path, typer.Option(help="Recorded learning curves: an .npz file.", show_default=False)]
BudgetTrainings = Annotated[
    float,
    typer.Option(
        help="Budget in trainings; 1 is the mean cost of training a random row of the table in full.",
        show_default=False,
    ),
]
Workers = Annotated[int, typer.Option(help="Number of trials that run at once.")]
Seed = Annotated[int, typer.Option(help="Random seed. The same seed gives the same simulation.")]
Scheduler = Annotated[str, typer.Option(help="Scheduler: auto, asha, asha_stopping or none.")]
Sampler = Annotated[str, typer.Option(help="Sampler: auto, tpe, random, gp, cmaes, qmc or grid.")]
StartupSteps = Annotated[
    float, typer.Option(help="Time to start or resume a trial on a worker, in mean steps.")
]
Trials = Annotated[int | None, typer.Option(help="Maximum number of trials.", show_default=False)]
WallClock = Annotated[
    str | None, typer.Option(help="Wall-clock limit of the job: 90m, 30h.", show_default=False)
]
TrainingTime = Annotated[
    str | None, typer.Option(help="Duration of a mean training. Default: as recorded.", show_default=False)
]
Trace = Annotated[Path | None, typer.Option(help="Write every event and ledger entry here, as JSON lines.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

Preemptions = Annotated[
    Path | None,
    typer.Option(
        help="CSV file of machine availability that decides when machines come and go, or the shipped one: bamboo.",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
TraceId = Annotated[
    str | None,
    typer.Option(
        help="Trace in that file. Default: drawn with the seed.", rich_help_panel=SPOT, show_default=False
    ),
]
Market = Annotated[
    str | None,
    typer.Option(
        help="Market: spot, on_demand or spot_with_fallback.  [default: spot]",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
Notice = Annotated[
    str | None,
    typer.Option(
        help="Time between the notice and the preemption. Default: what the cloud promises.",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
Noticeless = Annotated[
    bool, typer.Option("--noticeless", help="Preempt machines without a notice.", rich_help_panel=SPOT)
]
SpotSaving = Annotated[
    float | None,
    typer.Option(
        help="Fraction of the on-demand price that spot saves.  [default: 0.66]",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
SpotWait = Annotated[
    str | None,
    typer.Option(
        help="Time without spot machines after which a trial falls back to on-demand.  [default: 60s]",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
SaveTime = Annotated[
    str | None,
    typer.Option(
        help="Time until a checkpoint is durable. Training waits for a tenth of it.  [default: 1s]",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
CheckpointInterval = Annotated[
    str | None,
    typer.Option(
        help="Time between checkpoints: auto, or such as 15m.  [default: auto]",
        rich_help_panel=SPOT,
        show_default=False,
    ),
]
Beside = Annotated[
    bool,
    typer.Option(
        "--beside",
        help="Also simulate the job without interruptions, on demand, with fixed checkpoint intervals and without checkpoints.",
        rich_help_panel=SPOT,
    ),
]

CrashRate = Annotated[
    float, typer.Option(help=f"Probability that a worker dies: {RATE}.", rich_help_panel=FAULTS)
]
LossRate = Annotated[
    float,
    typer.Option(help="Probability that a message is lost and sent again later.", rich_help_panel=FAULTS),
]
RepeatRate = Annotated[
    float, typer.Option(help="Probability that a message arrives twice.", rich_help_panel=FAULTS)
]
RestartRate = Annotated[
    float,
    typer.Option(help="Probability that the driver is killed, with its workers.", rich_help_panel=FAULTS),
]
ClockJumpRate = Annotated[
    float, typer.Option(help="Probability that the wall clock jumps by up to a day.", rich_help_panel=FAULTS)
]
