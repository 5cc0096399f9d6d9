"""Decide because of which rank's end an attempt fails.

If one rank ends or one node is lost, the other ranks lose the connection to it and fail, too. The attempt must fail with the cause, and end
as lost if a node was lost.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any

from tuner.worker.attempt import RunningAttempt
from tuner.worker.background import background
from tuner.worker.orders import FailureFields
from tuner.worker.processes import AttemptProcesses
from tuner.worker.ranks import OtherNodes, RankEnd

# After a rank raised an exception, how long to wait for the death of another rank, which may be the cause.
CAUSE_S = 1.0
# How long to wait, on several nodes, until all nodes have answered. A node that does not answer counts as lost before this time is over,
# because `actor.SILENT_S` is shorter.
NODES_ANSWER_S = 60.0


class RankEnds:
    """Fails attempts because of ranks that ended on this node or on other nodes. Call all methods under the supervisor's lock.

    The ends of an attempt's ranks are in its `rank_ends`.

    Args:
        changed: The supervisor's lock and condition.
        processes: The processes of the current attempt on this node.
        others: The other nodes.
    """

    def __init__(self, changed: threading.Condition, processes: AttemptProcesses, others: OtherNodes) -> None:
        self._changed, self._processes, self._others = changed, processes, others

    def raised(self, attempt: RunningAttempt, rank: int, failure: FailureFields, at_ns: int) -> None:
        """Fail the attempt because user code raised an exception.

        If a rank is killed or raises an exception, the other ranks raise exceptions too, because they lose the connection to it. So this
        first waits up to `CAUSE_S`: if another thread notices meanwhile that a process was killed or exited, the attempt fails because of
        that. Otherwise it fails with the exception that was sent first. The messages are compared by their times, because the threads
        that receive them may run in any order.
        """
        if attempt.nodes > 1:
            self.note(attempt, RankEnd(rank, at_ns, failure))
            return
        attempt.rank_ends.append(RankEnd(rank, at_ns, failure))
        has_peers = len(self._processes.ranks) > 1
        if has_peers:
            self._changed.wait_for(lambda: attempt.state is not None, CAUSE_S)
        # If the attempt is closing, its last checkpoint is being stored, and the attempt then ends normally.
        if not (has_peers and attempt.states.last_is_written):
            attempt.end("failed", min(attempt.rank_ends, key=lambda end: end.order).failure)

    def receive(self, attempt: RunningAttempt, result: Mapping[str, Any]) -> None:
        """Record that ranks ended on another node. If the attempt ended early on the other node, end it on this node in the same way.

        `result` has the fields `state`, `error` and `rank_ends` of the result of the other node's `step` method.
        """
        for message in result["rank_ends"]:
            self.note(attempt, RankEnd.of_message(message, time.monotonic_ns()))
        is_over = result["state"] != "running" and not attempt.states.last_is_written
        if is_over and attempt.state is None:
            attempt.end(result["state"], result["error"])
            self._processes.kill()
        self._changed.notify_all()

    def note(self, attempt: RunningAttempt, end: RankEnd) -> None:
        """Note the end of a rank of an attempt on several nodes. Node 0 then fails the attempt."""
        is_stopped = attempt.states.closing and (end.code == 0 or attempt.states.last_is_written)
        # A process that reports an exception exits afterwards, so this may be called twice for its rank. Only the first call counts.
        is_known = any(known.rank == end.rank for known in attempt.rank_ends)
        if attempt.state is not None or is_stopped or is_known:
            return
        attempt.rank_ends.append(end)
        if attempt.node == 0 and len(attempt.rank_ends) == 1:
            background("cause", self._processes.or_fail, self._fail_by_cause, attempt)
        self._changed.notify_all()

    def _fail_by_cause(self, attempt: RunningAttempt) -> None:
        """Fail an attempt on several nodes because of the rank whose end was the cause.

        If a node is lost, the ranks on other nodes fail because they lose the connection to it. Such an attempt ends as lost, not as
        failed. So this first waits until all other nodes have answered, or until the loss of a node has ended the attempt.
        """
        since_s = time.monotonic() + CAUSE_S
        with self._changed:
            self._changed.wait_for(
                lambda: attempt.state is not None or self._others.have_answered(since_s), NODES_ANSWER_S
            )
            if not attempt.states.last_is_written:
                self._processes.fail(attempt, min(attempt.rank_ends, key=lambda end: end.order).failure)
