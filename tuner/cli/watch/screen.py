"""A job as lines of a terminal screen, limited to the screen's height and width."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tuner.cli.escape import number, plural, span, usd
from tuner.cli.watch.pace import End
from tuner.cli.watch.state import Happening, Watched, config_of

STATES = ("running", "pending", "paused", "completed", "stopped", "failed")
STYLES = {
    "running": "green",
    "succeeded": "bold green",
    "completed": "green",
    "failed": "bold red",
    "cancelled": "bold",
    "preempted": "yellow",
    "promoted": "cyan",
    "paused": "yellow",
    "best": "bold green",
}
LABEL = 8


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the screen shows at one moment."""

    seen: Watched
    running_s: float = 0.0
    usd_per_hour: float | None = None
    end: End | None = None
    ends_at: str = ""  #: Time of day at which the first limit will be reached.
    next_dollar: str = ""
    events: Sequence[
        tuple[str, Happening]
    ] = ()  #: Each with the time of day at which it arrived, newest last.
    note: str = ""  #: What is wrong with the connection.
    foot: str = ""


@dataclass(frozen=True, slots=True)
class LoadShedder:
    """The size of the terminal in characters, and whether it can only show ASCII."""

    width: int
    height: int
    ascii_only: bool = False


def lines(view: View, room: LoadShedder) -> list[Text]:
    """Return the lines of the screen.

    If the terminal is too small for everything, the rungs are left out first, and then some of the events and the best trials.
    """
    top = [_head(view), *_bars(view, room)]
    said = [*_forecast(view), *([Text(view.note, style="bold yellow")] if view.note else [])]
    foot = [Text(view.foot, style="dim")] if view.foot else []
    left = room.height - len(top) - len(said) - len(foot)
    ladder = _ladder(view.seen, room.width)
    if left < len(ladder) + 9:
        ladder = []
    left -= len(ladder)
    leaders, events = _shares(left, min(len(view.seen.best_of), 10), len(view.events))
    blocks = [top + said, ladder, _leaders(view.seen, leaders), _events(view, events)]
    shown = _joined(blocks, room.height - len(foot))
    if foot:  # put the foot on the last line of the screen
        shown += [Text()] * (room.height - 1 - len(shown)) + foot
    return [_fitted(line, room.width) for line in shown[: room.height]]


def _joined(blocks: Sequence[list[Text]], height: int) -> list[Text]:
    """Return the blocks as one list of lines, cut to `height`. Empty lines separate the blocks if they fit."""
    found = [block for block in blocks if block]
    spare = height - sum(map(len, found))
    joined: list[Text] = []
    for index, block in enumerate(found):
        if index and spare > 0:
            joined.append(Text())
            spare -= 1
        joined += block
    return joined[: max(0, height)]


