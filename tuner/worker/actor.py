"""The Ray actors of a worker: `Worker` on its first node, and a `NodeWorker` on each other node.

`Worker.train` returns when there is something to report to the driver, or when a heartbeat is due.

Tune runs workers as trainables, but a worker does not inherit from Tune's `Trainable`: importing `ray.tune` would take 0.7 s of processor
time and 78 MB in each worker, before it can begin its first attempt. `tuner.driver.tuning_run` gives Tune a trainable, and has
Tune start the `Worker` instead of it.

A worker of trials on several nodes has a placement group with one bundle for each node. `Worker` is in the first bundle, and starts a
`NodeWorker` in each other bundle. If the `Worker` dies, Ray kills the actors that it has started.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import serialization_addons
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tuner.cluster.drain import own_board
from tuner.cluster.notices.notice import Notice
from tuner.worker import STARTED_NS, endings
from tuner.worker.background import background
from tuner.worker.orders import (
    ActorMessage,
    AttemptMessage,
    BeginOrder,
    EndState,
    FailureFields,
    MachineFields,
    NodeOrder,
    Order,
)
from tuner.worker.packages import Stored
from tuner.worker.ranks import OtherNodes, free_port
from tuner.worker.slots import Slots
from tuner.worker.supervisor import HEARTBEAT_S, MAX_START_NS, Supervisor

MESSAGES = "messages"  # the value is a list, because Tune flattens dictionaries in a result
ORDERS = "orders"
# How long another node may take to answer a call, and to end an attempt. Ray notices sooner if the node or its process is dead. The time
# for ending is short, because the driver kills a worker that is silent for 5 s after its lease.
SILENT_S, ENDS_WITHIN_S = 30.0, 3.0
STARTS_WITHIN_S = 120.0  # how long the process on another node may take to start and to answer its first call
News = dict[str, Any]

# Before an actor reads its first argument, Ray imports pydantic, Starlette and Arrow, to be able to send and receive their objects. That
# takes 0.3 s of processor time and 15 MB in each worker. A worker sends and receives none of these objects.
serialization_addons.apply = lambda serialization_context: None


def hide_unrequested_gpus() -> None:
    """Hide all GPUs from an actor that requested none. Call it in the actor before anything looks for a GPU.

    Ray (2.60) sets the visible GPUs of an actor that requested some, but leaves all GPUs of the machine to an actor
    that requested none. User code would then train on a GPU that its job does not pay for, and take GPU memory from the jobs that do.
    """
    if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


class NodeWorker:
    """Runs the ranks of attempts on a node other than the first. The first node's `Worker` owns this actor and is the only one to call it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        hide_unrequested_gpus()
        self._node, self._board = ray.get_runtime_context().get_node_id(), own_board()
        self._supervisor = _supervisor(config)
        # Why the node can run no more attempts, such as the error of an order that failed. Empty if it can.
        self._broken = ""

    def order(self, message: BeginOrder | NodeOrder) -> None:
        """Carry out an order of the first node.

        The first node does not wait for the result. If an order fails, its error is kept, and the next `step` raises it.
        """
        try:
            if message["order"] == "begin":
                # All nodes share one lease, so the time since the first node sent this order counts as used. The clocks of the two nodes
                # may differ, so this time is limited.
                waited_ns = min(max(0, time.time_ns() - message["sent_at_ns"]), MAX_START_NS)
                self._supervisor.order({**message, "used_ns": message["used_ns"] + waited_ns})
            else:
                self._supervisor.receive_from_first_node(message)
        except Exception as error:  # such as a full disk
            self._broken = f"{type(error).__name__}: {error}"

    def step(self) -> News:
        """Wait up to `HEARTBEAT_S` for something to report. Return facts about the node, and about its attempt if there is one.

        Raises:
            RuntimeError: An order could not be carried out, or processes of an attempt could not be killed.
        """
        if self._broken:
            raise RuntimeError(self._broken)
        news: News = {"attempt": None}
        if self._supervisor.attempt is None:
            time.sleep(HEARTBEAT_S)
        else:
            result = self._supervisor.step()
            news = {"state": result["state"], "error": result["error"], "rank_ends": result["rank_ends"]}
            if not self._supervisor.is_clean:
                self._broken = "processes of an attempt could not be killed"
            news["attempt"] = result["trial"], result["attempt"]
        notice, machine = self._board.earliest_notice(self._node), self._board.described(self._node)
        return {**news, "node": self._node, "notice": notice, "machine": machine}


