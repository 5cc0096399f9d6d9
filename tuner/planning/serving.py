"""What predictions cost, in dollars per million, from the measured latency and throughput and the price of a replica.

A replica is one process that serves one variant, with as many threads as in the measurement. It pays for its share of the machine. The
figures cover only the model: the work of the server, the network and load balancing cost extra.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.domain.money import Price

MILLION = 1_000_000
# The largest load of a replica that answers in real time, as the share of the time in which it is busy. At a higher load, requests wait
# too long for each other: if they arrive at random, the mean wait at 70 % load already exceeds the time of one prediction.
BUSY = 0.7


@dataclass(frozen=True, slots=True)
class ReplicaSpeed:
    """How fast one replica is."""

    latency_s: float  #: The median time of one prediction at batch size 1.
    per_second: float  #: Predictions per second at batch size 1.
    best_per_second: float  #: Predictions per second at the batch size that is fastest.


@dataclass(frozen=True, slots=True)
class ServingCost:
    """The cost of one variant on one machine, in dollars per million predictions.

    It is given for three ways to compute predictions: replicas that always run, batches, and a replica that scales to zero.
    """

    real_time: float  #: The cost if enough replicas run all the time to answer each request at once.
    replicas: int  #: The number of replicas for `real_time`.
    batch: float  #: The cost if the predictions are computed in batches of the fastest size.
    #: The cost if one replica starts when a request arrives and stops when no request is left. None if one replica is too slow.
    scale_to_zero: float | None
    #: The requests per second below which scaling to zero costs less than one replica that runs all the time.
    break_even_per_second: float


@dataclass(frozen=True, kw_only=True)
class PricedServing:
    """The price of a replica of one model on one machine and market, and the cost of its predictions."""

    instance_type: str
    market: str
    region: str | None
    price: Price  #: The price of a replica, which is its share of the machine's price.
    source: str  #: The source of the price, for users.
    cost: ServingCost


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The speed, size and load time of a model that answers requests."""

    speed: ReplicaSpeed
    size_bytes: int = 0  #: The size of its file, or 0 if it is not known.
    load_s: float = 0.0  #: Seconds to open the file.


def serving_cost(speed: ReplicaSpeed, price: Price, *, per_second: float, cold_start_s: float) -> ServingCost:
    """Return what predictions cost if replicas of a model always run, if predictions are computed in batches, or if a replica scales to zero.

    The cost of scaling to zero assumes that requests arrive independently of each other, as a Poisson process. Each request pays for a
    replica until the request is answered or the next request arrives, if that is earlier. It also pays for a cold start if the replica
    had stopped. With `r` requests per second and a latency of `t`, that is `(1 - exp(-r t)) / r + exp(-r t) * cold_start_s` seconds per
    request. A replica that always runs is paid for `1 / r` seconds per request. Scaling to zero is cheaper than that if the cold start
    is shorter than the mean time between requests.

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
    """Return the names of the points on the Pareto front of metric and cost, the cheapest first.

    A point is on the front if no other point is at least as good in both. Of several equal points, only the first by name is included.

    Args:
        points: The metric and the cost in dollars, by name.
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
