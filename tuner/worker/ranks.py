"""The ranks of an attempt with several processes, and the environment variables with which the processes find each other.

Each process has a *rank*. Rank 0 reports and saves for all of them. The variables are those of `torchrun`, so its scripts run unchanged.

On several nodes, each node has a supervisor. The driver communicates only with the supervisor of node 0. That supervisor begins the attempt on the
other nodes, decides how the attempt ends, and ends it on all of them. Each supervisor enforces the lease on its own node.
"""

import socket
from dataclasses import dataclass
from typing import Any, Self

from tuner.worker.orders import BeginOrder, EndState, FailureFields

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The processes of one attempt, on all its nodes."""

    trial: str
    processes: int = 1  #: On each node.
    nodes: int = 1
    node: int = 0  #: The number of this node, from 0.
    threads: int = 1  #: The threads of each process for arithmetic.
    address: str = LOOPBACK  #: Where rank 0 can be reached.
    port: int = 0  #: The port on which rank 0 listens.

    @classmethod
    def of(cls, order: BeginOrder) -> Self:
        """Return the group that the driver's order to begin an attempt describes.

        If the order names no port and the group has several processes, choose a free port.
        """
        processes, nodes = int(order.get("processes", 1)), int(order.get("nodes", 1))
        cpus = float(order.get("resources", {}).get("CPU") or 1)
        return cls(
            str(order["trial"]),
            processes,
            nodes,
            int(order.get("node", 0)),
            max(1, int(cpus / processes)),
            str(order.get("address", LOOPBACK)),
            int(order.get("port") or (free_port() if processes * nodes > 1 else 0)),
        )

    @property
    def size(self) -> int:
        """The number of processes on all nodes."""
        return self.processes * self.nodes

    @property
    def ranks(self) -> range:
        """The ranks on this node."""
        return range(self.node * self.processes, (self.node + 1) * self.processes)

    def variables(self, rank: int) -> dict[str, str]:
        """Return the environment variables of a rank, or an empty dictionary if the attempt has a single process."""
        if self.size == 1:
            return {}
        numbers = {
            "RANK": rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": rank - self.ranks.start,
            "LOCAL_WORLD_SIZE": self.processes,
            "GROUP_RANK": self.node,
            "GROUP_WORLD_SIZE": self.nodes,
            "MASTER_PORT": self.port,
            # Without OMP_NUM_THREADS, each process would start as many threads as the machine has CPUs. torchrun sets the variable to 1.
            "OMP_NUM_THREADS": self.threads,
        }
        # TORCHELASTIC_RUN_ID shows PyTorch, Lightning and accelerate that the processes have already been started.
        names = {"MASTER_ADDR": self.address, "TORCHELASTIC_RUN_ID": self.trial}
        return {**{name: str(number) for name, number in numbers.items()}, **names}


def free_port() -> int:
    """Return a port on which nothing listens now.

    Another process may take the port before rank 0 listens on it. The attempt is then lost, and the next one gets another port.
    """
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of a rank, which may be the cause of the attempt's failure."""

    rank: int
    at_ns: int  #: When it ended, on the monotonic clock of this node.
    failure: FailureFields
    code: int | None = None  #: The exit status, if it exited without a message.

    @classmethod
    def of_message(cls, message: dict[str, Any], now_ns: int) -> Self:
        return cls(message["rank"], now_ns - message["ago_ns"], message["trouble"], message["code"])

    def message(self, now_ns: int) -> dict[str, Any]:
        """Return the message about this end for another node.

        The message says how long ago the rank ended, and not at which time, because nodes have different clocks.
        """
        return {"rank": self.rank, "ago_ns": now_ns - self.at_ns, "trouble": self.failure, "code": self.code}

    @property
    def order(self) -> tuple[bool, int]:
        """The sort key that puts the probable cause of a failure first.

        A rank that was killed or exited comes before a rank that raised an exception, because ranks raise exceptions when they lose the
        connection to another rank. Of several such ends, the earliest comes first.
        """
        return self.failure["kind"] == "raised", self.at_ns


class OtherNodes:
    """The other nodes of an attempt, as the supervisor of node 0 sees them.

    This class is for attempts on one node, so its methods do nothing. The subclass `OtherActors` is for attempts on several nodes.

    The supervisor calls all methods under its lock, so they must not wait.
    """

    def begin(self, order: BeginOrder) -> None:
        """Begin the attempt on the other nodes."""

    def renew(self, lease_ns: int) -> None:
        """Set the lease of the attempt on the other nodes to `lease_ns`, in nanoseconds since it began."""

    def end(self, state: EndState, error: FailureFields | None) -> None:
        """End the attempt on the other nodes with this state and error. Do nothing on nodes that are not running it."""

    def have_answered(self, since_s: float) -> bool:
        """Return whether each other node has answered a call that was made after `since_s`, or has ended the attempt.

        A lost node does not answer, so this stays False until the loss is noticed.

        Args:
            since_s: A time in seconds on the monotonic clock.
        """
        return True
