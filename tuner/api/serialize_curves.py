"""Learning curves as JSON text. In large answers, numbers are rounded as far as a chart cannot show the difference.

The text is written directly and not by pydantic models, so that 100,000 points take a tenth of a second.
"""

import json
from collections.abc import Sequence
from itertools import chain
from math import floor, log10

from tuner.domain.objective import Mode
from tuner.service.curves import EMPTY, CurvesView, TrialRow

MICRO = 1_000_000
EXACT_POINTS = 20_000
SAMPLE = 2_000
METRIC_PARTS = 1_000  # the range of most values has this many steps of rounding; a step is smaller than a pixel of a chart
USD_PARTS = 500


class Writer(dict[int, str]):
    """Rounds numbers to multiples of a step and returns them as text. The text of each multiple is cached, by the multiple."""

    def __init__(self, spread: float, parts: int) -> None:
        """Choose the largest step that is at most `spread / parts` and is 1, 2 or 5 times a power of ten."""
        super().__init__()
        power = floor(log10(spread / parts))
        digit = next(one for one in (5, 2, 1) if one == 1 or one * 10.0**power <= spread / parts)
        self._step, self._template = digit * 10.0**power, f"%.{max(0, -power)}f"

    def __missing__(self, count: int) -> str:
        text = self[count] = self._template % (count * self._step)
        return text

    def all(self, values: Sequence[float | None]) -> list[str]:
        times = 1 / self._step
        return ["null" if value is None else self[round(value * times)] for value in values]


class Exact:
    def all(self, values: Sequence[float | None]) -> list[str]:
        return ["null" if value is None else repr(value) for value in values]


def curves_json(view: CurvesView) -> bytes:
    """Return the JSON text of a `tuner.schemas.curves.Curves`."""
    rounded = view.points > EXACT_POINTS
    courses = view.courses.values()
    value = _writer(_range(list(chain.from_iterable(view.values.values()))), METRIC_PARTS, rounded)
    usd = _writer(max((one.usd[-1] for one in courses), default=0) / MICRO, USD_PARTS, rounded)
    spent = _writer(max((one.spent[-1] or 0 for one in courses), default=0) / MICRO, USD_PARTS, rounded)
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
    trials = (_trial(view, row, objective.mode, value, usd, spent) for row in view.trials)
    return f'{json.dumps(top)[:-1]}, "trials": [{",".join(trials)}]}}'.encode()


def _trial(
    view: CurvesView,
    row: TrialRow,
    mode: Mode,
    value: Writer | Exact,
    usd: Writer | Exact,
    spent: Writer | Exact,
) -> str:
    course = view.courses.get(row.trial, EMPTY)
    values = [one for one in course.values if one is not None]
    answer = {
        "id": row.trial,
        "state": row.state,
        "reason": row.reason,
        "config": row.config,
        "attempts": row.attempts,
        "preemptions": row.preemptions,
        "best_metric": (max if mode == "max" else min)(values, default=None),
        "total_usd": row.cost.usd.usd,
        "preemptions_at": view.losses.get(row.trial, []),
        "promotions_at": view.promotions(row.trial),
    }
    arrays = {
        "steps": map(str, course.steps),
        "metric": value.all(view.values.get(row.trial, [])),
        "cost_usd": usd.all([one / MICRO for one in course.usd]),
        "spent_usd": spent.all([None if one is None else one / MICRO for one in course.spent]),
    }
    listed = ",".join(f'"{name}":[{",".join(texts)}]' for name, texts in arrays.items())
    return f"{json.dumps(answer, separators=(',', ':'))[:-1]},{listed}}}"


def _writer(spread: float, parts: int, rounded: bool) -> Writer | Exact:
    return Writer(spread, parts) if rounded and spread > parts * 1e-300 else Exact()


def _range(values: Sequence[float | None]) -> float:
    """Return the width of the range that contains the middle nine tenths of the values.

    Extreme values are ignored, so that one diverging training does not make the rounding too coarse for all other curves.
    """
    some = sorted(one for one in values[:: max(1, len(values) // SAMPLE)] if one is not None)
    return some[len(some) * 19 // 20] - some[len(some) // 20] if some else 0.0
