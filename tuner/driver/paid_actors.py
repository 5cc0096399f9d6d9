"""Run work that a job pays for besides its attempts in a Ray actor with the resources of a trial, on a machine of a given offer.

`tuner.driver.paid_work` has the parts that do not need Ray.
"""

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

import ray

from tuner.cluster.drain import own_board
from tuner.domain.job import Resources
from tuner.domain.offer import Offer, WorkerMachine
from tuner.driver.paid_work import PaidActorLost
from tuner.driver.ray_machines import machine_of_node
from tuner.worker import STARTED_NS
from tuner.worker.actor import hide_unrequested_gpus

PaidOrder = TypeVar("PaidOrder")
OrderOfWork = TypeVar("OrderOfWork", contravariant=True)
Result = TypeVar("Result", covariant=True)


class Work(Protocol[OrderOfWork, Result]):
    """A function that an actor runs: `tuner.worker.self_test.self_test` or `tuner.worker.export.export`."""

    def __call__(self, order: OrderOfWork, *, owns_process: bool) -> Result: ...


class WorkProcess(Generic[PaidOrder, Result]):
    """The Ray actor of a `PaidActor`: a process that runs one function once."""

    def __init__(self, work: Work[PaidOrder, Result]) -> None:
        self._work = work

    def ready(self) -> tuple[str, Mapping[str, str]]:
        """Return Ray's id of the actor's node, and the facts that the cloud reports about it.

        Ray completes the call once the actor has a machine.
        """
        node = ray.get_runtime_context().get_node_id()
        return node, own_board().described(node)

    def run(self, order: PaidOrder) -> tuple[Result, int]:
        """Run the work that `order` describes. Return its result, and the age of this process in nanoseconds, for the bill."""
        hide_unrequested_gpus()
        return self._work(order, owns_process=True), time.monotonic_ns() - STARTED_NS


class PaidActor(Generic[PaidOrder, Result]):
    """An actor that runs `work`, for which the job pays. Ray begins to look for a machine when the actor is created.

    The actor is killed at the end of the `with` block. `has_machine` and `answered` raise PaidActorLost if the actor has died.
    """

    def __init__(self, work: Work[PaidOrder, Result], offer: Offer, size: Resources) -> None:
        options = {"num_cpus": size.cpus, "num_gpus": size.gpus, "label_selector": dict(offer.labels)}
        self._actor = ray.remote(WorkProcess).options(**options).remote(work)
        self._ready = self._actor.ready.remote()
        self._began_ns: int | None = None
        self._answer: Any = None
        self._reported_ns = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the actor, so that it no longer uses its machine."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._actor)

    def has_machine(self, within_s: float) -> bool:
        """Wait up to `within_s` seconds until the actor has a machine, and return whether it has one."""
        if self._began_ns is None and _has(self._ready, within_s):
            self._began_ns = time.monotonic_ns()
        return self._began_ns is not None

    def machine(self) -> WorkerMachine | None:
        """Return the machine that the actor was given, or None if Ray does not describe it.

        Call this only after `has_machine` has returned True.
        """
        with contextlib.suppress(Exception):  # Ray's head may not answer
            return machine_of_node(*ray.get(self._ready))
        return None

    def begin(self, order: PaidOrder) -> None:
        """Begin the work that `order` describes."""
        self._answer = self._actor.run.remote(order)

    def answered(self, within_s: float) -> bool:
        """Wait up to `within_s` seconds until the work has ended, and return whether it has ended."""
        return _has(self._answer, within_s)

    def answer(self) -> Result:
        """Return the result of the work. Call this only after `answered` has returned True."""
        answer: Result
        answer, self._reported_ns = ray.get(self._answer)
        return answer

    def used_ns(self) -> int:
        """Return how long the actor has used its machine, in nanoseconds. Return 0 if it has not been given one.

        If `answer` was called, this is the age of the actor's process at the end of the work. Otherwise it is the time since
        `has_machine` first returned True.
        """
        if self._began_ns is None:
            return 0
        return self._reported_ns or time.monotonic_ns() - self._began_ns


def _has(answer: Any, within_s: float) -> bool:
    if not ray.wait([answer], timeout=within_s)[0]:
        return False
    try:
        ray.get(answer)
    except ray.exceptions.RayActorError as error:
        raise PaidActorLost(str(error)) from error
    return True
