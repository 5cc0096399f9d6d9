"""Texts for errors of the service, with advice on what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING

from tuner.cli import output
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.client import ApiError

MANY = 200  # How many of the newest jobs or trials are searched for a similar id or name.
JOB = re.compile(r"there is no job '(.*)'")
TRIAL = re.compile(r"(\S+) has no trial '(.*)'")
BUDGET = re.compile(r"there is no budget '(.*)'")


def text_of(error: ApiError) -> str:
    """Return the text to print for an error: its title, the fields that are wrong, and advice."""
    fields = [f"  {field.pointer or 'body'}: {field.detail}" for field in error.errors]
    if error.status == 401:
        return "\n".join([error.title, _about_the_key(Settings.from_env())])
    return "\n".join([error.title, *(fields or [error.detail]), *_what_to_do(error)])


def _what_to_do(error: ApiError) -> list[str]:
    with suppress(Exception):  # print the error without advice if a request for the advice fails
        if found := JOB.fullmatch(error.detail):
            return [_nearest_job(found[1])]
        if found := TRIAL.fullmatch(error.detail):
            trials = [one.id for one in output.connect().trials(found[1], limit=MANY)]
            return [_nearest(found[2], trials, f"`tuner trials {found[1]}` lists them")]
        if found := BUDGET.fullmatch(error.detail):
            names = [one.name for one in output.connect().budgets().items]
            return [_nearest(found[1], names, "`tuner budgets list` lists them")]
    if error.title in ("There is no such path", "The service answered strangely"):
        return [f"is {Settings.from_env().url} the address of the service? If not, set TUNER_URL"]
    return []


def _nearest_job(given: str) -> str:
    jobs = list(islice(output.connect().jobs(), MANY))
    if not jobs:
        return "there are no jobs yet: submit one with `tuner submit JOB.yaml`"
    names = [job.name for job in jobs]
    named = get_close_matches(given, names, n=1)
    if named:
        job = jobs[names.index(named[0])]
        return f"the newest that is named {job.name!r}: {job.id}; `tuner jobs` lists all"
    newest = f"the newest is {jobs[0].id}, {jobs[0].name!r}; `tuner jobs` lists all"
    return _nearest(given, [job.id for job in jobs], newest)


def _nearest(given: str, there: Sequence[str], otherwise: str) -> str:
    found = get_close_matches(given, there, n=3, cutoff=0.7)
    return f"the nearest: {', '.join(found)}" if found else otherwise


def _about_the_key(settings: Settings) -> str:
    service = f"the service at {settings.url}"
    if settings.given_api_key:
        return (
            f"TUNER_API_KEY is not the key of {service}, which is kept in the file api_key of its TUNER_HOME"
        )
    path = settings.api_key_path
    wrong = f"the key in {path} is not that of" if path.exists() else f"there is no key in {path} for"
    return (
        f"{wrong} {service}: set TUNER_HOME to the home that it was started with, or TUNER_API_KEY to its key"
    )
