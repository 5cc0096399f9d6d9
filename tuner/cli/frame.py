"""What all commands share: JSON or people's words, and problems on standard error."""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer
from rich.console import Console, RenderableType

from tuner.client import ApiError
from tuner.domain.errors import TunerError
from tuner.domain.time import parse_duration_ns
from tuner.schemas.base import Answer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound="Answer | DataclassInstance")
WIDTH = 200  # columns where there is no terminal, so that ids stay whole


class Frame:
    """Shows answers on standard output, as JSON or as a renderer makes of them."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)

    def show(self, found: A, render: Callable[[A], RenderableType]) -> None:
        if self._as_json:
            typer.echo(json.dumps(_plain(found), indent=2))
        else:
            self._console.print(render(found))

    def show_all(self, found: Sequence[A], render: Callable[[Sequence[A]], RenderableType]) -> None:
        if self._as_json:
            typer.echo(json.dumps({"items": [_plain(one) for one in found], "next_cursor": None}, indent=2))
        else:
            self._console.print(render(found))


def _plain(found: "Answer | DataclassInstance") -> dict[str, Any]:
    return found.model_dump() if isinstance(found, Answer) else dataclasses.asdict(found)


def with_problems(command: Callable[P, R]) -> Callable[P, R]:
    """Exit status 1, with title and detail on standard error, for whatever the service refuses."""

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ApiError as error:
            lines = [f"  {field.pointer or 'body'}: {field.detail}" for field in error.errors]
            detail = [error.detail] if not lines else []
            raise _exit("\n".join([f"{error.title}", *detail, *lines])) from error
        except TunerError as error:
            raise _exit(f"{error.title()}\n{error.detail}") from error
        except ValueError as error:
            if not str(error).startswith("TUNER_"):
                raise
            raise _exit(f"A setting is wrong\n{error}") from error

    return call


def duration_ns(text: str, option: str) -> int:
    """Of an option such as 90s, 15m, 6h or 2d."""
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, not {text!r}", param_hint=option) from error


def _exit(text: str) -> typer.Exit:
    typer.echo(text, err=True)
    return typer.Exit(1)
