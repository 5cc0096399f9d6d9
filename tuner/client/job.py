"""A job that acts: what REST says of it, and the calls that are about it."""

import html
from collections.abc import Callable
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from pydantic import ConfigDict, Field, PrivateAttr

from tuner.client import follow
from tuner.client.calls import Calls
from tuner.client.extras import load
from tuner.client.methods import Method, call, job_call, series
from tuner.client.progress import html_of, line_of
from tuner.client.queries import BestQuery, Elsewhere
from tuner.client.steps import Awaiting, Blocking, Series, Steps, collected
from tuner.schemas import answers as show
from tuner.schemas import best as choices
from tuner.schemas.job import Best, JobFacts
from tuner.schemas.job import Job as JobAnswer
from tuner.schemas.logs import TrialLog

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from tuner.client.downloads import Downloaded
    from tuner.schemas.advice import Advice
    from tuner.schemas.curves import Curves

Kind = Literal["curves", "best", "pareto", "bill"]
NEEDS: dict[Kind, str] = {"curves": "curves", "best": "curves", "pareto": "pareto", "bill": "bill"}
STOPPED = (*follow.ENDED, "paused")


class Acting(JobFacts):
    """As it was when it was last looked at; what changes it looks at it anew, and so does `refresh`. `best_so_far` is what REST
    calls `best`: that name is the question's here."""

    model_config = ConfigDict(serialize_by_alias=True, ignored_types=(Method,))

    best_so_far: Best | None = Field(alias="best")
    _client: Any = PrivateAttr()
    _http: Any = PrivateAttr()

    @classmethod
    def of(cls, job: JobAnswer, client: Any) -> Self:
        found = cls.model_validate(job.model_dump())
        found._client, found._http = client, client._http
        return found

    # What it does

    @job_call
    def refresh(self) -> Steps[JobFacts]:
        """Looks at it anew."""
        return self._changed(Calls.job.steps(self._client, self.id))

    @job_call
    def wait(
        self,
        timeout_s: float | None = None,
        progress: bool | None = None,
        until: tuple[str, ...] = STOPPED,
    ) -> Steps[JobFacts]:
        """Until it has ended or is paused. `progress` shows how far it is: in place in a notebook, by lines on standard error
        elsewhere; where nothing is said, if somebody looks, which is a notebook or a terminal. Raises TimeoutError."""
        wait = Calls.wait.steps(self._client, self.id, timeout_s=timeout_s, until=until, progress=progress)
        return self._changed(wait)

    @job_call
    def pause(self) -> Steps[JobFacts]:
        """Running trials are checkpointed at their next step and parked."""
        return self._changed(Calls.pause.steps(self._client, self.id))

    @job_call
    def resume(self) -> Steps[JobFacts]:
        """Goes on with a paused job, or with a succeeded one whose budget was raised."""
        return self._changed(Calls.resume.steps(self._client, self.id))

    @job_call
    def cancel(self) -> Steps[JobFacts]:
        """Stops all work at once."""
        return self._changed(Calls.cancel.steps(self._client, self.id))

    @job_call
    def top_up(self, *, usd: float | None = None, gpu_hours: float | None = None) -> Steps[JobFacts]:
        """Adds to the budget as it is now, once, whatever becomes of the connection; goes on if it had stopped for want of it.
        ApiError 412 where somebody else changes it at the same time: then nothing was added."""
        return self._changed(Calls.top_up.steps(self._client, self.id, usd=usd, gpu_hours=gpu_hours))

    # What is known of it

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
        and continue behind the last event.

        `on_connection` is called with False when the service does not answer, and with True when it answers again. `on_silence` is
        called before, with the time of the last answer. ApiError if it does not answer for `patience_s`."""
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
        """The best configuration that may be trained within the limits. ApiError 404 where none is affordable."""
        return Calls.best.steps(self._client, self.id, forecast=forecast, **limits)

    @call
    def pareto(self, **elsewhere: Unpack[Elsewhere]) -> Steps[choices.Pareto]:
        """The front of metric against cost that `best` answers from."""
        return Calls.pareto.steps(self._client, self.id, **elsewhere)

    @call
    def bill(self) -> Steps[show.Bill]:
        """What it cost, by kind and by trial, and what was saved."""
        return Calls.bill.steps(self._client, self.id)

    @call
    def report(self) -> Steps[show.JobReport]:
        """What the money bought, and estimates of what other ways to search would have spent for it."""
        return Calls.report.steps(self._client, self.id)

    @call
    def advice(self) -> Steps["Advice"]:
        """What would have made it cheaper, with evidence and dollars, and what could not be judged."""
        return Calls.advice.steps(self._client, self.id)

    @series
    def trials(self, *, sort: str = "number", limit: int | None = None) -> Series[show.Trial]:
        """Page by page; at most `limit` where it is given."""
        return Calls.trials.steps(self._client, self.id, sort=sort, limit=limit)

    @call
    def trial(self, trial: str) -> Steps[show.TrialDetail]:
        """With the learning curve, the bill and every attempt."""
        return Calls.trial.steps(self._client, self.id, trial)

    @call
    def curves(self, *, metric: str | None = None) -> Steps["Curves"]:
        """Return the learning curves of all trials, up to the event `seq`, from which `events(after=seq)` continues. `metric` names any
        reported metric; without it, the objective's is returned."""
        return Calls.curves.steps(self._client, self.id, metric=metric)

    @call
    def logs(
        self, trial: str, *, attempt: int | None = None, tail: int | None = None, after: int | None = None
    ) -> Steps[TrialLog]:
        """What the trial's own code printed: the last `tail` bytes, of those behind the first `after`; of the newest attempt that
        printed anything, where none is named. ApiError 404 where nothing was printed."""
        return Calls.logs.steps(self._client, self.id, trial, attempt=attempt, tail=tail, after=after)

    @call
    def download_checkpoint(
        self, trial: str | None = None, *, to: str | Path, step: int | None = None
    ) -> Steps["Downloaded"]:
        """Download the checkpoint of the best trial, or of the one that is named, into an empty or new directory, and check its files."""
        return Calls.download_checkpoint.steps(self._client, self.id, trial, to=to, step=step)

    # Tables and pictures

    @call
    def trials_dataframe(self) -> Steps["pandas.DataFrame"]:
        """One row a trial, by number; a parameter `x` is the column `config.x`, NA where a trial does not have it. Times are UTC."""
        frames = load("tuner.client.frames", "trials_dataframe()")
        found = yield from collected(Calls.trials.steps(self._client, self.id))
        table: pandas.DataFrame = frames.trials(found, self.search_space)
        return table

    @call
    def curves_dataframe(self, *, metric: str | None = None) -> Steps["pandas.DataFrame"]:
        """Return one row per report: `trial`, `step`, `metric`, `cost_to_train_usd`, `spent_usd` by the job until then. The column
        `metric` has any metric that you name, or the objective's. Numbers are rounded if there are very many reports; `trial()` has
        them exactly."""
        frames = load("tuner.client.frames", "curves_dataframe()")
        found = yield from Calls.curves.steps(self._client, self.id, metric=metric)
        table: pandas.DataFrame = frames.curves(found)
        return table

    @call
    def plot(self, kind: Kind | None = None) -> Steps["Figure"]:
        """A picture: `curves` (learning curves with rungs, promotions and preemptions), `best` (against dollars), `pareto` or `bill`; all
        four where none is named."""
        kinds = chosen(kind)
        plots = load("tuner.client.plots", "plot()")
        seen: dict[str, Any] = {"job": self}
        for what in dict.fromkeys(NEEDS[one] for one in kinds):
            seen[what] = yield from getattr(Calls, what).steps(self._client, self.id)
        picture: Figure = plots.draw(plots.Seen(**seen), kinds)
        return picture

    # How it is shown

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {line_of(self)}>"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        return f"<div><code>{html.escape(self.id)}</code><br>{html_of(self)}</div>"

    def _changed(self, steps: Steps[Any]) -> Steps[Self]:
        """This job, as the steps found it."""
        found = yield from steps
        self.__dict__, self.__pydantic_extra__ = found.__dict__, found.__pydantic_extra__
        return self


def chosen(kind: Kind | None) -> list[Kind]:
    """Raises ValueError with the nearest that there is."""
    if kind is None:
        return list(NEEDS)
    if kind not in NEEDS:
        near = get_close_matches(str(kind), NEEDS, 1)
        asked = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no picture {kind!r}, but {', '.join(NEEDS)}{asked}")
    return [kind]


class Job(Acting, Blocking):
    """Of a `Client`."""


class AsyncJob(Acting, Awaiting):
    """Of an `AsyncClient`: its methods are awaited."""
