"""What predictions cost: dollars per million, from measured latency and throughput and the price of a replica.

A replica is one process that serves one variant, with the threads that it was measured with. It pays its share of the machine. The
figures are those of the model alone: a server's own work, the network, and load balancing come on top.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.domain.money import Price

MILLION = 1_000_000
# The most that replicas are loaded in real time. Beyond this, requests wait for each other: with random arrivals the mean wait at 70 %
# load already exceeds the time of one prediction.
BUSY = 0.7


@dataclass(frozen=True, slots=True)
class ReplicaSpeed:
    """How fast one replica is."""

    latency_s: float  #: The time of one prediction at batch 1: the median.
    per_second: float  #: Predictions per second at batch 1.
    best_per_second: float  #: Predictions per second at the batch size that is fastest.


@dataclass(frozen=True, slots=True)
class ServingCost:
    """Dollars per million predictions of one variant on one machine, in three ways to serve it."""

    real_time: float  #: Enough replicas run all the time, and answer each request at once.
    replicas: int  #: How many replicas that takes.
    batch: float  #: The predictions are computed together, at the fastest batch size.
    #: A replica starts for a request, unless one still runs, and stops when no request is left. None if one replica is too slow.
    scale_to_zero: float | None
    #: The requests per second below which scaling to zero costs less than one replica that runs all the time.
    break_even_per_second: float


@dataclass(frozen=True, kw_only=True)
class PricedServing:
    """What predictions of one model cost on one machine and market."""

    instance_type: str
    market: str
    region: str | None
    price: Price  #: Price of a replica: of its share of the machine.
    source: str  #: The source of the price, for users.
    cost: ServingCost


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What is known of a model that answers requests."""

    speed: ReplicaSpeed
    size_bytes: int = 0  #: The size of its file, or 0 if it is not known.
    load_s: float = 0.0  #: Seconds to open the file.


def serving_cost(speed: ReplicaSpeed, price: Price, *, per_second: float, cold_start_s: float) -> ServingCost:
    """Return what predictions cost.

    Scaling to zero assumes that requests arrive independently of each other, at times of a Poisson process. A replica is then paid from
    a request until the earlier of the next request and the end of its answer. If it had stopped, the next request also pays for a cold
    start. With `r` requests per second and a latency of `t`, that is `(1 - exp(-r t)) / r + exp(-r t) * cold_start_s` seconds per
    request. It is less than the `1 / r` of a replica that always runs if the cold start is shorter than the mean time between requests.

    Args:
        speed: The speed of one replica.
        price: The price of one replica, per hour.
        per_second: Requests per second, of one prediction each.
        cold_start_s: Seconds from a request until a new replica can answer it.
    """
    usd_per_s = price.usd_per_hour / 3600
    replicas = max(1, math.ceil(per_second / (BUSY * speed.per_second)))
    break_even = (
        min(BUSY * speed.per_second, 1 / cold_start_s) if cold_start_s > 0 else BUSY * speed.per_second
    )
    idles = math.exp(-per_second * speed.latency_s)
    paid_s = (1 - idles) / per_second + idles * cold_start_s
    return ServingCost(
        real_time=replicas * usd_per_s / per_second * MILLION,
        replicas=replicas,
        batch=usd_per_s / speed.best_per_second * MILLION,
        scale_to_zero=paid_s * usd_per_s * MILLION if replicas == 1 else None,
        break_even_per_second=break_even,
    )


def pareto_front(points: Mapping[str, tuple[float, float]], *, larger_is_better: bool) -> Sequence[str]:
    """Return the names of the points that no other point beats in both metric and dollars, the cheapest first.

    Args:
        points: The metric and the dollars of each name.
        larger_is_better: Whether a larger metric is better.
    """
    sign = -1 if larger_is_better else 1
    front: list[str] = []
    best = math.inf
    for name, (metric, _) in sorted(
        points.items(), key=lambda each: (each[1][1], sign * each[1][0], each[0])
    ):
        if sign * metric < best:
            front.append(name)
            best = sign * metric
    return front
