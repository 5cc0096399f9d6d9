"""Failpoints: named points just before and just after the commit of each write transaction.

A test makes a process exit at such a point as if it were killed, and then checks that nothing was lost or done twice
(docs/failpoints.md). Unless TUNER_FAILPOINT is set, nothing happens at these points.
"""

import difflib
import os
import threading
from collections.abc import Mapping

SIDES = ("before", "after")
# The exit status that a shell reports for a process killed by SIGKILL.
STATUS = 137
FAILPOINTS: Mapping[str, str] = {
    "schema.migrate": "the schema is brought up to date",
    "schema.downgrade": "the schema is taken back to an older revision",
    "job.submit": "a job, its account and its first launch begin to exist",
    "job.pause": "a job is to pause, or is paused at once",
    "job.resume": "a job is to go on",
    "job.cancel": "a job is to end, or is ended at once",
    "job.change": "a job's budget, tags or priority change",
    "package.put": "an uploaded package is known, once the storage has it",
    "budget.put": "a budget above jobs is made or changed",
    "budget.remove": "a budget above jobs is removed",
    "project.add": "a project begins to exist",
    "user.change": "a user is disabled, or is not any more",
    "member.put": "a user becomes a member of a project, or gets another role",
    "member.remove": "a member is removed, with their keys",
    "key.make": "a key is made",
    "key.rotate": "a key is made in the stead of another",
    "key.revoke": "a key is revoked",
    "quota.put": "what a project may spend and have at once is set",
    "leading.term": "a service begins, or goes on with, its term as the one that leads",
    "leading.give_up": "a service that stops lets another lead",
    "controller.put_off": "a launch waits until its job's window opens",
    "controller.launched": "a launch was given to Ray",
    "controller.is_silent": "a driver is found silent still, before it is stopped",
    "controller.relaunch": "a driver died, and the next launch is ordered",
    "controller.give_up": "drivers died again and again, and the job fails",
    "keeper.go_on": "a job goes on whose budget above it allows more",
    "keeper.alerts": "messages to webhooks are written down, before they are sent",
    "keeper.meter": "the time of machines is counted",
    "webhook.claim": "a message is to be sent now",
    "webhook.sent": "a message was sent, or refused",
    "mirror.turn": "a service takes its turn to write to a mirror",
    "mirror.give_back": "a service that stops gives its turn back",
    "driver.beat": "a driver says that it lives",
    "driver.versions": "a driver says what it runs",
    "driver.begin": "a job begins to run",
    "driver.code": "a driver notes the code that its trials run",
    "driver.turn": "a turn of a job: its events, reports, holds, posts, attempts and checkpoints",
    "gate.settle_former": "what a restore self-test before this one held is settled",
    "gate.hold": "money is held for a restore self-test",
    "gate.settle": "a restore self-test is paid",
    "gate.note": "the verdict of a restore self-test is kept",
    "gate.on_demand": "a job goes without spot machines from now on",
    "gate.refuse": "a job whose trainable does not restore fails",
    "restore.books": "the books of a restored backup are made right",
    "restore.checkpoints": "checkpoints that the storage does not have are forgotten",
}
"""What each failpoint's transaction commits, by name."""


class Failpoint:
    """The point at which this process exits: the `number`th time that it is just before or after the named commit. Thread-safe."""

    def __init__(self, name: str, side: str, number: int = 1) -> None:
        self._where, self._left = (name, side), number
        self._lock = threading.Lock()

    @classmethod
    def parse(cls, text: str) -> "Failpoint":
        """Parse `NAME:before` or `NAME:after`. An appended `:3` means the third time that the process reaches this point.

        Raises:
            ValueError: The text has another form, or there is no such failpoint. The error names the setting and the
                nearest names.
        """
        name, _, rest = text.partition(":")
        side, colon, number = rest.partition(":")
        if name not in FAILPOINTS:
            near = difflib.get_close_matches(name, FAILPOINTS, n=3, cutoff=0.3) or sorted(FAILPOINTS)
            raise ValueError(
                f"TUNER_FAILPOINT: there is no failpoint {name!r}; the nearest: {', '.join(near)}"
            )
        right = side in SIDES and (not colon or (number.isdecimal() and int(number) > 0))
        if not right:
            raise ValueError(
                f"TUNER_FAILPOINT: {text!r} must be NAME:before or NAME:after, with the number of the passing after "
                f"another colon if it is not the first, such as {name}:after:3"
            )
        return cls(name, side, int(number or 1))

    def reached(self, name: str, side: str) -> None:
        """Record that the process is at this point. If it is time to exit, exit at once, without flushing or cleaning up."""
        if (name, side) != self._where:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.write(2, f"tuner: ends here, at the failpoint {name}:{side}\n".encode())
                os._exit(STATUS)