def _shares(left: int, leaders: int, events: int) -> tuple[int, int]:
    """Return how many of the best trials and of the events to show, so that both fit into `left` lines.

    Four lines are reserved for a heading and for empty lines between blocks.
    """
    room = max(0, left - 4)
    few = min(leaders, max(room - events, (room * 3 + 4) // 5))
    return few, min(events, max(0, room - few))


def _fitted(line: Text, width: int) -> Text:
    line = line.copy()
    line.no_wrap, line.end = True, "\n"
    line.truncate(width, overflow="ellipsis")
    return line


def _head(view: View) -> Text:
    seen = view.seen
    why = seen.job.get("stop_reason")
    state = f"{seen.state}{f' ({why})' if why else ''}"
    return Text.assemble(
        (seen.facts.name, "bold"),
        "  ",
        (seen.facts.job, "dim"),
        "  ",
        (state, STYLES.get(seen.state, "bold")),
        f"  for {span(view.running_s)}" if view.running_s else "",
    )


def _bars(view: View, room: LoadShedder) -> Iterator[Text]:
    spend, budget = view.seen.spend, view.seen.job.get("budget")
    if not spend or budget is None:
        return
    lines = [*_money(spend, budget), *_hours(spend, budget)]
    if budget["wall_clock"] is not None:
        of = f"{span(view.running_s)} of {span(budget['wall_clock'])}"
        lines.append(("time", of, view.running_s / budget["wall_clock"], 0.0))
    lines.append(_trials(view.seen, budget["trials"]))
    wide = max(cell_len(text) for _, text, *_ in lines)
    length = max(6, min(60, room.width - LABEL - 2 - wide))
    for label, text, done, held in lines:
        bar = _bar(length, done, held, ascii_only=room.ascii_only)
        yield Text.assemble((set_cell_size(label, LABEL), "bold"), bar, "  ", text)


def _money(spend: Mapping[str, Any], budget: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    held = f", {usd(spend['held_usd'])} held" if spend["held_usd"] else ""
    if budget["usd"]:
        done, more = spend["usd"] / budget["usd"], spend["held_usd"] / budget["usd"]
        yield "money", f"{usd(spend['usd'])} of {usd(budget['usd'])}{held}", done, more
    else:
        yield "money", f"{usd(spend['usd'])}{held}", 0.0, 0.0


def _hours(spend: Mapping[str, Any], budget: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    if budget["gpu_hours"]:
        of = f"{number(spend['gpu_hours'])} of {number(budget['gpu_hours'])} GPU-hours"
        yield "GPUs", of, spend["gpu_hours"] / budget["gpu_hours"], 0.0


def _trials(seen: Watched, limit: int | None) -> tuple[str, str, float, float]:
    """Return the parts of the bar of trials: its label, its text, and the shares that are done and held.

    Without a limit on trials, the share of started trials that have ended is done.
    """
    states = seen.job["progress"]["trials"]
    count = sum(states.values())
    over = sum(states.get(state, 0) for state in ("completed", "stopped", "failed"))
    counts = ", ".join(f"{states[state]} {state}" for state in STATES if states.get(state))
    of = f"{count} of {limit}" if limit else f"{count}"
    done = count / limit if limit else over / count if count else 0.0
    return "trials", f"{of}{': ' + counts if counts else ''}", done, 0.0


def _bar(length: int, done: float, held: float, *, ascii_only: bool) -> Text:
    """Return a bar that shows the shares of a limit that are done, held and left.

    A share above zero fills at least one cell, and the bar is only full when everything is done.
    """
    full, aside, rest = "#+." if ascii_only else "█▒·"
    first = _cells(length, done)
    second = min(length - first, max(_cells(length, done + held) - first, 1 if held > 0 else 0))
    return Text.assemble(
        (full * first, "red" if done >= 0.9 else "green"),
        (aside * second, "yellow"),
        (rest * (length - first - second), "dim"),
    )


def _cells(length: int, share: float) -> int:
    if share <= 0:
        return 0
    return length if share >= 1 else min(length - 1, max(1, round(length * share)))


def _forecast(view: View) -> list[Text]:
    found = []
    if view.usd_per_hour is not None:
        rate = f"{usd(round(view.usd_per_hour, 4 if view.usd_per_hour < 1 else 2))} an hour"
        end = view.end
        until = f": {end.limit} lasts {span(end.seconds)} more, until {view.ends_at}" if end else ""
        found.append(Text.assemble(("rate".ljust(LABEL), "bold"), f"{rate}{until}"))
    if view.next_dollar:
        found.append(Text.assemble(("next".ljust(LABEL), "bold"), view.next_dollar))
    return found


def _ladder(seen: Watched, width: int) -> list[Text]:
    """Return a table of how many trials reached each rung. If there is no room for all, the highest rungs are shown."""
    cells = [
        (str(one.step), str(one.reached), "-" if one.step == seen.facts.last_step else str(one.promoted))
        for one in seen.ladder()
    ]
    if not cells:
        return []
    label = 10
    wide = max(5, *(len(cell) for row in cells for cell in row)) + 2
    cells = cells[-max(1, (width - label) // wide) :]
    names = (seen.facts.unit, "reached", "promoted")
    return [
        Text.assemble((set_cell_size(name, label), "bold"), "".join(row[i].rjust(wide) for row in cells))
        for i, name in enumerate(names)
    ]


def _leaders(seen: Watched, count: int) -> list[Text]:
    found = seen.leaders(count)
    if not found:
        return []
    facts = seen.facts
    rows = [("#", "trial", "state", facts.unit, facts.metric, "latest", "paid")]
    for rank, one in enumerate(found, 1):
        known = seen.trials.get(one.trial, {})
        at = f"{one.step} of {known['steps']}" if known.get("steps", 0) > one.step else str(one.step)
        state = str(known.get("state", ""))
        rows.append(
            (
                str(rank),
                one.trial,
                state,
                at,
                number(one.metric),
                number(seen.latest_of(one.trial)),
                usd(known.get("paid_usd")),
            )
        )
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for rank, row in enumerate(rows):
        style = "bold" if rank < 2 else ""
        cells = [
            (cell.rjust if column in (0, 4, 5, 6) else cell.ljust)(widths[column])
            for column, cell in enumerate(row)
        ]
        parts = [Text("  ".join(cells), style=style)]
        config = config_of(seen, found[rank - 1].trial) if rank else "configuration"
        parts.append(Text(f"  {config}", style=style or "dim"))
        lines.append(Text.assemble(*parts))
    return lines


def _events(view: View, count: int) -> list[Text]:
    if not count:
        return []
    shown = view.events[-count:]
    return [
        Text.assemble((f"{at:>8}  ", "dim"), (happening.text, STYLES.get(happening.kind, "")))
        for at, happening in reversed(shown)
    ]


def summary(view: View) -> str:
    """Return the state of the job in one line for a log."""
    seen, states = view.seen, view.seen.job["progress"]["trials"]
    spend, budget = seen.spend, seen.job["budget"]
    of = f" of {usd(budget['usd'])}" if budget["usd"] is not None else ""
    parts = [f"{usd(spend['usd'])}{of} spent"]
    if budget["gpu_hours"] is not None:
        parts.append(f"{number(spend['gpu_hours'])} of {number(budget['gpu_hours'])} GPU-hours")
    parts.append(f"{plural(sum(states.values()), 'trial')}, {states.get('running', 0)} running")
    if (best := seen.best) is not None:
        parts.append(f"best {seen.facts.metric} {number(best.metric)}")
    if view.usd_per_hour is not None and view.end is not None and seen.state == "running":
        parts.append(f"{view.end.limit} lasts {span(view.end.seconds)} more")
    return "; ".join(parts)
