"""Give a node a preemption notice, from any node of its cluster.

Run as a Ray Job: `python -m tuner.cluster.notify_node`.

Exit status 0: the node's workers and Ray were notified. 1: no notice is in effect, and the last line of output says why.
"""

import argparse
import logging
import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.cluster.drain import give_notice
from tuner.cluster.notices.notice import Notice
from tuner.domain.errors import TunerError, Unavailable
from tuner.domain.time import Instant

REACH_S = 30.0


def notify(node_id: str, notice: Notice) -> None:
    """Give the node `node_id` a preemption notice, through a Ray task that runs on that node.

    The task must run on that node because the node's workers read notices from the node's disk. The calling process may be on any
    node, but must have joined the cluster.

    Raises:
        Unavailable: No task can run on the node, for example because it is already drained.
        NotFound, Conflict: For the same reasons as in `tuner.cluster.drain.give_notice`.
    """
    place = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0)(give_notice).options(scheduling_strategy=place)
    try:
        ray.get(task.remote(ray.get_runtime_context().gcs_address, node_id, notice), timeout=REACH_S)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise Unavailable(f"node {node_id} cannot be reached: {error}".splitlines()[0]) from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node-id", required=True)
    parser.add_argument("--deadline", required=True, type=int, help="nanoseconds since 1970")
    args = parser.parse_args()
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    text = f"node {args.node_id[:12]} will be taken away by its operator"
    notice = Notice(f"operator/{args.deadline}", Instant(args.deadline), text)
    try:
        notify(args.node_id, notice)
    except TunerError as error:
        sys.exit(error.detail)


if __name__ == "__main__":
    main()
