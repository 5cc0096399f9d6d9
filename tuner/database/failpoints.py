"""Failpoints: named points just before and just after the commit of each write transaction.

A test makes a process exit at a failpoint as if it were killed, and then checks that nothing was lost or done twice
(docs/failpoints.md). If TUNER_FAILPOINT is not set, failpoints do nothing.
"""

import os
import threading
from collections.abc import Mapping

from tuner.domain.text import nearest

SIDES = ("before", "after")
# The exit status that a shell reports for a process killed by SIGKILL.
STATUS = 137
FAILPOINTS: Mapping[str, str] = {
    "schema.migrate": "migrate the schema to the newest revision",
    "schema.downgrade": "migrate the schema to an older revision",
    "job.submit": "create a job, its account and its first launch",
    "job.pause": "pause a job, or request that its driver pauses it",
    "job.resume": "request that a job is resumed",
    "job.cancel": "cancel a job, or request that its driver cancels it",
    "job.change": "change a job's budget, tags, priority or number of trials at once",
    "job.steer": "record a request about a trial for the job's driver",
    "job.export": "queue an export of a job",
    "artifacts.delete": "order the removal of files of a job that a user deletes",
    "package.put": "record an uploaded package that is already in the storage",
    "budget.put": "create or change a shared budget",
    "budget.remove": "remove a shared budget",
    "project.add": "create a project",
    "user.change": "disable or re-enable a user",
    "member.put": "add a user to a project, or change the user's role there",
    "member.remove": "remove a member and the member's keys from a project",
    "key.make": "create a key",
    "key.rotate": "create a key that replaces another one",
    "key.revoke": "revoke a key",
    "quota.put": "set a project's quota",
    "leading.term": "begin or renew a service's term as the leader",
    "leading.give_up": "end the term of a leader that is shutting down, so that another service can lead",
    "controller.put_off": "delay a launch until the job's window opens",
    "controller.launched": "claim a launch, just before its driver is submitted to Ray",
    "controller.is_silent": "confirm that a driver still sends no heartbeats, before it is stopped",
    "controller.relaunch": "order the next launch of a job whose driver died",
    "controller.give_up": "fail a job whose drivers died repeatedly",
    "controller.export_submitted": "record that the process of an export was submitted to Ray",
    "controller.export_lost": "post or release the hold of an export whose process died, and fail the export",
    "reconciler.continue_job": "resume a job that was paused by a shared budget, which has room again",
    "reconciler.alerts": "queue webhook messages",
    "reconciler.meter": "record the time that machines were up",
    "lifecycle.order": "order the removal of files that a job no longer keeps",
    "lifecycle.removed": "delete the order to remove files that are gone from the storage, or try it later if the storage refused",
    "lifecycle.measured": "record the sizes of the files of jobs",
    "webhook.claim": "claim a queued webhook message before it is sent",
    "webhook.sent": "record whether a webhook message was accepted",
    "mirror.turn": "claim the right to write to a mirror",
    "mirror.give_back": "release the right to write to a mirror, when a service shuts down",
    "driver.beat": "record a driver's heartbeat",
    "driver.versions": "record the versions of tuner, Ray and Python that a driver runs",
    "driver.begin": "set a job's state to running",
    "driver.code": "record the digest of the code that a job's trials run",
    "driver.turn": "record one turn of a driver: events, reports, holds, posts, attempts and checkpoints",
    "self_test.settle_former": "post or release the hold that an earlier restore self-test left open",
    "self_test.hold": "hold money for a restore self-test",
    "self_test.settle": "post the cost of a restore self-test",
    "self_test.note": "record the result of a restore self-test",
    "self_test.on_demand": "restrict a job to on-demand machines after a failed restore self-test",
    "self_test.show": "record why a restore self-test waits for another machine",
    "self_test.refuse": "fail a job whose trainable does not restore",
    "export.beat": "record a heartbeat of an export's process",
    "export.hold": "hold money for an export, and record its machine",
    "export.end": "post the cost of an export, and record its result",
    "restore.fence": "fence the drivers that use the database that a restore replaces",
    "restore.accounts": "correct the accounts of a restored backup",
    "restore.checkpoints": "delete the records of checkpoints that the storage does not have",
}
"""Each failpoint's name, and what its transaction does."""


class Failpoint:
    """Exits this process when it reaches a chosen point. Thread-safe.

    Args:
        name: A key of FAILPOINTS.
        side: `before` or `after` the commit.
        number: Exit when this point is reached for the `number`th time, counted from 1.
    """

    def __init__(self, name: str, side: str, number: int = 1) -> None:
        self._where, self._left = (name, side), number
        self._lock = threading.Lock()

    @classmethod
    def parse(cls, text: str) -> "Failpoint":
        """Parse `NAME:before` or `NAME:after`. An appended `:3` means the third time that the process reaches this point.

        Raises:
            ValueError: The text has another form, or NAME is not a failpoint. In the second case the error names similar failpoints.
        """
        name, _, rest = text.partition(":")
        side, colon, number = rest.partition(":")
        if name not in FAILPOINTS:
            near = nearest(name, FAILPOINTS) or sorted(FAILPOINTS)
            raise ValueError(f"TUNER_FAILPOINT: {name!r} is not a failpoint; the nearest: {', '.join(near)}")
        right = side in SIDES and (not colon or (number.isdecimal() and int(number) > 0))
        if not right:
            raise ValueError(
                f"TUNER_FAILPOINT: {text!r} must be NAME:before or NAME:after; add the number of the occurrence if it is "
                f"not the first, as in {name}:after:3"
            )
        return cls(name, side, int(number or 1))

    def reached(self, name: str, side: str) -> None:
        """Record that the process reached the point `name`, on the side "before" or "after" of it.

        If this is the chosen visit of the chosen point, end the process at once, without any cleanup.
        """
        if (name, side) != self._where:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.write(2, f"tuner: ends here, at the failpoint {name}:{side}\n".encode())
                os._exit(STATUS)
