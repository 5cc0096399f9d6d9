"""A job as lines of a terminal screen, limited to the screen's height and width."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tuner.cli.escape import amount, config, number, plural, span, usd
from tuner.cli.watch.state import FirstLimit, Highlight, JobState
from tuner.domain.trial import TRIAL_FINAL

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

    job: JobState
    running_s: float = 0.0
    usd_per_hour: float | None = None
    limit: FirstLimit | None = None
    ends_at: str = ""  #: Time of day at which the first limit will be reached.
    next_dollar: str = ""
    #: Pairs of a time of day and a highlight, newest last. The time is "" if the highlight happened before the watching began.
    highlights: Sequence[tuple[str, Highlight]] = ()
    note: str = ""  #: What is wrong with the connection, or "" if nothing is.
    foot: str = ""


@dataclass(frozen=True, slots=True)
class ScreenSize:
    """The size of the terminal in characters, and whether it can only show ASCII."""

    width: int
    height: int
    ascii_only: bool = False


def lines(view: View, size: ScreenSize) -> list[Text]:
    """Return the lines of the screen.

    If the terminal is too small for everything, the rungs are left out first, and then some of the events and the best trials.
    """
    top = [_head(view), *_bars(view, size)]
    forecast = [*_forecast(view), *([Text(view.note, style="bold yellow")] if view.note else [])]
    foot = [Text(view.foot, style="dim")] if view.foot else []
    left = size.height - len(top) - len(forecast) - len(foot)
    rungs = _rungs(view.job, size.width)
    if left < len(rungs) + 9:
        rungs = []
    left -= len(rungs)
    leaders, highlights = _shares(left, min(len(view.job.best_of), 10), len(view.highlights))
    blocks = [top + forecast, rungs, _leaders(view.job, leaders), _highlights(view, highlights)]
    shown = _joined(blocks, size.height - len(foot))
    if foot:  # put the foot on the last line of the screen
        shown += [Text()] * (size.height - 1 - len(shown)) + foot
    return [_fitted(line, size.width) for line in shown[: size.height]]


def _joined(blocks: Sequence[list[Text]], height: int) -> list[Text]:
    """Return the blocks as one list of lines, cut to `height`. Empty lines separate the blocks if they fit."""
    filled_blocks = [block for block in blocks if block]
    spare = height - sum(map(len, filled_blocks))
    joined: list[Text] = []
    for index, block in enumerate(filled_blocks):
        if index and spare > 0:
            joined.append(Text())
            spare -= 1
        joined += block
    return joined[: max(0, height)]


def _shares(left: int, leaders: int, events: int) -> tuple[int, int]:
    """Return how many of the `leaders` best trials and of the `events` highlights to show, so that both fit into `left` lines.

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
    job, reason = view.job, view.job.data.get("stop_reason")
    return Text.assemble(
        (job.facts.name, "bold"),
        "  ",
        (job.facts.job, "dim"),
        "  ",
        (f"{job.state}{f' ({reason})' if reason else ''}", STYLES.get(job.state, "bold")),
        f"  for {span(view.running_s)}" if view.running_s else "",
    )


def _bars(view: View, size: ScreenSize) -> Iterator[Text]:
    """Yield a line each for money, GPU-hours, time and trials: a label, a bar, and the amounts.

    The lines for GPU-hours and time are omitted if the budget does not limit them.
    """
    spend, budget = view.job.spend, view.job.data.get("budget")
    if not spend or budget is None:
        return
    held = f", {usd(spend['held_usd'])} held" if spend["held_usd"] else ""
    of_limit = f" of {usd(budget['usd'])}" if budget["usd"] else ""
    shares = [spend[name] / budget["usd"] if budget["usd"] else 0.0 for name in ("usd", "held_usd")]
    rows: list[tuple[str, str, float, float]] = [
        ("money", f"{usd(spend['usd'])}{of_limit}{held}", shares[0], shares[1])
    ]
    if budget["gpu_hours"]:
        text = f"{amount(spend['gpu_hours'])} of {amount(budget['gpu_hours'])} GPU-hours"
        rows.append(("GPUs", text, spend["gpu_hours"] / budget["gpu_hours"], 0.0))
    if budget["wall_clock"] is not None:
        text = f"{span(view.running_s)} of {span(budget['wall_clock'])}"
        rows.append(("time", text, view.running_s / budget["wall_clock"], 0.0))
    rows.append(("trials", *_trials(view.job, budget["trials"]), 0.0))
    length = max(6, min(60, size.width - LABEL - 2 - max(cell_len(text) for _, text, *_ in rows)))
    for label, text, done, kept in rows:
        bar = _bar(length, done, kept, ascii_only=size.ascii_only)
        yield Text.assemble((set_cell_size(label, LABEL), "bold"), bar, "  ", text)


