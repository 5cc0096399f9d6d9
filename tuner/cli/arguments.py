"""Arguments and options that many commands have."""

from typing import Annotated

import typer

from tuner.cli import completing

JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The id of a job: job_…",
        show_default=False,
        autocompletion=completing.jobs,
    ),
]
TrialId = Annotated[
    str,
    typer.Argument(
        metavar="TRIAL",
        help="The id of a trial: trial_…",
        show_default=False,
        autocompletion=completing.trials,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print what REST answers, as JSON.")]
