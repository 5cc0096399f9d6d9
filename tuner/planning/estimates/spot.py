"""The time and cost that interruptions add to a run on spot machines.

Interruptions happen at random, with a mean distance M. Each costs the unsaved work and a restart R. With saves of length δ every τ of
training, a run of length T takes M·e^(R/M)·(e^((τ+δ)/M) − 1)·T/τ (Daly, FGCS 22(3), 2006, eq. 20), where τ is Daly's optimum. Notices are
not taken into account, so work saved after a notice is an additional gain. While there is no machine, nothing is paid, but time passes.

The number of interruptions has a Poisson distribution with mean n. In nine of ten runs it is at most n + 1.2816·√n. Each additional one
costs a restart, a wait and half an interval.
"""

import math
from dataclasses import dataclass

from tuner.domain.time import MAX_SECONDS, NS
from tuner.planning.estimates.described import SpotAssumptions
from tuner.tuning.checkpointing import daly_ns

NINE_OF_TEN = 1.2816  # nine of ten values of a normal distribution are at most this many standard deviations above its mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A run on spot machines."""

    interval_ns: int  #: Training time between saves.
    interruptions: float  #: The mean number of interruptions.
    paid_ns: int  #: The mean time that is paid.
    wall_ns: int  #: The mean time until the result is available.
    late_paid_ns: int  #: Nine of ten runs pay for at most this time.
    late_ns: int  #: Nine of ten runs have their result after at most this time.

    def overhead(self, train_ns: int) -> float:
        """Return the paid time beyond training as a share of the training time."""
        return self.paid_ns / train_ns - 1 if train_ns else 0.0


def interrupted(train_ns: int, terms: SpotAssumptions) -> Interrupted | None:
    """Compute the time of a run on spot machines. Return None if interruptions are so frequent that it may not end within 30 years."""
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
