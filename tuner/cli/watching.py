"""A job followed live: a display that is drawn anew on a terminal, lines elsewhere."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tuner.cli import render
from tuner.client import Client, Event

STOPS = ("succeeded", "cancelled", "failed", "paused")


@dataclass
class Screen:
    """What is known of a job, from its events."""

    name: str
    metric: str
    spend: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    reports: int = 0
    latest: list[str] = field(default_factory=list)

    def take(self, event: Event) -> list[str]:
        """Notes an event; answers the lines that a log should have of it."""
        match event.type:
            case "spend":
                self.spend = event.data
            case "job":
                return self._take_job(event.data)
            case "report":
                self.reports += 1
                value = render.number(event.data["metric"])
                self._note(f"{event.data['trial']} step {event.data['step']}: {self.metric} {value}")
            case "trial" if event.data["state"] in ("completed", "failed"):
                self._note(f"{event.data['id']} {event.data['state']} {event.data['reason']}".rstrip())
        return []

    def _take_job(self, data: dict[str, Any]) -> list[str]:
        before, self.job = self.job, data
        best, known = data["best"], before.get("best")
        lines = []
        if best and (not known or best["metric"] != known["metric"]):
            value, where = render.number(best["metric"]), f"{best['trial']} at step {best['step']}"
            lines.append(f"best {self.metric} {value} by {where}, {self._spent()}")
        if data["state"] != before.get("state"):
            lines.append(f"{data['state']} {data['stop_reason'] or ''}".rstrip())
        return lines

    def _note(self, line: str) -> None:
        self.latest = [*self.latest[-5:], line]

    def _spent(self) -> str:
        return f"{render.usd(self.spend.get('usd', 0.0))} of {render.usd(self.spend.get('budget_usd'))} spent"

    def __rich__(self) -> RenderableType:
        used = self.job.get("progress", {}).get("budget_used", 0.0)
        top = Table.grid(padding=(0, 2))
        top.add_row(
            Text(self.name, style="bold"), self.job.get("state", ""), self.job.get("stop_reason") or ""
        )
        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(total=1.0, completed=used, width=40), f"{used:.0%}", self._spent())
        states = self.job.get("progress", {}).get("trials", {})
        counts = "  ".join(f"{count} {state}" for state, count in states.items() if count)
        lines: list[RenderableType] = [
            top,
            bar,
            Text(f"trials: {counts or 'none yet'}   reports: {self.reports}"),
        ]
        best = self.job.get("best")
        if best:
            told = (
                f"best {self.metric}: {render.number(best['metric'])}  ({best['trial']}, step {best['step']})"
            )
            lines += [Text(told, style="bold green"), Text(render.config(best["config"]))]
        return Group(*lines, *[Text(line, style="dim") for line in self.latest])


def watch(client: Client, job: str) -> None:
    """Until the job ends or is paused."""
    first = client.job(job)
    screen, console = Screen(first.name, first.objective["metric"]), Console(highlight=False)
    if not console.is_terminal:
        _log(client, job, screen)
        return
    with Live(screen, console=console, refresh_per_second=4):
        for event in client.events(job):
            screen.take(event)
            if screen.job.get("state") in STOPS:
                break


def _log(client: Client, job: str, screen: Screen) -> None:
    began = time.monotonic()
    for event in client.events(job):
        for line in screen.take(event):
            typer.echo(f"[{time.monotonic() - began:6.1f} s] {line}")
        if screen.job.get("state") in STOPS:
            return


def print_events(client: Client, job: str) -> None:
    """One JSON object a line."""
    for event in client.events(job):
        typer.echo(json.dumps({"event": event.type, "id": event.id, "data": event.data}))
