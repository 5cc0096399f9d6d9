"""What a node needs to know of itself, and Ray of its end. Asks Ray's control service (GCS) without joining the cluster."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.core.generated.gcs_service_pb2 import GetAllNodeInfoRequest

from tuner.domain.errors import Conflict, NotFound, TunerError, Unavailable
from tuner.engine.notices.node_board import NodeBoard
from tuner.engine.notices.notice import Notice

BOARDS = "tuner_notices"
ANSWER_S = 5.0
MS = 1_000_000
_Selector = GetAllNodeInfoRequest.NodeSelector


@dataclass(frozen=True, slots=True)
class RayNode:
    """`session_dir` is where Ray keeps the files of the node's processes, on the node's own disk."""

    id: str
    is_head: bool
    session_dir: Path

    @property
    def boards(self) -> NodeBoard:
        """To be used on the node itself."""
        return NodeBoard(self.session_dir / BOARDS)


def own_board() -> NodeBoard:
    """For a process that Ray started, or that has joined its cluster: where notices for its node hang."""
    context = ray.get_runtime_context()
    return NodeBoard(Path(context.get_temp_dir()) / context.get_session_name() / BOARDS)


def own_addresses() -> frozenset[str]:
    """Of this machine, or of this pod, which all of its containers share."""
    return frozenset(address.address for found in psutil.net_if_addrs().values() for address in found)


def give_notice(address: str, node_id: str, notice: Notice) -> None:
    """To be called on the node itself. Tells its workers, and then Ray, which places nothing there any more.

    Raises NotFound, Unavailable, and Conflict for the head; then no notice stands.
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
    """Methods raise Unavailable where the cluster at `address` (host:port) does not answer."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Any = None

    def node(self, node_id: str) -> RayNode:
        """Raises NotFound for one that Ray does not take to be alive."""
        try:
            selector = _Selector(node_id=bytes.fromhex(node_id))
        except ValueError:
            raise NotFound(f"{node_id!r} is no id of a node: those have hexadecimal digits") from None
        found = self._living([selector]).get(node_id)
        if found is None:
            raise NotFound(f"{node_id} is no living node of the cluster at {self._address}")
        return found

    def nodes_at(self, addresses: Iterable[str]) -> dict[str, RayNode]:
        """The nodes that Ray takes to be alive at one of these addresses, by id."""
        return self._living([_Selector(node_ip_address=address) for address in sorted(addresses)])

    def drain(self, node_id: str, notice: Notice) -> None:
        """Nothing new is placed on the node, and what ends with it counts as preempted. Cannot be taken back: it ends once nothing
        runs there any more. Raises NotFound, and Conflict for the head, with which the cluster would end."""
        if self.node(node_id).is_head:
            raise Conflict(f"{node_id} is the head, and cannot be drained")
        deadline_ms = 0 if notice.deadline is None else notice.deadline // MS
        reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        accepted, refusal = self._call(
            "drain_node", node_id, reason, notice.text, deadline_ms, timeout=ANSWER_S
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
        except Exception as error:  # Ray's classes for this have changed with its releases
            raise Unavailable(f"the Ray cluster at {self._address} does not answer: {error}") from error
