"""A job's events as server-sent events.

A `report` or `trial` message contains a change. The last message of each event carries the event's number as `id`, so that a client that
reconnects with `Last-Event-ID` misses nothing. A `spend` or `job` message contains the present state and has no `id`.
"""

import asyncio
import json
from typing import Any

from tuner.api import serialize_jobs
from tuner.api.event_broadcaster import BEGIN, Look, Piece
from tuner.domain.job import FINAL
from tuner.service import answers
from tuner.service.answers import Told
from tuner.service.bootstrap import Service
from tuner.service.views import JobView

STANDING = {
    "id",
    "state",
    "stop_reason",
    "detail",
    "budget",
    "tags",
    "priority",
    "revision",
    "progress",
    "best",
}


class Record:
    """The recorded events of one job. Implements `tuner.api.event_broadcaster.Source`."""

    def __init__(self, service: Service, job: str) -> None:
        self._service, self._job = service, job

    async def look(self, after: int | None) -> Look:
        return await asyncio.to_thread(self._look, after)

    async def gap(self, after: int, until: int) -> Piece:
        return await asyncio.to_thread(lambda: told(answers.told(self._service, self._job, after, until)))

    async def newest(self) -> int:
        return await asyncio.to_thread(answers.newest, self._service, self._job)

    def whole(self, after: int) -> bytes:
        """Return the whole stream of a job that has ended: the messages of all events after `after`, and the job's state.

        Return b"" if there are more events than are read at once.
        """
        found = answers.changes(self._service, self._job, after)
        if found.told.more:
            return b""
        stand = "".join(message for _, message in standing(found.view).values())
        return BEGIN + (told(found.told).after(after) + stand).encode()

    def _look(self, after: int | None) -> Look:
        seq = answers.newest(self._service, self._job) if after is None else after
        found = answers.changes(self._service, self._job, seq)
        piece = Piece(seq, []) if after is None else told(found.told)
        ended = found.view.row.state in FINAL and (after is not None or found.told.seq == seq)
        return Look(piece, standing(found.view), ended)


def standing(view: JobView) -> dict[str, tuple[object, str]]:
    """Return the `spend` and `job` messages of the present state, each with a value to compare. A message
    is sent again if its value differs from that of the previous reading.

    The value does not contain the running time, because the `job` message of a running job would otherwise be sent at every reading.
    """
    shown = serialize_jobs.job_of(view)
    spend = {**shown.spend.model_dump(), "budget_usd": shown.budget["usd"]}
    job = shown.model_dump(include=STANDING)
    compared = {**job, "progress": {**job["progress"], "running_seconds": 0}}
    return {"spend": (spend, _message("spend", spend)), "job": (compared, _message("job", job))}


def told(found: Told) -> Piece:
    """Return the `report` and `trial` messages of some events, in the order of the events.

    Only the last message of an event has the event's number as `id`. A `report` comes after the `trial` message of the same event, so
    that a client that reconnects between the two has not received the report yet and gets it once.
    """
    parts = [(point.seq, 1, "report", _report(point)) for point in found.reports]
    parts += [(row.seq, 0, "trial", serialize_jobs.trial_of(row).model_dump()) for row in found.trials]
    parts.sort(key=lambda one: one[:2])
    numbers = [seq for seq, *_ in parts] + [None]
    messages = [
        (seq, _message(kind, body, seq if numbers[index + 1] != seq else None))
        for index, (seq, _, kind, body) in enumerate(parts)
    ]
    return Piece(found.seq, messages, found.more)


def _report(point: answers.Reached) -> dict[str, Any]:
    shown = serialize_jobs.best_of(point).model_dump(exclude={"config", "checkpoint"})
    return {**shown, "seq": point.seq}


def _message(kind: str, body: dict[str, Any], seq: int | None = None) -> str:
    number = "" if seq is None else f"id: {seq}\n"
    return f"{number}event: {kind}\ndata: {json.dumps(body)}\n\n"