@dataclass
class OtherActor:
    """One of the nodes that a worker has in addition to its first: the node's actor, and what the actor reported last."""

    number: int  #: The number of the node, from 1. The worker's own node is number 0.
    actor: Any
    attempt: tuple[str, int] | None = None  #: The trial and the number of the attempt that the node runs.
    #: When the worker made the newest call that the node has answered, on the monotonic clock.
    answered_s: float = -math.inf
    node: str = ""  #: Ray's id of the node. Empty if it is not known yet.
    notice: Notice | None = None
    machine: Mapping[str, str] | None = None  #: Facts about the machine from its cloud.
    lost: str = ""  #: Why the node was lost. Empty if it was not.

    def order(self, message: BeginOrder | NodeOrder) -> None:
        """Send an order without waiting for its result. The actor carries it out even while it is in `step`."""
        self.actor.order.options(concurrency_group=ORDERS).remote(message)


class OtherActors(OtherNodes):
    """The other nodes of a worker, with an actor on each of them.

    Args:
        actors: The `NodeWorker` actors, in the order of the nodes' numbers.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        self._changed = threading.Condition()
        self.all = [OtherActor(number, actor) for number, actor in enumerate(actors, 1)]

    def follow(self, receive: Callable[[str, int, News], None]) -> None:
        """Start one thread for each actor. The thread calls the actor's `step` again and again, and passes the results to `receive`.

        Args:
            receive: Called with the trial and the number of an attempt, and with what `step` returned about it.
        """
        self._receive = receive
        for other in self.all:
            background("node", self._follow, other)

    def _follow(self, other: OtherActor) -> None:
        timeout_s = STARTS_WITHIN_S
        try:
            while True:
                called_s = time.monotonic()
                news = ray.get(other.actor.step.remote(), timeout=timeout_s)
                timeout_s = SILENT_S
                self._take(other, news, called_s)
        except Exception as error:  # such as GetTimeoutError, if the actor's process is stopped
            self._lose(other, f"{type(error).__name__}: {error}"[:500])

    def _take(self, other: OtherActor, news: News, called_s: float) -> None:
        with self._changed:
            other.node, other.notice, other.machine = news["node"], news["notice"], news["machine"]
            other.answered_s = called_s
            attempt = other.attempt
            if attempt is not None and attempt == news["attempt"] and news["state"] != "running":
                other.attempt = None
            self._changed.notify_all()
        if attempt is not None and attempt == news["attempt"]:
            self._receive(*attempt, news)

    def _lose(self, other: OtherActor, why: str) -> None:
        with self._changed:
            other.lost = other.lost or why
            attempt, other.attempt = other.attempt, None
            self._changed.notify_all()
        if attempt is not None:
            error = endings.node_lost(other.number, other.lost)
            self._receive(*attempt, {"state": "failed", "error": error, "rank_ends": []})
        ray.kill(other.actor)

    def begin(self, order: BeginOrder) -> None:
        with self._changed:
            for other in self.all:
                other.attempt = order["trial"], order["attempt"]
                other.order({**order, "node": other.number, "sent_at_ns": time.time_ns()})
                if other.lost:
                    background("lost", self._lose, other, other.lost)

    def renew(self, lease_ns: int) -> None:
        self._order({"order": "renew", "lease_ns": lease_ns})

    def end(self, state: EndState, error: FailureFields | None) -> None:
        self._order({"order": "end", "state": state, "error": error})

    def _order(self, message: NodeOrder) -> None:
        with self._changed:
            for other in self.all:
                if other.attempt is not None:
                    other.order(message)

    def have_answered(self, since_s: float) -> bool:
        with self._changed:
            return all(other.attempt is None or other.answered_s >= since_s for other in self.all)

    def settle(self) -> None:
        """Wait up to `ENDS_WITHIN_S` until the attempt has ended on all nodes. Kill the actors of the nodes on which it does not end."""
        with self._changed:
            self._changed.wait_for(lambda: not any(other.attempt for other in self.all), ENDS_WITHIN_S)
            late = [other for other in self.all if other.attempt is not None]
        for other in late:
            self._lose(other, "the node did not end its attempt in time")

    @property
    def is_one_lost(self) -> bool:
        return any(other.lost for other in self.all)

    def machines(self) -> list[tuple[str, Mapping[str, str]]]:
        """Return Ray's id of each other node, with the facts about its machine. Nodes whose actor never answered a call are left out."""
        return [(other.node, other.machine or {}) for other in self.all if other.node]

    def close(self) -> None:
        for other in self.all:
            ray.kill(other.actor)


def _start_node_workers(config: Mapping[str, Any]) -> list[Any]:
    """Start a `NodeWorker` on each node of a worker except the first, and return these actors.

    If the config has no `nodes`, the worker has one node, and the list is empty.
    """
    group, size = ray.util.get_current_placement_group(), config.get("resources", {})
    remote = ray.remote(concurrency_groups={ORDERS: 1})(NodeWorker)
    return [
        remote.options(
            num_cpus=size["CPU"],
            num_gpus=size["GPU"],
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
        ).remote(dict(config))
        for number in range(1, config.get("nodes", 1))
    ]


