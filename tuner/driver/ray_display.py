"""Show a running job in Ray's dashboard: its spend, and the work of each worker.

The spend is shown in the metadata of the Ray Job, and the work in the repr of the worker's actor. Ray 2.60 sets both
only once, when it creates them, and has no public call to change them. So this module changes the records that the
dashboard reads:

- The metadata is part of the Ray Job's record in the key-value store of Ray's control service (GCS). It is changed
  only while the job runs. Ray itself writes the record before a driver starts and after it ends.
- The dashboard learns about actors from messages of the GCS. Each message contains the repr of an actor, which the dashboard
  then shows. A message that is sent here has a random key, so that only the dashboard receives it: the dashboard subscribes to
  the messages of all actors, but drivers and workers subscribe to the keys of single actors.

Nothing else reads these texts. A failure is logged once and changes nothing for the job.
"""

import json
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import gcs_utils, ray_constants
from ray.core.generated import gcs_pb2, pubsub_pb2
from ray.core.generated import gcs_service_pb2 as messages
from ray.core.generated import gcs_service_pb2_grpc as services
from ray.dashboard.modules.job.common import JobInfoStorageClient

from tuner.domain.cost import total
from tuner.domain.money import ZERO, Money
from tuner.driver.loop import Loop

WORKERS_EVERY_S = 2.0
SPEND_EVERY_S = 10.0
TIMEOUT_S = 5.0

log = logging.getLogger("tuner.driver")


@dataclass(frozen=True, slots=True)
class WorkerActivity:
    """An attempt that a worker runs."""

    trial: str
    attempt: int
    step: int
    spent: Money  #: The attempt's cost so far, including the part that is not posted to the ledger yet.

    def text(self, earlier: Money) -> str:
        """Return the text for the dashboard, such as "trial_00003, attempt 1, step 5, $0.012".

        `earlier` is the cost of the trial's earlier attempts.
        """
        return f"{self.trial}, attempt {self.attempt}, step {self.step}, {earlier + self.spent}"


class RayDisplay:
    """Show a job in Ray's dashboard. A thread writes, so that the driver's loop never waits for Ray.

    Args:
        job: The job's name.
        submission_id: The id of the Ray Job.
        loop: The loop of the job. Only the thread that calls `turn` reads it.
        metadata: Returns the job's spend and budget, as texts for the metadata of the Ray Job. Called by the writing thread.
        cost_of: Returns the cost of an attempt that has ended, given its trial and number. Called by the writing thread.
    """

    def __init__(
        self,
        job: str,
        submission_id: str,
        loop: Loop,
        metadata: Callable[[], Mapping[str, str]],
        cost_of: Callable[[str, int], Money],
    ) -> None:
        self._job, self._submission_id, self._loop = job, submission_id, loop
        self._read_metadata, self._cost_of = metadata, cost_of
        # By the id of an actor: the attempt of each trial that it runs. An actor without attempts is removed once it is shown as idle.
        self._runs = defaultdict[bytes, dict[str, int]](dict)
        # By trial: the number of its newest attempt, and the cost of the attempts before. A running trial may have very many ledger entries,
        # so only those of ended attempts are added up, once.
        self._earlier = dict[str, tuple[int, Money]]()
        self._next = 0.0
        self._changed = threading.Condition()
        self._work: dict[bytes, list[WorkerActivity]] | None = None
        self._is_over = self._has_failed = False
        self._shown: dict[bytes, str] = {}
        self._metadata: Mapping[str, str] = {}
        self._spend_at = -SPEND_EVERY_S
        self._thread = threading.Thread(target=self._run, name="ray-display", daemon=True)

    def assign(self, actor: bytes, trial: str, attempt: int) -> None:
        """Record that an actor runs this attempt from now on."""
        self._runs[actor][trial] = attempt

    def turn(self, now: float) -> None:
        """Take a snapshot of the workers' current work, at most every two seconds.

        Call this in the driver's thread only.
        """
        if now < self._next:
            return
        self._next = now + WORKERS_EVERY_S
        work = {actor: self._work_of(attempts) for actor, attempts in self._runs.items()}
        for actor, activities in work.items():
            if not activities and self._shown.get(actor) == self._text([]):
                del self._runs[actor]
        with self._changed:
            self._work = work
            self._changed.notify()
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        """Show the final spend. Ray must still be connected."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_S)

    def _work_of(self, attempts: dict[str, int]) -> list[WorkerActivity]:
        """Return the current state of a worker's attempts for the dashboard. Remove those that have ended from `attempts`."""
        work = []
        for trial, attempt in list(attempts.items()):
            lease = self._loop.leases.get(trial)
            if lease is None or lease.attempt != attempt:
                del attempts[trial]
            else:
                step = max(lease.last_step, lease.from_step)
                spent = total(lease.posted).usd + lease.unposted()
                work.append(WorkerActivity(trial, attempt, step, spent))
        return work

    def _run(self) -> None:
        is_over = False
        while not is_over:
            with self._changed:
                self._changed.wait_for(lambda: self._work is not None or self._is_over)
                work, self._work, is_over = self._work or {}, None, self._is_over
            # Errors of Ray's internals or of the database must not affect the job here.
            try:
                self._show(work, is_over=is_over)
            except Exception as error:
                if not self._has_failed:
                    log.warning("Ray's dashboard does not show the newest figures: %s", error)
                self._has_failed = True

    def _show(self, work: Mapping[bytes, Sequence[WorkerActivity]], *, is_over: bool) -> None:
        metadata, now = self._read_metadata(), time.monotonic()
        if metadata != self._metadata and (is_over or now - self._spend_at >= SPEND_EVERY_S):
            self._spend_at = now
            change_metadata(self._submission_id, metadata)
            self._metadata = metadata
        texts = {actor: self._text(activities) for actor, activities in work.items()}
        new = {actor: text for actor, text in texts.items() if self._shown.get(actor) != text}
        if new:
            publish_reprs(new)
        self._shown = texts

    def _text(self, activities: Sequence[WorkerActivity]) -> str:
        texts = [
            activity.text(self._cost_before(activity.trial, activity.attempt)) for activity in activities
        ]
        return f"{self._job}: {'; '.join(texts) or 'idle'}"

    def _cost_before(self, trial: str, attempt: int) -> Money:
        """Return the cost of the trial's attempts before this one, which have all ended."""
        summed, cost = self._earlier.get(trial, (1, ZERO))
        cost = sum((self._cost_of(trial, number) for number in range(summed, attempt)), start=cost)
        self._earlier[trial] = attempt, cost
        return cost


