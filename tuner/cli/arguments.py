"""Arguments and options that several commands share."""

from typing import Annotated

import typer

from tuner.cli import completing

JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Job id: job_…",
        show_default=False,
        autocompletion=completing.jobs,
    ),
]
TrialId = Annotated[
    str,
    typer.Argument(
        metavar="TRIAL",
        help="Trial id: trial_…",
        show_default=False,
        autocompletion=completing.trials,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the REST response as JSON.")]
