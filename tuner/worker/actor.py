"""The Ray actor of a worker. Its `train` returns when there is news for the driver, or when a heartbeat is due.

Tune runs workers as trainables, but a worker does not inherit from Tune's `Trainable`: importing `ray.tune` would take 0.7 s of processor
time and 78 MB in each worker, before it can begin its first attempt. `tuner.driver.tuning_run` shows Tune a trainable in its place.
"""

from typing import Any

import ray

from tuner.cluster.drain import own_board
from tuner.cluster.notice_delivery import hide_unrequested_gpus
from tuner.worker import STARTED_NS
from tuner.worker.packages import Stored
from tuner.worker.supervisor import Supervisor

MESSAGES = "messages"  # the value is a list, because Tune flattens dictionaries in a result


class Worker:
    """Runs attempts one after the other until its node is removed. `order` receives the driver's orders in the sequence in which
    they were sent.

    Tune calls all methods of the actor but `order`. It never saves or restores a worker, because checkpoints are in shared storage.
    """

    def __init__(self, config: dict[str, Any], storage: object = None) -> None:
        """Start the supervisor. `storage` is where Tune would keep results, which is not used."""
        hide_unrequested_gpus()
        self._node, self._board = ray.get_runtime_context().get_node_id(), own_board()
        self._supervisor = Supervisor(
            config["entry"],
            package=Stored.parse(config.get("package")),
            constants=config.get("constants"),
            born_ns=STARTED_NS,
            notice=lambda: self._board.earliest_notice(self._node),
            owns_process=True,
        )
        self._name, self._messages = config.get("name", "Worker"), 0

    def reset(self, new_config: dict[str, Any], storage: object = None) -> bool:
        """Return True: a worker that Tune reuses needs no preparation, because an order begins each attempt."""
        return True

    def order(self, message: dict[str, Any]) -> None:
        self._supervisor.order(message)

    def train(self) -> dict[str, Any]:
        """Return the next message for the driver, as a result in Tune's form. The message is None if no attempt was begun.

        Raises:
            RuntimeError: No attempt was begun, and this machine is about to be taken away. Tune then removes the worker.
        """
        message = None
        if self._supervisor.attempt is not None:
            machine = self._board.described(self._node)
            message = {**self._supervisor.step(), "node": self._node, "machine": machine}
        elif self._board.earliest_notice(self._node) is not None:
            raise RuntimeError(
                "this machine is about to be taken away, so its worker begins no more attempts"
            )
        self._messages += 1
        return {MESSAGES: [message], "training_iteration": self._messages, "done": False}

    def get_auto_filled_metrics(self, *, debug_metrics_only: bool = False) -> dict[str, Any]:
        """Return the metrics that Tune shows of a trial without a result: none."""
        return {}

    def stop(self) -> None:
        self._supervisor.close()

    def __repr__(self) -> str:
        """Return the job's name. Ray calls this once, when the actor is created."""
        return str(self._name)