def change_metadata(submission_id: str, changes: Mapping[str, str]) -> None:
    """Add `changes` to the metadata of a Ray Job. Do nothing if the Ray Job is not running, because Ray itself then writes its record."""
    gcs = _worker().gcs_client
    key = JobInfoStorageClient.JOB_DATA_KEY.format(job_id=submission_id).encode()
    stored = gcs.internal_kv_get(key, ray_constants.KV_NAMESPACE_JOB, timeout=TIMEOUT_S)
    record = json.loads(stored) if stored else {}
    if record.get("status") != "RUNNING":
        return
    record["metadata"] = {**(record.get("metadata") or {}), **changes}
    gcs.internal_kv_put(
        key, json.dumps(record).encode(), True, ray_constants.KV_NAMESPACE_JOB, timeout=TIMEOUT_S
    )


def publish_reprs(reprs: Mapping[bytes, str]) -> None:
    """Have the dashboard show new texts for this driver's actors, by actor id. Actors that are not alive are skipped."""
    channel = gcs_utils.create_gcs_channel(ray.get_runtime_context().gcs_address)
    try:
        alive = messages.GetAllActorInfoRequest.Filters(
            job_id=_worker().current_job_id.binary(), state=gcs_pb2.ActorTableData.ALIVE
        )
        request = messages.GetAllActorInfoRequest(filters=alive)
        actors = services.ActorInfoGcsServiceStub(channel).GetAllActorInfo(request, timeout=TIMEOUT_S)
        alive_actors = [row for row in actors.actor_table_data if row.actor_id in reprs]
        for row in alive_actors:
            row.repr_name = reprs[row.actor_id]
        messages_to_send = [
            pubsub_pb2.PubMessage(
                channel_type=pubsub_pb2.GCS_ACTOR_CHANNEL, key_id=os.urandom(16), actor_message=row
            )
            for row in alive_actors
        ]
        if messages_to_send:
            publisher = services.ControlPlanePubSubGcsServiceStub(channel)
            publisher.GcsPublish(messages.GcsPublishRequest(pub_messages=messages_to_send), timeout=TIMEOUT_S)
    finally:
        channel.close()


def _worker() -> Any:
    return ray._private.worker.global_worker
