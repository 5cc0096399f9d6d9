"""What may end an attempt of a job, by what its market is known for and by what happened to the job so far."""

from tuner.domain.time import NS
from tuner.store.losses import Losses
from tuner.tuning.checkpointing import SPOT_MEAN_NS, Exposure, Hazard, Notices

# The shortest that is promised, in a pod on GKE; Azure and Google give 30 s, AWS two minutes. A worker does not know where it is.
NOTICE_NS = 15 * NS


def exposure(market: str, seen: Losses) -> Exposure:
    """`market` is that of the machine. Of a spot market, a worker that was lost without a word is taken for one that was preempted without notice."""
    preempted, lost = seen.ends.get("preempted", 0), seen.ends.get("lost", 0)
    if market == "on_demand":
        return Exposure(crash=_crashes(seen.held_ns, preempted + lost))
    notices = Notices()
    notices = Notices(notices.preemptions + preempted + lost, notices.missed + lost)
    hazard = Hazard.of_spot().after(seen.held_ns, preempted + lost)
    return Exposure(preemption=hazard, notice_ns=NOTICE_NS, notices=notices)


def _crashes(held_ns: int, events: int) -> Hazard:
    """The guess that machines last for a month has the weight of a month; it is dropped with the first that does not."""
    return Hazard(SPOT_MEAN_NS).after(held_ns, events) if events else Hazard.of_crashes().after(held_ns)
