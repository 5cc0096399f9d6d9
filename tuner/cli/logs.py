"""`tuner logs`: the output of a trial's own code."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.arguments import JobId, Json, TrialId
from tuner.cli.output import connect, with_problems

if TYPE_CHECKING:
    from tuner.client import Client
    from tuner.schemas.logs import TrialLog

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
MOST_BYTES = 512 << 10  # the service returns at most this much per request
TRIAL_ENDED = ("completed", "stopped", "failed")
JOB_ENDED = ("succeeded", "cancelled", "failed")
LOOK_S = 1.0


@with_problems
def logs(
    job: JobId,
    trial: TrialId,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, help="Number of the attempt. Default: the newest one that printed anything."),
    ] = None,
    tail: Annotated[
        str,
        typer.Option(
            help="Print only the end of the output, at most this many bytes, such as 64KiB; at most 512KiB."
        ),
    ] = "64KiB",
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Print new output until the trial ends, or the attempt if --attempt is given."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the output of a trial's own code."""
    client, size = connect(), _bytes(tail)
    if follow:
        _follow(client, job, trial, attempt, size, as_json=as_json)
        return
    found = client.logs(job, trial, attempt=attempt, tail=size)
    if as_json:
        typer.echo(json.dumps(found.model_dump(), indent=2))
    else:
        typer.echo(found.text, nl=not found.text.endswith("\n"))


def _follow(client: Client, job: str, trial: str, named: int | None, tail: int, *, as_json: bool) -> None:
    """Print the output of a trial until the trial, or the attempt `named`, has ended. With JSON, print one response per line.

    The first request returns the last `tail` bytes. From there on, print all output that the service has stored.
    """
    attempt, after, size = named, 0, tail
    while True:
        found = _look(client, job, trial, attempt, size, after)
        if found is not None:
            _print(found, after, as_json=as_json)
            attempt, after, size = found.attempt, found.bytes_until, MOST_BYTES
            if found.complete or (found.ended and not found.text):
                later = [number for number in found.attempts if number > found.attempt and named is None]
                if later:
                    attempt, after = later[0], 0
                    continue
                if named is not None or _is_over(client, job, trial):
                    return
        time.sleep(LOOK_S)


def _print(found: TrialLog, after: int, *, as_json: bool) -> None:
    if not found.text:
        return
    if as_json:
        typer.echo(json.dumps(found.model_dump()))
        return
    if after and found.bytes_left_out:
        typer.echo(f"[{found.bytes_left_out} bytes are omitted]", err=True)
    typer.echo(found.text, nl=False)


def _look(
    client: Client, job: str, trial: str, attempt: int | None, tail: int, after: int
) -> TrialLog | None:
    """Return the output after the first `after` bytes, or None if a trial that has not ended has stored no output yet."""
    from tuner.client import ApiError

    try:
        return client.logs(job, trial, attempt=attempt, tail=tail, after=after)
    except ApiError as error:
        if error.status != 404 or _is_over(client, job, trial):
            raise
        return None


def _is_over(client: Client, job: str, trial: str) -> bool:
    return client.trial(job, trial).state in TRIAL_ENDED or client.job(job).state in JOB_ENDED


def _bytes(text: str) -> int:
    """Return the number of bytes of a size such as 64KiB, 64k or 65536."""
    match = re.fullmatch(r"(\d{1,9})\s*(?:([km])(?:i?b)?|b)?", text.strip().lower())
    if match is None:
        raise typer.BadParameter(f"write it as 64KiB or 65536, not {text!r}", param_hint="--tail")
    return int(match[1]) * UNITS[match[2] or ""]
