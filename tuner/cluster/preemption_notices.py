"""Pass the preemption notices for one machine on to each Ray node that runs on the machine."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tuner.cluster.drain import RayNode
from tuner.cluster.notices.clouds import Sources
from tuner.cluster.notices.notice import Notice
from tuner.cluster.notices.watcher import Watcher
from tuner.domain.errors import Conflict, NotFound, TunerError, Unavailable

LOOK_S = 5.0
LOOK_NOTICED_S = 1.0
# Longer than the minute after which a raylet that cannot reach its cluster ends (gcs_rpc_server_reconnect_timeout_s).
SILENT_S = 120.0
log = logging.getLogger("tuner.notices")


class Drains(Protocol):
    """Drain nodes of the cluster, so that Ray places no new work on them. `MachineWatch` needs no other operation of the cluster."""

    def drain(self, node_id: str, notice: Notice) -> None:
        """Drain a node.

        Raises:
            NotFound: The node does not exist.
            Conflict: The node is the head.
            Unavailable: The cluster does not answer.
        """


class MachineWatch:
    """Pass preemption notices for this machine on to its nodes.

    A notice is first written to files that the workers read, because this needs no other process, and then sent to
    Ray. A node that starts while a notice is in effect is notified at once.

    Args:
        ray: Drains nodes.
        here: Returns the nodes on this machine by id. May raise Unavailable.
        sources: Where notices come from.
        may_release: Whether to let the cloud take the machine before the deadline once all nodes have ended. Set it only
            if nothing else needs the machine.
        facts: The facts that the cloud reports about the machine. The workers of its nodes pass them on to their drivers.
        look_s: Seconds between two checks for nodes.
        silent_s: After this many seconds without an answer of the cluster, its nodes count as gone.
    """

    def __init__(
        self,
        ray: Drains,
        here: Callable[[], Mapping[str, RayNode]],
        sources: Sources,
        *,
        may_release: bool = False,
        facts: Mapping[str, str] | None = None,
        look_s: float = LOOK_S,
        silent_s: float = SILENT_S,
    ) -> None:
        self._ray, self._here, self._may_release = ray, here, may_release
        self._look_s, self._silent_s = look_s, silent_s
        self._facts = facts or {}
        self.watcher = Watcher(self._on_notice, self._on_withdrawn, sources)
        # This lock is held while nodes or notices change. Otherwise a node that is added while a notice arrives could miss the notice.
        self._delivering = threading.Lock()
        self._nodes: dict[str, RayNode] = {}
        self._current: dict[str, Notice] = {}
        self._error_text = ""

    def run(self) -> None:
        """Wait until the machine has a node, then pass notices on until the last node is gone."""
        self.watcher.start()
        try:
            answered_at = time.monotonic()
            while True:
                try:
                    is_left = self._refresh_nodes()
                    answered_at = time.monotonic()
                except TunerError as error:
                    self._note(error.detail)
                    is_left = time.monotonic() < answered_at + self._silent_s
                if self._nodes and not is_left:
                    log.info("all nodes on this machine have ended")
                    self._release()
                    return
                time.sleep(min(self._look_s, LOOK_NOTICED_S) if self._current else self._look_s)
        finally:
            self.watcher.close()

    def _refresh_nodes(self) -> bool:
        """Update the list of the machine's nodes, call `_welcome` for new ones, and return whether the machine has any node now.

        Raise TunerError if the cluster does not answer.
        """
        nodes = self._here()
        with self._delivering:
            for node in [node for node_id, node in nodes.items() if node_id not in self._nodes]:
                self._welcome(node)
            if nodes:
                self._nodes = {node_id: self._nodes[node_id] for node_id in nodes}
        self._note("" if nodes else "no node of the cluster is on this machine")
        return bool(nodes)

    def _welcome(self, node: RayNode) -> None:
        """Add a new node: notify it of the current notices and give its workers the machine's facts."""
        for notice in self._current.values():
            self._notify([node], notice)
        self._nodes[node.id] = node
        log.info("node %s is on this machine", node.id)
        if self._facts and node.session_dir.is_dir():
            with contextlib.suppress(
                OSError
            ):  # a failure does no harm: drivers then use only the node's labels
                node.boards.describe(node.id, self._facts)
        if not node.session_dir.is_dir():
            log.warning(
                "the directory %s does not exist here; mount it with its parent directories into this container. The workers of node %s "
                "look for notices in this directory. Without it, a notice drains the node, but the trials on the node are not notified",
                node.session_dir,
                node.id,
            )

    def _on_notice(self, notice: Notice) -> None:
        """Pass a notice on to all nodes.

        Raise Unavailable if a node could not be notified, so that the watcher repeats the call.
        """
        with self._delivering:
            self._current[notice.id] = notice
            self._notify(self._nodes.values(), notice)

    def _on_withdrawn(self, notice: Notice) -> None:
        """Withdraw a notice from the workers of all nodes, so that running work continues.

        Ray cannot undo the drain, so it still places no new work on these nodes.
        """
        with self._delivering:
            self._current.pop(notice.id, None)
            for node in self._nodes.values():
                node.boards.withdraw(node.id, notice.id)

    def _notify(self, nodes: Iterable[RayNode], notice: Notice) -> None:
        """Notify the workers of these nodes, then Ray. If a node cannot be notified, raise Unavailable after trying all nodes."""
        nodes, failed = list(nodes), list[Unavailable]()
        for node in nodes:
            try:
                if node.session_dir.is_dir():
                    node.boards.announce(node.id, notice)
            except OSError as error:
                failed.append(Unavailable(f"the workers of node {node.id} cannot be notified: {error}"))
        for node in nodes:
            try:
                self._ray.drain(node.id, notice)
            except (Conflict, NotFound) as error:
                log.info("notice %s: %s", notice.id, error.detail)
            except Unavailable as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _release(self) -> None:
        """Let the cloud take the machine before the deadline, if `may_release`. Call this once all nodes have ended.

        The cloud then does not bill the time until the deadline.
        """
        with self._delivering:
            current = list(self._current.values()) if self._may_release else []
        for notice in current:
            if self.watcher.release(notice):
                log.info("notice %s: the cloud accepted the early release of this machine", notice.id)

    def _note(self, error_text: str) -> None:
        """Log a problem, unless it is the one logged last. An empty text means that the problem has ended."""
        if error_text and error_text != self._error_text:
            log.info("waiting: %s", error_text)
        self._error_text = error_text
