"""What interruptions add to a run on spot.

Losses come at random, M apart on average, and cost what was not saved and a restart R. With saves of δ every τ of training, a run of
T takes M·e^(R/M)·(e^((τ+δ)/M) − 1)·T/τ (Daly, FGCS 22(3), 2006, eq. 20), where τ is Daly's own best. No notice is counted on, so that
what is saved on one comes on top. While there is no machine nothing is paid, but the clock runs.

Their number n is Poisson's: in nine of ten runs it is at most n + 1.2816·√n, each of which costs a restart, a wait and half an interval.
"""

import math
from dataclasses import dataclass

from tuner.domain.time import MAX_SECONDS, NS
from tuner.planning.estimates.described import SpotTerms
from tuner.tuning.checkpointing import daly_ns

NINE_OF_TEN = 1.2816  # standard deviations of a normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A run of `train_ns` on spot, on average: `paid_ns` at the machine, `wall_ns` until the result is there; `late_ns` and
    `late_paid_ns` where more interruptions come than in nine of ten runs."""

    interval_ns: int
    interruptions: float
    paid_ns: int
    wall_ns: int
    late_paid_ns: int
    late_ns: int

    def overhead(self, train_ns: int) -> float:
        """What is paid beyond training, as a share of training."""
        return self.paid_ns / train_ns - 1 if train_ns else 0.0


def interrupted(train_ns: int, terms: SpotTerms) -> Interrupted | None:
    """None: interrupted so often that it does not end within 30 years."""
    mean = terms.mean_ns
    interval = max(NS, min(train_ns, daly_ns(terms.checkpoint_ns, mean)))
    try:
        stretch = mean / interval * math.exp(terms.restore_ns / mean)
        paid = train_ns * stretch * math.expm1((interval + terms.checkpoint_ns) / mean)
    except OverflowError:
        return None
    interruptions = paid / mean
    wall = paid + interruptions * terms.wait_ns
    more = NINE_OF_TEN * math.sqrt(interruptions)
    lost = more * (terms.restore_ns + (interval + terms.checkpoint_ns) / 2)
    late = wall + lost + more * terms.wait_ns
    if late > MAX_SECONDS * NS:
        return None
    return Interrupted(
        interval_ns=interval,
        interruptions=interruptions,
        paid_ns=math.ceil(paid),
        wall_ns=math.ceil(wall),
        late_paid_ns=math.ceil(paid + lost),
        late_ns=math.ceil(late),
    )
