"""One machine and the nodes of a Ray cluster that are on it: a notice for the machine is passed on to each of them."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tuner.domain.errors import Conflict, NotFound, TunerError, Unavailable
from tuner.engine.notices import Notice, Sources, Watcher
from tuner.engine.ray_node.nodes import RayNode

LOOK_S = 5.0
LOOK_NOTICED_S = 1.0
# A raylet ends when it has not reached its cluster for a minute (gcs_rpc_server_reconnect_timeout_s).
SILENT_S = 120.0
log = logging.getLogger("tuner.notices")


class Drains(Protocol):
    def drain(self, node_id: str, notice: Notice) -> None:
        """Raises NotFound, Conflict for a head, and Unavailable where the cluster does not answer."""


class MachineWatch:
    """`here` answers with the machine's nodes by id, and may raise Unavailable. `may_release`: once they have all gone, the
    cloud is told that it need not wait; only where nothing but them needs the machine. `facts` is what the cloud says of the machine,
    for its nodes' workers to pass on.

    A notice is put up for the workers first, which needs nobody, and then Ray is told. A node that begins while one stands is told
    at once.
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
        # Held while nodes are told: a notice and a node that come at once would miss each other.
        self._telling = threading.Lock()
        self._nodes: dict[str, RayNode] = {}
        self._standing: dict[str, Notice] = {}
        self._trouble = ""

    def run(self) -> None:
        """Waits for the machine's nodes, and blocks until the last of them is gone."""
        self.watcher.start()
        try:
            heard = time.monotonic()
            while True:
                try:
                    there = self._look()
                    heard = time.monotonic()
                except TunerError as error:
                    self._note(error.detail)
                    there = time.monotonic() < heard + self._silent_s
                if self._nodes and not there:
                    log.info("the nodes of this machine are gone")
                    self._release()
                    return
                time.sleep(min(self._look_s, LOOK_NOTICED_S) if self._standing else self._look_s)
        finally:
            self.watcher.close()

    def _look(self) -> bool:
        """Whether there are nodes. Raises TunerError where that cannot be said."""
        found = self._here()
        with self._telling:
            for node in [node for node_id, node in found.items() if node_id not in self._nodes]:
                self._welcome(node)
            if found:
                self._nodes = {node_id: self._nodes[node_id] for node_id in found}
        self._note("" if found else "no node of the cluster is on this machine")
        return bool(found)

    def _welcome(self, node: RayNode) -> None:
        for notice in self._standing.values():
            self._tell([node], notice)
        self._nodes[node.id] = node
        log.info("node %s is on this machine", node.id)
        if self._facts and node.session_dir.is_dir():
            with contextlib.suppress(OSError):  # then its labels are all that is known of it
                node.boards.describe(node.id, self._facts)
        if not node.session_dir.is_dir():
            log.warning(
                "there is no %s here, where the workers of node %s would see a notice: mount it, and what is above it, "
                "into this container, too; until then the node is drained, and its trials are not told",
                node.session_dir,
                node.id,
            )

    def _on_notice(self, notice: Notice) -> None:
        """Raises Unavailable where a node could not be told; it is called again then."""
        if not notice.ends_node:
            return
        with self._telling:
            self._standing[notice.id] = notice
            self._tell(self._nodes.values(), notice)

    def _on_withdrawn(self, notice: Notice) -> None:
        """What still runs goes on; a drained node gets nothing new all the same."""
        with self._telling:
            self._standing.pop(notice.id, None)
            for node in self._nodes.values():
                node.boards.withdraw(node.id, notice.id)

    def _tell(self, nodes: Iterable[RayNode], notice: Notice) -> None:
        """Raises Unavailable where one could not be; the others are told all the same."""
        nodes, failed = list(nodes), list[Unavailable]()
        for node in nodes:
            try:
                if node.session_dir.is_dir():
                    node.boards.announce(node.id, notice)
            except OSError as error:
                failed.append(Unavailable(f"the workers of node {node.id} cannot be told: {error}"))
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
        """All that ran here has ended: the time that is left need not be paid for."""
        with self._telling:
            standing = list(self._standing.values()) if self._may_release else []
        for notice in standing:
            if self.watcher.release(notice):
                log.info("notice %s: the cloud was told that it need not wait", notice.id)

    def _note(self, trouble: str) -> None:
        """Once, however often it is found again."""
        if trouble and trouble != self._trouble:
            log.info("waiting: %s", trouble)
        self._trouble = trouble
