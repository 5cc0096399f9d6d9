"""Run several Ray nodes on one machine, so that users can see how jobs lose nodes and continue.

    head (found, or started without CPUs) ◀── joined by ── nodes, each with its market, type and price as labels

A lost node is started again after a set time, with the same address. If the head is lost, the head and every node are
started again.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.cluster.cluster_file import ClusterFile, KeptCluster, KeptNode
from tuner.cluster.dashboard import Dashboard, RayUnavailable
from tuner.cluster.head import Head, LocalHead
from tuner.cluster.local_node import LocalNode, NodeSpec
from tuner.cluster.local_watch import LocalWatch, Metadata
from tuner.cluster.nodes import nodes
from tuner.cluster.processes import kill_marked

JOIN_TIMEOUT_S = 120.0
RETRY_S = 5.0
TURN_S = 0.25
STARTING = "starting"


class LocalCluster:
    """Start, supervise and end the nodes of a local cluster. Only one thread may use it.

    The nodes run during the `with` block of `kept()`. Call `turn()` a few times per second in that block.
    """

    def __init__(
        self,
        home: Path,
        specs: Sequence[NodeSpec],
        metadata: Metadata,
        *,
        replace_after_s: float | None,
        over: threading.Event | None = None,
    ) -> None:
        """Create the cluster without starting anything: `kept` starts its nodes.

        Args:
            home: The directory of the head and of the cluster's files.
            specs: The nodes.
            metadata: The metadata service of this machine's cloud, from which preemption notices are read.
            replace_after_s: After how many seconds a lost node is started again. None means never.
            over: Set this event to end a start of the head or of the nodes. Then `kept` and `turn` raise RayUnavailable.
        """
        self._file = ClusterFile(home)
        self._over = over or threading.Event()
        self._head = LocalHead(home, over=self._over)
        self._watch = LocalWatch(home, self._head.token_path, metadata)
        self._prefix = f"{self._head.tag}-node-"
        logs = home / "nodes"
        logs.mkdir(parents=True, exist_ok=True)
        self.nodes = [
            LocalNode(
                spec,
                prefix=self._prefix,
                token_path=self._head.token_path,
                log_path=logs / f"{spec.name}.log",
                sockets=self._head.temp_dir,
            )
            for spec in specs
        ]
        self._replace_after_s = replace_after_s
        # The session of the head that this cluster started. Empty if the nodes joined an existing head.
        self._own_head = ""
        self._joined: Head | None = None
        self._dashboard: Dashboard | None = None
        # When each lost node is started again, on the monotonic clock.
        self._due: dict[str, float] = {}
        # The Ray ids of all nodes that have joined so far.
        self._past: set[str] = set()

    @contextlib.contextmanager
    def kept(self) -> Iterator["LocalCluster"]:
        """Start all nodes and wait until they have joined. At the end of the `with` block, end them.

        The head is ended too if it was started for this cluster.

        Raises:
            Conflict: This home already has a cluster.
            RayUnavailable: The cluster does not start.
        """
        with self._file.kept():
            try:
                self._begin()
                yield self
            finally:
                self._end()

    def turn(self) -> list[str]:
        """Restart the head if it is lost, and the lost nodes whose time to restart has come. Return a text about each change."""
        changes = []
        if not self._head.alive():
            for node in self.nodes:
                node.kill()
            if not self._own_head and self._head.running() is None:
                self._own_head = STARTING
                self._write()
            self._join()
            changes.append("the head ended; all nodes join the new head")
        if self._joined is not None:
            self._watch.keep(self._joined)
        alive = self._alive()
        for node in self.nodes:
            changes += self._supervise(node, alive)
        if changes:
            self._write()
        return changes

    def kept_nodes(self) -> list[KeptNode]:
        return [
            KeptNode(
                name=node.spec.name,
                node_id=node.node_id,
                session=node.session,
                market=node.spec.market,
                instance_type=node.spec.instance_type,
                usd_per_hour=float(node.spec.usd_per_hour),
                cpus=node.spec.cpus,
                gpus=node.spec.gpus,
                state=node.state,
            )
            for node in self.nodes
        ]

    def _begin(self) -> None:
        kill_marked(self._prefix)
        before = self._file.left_behind()
        running_head = self._head.running()
        is_own = running_head is None or (before is not None and before.own_head == running_head.session)
        # The file is written before the head is started, because the process that starts the head (this one or a service) reads it to decide
        # whether the head offers CPUs.
        self._own_head = (running_head.session if running_head else STARTING) if is_own else ""
        self._write()
        self._join()
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while any(node.state != "alive" for node in self.nodes):
            self.turn()
            late = [node for node in self.nodes if node.state != "alive"]
            if late and time.monotonic() > deadline:
                raise RayUnavailable(
                    f"{late[0].spec.name} has not joined within {JOIN_TIMEOUT_S:.0f} s: {late[0].last_output()}"
                )
            if self._over.wait(TURN_S):
                raise RayUnavailable("the local cluster was stopped while it started")

    def _join(self) -> None:
        """Find or start the head, and have every node join it."""
        head = self._head.find_or_start()
        if self._dashboard is not None:
            self._dashboard.close()
        self._joined, self._dashboard = head, self._head.dashboard(head)
        if self._own_head:
            self._own_head = head.session
        for node in self.nodes:
            self._start(node)
        self._write()

    def _start(self, node: LocalNode) -> None:
        assert self._joined is not None
        self._due.pop(node.spec.name, None)
        node.start(self._joined.address)

    def _alive(self) -> dict[str, str] | None:
        """Return the names of the living nodes by Ray's node id, or None if the head does not answer.

        The names are used only to notice that a starting node has joined, and that Ray knows of the death of a node that is due to be
        started again. If no node is in one of these two states, return None without asking the head.
        """
        if self._dashboard is None or not any(map(self._is_waiting, self.nodes)):
            return None
        with contextlib.suppress(RayUnavailable):
            return {ray_node.id: ray_node.name for ray_node in nodes(self._dashboard) if ray_node.alive}
        return None

    def _is_waiting(self, node: LocalNode) -> bool:
        """Return whether a node is starting, or is due to be started again."""
        due = self._due.get(node.spec.name)
        return node.state == "starting" or (
            node.state == "gone" and due is not None and due <= time.monotonic()
        )

    def _supervise(self, node: LocalNode, alive: dict[str, str] | None) -> list[str]:
        name, now = node.spec.name, time.monotonic()
        if node.state == "gone":
            # Start the new node only after Ray has noticed the death of the old one. Until then, Ray may request resources from the old node. The
            # request does not contain the node's id, so a new node at the same address would confirm it, and the resources that were
            # reserved there would then be lost.
            if alive is None or node.node_id in alive or not self._is_waiting(node):
                return []
            self._start(node)
            return [f"{name} is started again"]
        if node.has_ended():
            return [self._lost(node, now)]
        new = [
            node_id for node_id, known in (alive or {}).items() if known == name and node_id not in self._past
        ]
        if node.state == "starting" and new:
            self._past.add(new[0])
            node.joined(new[0])
            return [f"{name} has joined"]
        return []

    def _lost(self, node: LocalNode, now: float) -> str:
        began = node.state == "starting"
        node.kill()
        after = RETRY_S if began else self._replace_after_s
        if after is not None:
            self._due[node.spec.name] = now + after
        comes = "" if after is None else f", and will be started again in {after:g} s"
        return f"{node.spec.name} {'did not start' if began else 'has ended'}{comes}"

    def _end(self) -> None:
        """End all nodes at the same time. Then end the head, but only if the head that runs now was started for this cluster."""
        for node in self.nodes:
            node.ask_to_end()
        for node in self.nodes:
            node.end()
        if self._dashboard is not None:
            self._dashboard.close()
        head = self._head.running()
        if head is not None and head.session == self._own_head:
            self._head.stop()

    def _write(self) -> None:
        self._file.write(KeptCluster(self._own_head, tuple(self.kept_nodes())))
