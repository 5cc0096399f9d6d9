"""`Job` and `AsyncJob`: a job as REST returns it, with methods for the calls about it."""

import html
import importlib
from collections.abc import Callable
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from pydantic import ConfigDict, Field, PrivateAttr

from tuner.client import follow
from tuner.client.calls import Calls
from tuner.client.follow import html_of, line_of
from tuner.client.http import BestQuery, Elsewhere
from tuner.client.steps import Awaiting, Blocking, Method, Series, Steps, call, collected, job_call, series
from tuner.schemas import answers as show
from tuner.schemas import best as choices
from tuner.schemas.answers import TrialLog
from tuner.schemas.job import Best, JobFacts
from tuner.schemas.job import Job as JobAnswer

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from tuner.client.downloads import Downloaded
    from tuner.schemas.answers import Advice, Curves, Replay

Kind = Literal["curves", "best", "pareto", "bill"]
NEEDS: dict[Kind, str] = {"curves": "curves", "best": "curves", "pareto": "pareto", "bill": "bill"}
STOPPED = (*follow.ENDED, "paused")


class Acting(JobFacts):
    """A job as it was when it was last fetched. `refresh`, `wait` and the methods that change the job update it in place.

    The field that REST calls `best` is `best_so_far` here, because `best` is a method.
    """

    model_config = ConfigDict(serialize_by_alias=True, ignored_types=(Method,))

    best_so_far: Best | None = Field(alias="best")
    _client: Any = PrivateAttr()
    _http: Any = PrivateAttr()

    @classmethod
    def of(cls, job: JobAnswer, client: Any) -> Self:
        found = cls.model_validate(job.model_dump())
        found._client, found._http = client, client._http
        return found

    # Actions

    @job_call
    def refresh(self) -> Steps[JobFacts]:
        """Fetch the job again, and update this object in place."""
        return self._changed(Calls.job.steps(self._client, self.id))

    @job_call
    def wait(
        self,
        timeout_s: float | None = None,
        progress: bool | None = None,
        until: tuple[str, ...] = STOPPED,
    ) -> Steps[JobFacts]:
        """Wait until the job has ended or is paused.

        Args:
            timeout_s: Raise TimeoutError after this many seconds. None means no limit.
            progress: Whether to show the progress: updated in place in a notebook, as lines on standard error elsewhere. None means
                only in a notebook or on a terminal.
            until: The states to wait for.
        """
        wait = Calls.wait.steps(self._client, self.id, timeout_s=timeout_s, until=until, progress=progress)
        return self._changed(wait)

    @job_call
    def pause(self) -> Steps[JobFacts]:
        """Pause the job. Running trials save a checkpoint at their next step and pause."""
        return self._changed(Calls.pause.steps(self._client, self.id))

    @job_call
    def resume(self) -> Steps[JobFacts]:
        """Resume a paused job, or a succeeded job whose budget was raised."""
        return self._changed(Calls.resume.steps(self._client, self.id))

    @job_call
    def cancel(self) -> Steps[JobFacts]:
        """Cancel the job. All work stops at once."""
        return self._changed(Calls.cancel.steps(self._client, self.id))

    @job_call
    def top_up(self, *, usd: float | None = None, gpu_hours: float | None = None) -> Steps[JobFacts]:
        """Add to the current budget. Resume the job if it had stopped because its budget was spent.

        The amount is added exactly once, even if the connection breaks.

        Raises:
            ApiError: With status 412 if somebody else changes the job at the same time. In that case nothing was added.
            ValueError: No amount was given, or the job has no limit of that kind.
        """
        return self._changed(Calls.top_up.steps(self._client, self.id, usd=usd, gpu_hours=gpu_hours))

    # Answers

    @series
    def events(
        self,
        *,
        after: int | None = None,
        on_connection: Callable[[bool], None] | None = None,
        on_silence: Callable[[datetime], None] | None = None,
        patience_s: float = follow.RESTART_S,
    ) -> Series[follow.Event]:
        """Yield the events until the job has ended. If the connection breaks, or the service sends nothing for 4 seconds, reconnect
        and continue after the last event.

        Args:
            after: The id of an event. Only later events are yielded.
            on_connection: Called with False when the service does not answer, and with True whenever a connection is established.
            on_silence: Called before `on_connection(False)`, with the time of the last answer.
            patience_s: Raise ApiError when the service has not answered for this many seconds.
        """
        return Calls.events.steps(
            self._client,
            self.id,
            after=after,
            on_connection=on_connection,
            on_silence=on_silence,
            patience_s=patience_s,
        )

    @call
    def best(self, *, forecast: bool = True, **limits: Unpack[BestQuery]) -> Steps[choices.BestAnswer]:
        """Return the best configuration that can be trained within the limits. Raise ApiError with status 404 if none can."""
        return Calls.best.steps(self._client, self.id, forecast=forecast, **limits)

    @call
    def pareto(self, **elsewhere: Unpack[Elsewhere]) -> Steps[choices.Pareto]:
        """Return the Pareto front of metric against cost. `best` chooses from the same points."""
        return Calls.pareto.steps(self._client, self.id, **elsewhere)

    @call
    def bill(self) -> Steps[show.Bill]:
        """Return the bill: the job's cost by kind and by trial, and the savings."""
        return Calls.bill.steps(self._client, self.id)

    @call
    def report(self) -> Steps[show.JobReport]:
        """Return the best result by amount spent, and estimates of what other search strategies would have spent for the same result."""
        return Calls.report.steps(self._client, self.id)

    @call
    def advice(self) -> Steps["Advice"]:
        """Return advice: what would have made the job cheaper, with evidence and dollars, and what could not be judged."""
        return Calls.advice.steps(self._client, self.id)

    @call
    def replay(self, *, scheduler: str | None = None, sampler: str | None = None) -> Steps["Replay"]:
        """Replay the recorded events, and return the first difference between what is decided and what is recorded.

        With `scheduler` or `sampler`, return the first event at which the job would have decided differently with it.
        """
        return Calls.replay.steps(self._client, self.id, scheduler=scheduler, sampler=sampler)

    @series
    def trials(self, *, sort: str = "number", limit: int | None = None) -> Series[show.Trial]:
        """Yield the trials, at most `limit` if it is given. Pages are fetched as needed."""
        return Calls.trials.steps(self._client, self.id, sort=sort, limit=limit)

    @call
    def trial(self, trial: str) -> Steps[show.TrialDetail]:
        """Return a trial with its learning curve, its bill and every attempt."""
        return Calls.trial.steps(self._client, self.id, trial)

    @call
    def curves(self, *, metric: str | None = None) -> Steps["Curves"]:
        """Return the learning curves of all trials up to the event `seq`. `events(after=seq)` continues from there.

        `metric` names any reported metric. None means the objective's.
        """
        return Calls.curves.steps(self._client, self.id, metric=metric)

    @call
    def logs(
        self, trial: str, *, attempt: int | None = None, tail: int | None = None, after: int | None = None
    ) -> Steps[TrialLog]:
        """Return the output that the trial's own code printed.

        Args:
            trial: The trial's id.
            attempt: The attempt's number. None means the newest attempt that printed anything.
            tail: Return at most this many bytes, from the end.
            after: Skip this many bytes at the beginning.

        Raises:
            ApiError: With status 404 if nothing was printed.
        """
        return Calls.logs.steps(self._client, self.id, trial, attempt=attempt, tail=tail, after=after)

    @call
    def download_checkpoint(
        self, trial: str | None = None, *, to: str | Path, step: int | None = None
    ) -> Steps["Downloaded"]:
        """Download a trial's checkpoint, and check its files.

        Args:
            trial: The trial's id. None means the job's best trial, at its best step.
            to: A directory that is empty or does not exist yet.
            step: The step of the checkpoint. None means the one with the best metric.
        """
        return Calls.download_checkpoint.steps(self._client, self.id, trial, to=to, step=step)

    # Data frames and plots

    @call
    def trials_dataframe(self) -> Steps["pandas.DataFrame"]:
        """Return one row per trial, ordered by number.

        A parameter `x` is the column `config.x`, with NA for trials that do not have it. Times are in UTC.
        """
        frames = _optional("tuner.client.frames", "trials_dataframe()")
        found = yield from collected(Calls.trials.steps(self._client, self.id))
        table: pandas.DataFrame = frames.trials(found, self.search_space)
        return table

    @call
    def curves_dataframe(self, *, metric: str | None = None) -> Steps["pandas.DataFrame"]:
        """Return one row per report: `trial`, `step`, `metric`, `cost_to_train_usd`, and `spent_usd` (the job's spend at that time).

        The column `metric` holds the metric that you name, or the objective's. Numbers are rounded if there are very many reports;
        `trial()` returns them exactly.
        """
        frames = _optional("tuner.client.frames", "curves_dataframe()")
        found = yield from Calls.curves.steps(self._client, self.id, metric=metric)
        table: pandas.DataFrame = frames.curves(found)
        return table

    @call
    def plot(self, kind: Kind | None = None) -> Steps["Figure"]:
        """Return a plot: `curves` (learning curves with rungs, promotions and preemptions), `best` (best metric against dollars spent),
        `pareto` or `bill`. Without `kind`, all four are drawn."""
        kinds = chosen(kind)
        plots = _optional("tuner.client.plots", "plot()")
        seen: dict[str, Any] = {"job": self}
        for what in dict.fromkeys(NEEDS[one] for one in kinds):
            seen[what] = yield from getattr(Calls, what).steps(self._client, self.id)
        picture: Figure = plots.draw(plots.Seen(**seen), kinds)
        return picture

    # Display

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {line_of(self)}>"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        return f"<div><code>{html.escape(self.id)}</code><br>{html_of(self)}</div>"

    def _changed(self, steps: Steps[Any]) -> Steps[Self]:
        """Run a call that returns a job, and copy the job's fields to this object."""
        found = yield from steps
        self.__dict__, self.__pydantic_extra__ = found.__dict__, found.__pydantic_extra__
        return self


def chosen(kind: Kind | None) -> list[Kind]:
    """Return the plots to draw. Raise ValueError, which names the nearest known plot, if `kind` is not known."""
    if kind is None:
        return list(NEEDS)
    if kind not in NEEDS:
        near = get_close_matches(str(kind), NEEDS, 1)
        asked = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no picture {kind!r}, but {', '.join(NEEDS)}{asked}")
    return [kind]


class Job(Acting, Blocking):
    """A job of a `Client`."""


class AsyncJob(Acting, Awaiting):
    """A job of an `AsyncClient`. Its methods are awaited."""


def _optional(module: str, what_for: str) -> Any:
    """Import a module. If a dependency is missing, raise an ImportError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        text = f"{what_for} needs {missing}, which is not installed: pip install 'tuner[notebook]'"
        raise ImportError(text, name=missing) from error
