"""The Ray actor of a worker: a Tune trainable whose `step` runs until there is news for the driver, or a heartbeat is due."""

from typing import Any

import ray
from ray import tune

from tuner.cluster.drain import own_board
from tuner.cluster.notice_delivery import hide_those_of_others
from tuner.worker import BORN_NS
from tuner.worker.packages import Stored
from tuner.worker.supervisor import Supervisor

TOLD = "told"  # the value is a list, because Tune flattens dictionaries in a result


class Worker(tune.Trainable):
    """Runs attempts one after the other until its node is removed. `order` receives the driver's orders in the sequence in which
    they were sent."""

    def setup(self, config: dict[str, Any]) -> None:
        hide_those_of_others()
        self._node, self._board = ray.get_runtime_context().get_node_id(), own_board()
        self._supervisor = Supervisor(
            config["entry"],
            package=Stored.parse(config.get("package")),
            born_ns=BORN_NS,
            notice=lambda: self._board.standing(self._node),
            owns_process=True,
        )
        self._first = config

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        return True

    def order(self, message: dict[str, Any]) -> None:
        self._supervisor.order(message)

    def step(self) -> dict[str, Any]:
        machine = self._board.described(self._node)
        return {TOLD: [{**self._supervisor.step(), "node": self._node, "machine": machine}]}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Return an empty checkpoint for Tune, because the real checkpoints are in shared storage."""
        return {}

    def load_checkpoint(self, checkpoint: Any) -> None:
        pass

    def cleanup(self) -> None:
        self._supervisor.close()

    def __repr__(self) -> str:
        """Return the job's name and the first attempt. Ray calls this once, when the actor is created."""
        return f"{self._first.get('name', 'Worker')} (first {self._first.get('trial')}-a{self._first.get('attempt')})"
