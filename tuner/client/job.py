"""`Job` and `AsyncJob`: a job as REST returns it, with methods for the calls about it."""

import functools
import html
import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from pydantic import ConfigDict, Field, PrivateAttr

from tuner.client import follow
from tuner.client.bridge import Awaiting, Blocking, call, series
from tuner.client.calls import AnyJob, Calls
from tuner.client.follow import html_of, line_of
from tuner.domain.text import did_you_mean
from tuner.schemas.job import Best, JobFacts
from tuner.schemas.job import Job as JobAnswer

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Kind = Literal["curves", "best", "pareto", "bill"]
NEEDS: dict[Kind, str] = {"curves": "curves", "best": "report", "pareto": "pareto", "bill": "bill"}
STOPPED = (*follow.ENDED, "paused")


def of_job(method: "call[Concatenate[AnyJob, P], R]") -> "call[P, R]":
    """Turn a call of the client into a method of a job. The method passes the job as the first argument of the call.

    If the call returns a job, the method copies its fields to the job on which the method was called, and returns that job.
    """

    async def body(self: "Acting", *args: P.args, **kwargs: P.kwargs) -> Any:
        answer = await method.body(self._client, self, *args, **kwargs)
        return self._update(answer) if isinstance(answer, JobFacts) else answer

    return call(_without_job(body, method.body))


def of_job_series(method: "series[Concatenate[AnyJob, P], T]") -> "series[P, T]":
    def body(self: "Acting", *args: P.args, **kwargs: P.kwargs) -> Any:
        return method.body(self._client, self, *args, **kwargs)

    return series(_without_job(body, method.body))


def _without_job(body: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Give `body` the name, the docstring and the signature of the client's call `original`, without the argument `job`."""
    functools.update_wrapper(body, original)
    signature = inspect.signature(original)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "job"]
    body.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return body


class Acting(JobFacts):
    """A job in the state of the last fetch. `refresh`, `wait` and the methods that change the job update it in place.

    REST's fields `best` and `artifacts` are `best_so_far` and `retention` here, because `best` and `artifacts` are methods.
    """

    model_config = ConfigDict(serialize_by_alias=True, ignored_types=(call, series))

    best_so_far: Best | None = Field(alias="best")
    retention: dict[str, Any] | None = Field(None, alias="artifacts")
    _client: Any = PrivateAttr()

    @classmethod
    def of(cls, answer: JobAnswer, client: Any) -> Self:
        job = cls.model_validate(answer.model_dump())
        job._client = client
        return job

    @call
    async def refresh(self) -> JobFacts:
        """Fetch the job again, and update this object in place."""
        return self._update(await Calls.job.body(self._client, self))

    @call
    async def wait(
        self,
        timeout_s: float | None = None,
        progress: bool | None = None,
        until: tuple[str, ...] = STOPPED,
    ) -> JobFacts:
        """Wait until the job has ended or is paused.

        Args:
            timeout_s: Raise TimeoutError after this many seconds. None means no limit.
            progress: Whether to show the progress: updated in place in a notebook, as lines on standard error elsewhere. None means
                only in a notebook or on a terminal.
            until: The states to wait for.
        """
        wait = Calls.wait.body(self._client, self, timeout_s=timeout_s, until=until, progress=progress)
        return self._update(await wait)

    pause = of_job(Calls.pause)
    resume = of_job(Calls.resume)
    cancel = of_job(Calls.cancel)
    top_up = of_job(Calls.top_up)
    enqueue = of_job(Calls.enqueue)
    stop_trial = of_job(Calls.stop_trial)
    promote_trial = of_job(Calls.promote_trial)

    events = of_job_series(Calls.events)
    best = of_job(Calls.best)
    pareto = of_job(Calls.pareto)
    bill = of_job(Calls.bill)
    report = of_job(Calls.report)
    advice = of_job(Calls.advice)
    replay = of_job(Calls.replay)
    trials = of_job_series(Calls.trials)
    trial = of_job(Calls.trial)
    curves = of_job(Calls.curves)
    logs = of_job(Calls.logs)
    download_checkpoint = of_job(Calls.download_checkpoint)
    artifacts = of_job(Calls.artifacts)
    download_artifacts = of_job(Calls.download_artifacts)
    delete_artifacts = of_job(Calls.delete_artifacts)
    export = of_job(Calls.export)
    wait_export = of_job(Calls.wait_export)
    exports = of_job(Calls.exports)
    get_export = of_job(Calls.get_export)
    download_variant = of_job(Calls.download_variant)

    # Data frames and plots

    @call
    async def trials_dataframe(self) -> "pandas.DataFrame":
        """Return one row per trial, ordered by number.

        A parameter `x` is the column `config.x`, with NA for trials that do not have it. Times are in UTC.
        """
        frames = _optional("tuner.client.frames", "trials_dataframe()")
        trials = [trial async for trial in Calls.trials.body(self._client, self)]
        table: pandas.DataFrame = frames.trials(trials, self.search_space)
        return table

    @call
    async def curves_dataframe(self, *, metric: str | None = None) -> "pandas.DataFrame":
        """Return one row per report: `trial`, `step`, `metric`, `cost_to_train_usd`, and `spent_usd` (the job's spend at that time).

        The column `metric` holds the metric that you name, or the objective's. Numbers are rounded if there are very many reports;
        `trial()` returns them exactly.
        """
        frames = _optional("tuner.client.frames", "curves_dataframe()")
        table: pandas.DataFrame = frames.curves(await Calls.curves.body(self._client, self, metric=metric))
        return table

    @call
    async def plot(self, kind: Kind | None = None) -> "Figure":
        """Return a plot: `curves` (learning curves with rungs, promotions and preemptions), `best` (best metric against dollars spent),
        `pareto` or `bill`. Without `kind`, all four are drawn."""
        kinds = chosen(kind)
        plots = _optional("tuner.client.plots", "plot()")
        names = dict.fromkeys(NEEDS[kind] for kind in kinds)
        answers = {name: await getattr(Calls, name).body(self._client, self) for name in names}
        figure: Figure = plots.draw(plots.PlotData(job=self, **answers), kinds)
        return figure

    # Display

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {line_of(self)}>"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        return f"<div><code>{html.escape(self.id)}</code><br>{html_of(self)}</div>"

    def _update(self, job: JobFacts) -> Self:
        """Copy the fields of a job that was just fetched to this object."""
        self.__dict__, self.__pydantic_extra__ = job.__dict__, job.__pydantic_extra__
        return self


def chosen(kind: Kind | None) -> list[Kind]:
    """Return the plots to draw: the plot `kind`, or all plots if it is None.

    Raise ValueError if `kind` is not known. The error names the most similar known plot.
    """
    if kind is None:
        return list(NEEDS)
    if kind not in NEEDS:
        raise ValueError(
            f"{kind!r} is not a plot; the plots are {', '.join(NEEDS)}{did_you_mean(str(kind), NEEDS)}"
        )
    return [kind]


class Job(Acting, Blocking):
    """A job of a `Client`."""


class AsyncJob(Acting, Awaiting):
    """A job of an `AsyncClient`. Its methods are awaited."""


def _optional(module: str, what_for: str) -> Any:
    """Import a module. If a package is missing, raise an ImportError: `what_for` needs the package, which can be installed with pip."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        text = f"{what_for} needs {missing}, which is not installed: pip install 'tuner[notebook]'"
        raise ImportError(text, name=missing) from error
