"""Code that all commands share: it creates the client, prints answers as JSON or text, and prints errors to standard error."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer

from tuner.cli.escape import harmless
from tuner.cli.tables import Style
from tuner.domain.errors import TunerError
from tuner.domain.time import parse_duration_ns

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import RenderableType

    from tuner.client import ApiError, Client
    from tuner.schemas.base import Answer

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound="Answer | DataclassInstance")


SILENT_S = 4.0
PROJECT: ContextVar[str | None] = ContextVar("project", default=None)
"""The value of `--project`, or None if it was not given."""


def connect() -> Client:
    """Return a client of the service at the address in the settings, for the project in `--project`.

    The client module is imported here because `--help` does not need it.
    """
    from tuner.client import Client

    project = PROJECT.get()
    client = Client(project=project) if project else Client()
    waiting = Waiting(client.url)
    client.on_request(waiting.begin, waiting.end)
    return client


class Waiting:
    """Writes a note to standard error when a request has had no answer for `SILENT_S` seconds."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Start the timer for a new request, and cancel that of the previous request, which may have failed without an answer."""
        self.end()
        self._timer = threading.Timer(SILENT_S, self._say)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Cancel the timer. Call this when the headers of the answer have arrived."""
        if self._timer is not None:
            self._timer.cancel()

    def _say(self) -> None:
        text = f"{self._url} has not answered for {SILENT_S:g} s; it may be stopped or overloaded. Still waiting; press Ctrl-C to stop"
        typer.echo(harmless(text), err=True)


class Frame:
    """Shows answers of the service on standard output, as JSON or as text that a renderer builds."""

    def __init__(self, as_json: bool, style: Style = Style.TABLE) -> None:
        if as_json and style is not Style.TABLE:
            raise typer.BadParameter("give --json or --format, not both", param_hint="--format")
        self._as_json, self._style = as_json, style

    def show(self, found: A, render: Callable[[A], RenderableType]) -> None:
        if self._as_json:
            typer.echo(json.dumps(_plain(found), indent=2))
        else:
            self._show(render(found))

    def show_all(self, found: Sequence[A], render: Callable[[Sequence[A]], RenderableType]) -> None:
        if self._as_json:
            typer.echo(json.dumps({"items": [_plain(one) for one in found], "next_cursor": None}, indent=2))
        else:
            self._show(render(found))

    def _show(self, shown: RenderableType) -> None:
        from tuner.cli import tables

        if self._style is Style.TABLE and sys.stdout.isatty():
            tables.show(shown)
        else:
            typer.echo(tables.text(shown, self._style), nl=False)


def _plain(found: Answer | DataclassInstance) -> dict[str, Any]:
    return dataclasses.asdict(found) if dataclasses.is_dataclass(found) else found.model_dump()


def with_problems(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command so that errors of the service or the settings are printed to standard error and the exit status is 1."""

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except TunerError as error:
            raise _exit(f"{error.title()}\n{error.detail}") from error
        except ValueError as error:
            if not str(error).startswith("TUNER_"):
                raise
            raise _exit(f"A setting is wrong\n{error}") from error
        except _api_error() as error:
            from tuner.cli import error_hints

            raise _exit(error_hints.text_of(error)) from error

    return call


def duration_ns(text: str, option: str) -> int:
    """Return the nanoseconds of an option's value such as 90s, 15m, 6h or 2d.

    Raises:
        typer.BadParameter: The text is not a duration.
    """
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, not {text!r}", param_hint=option) from error


def _api_error() -> type[ApiError]:
    from tuner.client import ApiError

    return ApiError


def _exit(text: str) -> typer.Exit:
    typer.echo(harmless(text), err=True)
    return typer.Exit(1)