def _trials(job: JobState, limit: int | None) -> tuple[str, float]:
    """Return a text with the number of trials by state, and how much of the bar to fill, from 0 to 1.

    With a limit, the bar shows the started trials as a share of `limit`. Without one, it shows the ended trials as a share of the started
    trials.
    """
    states = job.data["progress"]["trials"]
    count = sum(states.values())
    ended = sum(states.get(name, 0) for name in TRIAL_FINAL)
    counts = ", ".join(f"{states[name]} {name}" for name in STATES if states.get(name))
    done = count / limit if limit else ended / count if count else 0.0
    return f"{count}{f' of {limit}' if limit else ''}{f': {counts}' if counts else ''}", done


def _bar(length: int, done: float, held: float, *, ascii_only: bool) -> Text:
    """Return a bar of `length` cells that shows which shares of a limit are used (`done`), held and left.

    Until `done` reaches 1, a share above zero fills at least one cell, and the cells of `done` do not fill the whole bar.
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
    lines = []
    if view.usd_per_hour is not None:
        rate = f"{usd(round(view.usd_per_hour, 4 if view.usd_per_hour < 1 else 2))} an hour"
        limit = view.limit
        until = f": {limit.limit} lasts {span(limit.seconds)} more, until {view.ends_at}" if limit else ""
        lines.append(Text.assemble(("rate".ljust(LABEL), "bold"), f"{rate}{until}"))
    if view.next_dollar:
        lines.append(Text.assemble(("next".ljust(LABEL), "bold"), view.next_dollar))
    return lines


def _rungs(job: JobState, width: int) -> list[Text]:
    """Return a table of how many trials reached each rung. If not all rungs fit, the highest ones are shown."""
    cells = [
        (str(rung.step), str(rung.reached), "-" if rung.step == job.facts.last_step else str(rung.promoted))
        for rung in job.rung_counts()
    ]
    if not cells:
        return []
    label = 10
    wide = max(5, *(len(cell) for row in cells for cell in row)) + 2
    cells = cells[-max(1, (width - label) // wide) :]
    names = (job.facts.unit, "reached", "promoted")
    return [
        Text.assemble((set_cell_size(name, label), "bold"), "".join(row[i].rjust(wide) for row in cells))
        for i, name in enumerate(names)
    ]


def _leaders(job: JobState, count: int) -> list[Text]:
    """Return a table of the best trials with a heading."""
    leaders, facts = job.leaders(count), job.facts
    if not leaders:
        return []
    rows = [("#", "trial", "state", facts.unit, facts.metric, "latest", "paid", "configuration")]
    for rank, best in enumerate(leaders, 1):
        trial = job.trials.get(best.trial, {})
        at = f"{best.step} of {trial['steps']}" if trial.get("steps", 0) > best.step else str(best.step)
        rows.append(
            (
                str(rank),
                best.trial,
                str(trial.get("state", "")),
                at,
                number(best.metric),
                number(job.latest_of(best.trial)),
                usd(trial.get("paid_usd")),
                config(trial.get("config", {})),
            )
        )
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for rank, (*cells, shown_config) in enumerate(rows):
        style = "bold" if rank < 2 else ""
        aligned = [
            (cell.rjust if column in (0, 4, 5, 6) else cell.ljust)(widths[column])
            for column, cell in enumerate(cells)
        ]
        lines.append(Text.assemble(("  ".join(aligned), style), (f"  {shown_config}", style or "dim")))
    return lines


def _highlights(view: View, count: int) -> list[Text]:
    """Return the newest highlights, newest first."""
    newest = view.highlights[-count:] if count else []
    return [
        Text.assemble((f"{at:>8}  ", "dim"), (highlight.text, STYLES.get(highlight.kind, "")))
        for at, highlight in reversed(newest)
    ]


def summary(view: View) -> str:
    """Return the state of the job in one line for a log."""
    job, states = view.job, view.job.data["progress"]["trials"]
    spend, budget = job.spend, job.data["budget"]
    of_limit = f" of {usd(budget['usd'])}" if budget["usd"] is not None else ""
    parts = [f"{usd(spend['usd'])}{of_limit} spent"]
    if budget["gpu_hours"] is not None:
        parts.append(f"{amount(spend['gpu_hours'])} of {amount(budget['gpu_hours'])} GPU-hours")
    parts.append(f"{plural(sum(states.values()), 'trial')}, {states.get('running', 0)} running")
    if (best := job.best) is not None:
        parts.append(f"best {job.facts.metric} {number(best.metric)}")
    if view.usd_per_hour is not None and view.limit is not None and job.state == "running":
        parts.append(f"{view.limit.limit} lasts {span(view.limit.seconds)} more")
    return "; ".join(parts)
