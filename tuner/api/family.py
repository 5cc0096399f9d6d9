"""A metric family, as described in `/metrics` and docs/metrics.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Kind = Literal["counter", "gauge", "histogram", "summary"]
Values = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family. The `name` is the one that queries use; a counter's name ends with `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def metric(self, values: Values) -> Metric:
        """Return the metric with these values, by labels.

        This is only for counters and gauges, because the other kinds have several values per sample.
        """
        made = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        found: CounterMetricFamily | GaugeMetricFamily = made(self.name, self.help, labels=self.labels)
        for labels, value in values.items():
            found.add_metric(labels, value)
        return found


def one(value: float | Fraction | None) -> Values:
    """Return the values of a metric without labels. If the value is None, return no values, so that `/metrics` omits the sample."""
    return {} if value is None else {(): float(value)}
