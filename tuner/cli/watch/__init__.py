"""Follow a job until it ends: as a live screen on a terminal, otherwise as lines of a log."""

import json
import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from tuner.cli.watch.follow import JobFollower
    from tuner.client import Client

FOOT = "Press Ctrl-C to stop watching; the job keeps running."


class _Terminated(BaseException):
    """Raised when the process receives SIGTERM, as KeyboardInterrupt is for SIGINT."""


def watch(client: "Client", job: str) -> str:
    """Show a job until it ends or is paused, and return its last state."""
    from rich.console import Console

    from tuner.cli.watch.follow import JobFollower

    console, follower = Console(highlight=False), JobFollower(client.job(job))
    if console.is_terminal and not console.is_dumb_terminal:
        draw(client, follower, console)
    else:
        log(client, follower)
    return follower.job.state


@contextmanager
def may_leave(job: str) -> Iterator[None]:
    """Stop watching on Ctrl-C (exit status 130) or SIGTERM (143) without ending the job, and print how to watch the job again."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _terminated) if here else None
    try:
        yield
    except KeyboardInterrupt:
        raise _left(job, 130) from None
    except _Terminated:
        raise _left(job, 143) from None
    finally:
        if here:
            signal.signal(signal.SIGTERM, before)


def print_events(client: "Client", job: str) -> str:
    """Print each event of the job as a line of JSON until the job ends or is paused, and return its last state."""
    from tuner.client.follow import silent_since

    silent: list[datetime] = []

    def silence(since: datetime) -> None:
        if since not in silent:
            silent.append(since)
            typer.echo(silent_since(since), err=True)

    state = ""
    client.on_request(lambda: None, lambda: None)
    for event in client.events(job, on_silence=silence):
        typer.echo(json.dumps({"event": event.type, "id": event.id, "data": event.data}))
        state = event.data["state"] if event.type == "job" else state
        if state == "paused":
            break
    return state


def exit_unless_succeeded(state: str) -> None:
    if state != "succeeded":
        raise typer.Exit(1)


def _terminated(*_: Any) -> NoReturn:
    raise _Terminated


def _left(job: str, status: int) -> typer.Exit:
    typer.echo(
        f"\nThe job keeps running. tuner watch {job} shows it again; tuner cancel {job} ends it.", err=True
    )
    return typer.Exit(status)


class _Screen:
    """The content of the live screen. Each time rich draws it, it is laid out for the current size of the terminal."""

    def __init__(self, follower: "JobFollower", foot: str) -> None:
        self._follower, self._foot = follower, foot

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.console import Group

        from tuner.cli.tables import Harmless
        from tuner.cli.watch.screen import ScreenSize, lines

        size = ScreenSize(options.max_width, options.height or console.height, options.ascii_only)
        yield Harmless(Group(*lines(self._follower.view(self._foot), size)))


def draw(client: "Client", follower: "JobFollower", console: "Console") -> None:
    """Show the job on the terminal's alternate screen, and print the last state on the normal screen afterwards.

    The alternate screen does not flicker, and no parts of old screens remain when the size of the terminal changes.
    """
    from rich.live import Live

    from tuner.cli.watch.follow import Forecaster, events

    forecaster = Forecaster(client, follower)
    forecaster.start()
    try:
        with Live(_Screen(follower, FOOT), console=console, refresh_per_second=4, screen=True):
            # Wait without a limit if the service does not answer: the screen says so, and the user can press Ctrl-C.
            for _ in events(client, follower, reconnect_s=math.inf):
                pass
    finally:
        forecaster.stop()
        if follower.job.data:
            console.print(_Screen(follower, ""))


def log(client: "Client", follower: "JobFollower") -> None:
    """Print the job's events as lines, and a summary when it has ended or is paused."""
    from tuner.cli.watch.follow import events
    from tuner.cli.watch.plain import Log

    log = Log(follower, typer.echo)
    follower.on_connection = log.connection
    over = log.run_ticks()
    try:
        for highlights in events(client, follower):
            log.add(highlights)
    finally:
        over.set()
    if follower.has_ended or follower.job.state == "paused":
        log.last()
