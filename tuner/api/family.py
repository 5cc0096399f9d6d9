"""A family of metrics: what `/metrics` and docs/metrics.md say of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Kind = Literal["counter", "gauge", "histogram", "summary"]
Values = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Family:
    """`name` as queries have it, a counter's with `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def metric(self, values: Values) -> Metric:
        """Not of histograms and summaries, which have more than one value."""
        made = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        found: CounterMetricFamily | GaugeMetricFamily = made(self.name, self.help, labels=self.labels)
        for labels, value in values.items():
            found.add_metric(labels, value)
        return found


def one(value: float | Fraction | None) -> Values:
    """What is not known has no sample."""
    return {} if value is None else {(): float(value)}
