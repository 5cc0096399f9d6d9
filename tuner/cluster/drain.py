"""Find the Ray nodes of this machine, and give a node a preemption notice.

`Gcs` uses Ray's control service (GCS) directly, without joining the cluster.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.core.generated.gcs_service_pb2 import GetAllNodeInfoRequest

from tuner.cluster.notices.node_board import NodeBoard
from tuner.cluster.notices.notice import Notice
from tuner.domain.errors import Conflict, NotFound, TunerError, Unavailable
from tuner.domain.time import MS_NS

BOARDS = "tuner_notices"
ANSWER_S = 5.0
_Selector = GetAllNodeInfoRequest.NodeSelector


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of a Ray cluster that is alive."""

    id: str
    is_head: bool
    session_dir: Path  #: Where Ray keeps the files of the node's processes, on the node's own disk.

    @property
    def boards(self) -> NodeBoard:
        """The board (a directory of files) from which the node's workers read preemption notices. Use it on the node's own machine."""
        return NodeBoard(self.session_dir / BOARDS)


def own_board() -> NodeBoard:
    """Return the board (a directory of files) from which workers on this process's node read preemption notices.

    The process must have been started by Ray or have joined a Ray cluster.
    """
    context = ray.get_runtime_context()
    return NodeBoard(Path(context.get_temp_dir()) / context.get_session_name() / BOARDS)


def own_addresses() -> frozenset[str]:
    """Return the network addresses of this machine. In a pod, return those of the pod, which all its containers share."""
    return frozenset(address.address for addresses in psutil.net_if_addrs().values() for address in addresses)


def give_notice(address: str, node_id: str, notice: Notice) -> None:
    """Give a preemption notice to a node's workers, and then to Ray, so that Ray places no new work on the node.

    Call it on the node's own machine. If it raises, no notice is in effect.

    Raises:
        NotFound: Ray does not know the node, or it is not alive.
        Unavailable: Ray does not answer.
        Conflict: The node is the head, or Ray refuses to drain it.
    """
    gcs = Gcs(address)
    boards = gcs.node(node_id).boards
    boards.announce(node_id, notice)
    try:
        gcs.drain(node_id, notice)
    except TunerError:
        boards.withdraw(node_id, notice.id)
        raise


class Gcs:
    """Client of Ray's control service (GCS) at `address` (host:port). Methods raise Unavailable if it does not answer."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Any = None

    def node(self, node_id: str) -> RayNode:
        """Return a node. Raise NotFound if Ray does not consider it alive."""
        try:
            selector = _Selector(node_id=bytes.fromhex(node_id))
        except ValueError:
            raise NotFound(f"{node_id!r} is not the id of a node: node ids have hexadecimal digits") from None
        node = self._living([selector]).get(node_id)
        if node is None:
            raise NotFound(
                f"{node_id} is not the id of a node that is alive in the cluster at {self._address}"
            )
        return node

    def nodes_at(self, addresses: Iterable[str]) -> dict[str, RayNode]:
        """Return the living nodes that have one of these network addresses, by Ray's node id."""
        return self._living([_Selector(node_ip_address=address) for address in sorted(addresses)])

    def drain(self, node_id: str, notice: Notice) -> None:
        """Make Ray place no new work on a node, and report work that dies with the node as preempted.

        This cannot be undone: the node ends once nothing runs there.

        Raises:
            NotFound: The node is not alive in this cluster.
            Conflict: The node is the head, or Ray refuses.
        """
        if self.node(node_id).is_head:
            raise Conflict(f"{node_id} is the head node, which cannot be drained")
        reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        accepted, refusal = self._call(
            "drain_node", node_id, reason, notice.text, notice.deadline // MS_NS, timeout=ANSWER_S
        )
        if not accepted:
            raise Conflict(f"{node_id} cannot be drained: {refusal}")

    def _living(self, selectors: list[Any]) -> dict[str, RayNode]:
        asked = {"timeout": ANSWER_S, "state_filter": GcsNodeInfo.ALIVE, "node_selectors": selectors}
        return {
            node_id.hex(): RayNode(node_id.hex(), info.is_head_node, Path(info.session_dir))
            for node_id, info in self._call("get_all_node_info", **asked).items()
        }

    def _call(self, method: str, *args: object, **more: object) -> Any:
        try:
            if self._client is None:
                self._client = ray._raylet.GcsClient(address=self._address)
            return getattr(self._client, method)(*args, **more)
        except (
            Exception
        ) as error:  # no narrower class, because Ray's error classes have changed between releases
            raise Unavailable(f"the Ray cluster at {self._address} does not answer: {error}") from error
