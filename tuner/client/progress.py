"""Show the progress of a job while a program waits for it: as a bar updated in place in a notebook, as lines elsewhere."""

import html
import sys
from datetime import datetime
from typing import Any, Protocol


class Show(Protocol):
    def __call__(self, job: Any, /) -> None: ...

    def silent(self, since: datetime, /) -> None:
        """Show that the service does not answer."""


def progress_of(wanted: bool | None) -> Show:
    """Return the object that shows the progress. If `wanted` is None, it shows something only in a notebook or on a terminal."""
    if wanted is False:
        return _Nothing()
    if in_notebook():
        return _InPlace()
    return _Lines() if wanted or sys.stderr.isatty() else _Nothing()


def in_notebook() -> bool:
    """Return whether this process is a notebook kernel, such as Jupyter's. IPython in a terminal is not one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _Nothing:
    def __call__(self, job: Any) -> None:
        pass

    def silent(self, since: datetime) -> None:
        pass


class _Lines:
    """Writes a line to standard error whenever the state or the best metric has changed."""

    def __init__(self) -> None:
        self._told: tuple[object, ...] = ()

    def __call__(self, job: Any) -> None:
        best = job.best_so_far
        shown = (job.state, None if best is None else best.metric)
        if shown != self._told:
            self._told = shown
            self._write(line_of(job))

    def silent(self, since: datetime) -> None:
        shown = (since,)
        if shown != self._told:
            self._told = shown
            self._write(silent_since(since))

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class _InPlace:
    """Displays a bar and a line in a notebook, and updates them in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, job: Any) -> None:
        self._show(html_of(job))

    def silent(self, since: datetime) -> None:
        self._show(html.escape(silent_since(since)))

    def _show(self, text: str) -> None:
        from IPython.display import HTML, display

        shown = HTML(text)
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


def silent_since(since: datetime) -> str:
    """Return a message that the service does not answer, with the time of its last answer."""
    return f"The service has not answered since {since:%H:%M:%S}; trying again. The job runs on without it."


def line_of(job: Any) -> str:
    """Return a job's state, money, trials and best metric so far in one line."""
    trials = sum(job.progress.trials.values())
    parts = [f"{job.name}: {_state(job)}", _money(job), f"{trials} trials", f"{job.progress.steps} steps"]
    if job.best_so_far is not None:
        parts.append(f"best {job.objective['metric']} {_number(job.best_so_far.metric)}")
    return ", ".join(parts)


def html_of(job: Any) -> str:
    """Return HTML: a bar of the used budget with the text of `line_of` below it.

    The text is escaped, because users choose the names in it.
    """
    used = min(max(job.progress.budget_used, 0.0), 1.0)
    return (
        f'<progress value="{used:.4f}" max="1" style="width: 24em" aria-label="budget used">{used:.0%}</progress>'
        f" {used:.0%} of the budget<br>{html.escape(line_of(job))}"
    )


def _state(job: Any) -> str:
    return f"{job.state} ({job.stop_reason})" if job.stop_reason else str(job.state)


def _money(job: Any) -> str:
    limit = job.budget.get("usd")
    spent = f"${job.spend.usd:.6g} spent"
    return spent if limit is None else f"${job.spend.usd:.6g} of ${limit:.6g} spent"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
