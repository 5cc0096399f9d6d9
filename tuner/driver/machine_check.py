"""The machine check: an attempt pays for the machine that it was given, not for the one that was requested.

The machine is checked before any work begins, and again when its worker has reported more about it. If its price
differs from the offer's, a new hold reserves money for the rest of the lease at the new price before more work is done.
If the job does not allow the machine, or its price is not known, the attempt ends at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.job import Resources
from tuner.domain.listing import MARKET_WORDS
from tuner.domain.money import Price, Rate, dollars
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.time import Instant
from tuner.driver.holds import AttemptLease, HoldService
from tuner.driver.placement import Place
from tuner.driver.ports import JournalTx

Find = Callable[[WorkerMachine], Offer | None]
"""Return the priced offer that matches a machine, or None if the machine's price is not known.

It must return within milliseconds and must not raise. In a real driver it is `tuner.service.node_prices.finder`.
"""

Verdict = Literal["stays", "refused", "wrong_machine"]


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """Check the machine that an attempt was given against the job's request. If a trial has several nodes, check all their machines."""

    wanted: Resources = field(default_factory=Resources)  #: What the job requested.
    #: Returns a machine's offer, or None if its price is not known. If the field is None, machines are not checked, and each counts as the
    #: requested machine.
    find: Find | None = None

    def expected_place(self, lease: AttemptLease, machine: WorkerMachine) -> Place | None:
        """Return the machine's place (offer and rate) if the job allows it and the attempt's hold was placed at the same rate.

        Otherwise return None. Also return None for an attempt on several machines, because its rate depends on all of them.
        """
        offer = self.find(machine) if self.find is not None and not machine.others else None
        if offer is None or forbidden(offer, self.wanted) is not None:
            return None
        place = Place(offer, offer.rate(self.wanted))
        return place if place.rate == lease.rate else None

    def check(
        self,
        tx: JournalTx,
        hold_service: HoldService,
        lease: AttemptLease,
        machine: WorkerMachine | None,
        at: Instant,
    ) -> Verdict:
        """Check the machine that the attempt was given, and have the attempt pay its price.

        Returns:
            "stays" if the attempt may stay on the machine, or if `machine` is None because nothing is known about it yet. "refused" if
            the budget cannot pay for the machine. "wrong_machine" if the job does not allow the machine or its price is not known;
            `lease.wrong_machine` then says why. Unless the attempt stays, it may use no more than its current hold.
        """
        if machine is None or self.find is None:
            return "stays"
        offers = list[Offer]()
        for node in (machine, *machine.others):
            offer = self.find(node)
            if offer is None:
                lease.wrong_machine = (
                    f"the price of the machine that Ray assigned is not known: {described(node)}"
                )
                return "wrong_machine"
            offers.append(offer)
        place = Place(offers[0], self._rate(offers))
        why_not = next(filter(None, (forbidden(offer, self.wanted) for offer in offers)), None)
        if why_not is not None:
            hold_service.charge_assigned_machine(lease, place)
            lease.wrong_machine = why_not
            return "wrong_machine"
        return "stays" if hold_service.reprice(tx, lease, place, at) else "refused"

    def _rate(self, offers: Sequence[Offer]) -> Rate:
        """Return the rate of a trial whose known nodes are machines of these offers.

        Each node that is not known yet counts as the most expensive known node.
        """
        rates = [offer.rate(self.wanted.on_one_node) for offer in offers]
        if len(set(rates)) == 1:
            return offers[0].rate(self.wanted)
        # The worker learns of its other nodes one by one. A node that is not known yet counts as the most expensive known node, so that
        # the hold is not too small.
        rates += [max(rates, key=lambda rate: rate.price)] * (self.wanted.nodes - len(rates))
        price = Price(sum(rate.price.micro_usd_per_hour for rate in rates))
        return Rate(price, sum(rate.milli_gpus for rate in rates))


def forbidden(offer: Offer, wanted: Resources) -> str | None:
    """Return why a trial that requested `wanted` may not run on this offer, or None if it may.

    The market does not matter: a spot machine may be used for a trial that requested on demand, because it is cheaper.
    """
    machine = (
        f"a {offer.instance_type} {MARKET_WORDS[offer.market]} at {dollars(offer.price.usd_per_hour)} an hour"
    )
    if wanted.market == "spot" and offer.market != "spot":
        return f"the trial requested a spot machine, but Ray assigned {machine}"
    if wanted.instance_type not in (None, offer.instance_type):
        return f"the trial requested a {wanted.instance_type}, but Ray assigned {machine}"
    if wanted.region not in (None, offer.region):
        place = offer.region or "an unknown region"
        return f"the trial requested region {wanted.region}, but Ray assigned {machine} in {place}"
    return None


def described(machine: WorkerMachine) -> str:
    named = ", ".join(f"{name}={value}" for name, value in sorted(machine.labels.items()) if name != _NODE_ID)
    return f"{machine.cpus:g} CPUs, {machine.gpus:g} GPUs, labels {named or 'none'}"


_NODE_ID = "ray.io/node-id"
