"""Estimate the risk that an attempt is lost, from its market and from how the job's attempts have ended so far."""

from tuner.domain.time import NS
from tuner.store.losses import Losses
from tuner.tuning.checkpointing import SPOT_MEAN_NS, Exposure, Hazard, Notices

# The shortest notice of any cloud, that of a pod on GKE. Azure and Google give 30 s, AWS two minutes. A worker does
# not know which applies.
NOTICE_NS = 15 * NS


def exposure(market: str, seen: Losses) -> Exposure:
    """Return the risks of an attempt on a machine of this market.

    `seen` counts how the job's attempts on this market ended. On spot, a lost worker counts as a preemption
    without notice.
    """
    preempted, lost = seen.ends.get("preempted", 0), seen.ends.get("lost", 0)
    if market == "on_demand":
        return Exposure(crash=_crashes(seen.held_ns, preempted + lost))
    notices = Notices()
    notices = Notices(notices.preemptions + preempted + lost, notices.missed + lost)
    hazard = Hazard.of_spot().after(seen.held_ns, preempted + lost)
    return Exposure(preemption=hazard, notice_ns=NOTICE_NS, notices=notices)


def _crashes(held_ns: int, events: int) -> Hazard:
    """Return the rate of crashes on demand, estimated from the time on machines and the number of losses.

    Before the first loss, the prior is a month per machine, with the weight of a month. From the first loss
    on, the prior of spot machines is used, which has less weight.
    """
    return Hazard(SPOT_MEAN_NS).after(held_ns, events) if events else Hazard.of_crashes().after(held_ns)
