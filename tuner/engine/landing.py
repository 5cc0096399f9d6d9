"""What an attempt landed on: the machine found attached is what is paid for, not the one that was asked for.

It is looked at before any work begins, and again when the machine has said more of itself. One that costs something else is held for
at its own price before more work. One that the job does not allow, or whose price is not known, ends the attempt at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.job import Resources
from tuner.domain.offer import Offer
from tuner.domain.time import Instant
from tuner.engine.holds import Purse, Treasury
from tuner.engine.journal import JournalTx
from tuner.engine.placement import Machine, Place

Find = Callable[[Machine], Offer | None]
"""What a machine is, and costs; None: its price is not known. Must answer within milliseconds, and not raise."""

Verdict = Literal["stays", "refused", "misplaced"]


@dataclass(frozen=True, slots=True)
class Landing:
    """`wanted` is what the job asked for. `find` None: every machine is taken for what was asked for."""

    wanted: Resources = field(default_factory=Resources)
    find: Find | None = None

    def settle(
        self, tx: JournalTx, treasury: Treasury, purse: Purse, machine: Machine | None, at: Instant
    ) -> Verdict:
        """Has the attempt pay for the machine that it is on. Refused: the budget does not allow it; misplaced: the job does not, and
        `purse.misplaced` says why. Then its present hold is all that it may use up."""
        if machine is None or self.find is None:
            return "stays"
        offer = self.find(machine)
        if offer is None:
            purse.misplaced = f"the price of its machine is not known: {described(machine)}"
            return "misplaced"
        place = Place(offer, offer.rate(cpus=self.wanted.cpus, gpus=self.wanted.gpus))
        why_not = forbidden(offer, self.wanted)
        if why_not is not None:
            treasury.confine(purse, place)
            purse.misplaced = why_not
            return "misplaced"
        return "stays" if treasury.reprice(tx, purse, place, at) else "refused"


def forbidden(found: Offer, wanted: Resources) -> str | None:
    """Why a trial that asked for this may not be on such a machine; None: it may. Spot for on demand is cheaper, and allowed."""
    said = f"a {found.instance_type} {_MARKETS[found.market]} at ${found.price.usd_per_hour:g} an hour"
    if wanted.market == "spot" and found.market != "spot":
        return f"it asked for spot and got {said}"
    if wanted.instance_type not in (None, found.instance_type):
        return f"it asked for a {wanted.instance_type} and got {said}"
    if wanted.region not in (None, found.region):
        return f"it asked for region {wanted.region} and got {said} in {found.region or 'an unknown region'}"
    return None


def described(machine: Machine) -> str:
    named = ", ".join(f"{name}={value}" for name, value in sorted(machine.labels.items()) if name != _NODE_ID)
    return f"{machine.cpus:g} CPUs, {machine.gpus:g} GPUs, labels {named or 'none'}"


_NODE_ID = "ray.io/node-id"
_MARKETS = {"spot": "on the spot market", "on_demand": "on demand"}
