"""The processes of one attempt, if it has several: their ranks, and the variables with which they find each other.

Each process has a *rank*. Rank 0 reports and saves for all of them. The variables are those of `torchrun`, so its scripts run unchanged.
"""

import socket
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

from tuner.worker.child_channel import (
    MAX_BETWEEN_REPORTS,
    AskMessage,
    ChannelEnd,
    ChildMessage,
    InvalidMessage,
    ReportMessage,
)

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
    def of(cls, order: dict[str, Any]) -> Self:
        """Read the numbers of processes and nodes from the driver's order to begin an attempt. Choose a port if it has none."""
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
        """Return the environment variables of a rank. Return none if the attempt has a single process."""
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
            # Without it, each process would use all CPUs of the machine. torchrun sets it to 1.
            "OMP_NUM_THREADS": self.threads,
        }
        # PyTorch, Lightning and accelerate find out by the last one that they need not start processes.
        names = {"MASTER_ADDR": self.address, "TORCHELASTIC_RUN_ID": self.trial}
        return {**{name: str(number) for name, number in numbers.items()}, **names}


def free_port() -> int:
    """Return a port on which nothing listens now.

    Another process may take it before rank 0 listens on it. The attempt is then lost and begun again with another port.
    """
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


@dataclass
class Peer:
    """A process of an attempt that is not rank 0. What it reports is ignored, because rank 0 reports the same step."""

    rank: int
    pid: int
    channel: ChannelEnd
    ended: bool = False  # user code returned
    messages: int = 0  # since its last report

    @classmethod
    def of(cls, rank: int, pid: int, connection: Connection) -> Self:
        return cls(rank, pid, ChannelEnd(connection))

    def check(self, message: ChildMessage) -> None:
        """Count a message. Raise InvalidMessage if the process floods the supervisor."""
        waits = isinstance(message, ReportMessage | AskMessage)  # for a reply, so it cannot flood
        self.messages = 0 if waits else self.messages + 1
        if self.messages > MAX_BETWEEN_REPORTS:
            raise InvalidMessage(f"sent more than {MAX_BETWEEN_REPORTS} messages without a report")
        if waits and self.channel.unread:
            raise InvalidMessage("sent a message without reading the reply to the one before")