def _supervisor(config: Mapping[str, Any], **more: Any) -> Supervisor:
    return Supervisor(config["entry"], owns_process=True, **_work(config), **more)


def _work(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a supervisor must know about the job, and when this process was started."""
    package = Stored.parse(config.get("package"))
    return {"package": package, "constants": config.get("constants"), "born_ns": STARTED_NS}


class Worker:
    """Runs attempts until its node is removed: one after the other, or up to `pack` at the same time.

    Tune calls all methods. Its calls of `train` carry the orders of the driver. Tune never saves or restores a worker, because checkpoints
    are in shared storage.
    """

    def __init__(self, config: dict[str, Any], storage: object = None) -> None:
        """Create the worker, with its supervisor and the actors on its other nodes. Tune passes `storage`, which is not used."""
        hide_unrequested_gpus()
        self._node, self._board = ray.get_runtime_context().get_node_id(), own_board()
        self._others = OtherActors(_start_node_workers(config))
        self._slots: Slots | None = None
        self._supervisor: Supervisor | None = None
        if config.get("pack", 1) > 1:
            self._slots = Slots(
                config["pack"],
                config["entry"],
                notice=self._earliest_notice,
                cpus=config["resources"]["CPU"],
                **_work(config),
            )
        else:
            self._supervisor = _supervisor(config, notice=self._earliest_notice, others=self._others)
            self._others.follow(self._supervisor.receive_from_other_node)
        self._name, self._messages = config.get("name", "Worker"), 0

    def _earliest_notice(self) -> Notice | None:
        """Return the preemption notice with the earliest deadline among all nodes of this worker, or None if no node has a notice."""
        notices = [self._board.earliest_notice(self._node), *(other.notice for other in self._others.all)]
        known = [notice for notice in notices if notice is not None]
        return min(known, key=lambda notice: notice.deadline, default=None)

    @property
    def _retires(self) -> bool:
        """Whether the worker must begin no further attempt: one of its nodes was lost, or processes of an attempt could not be killed."""
        runner = self._slots or self._supervisor
        return self._others.is_one_lost or (runner is not None and not runner.is_clean)

    def reset(self, new_config: dict[str, Any], storage: object = None) -> bool:
        """Return True, so that Tune reuses the worker. Nothing is reset here, because each attempt begins with an order of the driver."""
        return True

    def _order(self, message: Order) -> None:
        if message["order"] == "begin" and self._others.all:
            message = {**message, "address": ray.util.get_node_ip_address(), "port": free_port()}
        if self._slots is not None:
            self._slots.order(message)
        elif self._supervisor is not None:
            self._supervisor.order(message)

    def train(self, orders: Sequence[Order]) -> dict[str, Any]:
        """Carry out the driver's orders, oldest first. Then return the next messages for the driver, as a result in Tune's form.

        There are no messages if no attempt is running.

        Raises:
            RuntimeError: No attempt is running, and the worker retires or one of its machines is about to be preempted.
                Tune then removes the worker.
        """
        for order in orders:
            self._order(order)
        messages = self._step()
        if messages is None and (self._earliest_notice() is not None or self._retires):
            raise RuntimeError(
                "a machine of this worker is lost or will be preempted soon, or processes of an attempt could not be killed, so the worker "
                "begins no further attempts"
            )
        machine: MachineFields = {
            "node": self._node,
            "machine": self._board.described(self._node),
            "others": self._others.machines(),
            "retires": self._retires,
        }
        sent: list[ActorMessage] = [{**message, **machine} for message in messages or ()]
        self._messages += 1
        return {
            MESSAGES: sent,
            "training_iteration": self._messages,
            "done": False,
        }

    def _step(self) -> list[AttemptMessage] | None:
        """Wait for messages about the attempts that run, up to `HEARTBEAT_S`. Return None if none runs."""
        if self._slots is not None:
            return None if self._slots.are_free else self._slots.step()
        assert self._supervisor is not None
        if self._supervisor.attempt is None:
            return None
        message = self._supervisor.step()
        if self._supervisor.attempt is None:
            self._others.settle()
        return [message]

    def get_auto_filled_metrics(self, *, debug_metrics_only: bool = False) -> dict[str, Any]:
        """Return an empty dictionary. Tune calls this for the metrics of a trial that has not reported a result."""
        return {}

    def stop(self) -> None:
        if self._slots is not None:
            self._slots.close()
        elif self._supervisor is not None:
            self._supervisor.close()
        self._others.close()

    def __repr__(self) -> str:
        """Return the job's name, which Ray writes before each log line of the actor. Ray calls this once, when the actor is created."""
        return str(self._name)
