"""Code that all commands share: it creates the client, prints answers as JSON or text, and prints errors to standard error."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer

from tuner.cli import tables
from tuner.cli.escape import harmless
from tuner.cli.tables import Style
from tuner.domain.access import is_like_a_key
from tuner.domain.errors import TunerError
from tuner.domain.space import SpaceRefused
from tuner.domain.text import nearest
from tuner.domain.time import parse_duration_ns
from tuner.settings import Settings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import RenderableType

    from tuner.client import ApiError, Client, Job
    from tuner.schemas.base import Answer

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound="Answer | DataclassInstance")
SILENT_S = 4.0
MANY = 200  # How many of the newest jobs or trials are searched for a similar id or name.
PROJECT: ContextVar[str | None] = ContextVar("project", default=None)
"""The value of `--project`, or None if it was not given."""


def connect() -> Client:
    """Return a client of the service at the address in the settings, for the project in `--project`.

    The client module is imported here because `--help` does not need it.
    """
    from tuner.client import Client

    project = PROJECT.get()
    client = Client(project=project) if project else Client()
    note = SilenceNote(client.url)
    client.on_request(note.begin, note.end)
    return client


class SilenceNote:
    """Writes a note to standard error when a request has had no answer for `SILENT_S` seconds."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Start the timer for a new request. Cancel the previous request's timer: that request may have failed without an answer."""
        self.end()
        self._timer = threading.Timer(SILENT_S, self._write)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Cancel the timer. Call this when the headers of the answer have arrived."""
        if self._timer is not None:
            self._timer.cancel()

    def _write(self) -> None:
        text = (
            f"no answer from {self._url} after {SILENT_S:g} s; the service may still be computing, or be overloaded or stopped. "
            "Still waiting; press Ctrl-C to stop"
        )
        typer.echo(harmless(text), err=True)


class Output:
    """Shows answers of the service on standard output, as JSON or as text that a renderer builds."""

    def __init__(self, as_json: bool, style: Style = Style.TABLE) -> None:
        if as_json and style is not Style.TABLE:
            raise typer.BadParameter("give --json or --format, not both", param_hint="--format")
        self._as_json, self._style = as_json, style

    def show(self, answer: A, render: Callable[[A], RenderableType]) -> None:
        self._show(None if self._as_json else render(answer), answer)

    def show_all(self, items: Sequence[A], render: Callable[[Sequence[A]], RenderableType]) -> None:
        page = {"items": items, "next_cursor": None}
        self._show(None if self._as_json else render(items), page)

    def _show(self, text: RenderableType | None, answer: object) -> None:
        if text is None:
            typer.echo(json.dumps(answer, indent=2, default=_plain))
        elif self._style is Style.TABLE and sys.stdout.isatty():
            tables.show(text)
        else:
            typer.echo(tables.text(text, self._style), nl=False)


def _plain(answer: Any) -> dict[str, Any]:
    return dataclasses.asdict(answer) if dataclasses.is_dataclass(answer) else answer.model_dump()  # type: ignore[arg-type]


def duration_ns(text: str, option: str) -> int:
    """Return the nanoseconds of an option's value such as 90s, 15m, 6h or 2d.

    Raises:
        typer.BadParameter: The text is not a duration.
    """
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, not {text!r}", param_hint=option) from error


def with_problems(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command so that errors of the service or the settings are printed to standard error and the exit status is 1.

    Notes that a command has added to an ApiError are printed after it.
    """

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except SpaceRefused as error:
            raise _exit(error.title(), f"  {error.detail}") from error
        except TunerError as error:
            raise _exit(error.title(), error.detail) from error
        except ValueError as error:
            if not str(error).startswith("TUNER_"):
                raise
            raise _exit("A setting is wrong", str(error)) from error
        except _api_error() as error:
            notes = getattr(error, "__notes__", ())
            raise _exit(error.title, *_details(error), *_advice(error), *notes) from error

    return call


