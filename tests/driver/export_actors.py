"""A fake cluster for exports: a machine that exists or not, and a predefined result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from tuner.domain.job import Resources
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.time import NS
from tuner.driver.paid_work import PaidActorLost
from tuner.training.variants import BATCHES, BatchLatency, Variant
from tuner.worker.export import ExportOrder, ExportResult


def variant(format: Any, metric: float = 0.9, per_second: float = 1000.0) -> Variant:
    """Return a delivered variant."""
    latency = tuple(BatchLatency(batch, 1.0, 2.0, per_second * batch**0.5) for batch in BATCHES)
    file = f"{format}/model.{'pt2' if format == 'torch' else 'onnx'}"
    return Variant(format, file, 1000, metric, 0.9 - metric, 1e-6, 3.0, latency, 1.5)


@dataclass
class FakeExportActors:
    """Actors whose work ends with `result`, or never if it is None. They are lost if it is a class of errors."""

    result: ExportResult | type[PaidActorLost] | None
    takes_ns: int = 20 * NS
    has_machines: bool = True
    #: The machines that the actors are given, in order. The last one is given again. None if Ray does not describe the machine.
    machines: list[WorkerMachine | None] = field(default_factory=lambda: [None])
    orders: list[ExportOrder] = field(default_factory=list)
    left: int = 0
    at_kill: Callable[[], None] = lambda: None  #: Called when an actor is killed.

    def __call__(self, offer: Offer, size: Resources) -> Any:
        return FakeExportActor(self)


@dataclass
class FakeExportActor:
    actors: FakeExportActors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.actors.left += 1

    def has_machine(self, within_s: float) -> bool:
        return self.actors.has_machines

    def machine(self) -> WorkerMachine | None:
        machines = self.actors.machines
        return machines.pop(0) if len(machines) > 1 else machines[0]

    def begin(self, order: ExportOrder) -> None:
        self.actors.orders.append(order)

    def answered(self, within_s: float) -> bool:
        if self.actors.result is PaidActorLost:
            raise PaidActorLost("its machine is gone")
        return self.actors.result is not None

    def answer(self) -> Any:
        return self.actors.result

    def kill(self) -> None:
        self.actors.at_kill()

    def used_ns(self) -> int:
        return self.actors.takes_ns
