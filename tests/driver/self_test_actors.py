"""A fake cluster for the restore self-test: machines that exist or not, and predefined verdicts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from tuner.domain.job import Resources
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.time import NS
from tuner.driver.paid_work import PaidActorLost
from tuner.worker.self_test import SelfTestOrder, Verdict


@dataclass
class FakeActors:
    """A cluster with machines for the offers in `there`. Each self-test ends with the next verdict."""

    there: list[Offer]
    verdicts: list[Verdict | type[PaidActorLost] | None] = field(default_factory=list)
    requested_offers: list[Offer] = field(default_factory=list)
    orders: list[SelfTestOrder] = field(default_factory=list)
    left: int = 0
    takes_ns: int = NS
    #: The machines that the actors are given, in order. The last one is given again. None if Ray does not describe the machine.
    machines: list[WorkerMachine | None] = field(default_factory=lambda: [None])
    at_kill: Callable[[], None] = lambda: None  #: Called when an actor is killed.

    def __call__(self, offer: Offer, size: Resources) -> Any:
        self.requested_offers.append(offer)
        return SelfTestActor(self, offer)


@dataclass
class SelfTestActor:
    actors: FakeActors
    offer: Offer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.actors.left += 1

    def has_machine(self, within_s: float) -> bool:
        return self.offer in self.actors.there

    def machine(self) -> WorkerMachine | None:
        machines = self.actors.machines
        return machines.pop(0) if len(machines) > 1 else machines[0]

    def begin(self, order: SelfTestOrder) -> None:
        self.actors.orders.append(order)

    def answered(self, within_s: float) -> bool:
        if self.actors.verdicts[0] is PaidActorLost:
            self.actors.verdicts.pop(0)
            raise PaidActorLost("its machine is gone")
        return self.actors.verdicts[0] is not None

    def answer(self) -> Any:
        return self.actors.verdicts.pop(0)

    def kill(self) -> None:
        self.actors.at_kill()

    def used_ns(self) -> int:
        return self.actors.takes_ns