@contextmanager
def maybe_done(note: str) -> Iterator[None]:
    """Add `note` to the error of a request whose answer was lost: what the service may have done, and where to check."""
    try:
        yield
    except _api_error() as error:
        if error.in_doubt:
            error.add_note(note)
        raise


def _api_error() -> type[ApiError]:
    from tuner.client import ApiError

    return ApiError


def _exit(*lines: str) -> typer.Exit:
    typer.echo(harmless("\n".join(lines)), err=True)
    return typer.Exit(1)


def _details(error: ApiError) -> list[str]:
    if error.status == 401 and not _is_user_key(Settings.from_env()):
        return []  # `_about_the_key` says more than the service does
    return [f"  {field.pointer or 'body'}: {field.detail}" for field in error.errors] or [error.detail]


def _advice(error: ApiError) -> list[str]:
    """Return advice on what to do about an error, or [] if none is known."""
    from tuner.client.http import INVALID_ANSWER

    settings = Settings.from_env()
    if error.status == 401:
        return [] if _is_user_key(settings) else [_about_the_key(settings)]
    if error.code == INVALID_ANSWER or (error.status == 404 and not error.code):
        return [f"is {settings.url} the address of the service? If not, set TUNER_URL"]
    if error.code == "not-found":
        with suppress(Exception):  # print the error without advice if a request for the advice fails
            return _nearest_name(error.path)
    return []


def _is_user_key(settings: Settings) -> bool:
    """Return whether the key that the command sends is a user's key. For these, the service says why it refuses a key."""
    with suppress(OSError):
        return is_like_a_key(settings.given_api_key or settings.api_key_path.read_text())
    return False


def _about_the_key(settings: Settings) -> str:
    service = f"the service at {settings.url}"
    if settings.given_api_key:
        return (
            f"TUNER_API_KEY is not the key of {service}, which is kept in the file api_key of its TUNER_HOME"
        )
    path = settings.api_key_path
    wrong = (
        f"the key in {path} is not the key of"
        if path.exists()
        else f"the file {path} does not exist, so it has no key for"
    )
    return f"{wrong} {service}: set TUNER_HOME to the home that the service was started with, or TUNER_API_KEY to its key"


def _nearest_name(path: str) -> list[str]:
    """Return advice about the missing job, trial or budget in the path of a request: similar names, or how to list all names.

    Return [] if the path names none of them.
    """
    from urllib.parse import unquote

    client, names = connect(), [unquote(part) for part in path.split("/")[2:]]
    match names:
        case ["budgets", name]:
            known = [budget.name for budget in client.budgets().items]
            return [_nearest(name, known, "`tuner budgets list` lists all budgets")]
        case ["jobs", job, *rest]:
            try:
                client.job(job)
            except _api_error():
                return [_nearest_job(job, list(islice(client.jobs(), MANY)))]
            if rest[:1] == ["trials"]:
                known = [trial.id for trial in client.trials(job, limit=MANY)]
                if rest[1] not in known:
                    return [_nearest(rest[1], known, f"`tuner trials {job}` lists all trials")]
        case _:
            pass
    return []


def _nearest_job(name: str, jobs: Sequence[Job]) -> str:
    if not jobs:
        return "no job has been submitted yet: submit one with `tuner submit JOB.yaml`"
    if similar := nearest(name, [job.name for job in jobs], 1):
        job = next(job for job in jobs if job.name == similar[0])
        return f"the newest job with the name {job.name!r} is {job.id}; `tuner jobs` lists all jobs"
    newest = f"the newest job is {jobs[0].id}, {jobs[0].name!r}; `tuner jobs` lists all jobs"
    return _nearest(name, [job.id for job in jobs], newest)


def _nearest(name: str, known: Sequence[str], otherwise: str) -> str:
    near = nearest(name, known, cutoff=0.7)  # ids that are not related begin alike
    return f"the nearest: {', '.join(near)}" if near else otherwise
