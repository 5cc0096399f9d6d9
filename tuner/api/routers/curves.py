"""The route for all learning curves of a job.

Their JSON text is written directly and not by pydantic models, so that 100,000 points take a tenth of a second.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import floor, log10
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from tuner.api.deps import Svc
from tuner.api.response_cache import AnswerCache
from tuner.domain.money import MICRO
from tuner.schemas.answers import Curves
from tuner.service import answers
from tuner.service.answers import EMPTY, CurvesView, TrialRow, job_curves
from tuner.service.bootstrap import Service

router = APIRouter(tags=["answers"])
GZIP_LEVEL = 6
GZIP_FROM_BYTES = 1000


@dataclass(frozen=True, slots=True)
class CurvesText:
    """The learning curves of a job as JSON text, plain and compressed, with their entity tag."""

    tag: str
    text: bytes
    packed: bytes

    def size(self) -> int:
        return len(self.text) + len(self.packed)


@router.get(
    "/jobs/{job}/curves", response_model=Curves, responses={304: {"description": "Nothing has changed"}}
)
def get_curves(
    job: str,
    request: Request,
    service: Svc,
    metric: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    accept_encoding: Annotated[str, Header()] = "",
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Return the learning curves of all trials in one compact answer, with promotions and preemptions.

    The answer contains all reports up to event `seq`. `events?after=` continues from there without a gap. `metric` is the name of any
    reported metric, by default the objective's; the answer is 422 if no trial has reported it. The `ETag` changes with every event, and
    a request with `If-None-Match` is answered with 304 if nothing has changed. The answer is compressed if the client accepts gzip.
    """
    version = answers.version(service, job)
    key = (service.project, job, version.state, metric)
    kept: AnswerCache[CurvesText] = request.app.state.curves
    curves = kept.get(key, version, lambda: _curves_text(service, job, metric))
    headers = {"ETag": curves.tag, "Vary": "Accept-Encoding", "Cache-Control": "private, no-cache"}
    if if_none_match is not None and curves.tag in [tag.strip() for tag in if_none_match.split(",")]:
        return Response(status_code=304, headers=headers)
    if "gzip" not in accept_encoding or len(curves.text) < GZIP_FROM_BYTES:
        return Response(curves.text, media_type="application/json", headers=headers)
    return Response(
        curves.packed, media_type="application/json", headers={**headers, "Content-Encoding": "gzip"}
    )


def _curves_text(service: Service, job: str, metric: str | None) -> CurvesText:
    view = job_curves(service, job, metric)
    text = _json(view)
    return CurvesText(f'W/"{view.seq}-{view.job.state}"', text, gzip.compress(text, GZIP_LEVEL))


EXACT_POINTS = 20_000  # curves with more points than this are rounded
SAMPLE = 2_000  # values from which the range of a metric is estimated
METRIC_PARTS = 1_000  # the rounding step of metrics is at most 1/1000 of the range of most values: less than a pixel of a chart
USD_PARTS = 500  # the rounding step of dollars is at most 1/500 of the largest amount


class RoundedNumbers(dict[int, str]):
    """Rounds numbers to multiples of a step and returns them as text. As a dictionary, it caches the text of each multiple."""

    def __init__(self, spread: float, parts: int) -> None:
        """Round to the largest step that is at most `spread / parts` and is 1, 2 or 5 times a power of ten.

        Args:
            spread: The width of the range of the numbers.
            parts: The least number of steps in that range.
        """
        super().__init__()
        power = floor(log10(spread / parts))
        digit = next(d for d in (5, 2, 1) if d == 1 or d * 10.0**power <= spread / parts)
        self._step, self._template = digit * 10.0**power, f"%.{max(0, -power)}f"

    def __missing__(self, count: int) -> str:
        text = self[count] = self._template % (count * self._step)
        return text

    def all(self, values: Sequence[float | None]) -> list[str]:
        times = 1 / self._step
        return ["null" if value is None else self[round(value * times)] for value in values]


class ExactNumbers:
    """Returns numbers as the shortest text that is exact."""

    def all(self, values: Sequence[float | None]) -> list[str]:
        return ["null" if value is None else repr(value) for value in values]


Numbers = RoundedNumbers | ExactNumbers


def _json(view: CurvesView) -> bytes:
    """Return the learning curves as JSON text in the form of the model `tuner.schemas.answers.Curves`."""
    rounded = view.points > EXACT_POINTS
    courses = view.series.values()
    value = _numbers(_range(list(chain.from_iterable(view.values.values()))), METRIC_PARTS, rounded)
    usd = _numbers(max((course.usd[-1] for course in courses), default=0) / MICRO, USD_PARTS, rounded)
    spent = _numbers(
        max((course.spent[-1] or 0 for course in courses), default=0) / MICRO, USD_PARTS, rounded
    )
    objective = view.job.spec.objective
    top = {
        "job": view.job.id,
        "seq": view.seq,
        "metric": view.metric,
        "metrics": list(view.metrics),
        "objective": objective.metric,
        "mode": objective.mode,
        "rounded": rounded,
    }
    trials = (_trial(view, row, value, usd, spent) for row in view.trials)
    return f'{json.dumps(top)[:-1]}, "trials": [{",".join(trials)}]}}'.encode()


def _trial(
    view: CurvesView,
    row: TrialRow,
    value: Numbers,
    usd: Numbers,
    spent: Numbers,
) -> str:
    course = view.series.get(row.trial, EMPTY)
    answer = {
        "id": row.trial,
        "state": row.state,
        "reason": row.reason,
        "config": row.config,
        "attempts": row.attempts,
        "preemptions": row.preemptions,
        "best_metric": row.best,
        "total_usd": row.cost.usd.usd,
        "preemptions_at": view.losses.get(row.trial, []),
        "promotions_at": view.promotions(row.trial),
    }
    arrays = {
        "steps": map(str, course.steps),
        "metric": value.all(view.values.get(row.trial, [])),
        "cost_usd": usd.all([micro / MICRO for micro in course.usd]),
        "spent_usd": spent.all([None if micro is None else micro / MICRO for micro in course.spent]),
    }
    listed = ",".join(f'"{name}":[{",".join(texts)}]' for name, texts in arrays.items())
    return f"{json.dumps(answer, separators=(',', ':'))[:-1]},{listed}}}"


def _numbers(spread: float, parts: int, rounded: bool) -> Numbers:
    return RoundedNumbers(spread, parts) if rounded and spread > parts * 1e-300 else ExactNumbers()


def _range(values: Sequence[float | None]) -> float:
    """Return the width of the range that contains the middle nine tenths of the values.

    Extreme values are ignored, so that one diverging training does not make the rounding too coarse for all other curves.
    """
    some = sorted(value for value in values[:: max(1, len(values) // SAMPLE)] if value is not None)
    return some[len(some) * 19 // 20] - some[len(some) // 20] if some else 0.0
