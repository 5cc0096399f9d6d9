"""Watch for preemption notices of this machine, and pass them on to the cluster's nodes on it.

Run as `python -m tuner.cluster.notice_watch --address HOST:PORT`. One such process runs on each machine, next to the Ray nodes.
It is started together with them and must be restarted if it ends.

Exit status 0: the nodes are gone, or their cluster has not answered for so long that they count as gone. 2: wrong
usage. 3: the machine is in no cloud that gives notices.
"""

import argparse
import contextlib
import logging
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.cluster.notices.clouds import Sources, detect, facts_of_this_machine
from tuner.cluster.notices.watcher import sigterm_announced
from tuner.domain.errors import NotFound
from tuner.settings import CLOUDS

if TYPE_CHECKING:
    from tuner.cluster.drain import Gcs, RayNode

USUAL = Sources()
NO_CLOUD = 3
log = logging.getLogger("tuner.notices")


def main(argv: list[str] | None = None, *, detect_s: float = USUAL.detect_s) -> int:
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    sources = sources_of(args, detect_s)
    with contextlib.suppress(KeyboardInterrupt):
        if args.grace is None:
            if sources.cloud == "detect":
                sources = replace(sources, cloud=detect(sources))
            if sources.cloud is None:
                log.info("no cloud sends preemption notices to this machine: nothing to watch")
                return NO_CLOUD
        _watch(args, sources)
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tuner.cluster.notice_watch",
        description="Watch for preemption notices for this machine, and notify the cluster's nodes on it.",
    )
    parser.add_argument(
        "--address", required=True, metavar="HOST:PORT", help="address of the Ray cluster's head"
    )
    parser.add_argument(
        "--node-id",
        default="",
        help="notify only this node; default: all nodes of the cluster on this machine",
    )
    parser.add_argument(
        "--cloud", choices=CLOUDS, default="detect", help="the cloud whose metadata service is read"
    )
    parser.add_argument(
        "--metadata-url", type=_url, help="URL of the metadata service; default: the cloud's own"
    )
    parser.add_argument(
        "--gcp-lead",
        type=_seconds,
        default=USUAL.gcp_lead_s,
        metavar="SECONDS",
        help="time between a notice of Google and the preemption",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        metavar="SECONDS",
        help="in a pod: SIGTERM is the notice, and all processes are killed this long after it",
    )
    parser.add_argument(
        "--release",
        action="store_true",
        help="once the nodes have ended, let the cloud (Azure) take the machine at once; "
        "use this only if nothing else needs the machine",
    )
    return parser


def sources_of(args: argparse.Namespace, detect_s: float = USUAL.detect_s) -> Sources:
    cloud = None if args.cloud == "none" else args.cloud
    sources = Sources(cloud=cloud, gcp_lead_s=args.gcp_lead, detect_s=detect_s)
    url = args.metadata_url
    return replace(sources, aws_url=url, gcp_url=url, azure_url=url) if url else sources


def _watch(args: argparse.Namespace, sources: Sources) -> None:
    # This is imported only when needed: it takes a second and 80 MB, which a machine without a cloud need not spend.
    from tuner.cluster.drain import Gcs
    from tuner.cluster.preemption_notices import MachineWatch

    gcs = Gcs(args.address)
    facts = facts_of_this_machine(sources)
    watch = MachineWatch(gcs, _here(gcs, args.node_id), sources, may_release=args.release, facts=facts)
    announce = watch.watcher.announce
    grace_s = args.grace
    with contextlib.nullcontext() if grace_s is None else sigterm_announced(announce, grace_s=grace_s):
        watch.run()


def _here(gcs: "Gcs", node_id: str) -> "Callable[[], Mapping[str, RayNode]]":
    from tuner.cluster.drain import own_addresses

    def named() -> "Mapping[str, RayNode]":
        try:
            return {node_id: gcs.node(node_id)}
        except NotFound:
            return {}

    return named if node_id else lambda: gcs.nodes_at(own_addresses())


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with http:// or https://")
    return text.rstrip("/")


if __name__ == "__main__":
    sys.exit(main())
