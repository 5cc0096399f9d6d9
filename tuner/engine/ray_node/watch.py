"""`python -m tuner.engine.ray_node.watch --address HOST:PORT`: listens for notices for the node that it runs on, as long as that lives.

One beside each node, started with it. A notice is put up for the node's workers first, which needs nobody, and then Ray is
told. Exit status 0: the node is gone; 2: wrong usage.
"""

import argparse
import contextlib
import logging
import sys
import time
from collections.abc import Callable

from ray._private.services import find_node_ids

from tuner.domain.errors import Conflict, NotFound, TunerError, Unavailable
from tuner.engine.notices import Notice, Sources, Watcher, sigterm_announced
from tuner.engine.ray_node.nodes import Gcs, RayNode

LOOK_S = 2.0
CLOUDS = ("detect", "aws", "gcp", "azure", "none")
log = logging.getLogger("tuner.notices")


class NodeWatch:
    """`found` may raise Unavailable or NotFound, and is asked again then. Blocks in `run` until the node is gone."""

    def __init__(self, gcs: Gcs, found: Callable[[], RayNode], sources: Sources) -> None:
        self._gcs, self._found = gcs, found
        self.watcher = Watcher(self._on_notice, self._on_withdrawn, sources)
        self._node: RayNode | None = None
        self._standing: dict[str, Notice] = {}

    def run(self) -> None:
        while self._node is None:
            try:
                self._node = self._found()
            except TunerError as error:
                log.info("waiting for this machine's node: %s", error.detail)
                time.sleep(LOOK_S)
        log.info("watching for notices for node %s", self._node.id)
        self.watcher.start()
        try:
            self._stay(self._node)
        finally:
            self.watcher.close()

    def _stay(self, node: RayNode) -> None:
        while True:
            time.sleep(LOOK_S)
            with contextlib.suppress(Unavailable):
                if node.id not in self._gcs.living():
                    self._release()
                    return

    def _release(self) -> None:
        """All that ran there has ended: the time that is left need not be paid for."""
        for notice in self._standing.values():
            if self.watcher.release(notice):
                log.info("notice %s: the cloud was told that it need not wait", notice.id)

    def _on_notice(self, notice: Notice) -> None:
        """Raises Unavailable where Ray does not answer; it is called again then."""
        assert self._node is not None
        if not notice.ends_node:
            return
        self._node.boards.announce(self._node.id, notice)
        self._standing[notice.id] = notice
        try:
            self._gcs.drain(self._node.id, notice)
        except (Conflict, NotFound) as error:
            log.warning("notice %s: %s", notice.id, error.detail)

    def _on_withdrawn(self, notice: Notice) -> None:
        """What still runs goes on; a drained node gets nothing new all the same."""
        assert self._node is not None
        self._node.boards.withdraw(self._node.id, notice.id)
        self._standing.pop(notice.id, None)


def own_node(gcs: Gcs, node_id: str) -> RayNode:
    """The node of this machine. Raises NotFound where there is none, or more than one and none was named."""
    if node_id:
        return gcs.node(node_id)
    mine = sorted(find_node_ids() & gcs.living().keys())
    if len(mine) != 1:
        raise NotFound(f"this machine has {len(mine)} nodes of this cluster; name one with --node-id")
    return gcs.node(mine[0])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--address", required=True, help="host:port of the cluster's head")
    parser.add_argument("--node-id", default="", help="where the machine has several nodes")
    parser.add_argument("--cloud", choices=CLOUDS, default="detect")
    parser.add_argument(
        "--gcp-lead", type=float, default=30.0, help="seconds: the preemption notice duration"
    )
    parser.add_argument(
        "--grace", type=float, help="seconds between SIGTERM and the end, in a pod; else it ends the watch"
    )
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    gcs = Gcs(args.address)
    sources = Sources(cloud=None if args.cloud == "none" else args.cloud, gcp_lead_s=args.gcp_lead)
    watch = NodeWatch(gcs, lambda: own_node(gcs, args.node_id), sources)
    with _signals(watch, args.grace):
        watch.run()
    return 0


def _signals(watch: NodeWatch, grace_s: float | None) -> contextlib.AbstractContextManager[None]:
    if grace_s is None:
        return contextlib.nullcontext()
    return sigterm_announced(watch.watcher.announce, grace_s=grace_s)


if __name__ == "__main__":
    sys.exit(main())
